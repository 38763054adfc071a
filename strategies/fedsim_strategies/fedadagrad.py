"""Federated averaging with Adagrad on the server.

Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv:2003.00295), algorithm 2.
"""

from typing import Any, Literal

from fedsim.arrays import Arrays
from fedsim.schedule import LearningRate, learning_rate
from fedsim.strategy import SumStrategy
from fedsim.update_sum import Weighting
from fedsim_strategies.adaptive import Moments, with_preset


class FedAdagrad(SumStrategy):
    """FedAdam with a second moment that only grows.

    ``m <- beta_1 m + (1 - beta_1) u``, ``v <- v + u^2``,
    ``x <- x + server_learning_rate * m / (sqrt(v) + epsilon)``, with ``v`` from ``epsilon^2``.
    The second moment is a sum, not a mean: there is no bias to correct.

    Args:
        weighting: The mean over users or over examples.
        server_learning_rate: Step size of the server, above 0, or a schedule.
        beta_1: Decay of the first moment, in [0, 1); 0 in the paper's experiments.
        epsilon: Adaptivity (the paper's tau), above 0.
        initial_v: What ``v`` starts at, at least 0; ``epsilon^2`` if left out.
        preset: Sets ``initial_v``: ``"paper"``, or ``"flower"`` (Flower 1.42: 0).
    """

    def __init__(
        self,
        *,
        weighting: Weighting = "examples",
        server_learning_rate: LearningRate = 0.1,
        beta_1: float = 0.0,
        epsilon: float = 1e-3,
        initial_v: float | None = None,
        preset: Literal["paper", "flower"] | None = None,
    ) -> None:
        super().__init__(weighting=weighting)
        self.server_learning_rate = learning_rate(server_learning_rate)
        presets = {"paper": {"initial_v": epsilon**2}, "flower": {"initial_v": 0.0}}
        self.moments = Moments(
            lambda v, u: v + u * u,
            beta_1=beta_1,
            epsilon=epsilon,
            **with_preset(preset, presets, {"initial_v": initial_v}),
        )

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Update both moments and step."""
        rate = self.server_learning_rate(round_num)
        step = self.moments.direction(round_num, update)
        return {name: a + rate * step[name] for name, a in arrays.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return both moments."""
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the moments back."""
        self.moments.load_state_dict(state)
