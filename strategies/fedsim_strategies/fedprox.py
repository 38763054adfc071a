"""FedProx: local training that stays near the global model.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (arXiv:1812.06127),
algorithm 2.
"""

import torch

from fedsim.arrays import Arrays
from fedsim.client_part import Client, ClientPart
from fedsim.parameters import number
from fedsim.schedule import LearningRate, learning_rate
from fedsim.strategy import SumStrategy
from fedsim.update_sum import Weighting


class FedProx(SumStrategy):
    """FedAvg whose users minimize ``F(w) + mu / 2 |w - x|^2``, where x is what they received.

    The server's part is FedAvg's, and with ``mu`` 0 so is the users'.

    Args:
        mu: Weight of the proximal term, at least 0; the paper tries 0.001 to 1.
        weighting: The mean over users or over examples. The paper draws users by their number of
            examples and takes the mean over users; over uniform cohorts ``"examples"`` has the
            same expectation.
        server_learning_rate: Step size of the server, above 0, or a schedule; 1 in the paper.
    """

    def __init__(
        self,
        *,
        mu: float = 0.1,
        weighting: Weighting = "examples",
        server_learning_rate: LearningRate = 1.0,
    ) -> None:
        super().__init__(weighting=weighting)
        self.mu = number("strategy.mu", mu, at_least=0)
        self.server_learning_rate = learning_rate(server_learning_rate)

    def client_part(self) -> ClientPart:
        """Return the proximal term."""
        return Proximal(self.mu)

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Add the mean update."""
        rate = self.server_learning_rate(round_num)
        return {name: a.add(update[name], alpha=rate) for name, a in arrays.items()}


class Proximal(ClientPart):
    """Adds the proximal term's gradient.

    Args:
        mu: Its weight.
    """

    keeps_example_level = True

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def adjust(self, client: Client, gradients: list[torch.Tensor]) -> None:
        """Add ``mu (w - x)``."""
        add_proximal_gradient(client, gradients, self.mu)


def add_proximal_gradient(client: Client, gradients: list[torch.Tensor], mu: float) -> None:
    """Add the gradient of ``mu / 2 |w - x|^2`` in place."""
    weights = zip(client.parameters.values(), client.received.values(), strict=True)
    for gradient, (w, x) in zip(gradients, weights, strict=True):
        gradient.add_(w - x, alpha=mu)
