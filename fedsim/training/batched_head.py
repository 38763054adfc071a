"""Trains a last linear layer for the users of a block, many at once, and folds their updates."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fedsim.arrays import Arrays
from fedsim.errors import EngineError
from fedsim.streams import torch_stream
from fedsim.training.stacked_layers import Float64s, Int64s, StackedForm, norms_of, train_stack
from fedsim.training.trainer import Trainer
from fedsim.training.user_groups import grouped
from fedsim.update_sum import FoldRule, UpdateSum

NUM_BLOCKS = 8
"""Partial sums of a cohort, fewer than elsewhere: more users at once. Part of the numbers."""

_BYTES_AT_ONCE = 3 * 2**19  # of the layers of users that train together: a few dozen of usual ones


class BatchedHeadTrainer(Trainer):
    """A trainer of a last layer on features, which also trains blocks of users at once.

    Attributes:
        bytes_at_once: Users are trained together whose layers take so much memory. No number
            depends on it.
    """

    bytes_at_once: int = _BYTES_AT_ONCE

    def train_block(
        self, users: Sequence[str], round_num: int, received: Arrays, rule: FoldRule, total: Arrays
    ) -> UpdateSum:
        """Train each of some users from what was sent, and fold their clipped updates.

        Args:
            users: Their ids, each once.
            round_num: From 1.
            received: What was sent: the layer's arrays. Not written to.
            rule: Weighting and clipping.
            total: Of the same names and shapes; the sum is put there.

        Returns:
            The sum, and what each user reports, in the order of ``users``.

        Raises:
            DataError: A user is not one of the train split's.
            EngineError: A user's update is not finite; names round and user.
        """
        start = StackedForm.of(received)
        # Batches are padded to this size: one beyond the largest user would be memory for nothing.
        largest = int(self._users.num_images.max())
        settings = replace(self._settings, batch_size=min(self._settings.batch_size, largest))
        index = np.array([self._known(user, round_num) for user in users])
        sizes, firsts = self._users.num_images[index], self._offsets[index]
        weights = np.ones(len(users)) if rule.weighting == "uniform" else sizes.astype(np.float64)
        losses, norms = np.zeros(len(users)), np.zeros(len(users))
        summed = torch.zeros_like(start.matrix)

        def stream(place: int) -> torch.Generator:
            return torch_stream(self._stream_seed, "batches", round_num, users[place])

        at_once = max(1, self.bytes_at_once // (4 * start.matrix.numel()))
        for group in grouped(sizes, settings, at_once):
            places = group.places
            examples = self._read("train", _runs(firsts[places], group.sizes))
            batches = group.batches(settings, stream)
            updates, losses[places] = train_stack(
                start, examples, batches, group.num_steps, settings
            )
            norms[places] = norms_of(updates)
            for place in places[~np.isfinite(norms[places])]:
                raise EngineError(
                    f"round {round_num}, user {users[place]!r}: expected an update of finite "
                    "numbers, found NaN or infinity; lower federated.local.learning_rate or set "
                    "federated.local.max_grad_norm"
                )
            scales = np.minimum(1.0, rule.clipping_norm / np.maximum(norms[places], 1e-300))
            _add(summed, updates, scales * weights[places])
        losses /= settings.epochs * sizes * len(start.matrix)
        StackedForm(summed, start.num_columns).copy_to(total)
        return UpdateSum(
            total, sizes.tolist(), losses.tolist(), norms.tolist(), float(weights.sum())
        )


def _runs(firsts: Int64s, sizes: Int64s) -> Int64s:
    """Return ``sizes[i]`` numbers from ``firsts[i]`` on for each i, one after another."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(firsts - before, sizes) + np.arange(sizes.sum())


def _add(total: torch.Tensor, updates: torch.Tensor, weights: Float64s) -> None:
    """Add weighted updates to a sum, one by one."""
    for update, weight in zip(updates, weights.tolist(), strict=True):
        total.add_(update, alpha=weight)
