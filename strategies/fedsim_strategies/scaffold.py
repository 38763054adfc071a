"""SCAFFOLD: control variates against the drift of users whose data differ.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020
(arXiv:1910.06378), algorithm 1.
"""

from typing import Any, Literal

import torch

from fedsim.arrays import Arrays, zeros_like
from fedsim.client_part import Client, ClientPart
from fedsim.parameters import one_of
from fedsim.schedule import LearningRate, learning_rate
from fedsim.strategy import SumStrategy
from fedsim_strategies.effective_steps import effective_steps

_PREFIX = "scaffold.c:"  # the server's variate of the array "w" travels as "scaffold.c:w"


class Scaffold(SumStrategy):
    """FedAvg whose users correct every step by what they know of the others' gradients.

    User i takes K steps ``y <- y - learning_rate (g_i(y) - c_i + c)`` from ``y = x``, then

    - option I: ``c_i+ = grad f_i(x)``, over all of its images, without augmentation;
    - option II: ``c_i+ = c_i - c + (x - y) / (K learning_rate)``; with local momentum K is the
      steps' effective number (``effective_steps``).

    The server, with N users in all: ``x <- x + server_learning_rate mean(y - x)`` and
    ``c <- c + sum(c_i+ - c_i) / N``, the sum over the round's users, so that ``c`` stays the mean
    of all ``c_i``. All variates start at 0. Every user counts the same.

    A user's ``c_i`` is as large as the model, and stays on disk between its rounds.

    Under central DP the update and the variate's change are one vector, clipped and noised
    together, and the noised sum stands for the sum; ``c_i`` itself never leaves its user.

    Args:
        option: ``"I"`` (one pass over the user's images more) or ``"II"`` (all of the paper's
            experiments; only this one may be used under example-level DP).
        server_learning_rate: Step size of the server, above 0, or a schedule.
    """

    def __init__(
        self, *, option: Literal["I", "II"] = "II", server_learning_rate: LearningRate = 1.0
    ) -> None:
        super().__init__(weighting="uniform")
        self.option = one_of("strategy.option", option, ("I", "II"))
        self.server_learning_rate = learning_rate(server_learning_rate)
        self.c: Arrays = {}

    def client_part(self) -> ClientPart:
        """Return the users' control variates."""
        return ControlVariate(by_gradient=self.option == "I")

    def sent_along(self, arrays: Arrays) -> Arrays:
        """Return c."""
        self.c = self.c or zeros_like(arrays)
        return {_PREFIX + name: self.c[name] for name in arrays}

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Add the mean update, and move c by the sum of the changes over N."""
        share = self.denominator / self.population_size
        # A new dict: the round before's state may be written to a checkpoint yet.
        self.c = {name: self.c[name].add(update[_PREFIX + name], alpha=share) for name in arrays}
        rate = self.server_learning_rate(round_num)
        return {name: a.add(update[name], alpha=rate) for name, a in arrays.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return c."""
        return {"c": self.c}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take c back."""
        self.c = state["c"]


class ControlVariate(ClientPart):
    """Corrects a user's steps, and renews its ``c_i``, which is its state.

    Args:
        by_gradient: Option I.
    """

    state_copies = 1.0

    def __init__(self, by_gradient: bool) -> None:
        self.by_gradient = by_gradient
        self.keeps_example_level = not by_gradient

    def start(self, client: Client) -> None:
        """Begin with zeros, at the user's first participation."""
        client.state = client.state or zeros_like(client.parameters)

    def adjust(self, client: Client, gradients: list[torch.Tensor]) -> None:
        """Add ``c - c_i``."""
        for gradient, name in zip(gradients, client.parameters, strict=True):
            gradient.add_(client.sent_along[_PREFIX + name]).sub_(client.state[name])

    def finish(self, client: Client) -> Arrays:
        """Renew ``c_i``, and return by how much it changed."""
        renewed = self._gradient(client) if self.by_gradient else self._mean_step(client)
        change = {_PREFIX + name: c - client.state[name] for name, c in renewed.items()}
        client.state = renewed
        return change

    def _gradient(self, client: Client) -> Arrays:
        """Return the gradient at x; the parameters are y again afterwards."""
        trained = [y.clone() for y in client.parameters.values()]
        own = list(client.parameters.values())
        torch._foreach_copy_(own, list(client.received.values()))
        gradients = client.gradient()
        torch._foreach_copy_(own, trained)
        return dict(zip(client.parameters, gradients, strict=True))

    def _mean_step(self, client: Client) -> Arrays:
        length = client.learning_rate * effective_steps(client.num_steps, client.momentum)
        return {
            name: client.state[name]
            - client.sent_along[_PREFIX + name]
            + (client.received[name] - y) / length
            for name, y in client.parameters.items()
        }
