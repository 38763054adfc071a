"""The part of a strategy that runs where a user trains.

A strategy that only combines updates needs none. One that changes the training itself (another
term in the loss, control variates, something that a user keeps between rounds) returns a
``ClientPart`` from ``client_part()``::

    class Proximal(ClientPart):
        def __init__(self, mu: float) -> None:
            self.mu = mu

        def adjust(self, client, gradients):
            for g, w, w0 in zip(gradients, client.parameters.values(), client.received.values()):
                g.add_(w - w0, alpha=self.mu)

It is made in each process that trains, and serves one user after another: what belongs to a user
stands in the ``Client``, never in the part.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from fedsim.arrays import Arrays


@dataclass
class Client:
    """One user in one round.

    Attributes:
        user: The user's id.
        round_num: From 1.
        num_examples: How many images the user holds.
        learning_rate: Of local SGD.
        momentum: Of local SGD.
        parameters: The trainable parameters by name, the model's own tensors: trained in place.
        received: What they were when they came, by the same names; not to be written to.
        sent_along: What the strategy sent beside the model (``SumStrategy.sent_along``); not to be
            written to.
        state: What this user's last participation left behind, by name; empty at the first one.
            Replace it to leave something else.
        loss: Returns the mean loss over all of the user's images at the parameters as they are,
            without augmentation.
        gradient: Returns the gradient of that loss, a tensor for each parameter.
        num_steps: Steps taken so far.
    """

    user: str
    round_num: int
    num_examples: int
    learning_rate: float
    momentum: float
    parameters: Arrays
    received: Arrays
    sent_along: Arrays
    state: Arrays
    loss: Callable[[], float]
    gradient: Callable[[], list[torch.Tensor]]
    num_steps: int = field(default=0)


class ClientPart:
    """What a strategy does where a user trains; every method may be left as it is.

    Attributes:
        state_copies: How many times the size of the model a user's state may take.
        keeps_example_level: Whether the user's images are used through the steps' gradients alone,
            so that example-level DP-SGD still bounds what is sent back. A part that says so may
            call neither ``loss`` nor ``gradient``.
    """

    state_copies: float = 0.0
    keeps_example_level: bool = False

    def start(self, client: Client) -> None:
        """Begin a user's round, before the first step."""

    def adjust(self, client: Client, gradients: list[torch.Tensor]) -> None:
        """Change a step's gradients in place, one for each of ``client.parameters``."""

    def finish(self, client: Client) -> Arrays:
        """End a user's round, after the last step; ``client.parameters`` may be written to.

        Returns:
            What is sent back beside the parameters: for each name in ``client.sent_along`` an
            array of the same shape, which the strategy gets the cohort's mean of. A name that is
            left out stands for zeros.
        """
        return {}
