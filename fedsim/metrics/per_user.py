"""How well a model does on each user's own images."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.metrics.inputs import BoolArray, FloatArray, check_scores

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_CELLS = 2**20  # pairs of image and label that are sorted at a time


def average_precision_by_user(
    targets: npt.NDArray[Any], scores: npt.NDArray[Any], num_images: npt.NDArray[Any]
) -> Floats:
    """Return micro average precision of each user's own pairs of image and label.

    Of the pairs of one user, as of all pairs in micro AP: tied scores are one group, and
    AP = sum_g (p_g / P) * (sum_{h <= g} p_h) / n_g from the largest score down, where group g holds
    p_g of the user's P positive pairs and n_g pairs have its score or a larger one.

    Macro AP is not for users: a class needs a positive image and a negative one, and most users
    have so few images that it would rest on one or two classes, others with each user. The pooled
    pairs give a value to every user with a label, even of one image, for whom it is how well the
    model ranks that image's labels. Chance is not the same for all users, it is about the share of
    positive pairs, so compare models on the same users.

    Args:
        targets: 0/1 labels of shape (images, labels), user by user.
        scores: Scores of the same shape, any float dtype.
        num_images: How many of the rows are each user's, shape (users,).

    Returns:
        Shape (users,), in (0, 1]; NaN for users without a positive pair or without a negative one.

    Raises:
        DataError: Unusable labels or scores, or numbers of images that are not all rows.

    Examples:
        >>> targets = np.array([[1, 0], [0, 1], [0, 0]])
        >>> scores = np.array([[0.9, 0.6], [0.8, 0.2], [0.7, 0.3]])
        >>> average_precision_by_user(targets, scores, np.array([2, 1]))
        array([0.75,  nan])
    """
    labels, checked = check_scores(targets, scores)
    sizes = _checked_sizes(num_images, len(labels))
    parts = [
        _of_block(labels[first:last], checked[first:last], block)
        for first, last, block in _blocks(sizes, labels.shape[1])
    ]
    return np.concatenate([np.empty(0), *parts])


def loss_by_user(
    targets: npt.NDArray[Any], logits: npt.NDArray[Any], num_images: npt.NDArray[Any]
) -> Floats:
    """Return each user's mean binary cross-entropy with logits, over labels and own images.

    Args:
        targets: 0/1 labels of shape (images, labels), user by user.
        logits: Of the same shape, any float dtype.
        num_images: How many of the rows are each user's, shape (users,).

    Returns:
        Shape (users,), 0 or more; NaN for users without images.

    Raises:
        DataError: As for ``average_precision_by_user``.

    Examples:
        >>> loss_by_user(np.array([[1, 0]]), np.zeros((1, 2)), np.array([1]))
        array([0.69314718])
    """
    labels, checked = check_scores(targets, logits)
    sizes = _checked_sizes(num_images, len(labels))
    parts = []
    for first, last, block in _blocks(sizes, labels.shape[1]):
        x, y = checked[first:last].astype(np.float64), labels[first:last]
        per_image = (np.logaddexp(0, x) - x * y).sum(axis=1)
        sums = np.bincount(_owners(block), weights=per_image, minlength=len(block))
        pairs = block * labels.shape[1]
        parts.append(np.divide(sums, pairs, out=np.full(len(block), np.nan), where=pairs > 0))
    return np.concatenate([np.empty(0), *parts])


def _of_block(labels: BoolArray, scores: FloatArray, sizes: Counts) -> Floats:
    owner = np.repeat(_owners(sizes), labels.shape[1])
    order = np.lexsort((-scores.ravel(), owner))
    values, positive = scores.ravel()[order], labels.ravel()[order]
    starts = np.concatenate([[0], np.cumsum(sizes)]) * labels.shape[1]
    rank = np.arange(1, len(owner) + 1) - starts[owner]
    hits = np.cumsum(positive, dtype=np.int64)
    hits -= np.concatenate([[0], hits])[starts][owner]
    last = np.ones(len(owner), dtype=np.bool_)  # of a group of ties
    last[:-1] = (values[1:] != values[:-1]) | (owner[1:] != owner[:-1])
    end = np.flatnonzero(last)[np.cumsum(last) - last]  # where each pair's group ends
    sums = np.bincount(owner, weights=positive * (hits[end] / rank[end]), minlength=len(sizes))
    totals = np.bincount(owner, weights=positive, minlength=len(sizes))
    defined = (totals > 0) & (totals < np.diff(starts))
    result: Floats = np.divide(sums, totals, out=np.full(len(sizes), np.nan), where=defined)
    return result


def _blocks(sizes: Counts, num_labels: int) -> Iterator[tuple[int, int, Counts]]:
    """Yield first and last row, and the sizes, of neighbouring users with few pairs together."""
    ends = np.cumsum(sizes)
    user, row = 0, 0
    while user < len(sizes):
        limit = row + max(1, _CELLS // max(1, num_labels))
        after = max(user + 1, int(np.searchsorted(ends, limit, side="right")))
        yield row, int(ends[after - 1]), sizes[user:after]
        user, row = after, int(ends[after - 1])


def _owners(sizes: Counts) -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(len(sizes)), sizes)


def _checked_sizes(num_images: npt.NDArray[Any], num_rows: int) -> Counts:
    sizes = np.asarray(num_images)
    fits = sizes.ndim == 1 and (sizes.dtype.kind in "iu" or not sizes.size)
    if not fits or (sizes < 0).any() or sizes.sum() != num_rows:
        raise DataError(
            f"num_images: expected each user's number of images, {num_rows} together, found an "
            f"array of shape {sizes.shape} with the sum {sizes.sum()}; count the rows of each user"
        )
    return sizes.astype(np.int64)
