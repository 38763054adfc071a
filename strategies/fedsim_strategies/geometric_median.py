"""The geometric median of the users' updates (RFA).

Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE Transactions on
Signal Processing 2022 (arXiv:1912.13445), algorithm 2: the smoothed Weiszfeld algorithm.
"""

import torch

from fedsim.arrays import Arrays, l2_norm, zeros_like
from fedsim.combine_strategy import CombineStrategy
from fedsim.parameters import number, one_of, whole_number
from fedsim.update_sum import Weighting


class GeometricMedian(CombineStrategy):
    """Move the global arrays by the point with the least weighted distance to all updates.

    ``z <- sum(b_i u_i) / sum(b_i)`` with ``b_i = a_i / max(epsilon, |z - u_i|)``, some times over.
    It starts at zero, the arrays as they were sent: a start at the mean would be wherever one huge
    update drags it, and a few steps would not come back.

    Args:
        weighting: ``a_i``: the number of examples (the paper's) or the same for every user.
            Bounded while less than half of the weight lies.
        iterations: Steps, at least 1.
        epsilon: The smoothing (the paper's nu), above 0, in the updates' unit.
    """

    def __init__(
        self,
        *,
        weighting: Weighting = "examples",
        iterations: int = 8,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__()
        self.weighting = one_of("strategy.weighting", weighting, ("uniform", "examples"))
        self.iterations = whole_number("strategy.iterations", iterations, at_least=1)
        self.epsilon = number("strategy.epsilon", epsilon, above=0)

    def combine(self, updates: list[Arrays], num_examples: list[int]) -> Arrays:
        """Return the median after the last step."""
        weights = num_examples if self.weighting == "examples" else [1] * len(updates)
        center = zeros_like(updates[0])
        for _ in range(self.iterations):
            scales = [
                weight / max(self.epsilon, _distance(center, update))
                for weight, update in zip(weights, updates, strict=True)
            ]
            center = _weighted_mean(updates, scales)
        return center


def _distance(a: Arrays, b: Arrays) -> float:
    return l2_norm([a[name] - b[name] for name in a])


def _weighted_mean(updates: list[Arrays], scales: list[float]) -> Arrays:
    mean, total = zeros_like(updates[0]), sum(scales)
    for update, scale in zip(updates, scales, strict=True):
        torch._foreach_add_(
            list(mean.values()), [update[name] for name in mean], alpha=scale / total
        )
    return mean
