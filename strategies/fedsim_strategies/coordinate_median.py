"""The coordinate-wise median of the users' updates.

Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates, ICML 2018 (arXiv:1803.01498), algorithm 1, option I.
"""

import numpy as np
import torch

from fedsim.arrays import Arrays, coordinate_runs, zeros_like
from fedsim.combine_strategy import CombineStrategy


class CoordinateMedian(CombineStrategy):
    """Move every parameter by the median of what the users would move it by.

    Users count the same, however many images they hold; of an even number of them the mean of the
    middle two is taken. Bounded while less than half of the users lie.
    """

    def combine(self, updates: list[Arrays], num_examples: list[int]) -> Arrays:
        """Return the median of every coordinate."""
        median = zeros_like(updates[0])
        middle = slice((len(updates) - 1) // 2, len(updates) // 2 + 1)
        for name, run, values in coordinate_runs(updates):
            ordered = torch.from_numpy(np.sort(values.numpy(), axis=1))
            median[name].view(-1)[run] = ordered[:, middle].mean(dim=1, dtype=torch.float64)
        return median
