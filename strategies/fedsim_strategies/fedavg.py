"""Federated averaging.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017 (arXiv:1602.05629), algorithm 1.
"""

from fedsim.arrays import Arrays
from fedsim.schedule import LearningRate, learning_rate
from fedsim.strategy import SumStrategy
from fedsim.update_sum import Weighting


class FedAvg(SumStrategy):
    """Move the global arrays by the cohort's mean update.

    ``x <- x + server_learning_rate * mean(update)``. With a server learning rate of 1 this is the
    mean of the users' trained arrays.

    Args:
        weighting: The mean over users (``"uniform"``) or over examples (``"examples"``, the
            paper's).
        server_learning_rate: Step size of the server, above 0, or a schedule.
    """

    def __init__(
        self, *, weighting: Weighting = "examples", server_learning_rate: LearningRate = 1.0
    ) -> None:
        super().__init__(weighting=weighting)
        self.server_learning_rate = learning_rate(server_learning_rate)

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Add the mean update."""
        rate = self.server_learning_rate(round_num)
        return {name: a.add(update[name], alpha=rate) for name, a in arrays.items()}
