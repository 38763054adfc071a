"""Trains a last linear layer for many users at once: the loop's steps as batched matrix products.

A bias is the weight of a feature that is always 1, so a layer is one matrix W, and the logits of a
batch of n images with features x are ``W x^T``. The gradient of its mean loss over L labels is
``r x`` with the residuals ``r = (sigmoid(logits) - y) / (n L)``. So a step of k users is two
products of stacks of k matrices.

Users that take more steps come first; at step t those that are done stand at the end and are left
out. A batch is padded with rows of residual 0, up to a number of rows that its *user* fixes, so no
user's numbers depend on who else is there. The numbers differ from the loop's in the last bits:
the same sums, in another order.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from fedsim.arrays import Arrays
from fedsim.errors import EngineError
from fedsim.streams import torch_stream
from fedsim.training.local import LocalSettings, shuffled_batches
from fedsim.training.trainer import Trainer
from fedsim.update_sum import FoldRule, UpdateSum

NUM_BLOCKS = 8
"""Partial sums of a cohort, fewer than elsewhere: more users at once. Part of the numbers."""

_BYTES_AT_ONCE = 2**20  # of the users' layers: what stays in a core's cache between steps
_ALIGNED = 32  # floats of two registers: torch computes what is left over by other instructions
_FEW_IMAGES = 4  # half of FLAIR's users have one or two: their batches are padded to this


@dataclass(frozen=True)
class _User:
    """One user of a block.

    Attributes:
        place: In the block.
        first: The user's first row in the block's features.
        num_images: Rows from there on.
        rows: Of each of the user's batches, padded.
        steps: In all epochs.
    """

    place: int
    first: int
    num_images: int
    rows: int
    steps: int


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
        numbers = [self._numbers_of(self._known(user, round_num)) for user in users]
        sizes = [len(own) for own in numbers]
        examples = self._read("train", np.concatenate(numbers))
        features = _with_constant(examples.images, len(received) - 1)
        targets = torch.nn.functional.pad(examples.labels.float(), (0, 0, 0, 1))
        start = _as_matrix(received, features.shape[1])
        fold = _Fold(rule, torch.zeros_like(start))
        losses, norms = np.zeros(len(users)), np.zeros(len(users))
        at_once = max(1, self.bytes_at_once // (4 * start.numel()))
        for group in _groups(_planned(sizes, self._settings), at_once):
            rows = self._batches_of(group, users, round_num)
            stack, loss = _train_together(start, features, targets, group, rows, self._settings)
            places = [user.place for user in group]
            losses[places] = loss
            where = [f"round {round_num}, user {users[place]!r}" for place in places]
            norms[places] = fold.add(stack.sub_(start), [user.num_images for user in group], where)
        first = 0
        for array in total.values():  # the weight's columns, then the bias
            width = array[0].numel()
            array.copy_(fold.total[:, first : first + width].reshape(array.shape))
            first += width
        weight = float(len(users) if rule.weighting == "uniform" else sum(sizes))
        return UpdateSum(total, sizes, losses.tolist(), norms.tolist(), weight)

    def _batches_of(
        self, group: list[_User], users: Sequence[str], round_num: int
    ) -> npt.NDArray[np.int64]:
        """Return rows of the block's features, shape (steps, users, rows); -1 pads.

        The order is the loop's, from the same stream. A user whose images are all in one batch
        needs none, since a gradient is a sum.
        """
        settings, padded = self._settings, group[0].rows
        if group[0].num_images <= settings.batch_size:
            sizes = np.array([[user.num_images] for user in group])
            firsts = np.array([[user.first] for user in group])
            batch = np.where(np.arange(padded) < sizes, firsts + np.arange(padded), -1)
            return np.broadcast_to(batch, (settings.epochs, *batch.shape))
        index = np.full((group[0].steps, len(group), padded), -1, dtype=np.int64)
        for place, user in enumerate(group):
            stream = torch_stream(self._seed, "batches", round_num, users[user.place])
            size, epochs = settings.batch_size, settings.epochs
            for step, rows in enumerate(shuffled_batches(user.num_images, size, epochs, stream)):
                index[step, place, : len(rows)] = rows.numpy() + user.first
        return index


def _with_constant(features: torch.Tensor, constant: float) -> torch.Tensor:
    """Add the feature that is always 1, or 0 without a bias, and zeros up to a whole width.

    The last row is zeros too: it pads batches.
    """
    num_rows, width = features.shape
    padded = features.new_zeros(num_rows + 1, _ALIGNED * (width // _ALIGNED + 1))
    padded[:-1, :width] = features
    padded[:-1, width] = constant
    return padded


def _as_matrix(layer: Arrays, width: int) -> torch.Tensor:
    """Return weight and bias side by side, with zeros after them, shape (labels, width)."""
    columns = torch.cat([array.reshape(len(array), -1) for array in layer.values()], dim=1)
    return torch.nn.functional.pad(columns, (0, width - columns.shape[1]))


def _planned(sizes: list[int], settings: LocalSettings) -> list[_User]:
    """Return a block's users: those of equal padding together, of more steps first."""
    size = settings.batch_size
    firsts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    users = [
        _User(
            place,
            firsts[place],
            num_images,
            min(size, _FEW_IMAGES) if num_images <= _FEW_IMAGES else size,
            settings.epochs * math.ceil(num_images / size),
        )
        for place, num_images in enumerate(sizes)
    ]
    return sorted(users, key=lambda user: (-user.rows, -user.steps))


def _groups(plan: list[_User], at_once: int) -> Iterator[list[_User]]:
    """Cut users that are padded alike into groups of a size; one-batch users stay apart."""
    group: list[_User] = []
    for user in plan:
        if group and (
            len(group) == at_once
            or user.rows != group[0].rows
            or (user.num_images <= user.rows) != (group[0].num_images <= group[0].rows)
        ):
            yield group
            group = []
        group.append(user)
    if group:
        yield group


@torch.no_grad()
def _train_together(
    start: torch.Tensor,
    features: torch.Tensor,
    targets: torch.Tensor,
    group: list[_User],
    index: npt.NDArray[np.int64],
    settings: LocalSettings,
) -> tuple[torch.Tensor, npt.NDArray[np.float64]]:
    """Return the users' layers after training, stacked, and each one's mean loss over all steps."""
    num_labels, padded = len(start), index.shape[2]
    active = [sum(user.steps > step for user in group) for step in range(len(index))]
    chosen = np.concatenate([rows[:k] for rows, k in zip(index, active, strict=True)])
    batches = _Batches.of(chosen, targets)
    layers = start.expand(len(group), *start.shape).clone()
    optimizer = _StackedSgd(settings)
    same = index.strides[0] == 0  # every step has the same batches
    inputs, begin = features, 0
    for k in active:
        step = slice(begin, begin + k)
        if not same or begin == 0:
            inputs = features.index_select(0, batches.rows[step].view(-1)).view(k, padded, -1)
        logits = batches.cut(batches.logits[step])
        torch.bmm(layers[:k], inputs.transpose(1, 2), out=logits)
        optimizer.step(layers[:k], batches.cut(batches.residuals(step)), inputs)
        begin = step.stop
    owners = np.concatenate([np.arange(k) for k in active])
    losses = np.bincount(owners, batches.summed_losses(), len(group))
    return layers, losses / [settings.epochs * user.num_images * num_labels for user in group]


@dataclass(frozen=True)
class _Batches:
    """What all batches of a group of users hold.

    Arrays of logits and labels have a row per batch, labels by rows, and zeros up to a whole number
    of vector registers: a row's exponentials are then computed alike wherever it stands.

    Attributes:
        rows: Of the features, shape (batches, rows); a padded one is the last, of zeros.
        logits: To be filled in.
        wanted: The labels.
        mask: 1 where there is an image, else 0.
        scale: 1 / (images of the batch * labels) where there is an image, else 0.
        num_labels: L.
    """

    rows: torch.Tensor
    logits: torch.Tensor
    wanted: torch.Tensor
    mask: torch.Tensor
    scale: torch.Tensor
    num_labels: int

    @classmethod
    def of(cls, chosen: npt.NDArray[np.int64], targets: torch.Tensor) -> "_Batches":
        """Make them of rows, -1 for none, and of the labels of all rows and of the one of zeros."""
        num_batches, padded = chosen.shape
        num_labels = targets.shape[1]
        rows = torch.from_numpy(np.where(chosen < 0, len(targets) - 1, chosen))
        mask = torch.from_numpy(chosen >= 0).float()
        scale = mask / (mask.sum(dim=1, keepdim=True) * num_labels)
        width = -(-padded * num_labels // _ALIGNED) * _ALIGNED

        def spread(values: torch.Tensor) -> torch.Tensor:
            laid = torch.zeros(num_batches, width)
            _cut(laid, padded, num_labels).copy_(values)
            return laid

        labels = targets[rows].transpose(1, 2)
        logits = torch.zeros(num_batches, width)
        masks, scales = spread(mask[:, None]), spread(scale[:, None])
        return cls(rows, logits, spread(labels), masks, scales, num_labels)

    def cut(self, laid: torch.Tensor) -> torch.Tensor:
        """Return an array without its padding, shape (batches, labels, rows)."""
        return _cut(laid, self.rows.shape[1], self.num_labels)

    def residuals(self, step: slice) -> torch.Tensor:
        """Return the gradient of some batches' losses with respect to their logits."""
        return self.logits[step].sigmoid().sub_(self.wanted[step]).mul_(self.scale[step])

    def summed_losses(self) -> npt.NDArray[np.float64]:
        """Return each batch's loss, summed over images and labels."""
        losses = binary_cross_entropy_with_logits(
            self.logits, self.wanted, self.mask, reduction="none"
        )
        summed: npt.NDArray[np.float64] = losses.double().numpy().sum(axis=1)
        return summed


def _cut(laid: torch.Tensor, padded: int, num_labels: int) -> torch.Tensor:
    return laid[:, : num_labels * padded].view(len(laid), num_labels, padded)


class _StackedSgd:
    """What ``fedsim.training.step.Sgd`` does to one layer, for a stack of them."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._buffer: torch.Tensor | None = None

    def step(self, layers: torch.Tensor, residuals: torch.Tensor, inputs: torch.Tensor) -> None:
        """Update the layers in place.

        Args:
            layers: Shape (k, labels, features); k never grows.
            residuals: The loss's gradient with respect to the logits, shape (k, labels, rows).
            inputs: Shape (k, rows, features).
        """
        settings = self._settings
        rate, decay = settings.learning_rate, settings.weight_decay
        if settings.max_grad_norm is None and not settings.momentum:
            layers.baddbmm_(residuals, inputs, beta=1 - rate * decay, alpha=-rate)
            return
        gradients = torch.bmm(residuals, inputs)
        if settings.max_grad_norm is not None:
            factors = settings.max_grad_norm / np.maximum(_norms(gradients), 1e-300)
            gradients *= torch.from_numpy(np.minimum(factors, 1.0)).float().view(-1, 1, 1)
        if decay:
            gradients.add_(layers, alpha=decay)
        if settings.momentum:
            if self._buffer is not None:
                gradients.add_(self._buffer[: len(layers)], alpha=settings.momentum)
            self._buffer = gradients
        layers.add_(gradients, alpha=-rate)


@dataclass(frozen=True)
class _Fold:
    """Clips and weights updates and adds them up, one by one.

    Attributes:
        rule: Weighting and clipping.
        total: The sum so far.
    """

    rule: FoldRule
    total: torch.Tensor

    def add(self, updates: torch.Tensor, num_examples: list[int], where: list[str]) -> list[float]:
        """Add a stack of updates, and return their norms before clipping."""
        norms: list[float] = _norms(updates).tolist()
        for place, (update, weight) in enumerate(zip(updates, num_examples, strict=True)):
            norm = norms[place]
            if not math.isfinite(norm):
                raise EngineError(
                    f"{where[place]}: expected an update of finite numbers, found NaN or infinity; "
                    "lower federated.local.learning_rate or set federated.local.max_grad_norm"
                )
            scale = min(1.0, self.rule.clipping_norm / norm) if norm else 1.0
            uniform = self.rule.weighting == "uniform"
            self.total.add_(update, alpha=scale if uniform else scale * weight)
        return norms


def _norms(stack: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return the L2 norm of each matrix of a stack; no norm depends on the other matrices."""
    flat = stack.flatten(1).double().numpy()
    norms: npt.NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", flat, flat))
    return norms
