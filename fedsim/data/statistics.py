"""Numbers that describe a collection, from its index alone.

Nothing here holds a dense matrix of images by labels, so FLAIR's 429,078 images with 1,628 labels
take a second and some tens of megabytes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.data.index import SPLITS, ImageIndex, Int64s, LabelRows, offsets_of

Floats = npt.NDArray[np.float64]

_ROWS_AT_A_TIME = 2**16


@dataclass(frozen=True)
class Spread:
    """How some counts are spread; quantiles between two counts are interpolated linearly.

    Attributes:
        mean: Their mean.
        minimum: The smallest.
        quartiles: A quarter, half and three quarters of the counts lie at or below these.
        high: 99 % of the counts lie at or below it.
        maximum: The largest.
    """

    mean: float
    minimum: int
    quartiles: tuple[float, float, float]
    high: float
    maximum: int


def spread_of(counts: Int64s) -> Spread | None:
    """Describe counts; None if there are none.

    Examples:
        >>> spread_of(np.array([1, 1, 2, 8]))
        Spread(mean=3.0, minimum=1, quartiles=(1.0, 1.5, 3.5), high=7.82, maximum=8)
    """
    if not len(counts):
        return None
    low, middle, upper, high = np.quantile(counts, [0.25, 0.5, 0.75, 0.99]).tolist()
    quartiles = (low, middle, upper)
    return Spread(
        float(counts.mean()), int(counts.min()), quartiles, round(high, 9), int(counts.max())
    )


def users_between(index: ImageIndex, split: str | None) -> tuple[int, int]:
    """Return the first user of a split, and the one after its last; None means all splits."""
    return (0, len(index.user_ids)) if split is None else index.users_of(split)


def rows_between(index: ImageIndex, split: str | None) -> tuple[int, int]:
    """Return the first row of a split, and the one after its last; None means all splits."""
    first, stop = users_between(index, split)
    return int(index.user_offsets[first]), int(index.user_offsets[stop])


def images_per_user(index: ImageIndex, split: str | None) -> Int64s:
    """Return how many images each user of a split owns, shape (users,)."""
    first, stop = users_between(index, split)
    return np.diff(index.user_offsets[first : stop + 1])


def labels_per_image(index: ImageIndex, label_set: str, split: str | None) -> Int64s:
    """Return how many labels each image of a split has, shape (images,)."""
    first, stop = rows_between(index, split)
    return np.diff(index.labels[label_set].indptr[first : stop + 1])


def images_per_label(index: ImageIndex, label_set: str) -> Int64s:
    """Return how many images of each split have each label, shape (splits, labels)."""
    labels = index.labels[label_set]
    counts = [
        np.bincount(
            _labels_between(labels, *rows_between(index, split)), minlength=len(labels.names)
        )
        for split in SPLITS
    ]
    return np.array(counts, dtype=np.int64)


def labels_per_user(index: ImageIndex, label_set: str, split: str | None) -> Int64s:
    """Return how many different labels each user of a split has on any image, shape (users,)."""
    first, stop = users_between(index, split)
    users, _, _ = _user_label_counts(index.labels[label_set], index.user_offsets[first : stop + 1])
    return np.bincount(users, minlength=stop - first).astype(np.int64)


def co_occurrence(labels: LabelRows, chosen: Int64s) -> Int64s:
    """Return how many images have both of two labels, shape (chosen, chosen).

    The diagonal holds how many images have the label at all.

    Args:
        labels: Rows of labels.
        chosen: Numbers of different labels; only some tens, for the rows of these alone are made
            dense, some at a time.

    Examples:
        >>> rows = LabelRows(("a", "b"), np.array([0, 2, 3]), np.array([0, 1, 1], dtype=np.uint16))
        >>> co_occurrence(rows, np.array([1, 0])).tolist()
        [[2, 1], [1, 1]]
    """
    place = np.full(len(labels.names), -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    places = place[labels.indices]
    kept = offsets_of((places >= 0).astype(np.int64))
    few = LabelRows(
        names=tuple(labels.names[label] for label in chosen.tolist()),
        indptr=kept[labels.indptr],
        indices=places[places >= 0].astype(np.uint16),
    )
    both = np.zeros((len(chosen), len(chosen)), dtype=np.int64)
    for start in range(0, len(labels.indptr) - 1, _ROWS_AT_A_TIME):
        stop = min(start + _ROWS_AT_A_TIME, len(labels.indptr) - 1)
        # Counts of so few rows are exact in float32, which multiplies many times as fast.
        dense = few.dense(np.arange(start, stop)).astype(np.float32)
        both += (dense.T @ dense).astype(np.int64)
    return both


@dataclass(frozen=True, eq=False)
class Divergence:
    """How far the users of one split are from the split as a whole.

    A distribution over labels says how often each label stands on one's images, over all labels
    that stand there; the divergence of two is that of Jensen and Shannon, in bits: 0 for equal
    ones, 1 for ones without a common label. A user with few images is far from the whole by chance
    alone, so the control tells what chance does: the same images, dealt at random to users of the
    same sizes.

    Attributes:
        sizes: int64 array (users,), images of each user.
        users: float64 array (users,), divergence of each user; NaN for one without any label.
        control: float64 array (users,), the same for the control.
    """

    sizes: Int64s
    users: Floats
    control: Floats


def divergence_of(
    index: ImageIndex, label_set: str, split: str, stream: np.random.Generator
) -> Divergence:
    """Measure how far the users of a split are from its whole.

    Args:
        index: The collection.
        label_set: "coarse" or "fine".
        split: "train", "val" or "test".
        stream: Deals the control.
    """
    labels = index.labels[label_set]
    first, stop = users_between(index, split)
    offsets = index.user_offsets[first : stop + 1]
    order = stream.permutation(int(offsets[-1] - offsets[0])) + offsets[0]
    return Divergence(
        sizes=np.diff(offsets),
        users=_divergences(labels, offsets),
        control=_divergences(_reordered(labels, order), offsets - offsets[0]),
    )


def _divergences(labels: LabelRows, offsets: Int64s) -> Floats:
    """Return the divergence of each user, who owns the rows between two offsets, from all."""
    users, names, counts = _user_label_counts(labels, offsets)
    totals = np.bincount(users, weights=counts, minlength=len(offsets) - 1)
    pooled = np.bincount(names, weights=counts, minlength=len(labels.names))
    q = pooled[names] / max(pooled.sum(), 1)
    p = counts / totals[users]
    middle = (p + q) / 2
    # Where a user lacks a label, q log2(q / middle) is q. All these q make 1 less those it has.
    terms = p * np.log2(p / middle) + q * np.log2(q / middle) - q
    sums = np.bincount(users, weights=terms, minlength=len(totals))
    return np.where(totals > 0, np.clip((1 + sums) / 2, 0.0, 1.0), np.nan)


def _user_label_counts(labels: LabelRows, offsets: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the pairs of user and label that occur, and on how many images: three columns."""
    sizes = np.diff(labels.indptr[offsets])
    users = np.repeat(np.arange(len(sizes)), sizes)
    names = _labels_between(labels, int(offsets[0]), int(offsets[-1])).astype(np.int64)
    width = max(len(labels.names), 1)
    pairs, counts = np.unique(users * width + names, return_counts=True)
    return pairs // width, pairs % width, counts


def _reordered(labels: LabelRows, order: Int64s) -> LabelRows:
    """Return the rows ``order``, in this order."""
    starts = labels.indptr[order]
    counts = labels.indptr[order + 1] - starts
    indptr = offsets_of(counts)
    places = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], counts)
    return LabelRows(labels.names, indptr, labels.indices[places])


def _labels_between(labels: LabelRows, first: int, stop: int) -> npt.NDArray[np.uint16]:
    return labels.indices[labels.indptr[first] : labels.indptr[stop]]
