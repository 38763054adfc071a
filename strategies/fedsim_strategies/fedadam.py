"""Federated averaging with Adam on the server.

Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv:2003.00295), algorithm 2.
"""

from typing import Any, Literal

from fedsim.arrays import Arrays
from fedsim.schedule import LearningRate, learning_rate
from fedsim.strategy import SumStrategy
from fedsim.update_sum import Weighting
from fedsim_strategies.adaptive import BiasCorrection, Moments, with_preset


class FedAdam(SumStrategy):
    """Treat the mean update as a gradient and let Adam take the server step.

    ``m <- beta_1 m + (1 - beta_1) u``, ``v <- beta_2 v + (1 - beta_2) u^2``,
    ``x <- x + server_learning_rate * m / (sqrt(v) + epsilon)``, as in the paper: without bias
    correction, and with ``v`` starting at ``epsilon^2``. Others start otherwise, and their names
    are presets; with the same learning rate the first rounds differ by a factor of up to 10.

    Args:
        weighting: The mean over users or over examples.
        server_learning_rate: Step size of the server, above 0, or a schedule.
        beta_1: Decay of the first moment, in [0, 1).
        beta_2: Decay of the second moment, in [0, 1).
        epsilon: Adaptivity (the paper's tau), above 0.
        initial_v: What ``v`` starts at, at least 0; ``epsilon^2`` if left out.
        bias_correction: ``"none"`` if left out; the others are defined in ``Moments``.
        preset: Sets the two above. ``"paper"``; ``"flower"`` (Flower 1.42: ``v`` from 0,
            ``"step_size_next"``); ``"tff"`` (Keras's Adam: from 0, ``"step_size"``); ``"pfl"``
            (torch's Adam: from 0, ``"moments"``).
    """

    def __init__(
        self,
        *,
        weighting: Weighting = "examples",
        server_learning_rate: LearningRate = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        epsilon: float = 1e-3,
        initial_v: float | None = None,
        bias_correction: BiasCorrection | None = None,
        preset: Literal["paper", "flower", "tff", "pfl"] | None = None,
    ) -> None:
        super().__init__(weighting=weighting)
        self.server_learning_rate = learning_rate(server_learning_rate)
        presets = {
            "paper": {"initial_v": epsilon**2, "bias_correction": "none"},
            "flower": {"initial_v": 0.0, "bias_correction": "step_size_next"},
            "tff": {"initial_v": 0.0, "bias_correction": "step_size"},
            "pfl": {"initial_v": 0.0, "bias_correction": "moments"},
        }
        given = {"initial_v": initial_v, "bias_correction": bias_correction}
        self.moments = Moments(
            lambda v, u: beta_2 * v + (1 - beta_2) * u * u,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            **with_preset(preset, presets, given),
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
