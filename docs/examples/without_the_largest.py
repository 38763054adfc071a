"""How updates are combined: the mean of all but the largest."""

import torch

from fedsim.arrays import l2_norm
from fedsim.combine_strategy import CombineStrategy


class WithoutTheLargest(CombineStrategy):
    """Leave out the user whose update is the longest."""

    def combine(self, updates, num_examples):
        """Return the mean of the others; a user alone is kept."""
        by_length = sorted(updates, key=lambda update: l2_norm(update.values()))
        kept = by_length[:-1] or by_length
        return {name: torch.stack([u[name] for u in kept]).mean(dim=0) for name in kept[0]}
