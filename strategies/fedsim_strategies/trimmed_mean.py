"""The coordinate-wise trimmed mean of the users' updates.

Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates, ICML 2018 (arXiv:1803.01498), algorithm 1, option II.
"""

import numpy as np
import torch

from fedsim.arrays import Arrays, coordinate_runs, zeros_like
from fedsim.combine_strategy import CombineStrategy
from fedsim.parameters import number


class TrimmedMean(CombineStrategy):
    """Move every parameter by the mean of what is left without the largest and smallest values.

    Of n users the ``floor(trim n)`` largest and as many of the smallest values are left out.
    Users count the same, however many images they hold. Bounded while no more users lie than are
    left out at one end.

    Args:
        trim: The share that is left out at each end (the paper's beta), in [0, 0.5).
    """

    def __init__(self, *, trim: float = 0.2) -> None:
        super().__init__()
        self.trim = number("strategy.trim", trim, at_least=0, below=0.5)

    def combine(self, updates: list[Arrays], num_examples: list[int]) -> Arrays:
        """Return the trimmed mean of every coordinate, summed in float64."""
        left_out = int(self.trim * len(updates) + 1e-9)  # 0.29 of 100 is 28.999999999999996
        inner = slice(left_out, len(updates) - left_out)
        mean = zeros_like(updates[0])
        for name, run, values in coordinate_runs(updates):
            ordered = torch.from_numpy(np.sort(values.numpy(), axis=1))
            mean[name].view(-1)[run] = ordered[:, inner].mean(dim=1, dtype=torch.float64)
        return mean
