"""Federated averaging with Adam on the server.

Reddi et al., Adaptive Federated Optimization, ICLR 2021 (arXiv:2003.00295), algorithm 2.
"""

from typing import Any

import torch

from fedsim.arrays import Arrays, zeros_like
from fedsim.strategy import SumStrategy
from fedsim.update_sum import Weighting


class FedAdam(SumStrategy):
    """Treat the mean update as a gradient and let Adam take the server step.

    ``m <- beta_1 m + (1 - beta_1) u``, ``v <- beta_2 v + (1 - beta_2) u^2``,
    ``x <- x + server_learning_rate * m / (sqrt(v) + epsilon)``, as in the paper: without bias
    correction, and with ``v`` starting at ``epsilon^2``.

    Args:
        weighting: The mean over users or over examples.
        server_learning_rate: Step size of the server, above 0.
        beta_1: Decay of the first moment, in [0, 1).
        beta_2: Decay of the second moment, in [0, 1).
        epsilon: Adaptivity (the paper's tau), above 0.
    """

    def __init__(
        self,
        *,
        weighting: Weighting = "examples",
        server_learning_rate: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        epsilon: float = 1e-3,
    ) -> None:
        super().__init__(weighting=weighting)
        self.server_learning_rate = server_learning_rate
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.m: Arrays = {}
        self.v: Arrays = {}

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        """Update both moments and step."""
        if not self.m:
            self.m = zeros_like(arrays)
            self.v = {name: torch.full_like(a, self.epsilon**2) for name, a in arrays.items()}
        stepped = {}
        for name, a in arrays.items():
            u = update[name]
            self.m[name] = self.beta_1 * self.m[name] + (1 - self.beta_1) * u
            self.v[name] = self.beta_2 * self.v[name] + (1 - self.beta_2) * u * u
            step = self.m[name] / (self.v[name].sqrt() + self.epsilon)
            stepped[name] = a + self.server_learning_rate * step
        return stepped

    def state_dict(self) -> dict[str, Any]:
        """Return both moments."""
        return {"m": self.m, "v": self.v}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the moments back."""
        self.m, self.v = state["m"], state["v"]
