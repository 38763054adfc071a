"""Federated averaging with momentum on the server.

Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019 (arXiv:1909.06335), section 3.3.
"""

from typing import Any

from fedsim.arrays import Arrays, zeros_like
from fedsim.parameters import number
from fedsim.schedule import LearningRate, learning_rate
from fedsim.strategy import SumStrategy
from fedsim.update_sum import Weighting


class FedAvgM(SumStrategy):
    """Accumulate the mean update as a heavy ball does.

    ``v <- server_momentum * v + u``, ``x <- x + server_learning_rate * v``, from ``v = 0``.
    The step is that of ``torch.optim.SGD`` without dampening for the gradient ``-u``.

    Args:
        weighting: The mean over users or over examples.
        server_learning_rate: Step size of the server, above 0, or a schedule.
        server_momentum: In [0, 1); 0 is FedAvg.
    """

    def __init__(
        self,
        *,
        weighting: Weighting = "examples",
        server_learning_rate: LearningRate = 1.0,
        server_momentum: float = 0.9,
    ) -> None:
        super().__init__(weighting=weighting)
        self.server_learning_rate = learning_rate(server_learning_rate)
        self.server_momentum = number(
            "strategy.server_momentum", server_momentum, at_least=0, below=1
        )
        self.v: Arrays = {}

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Add the accumulated update."""
        rate, v = self.server_learning_rate(round_num), self.v or zeros_like(arrays)
        self.v = {name: self.server_momentum * v[name] + update[name] for name in arrays}
        return {name: a.add(self.v[name], alpha=rate) for name, a in arrays.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what is accumulated."""
        return {"v": self.v}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.v = state["v"]
