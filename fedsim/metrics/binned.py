"""Average precision on a fixed grid of thresholds, from counts that can be added up."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError
from fedsim.metrics.inputs import Average, BoolArray, FloatArray
from fedsim.metrics.precision_steps import step_average_precision

MAX_THRESHOLDS = 100_000
_BLOCK_SCORES = 2**18  # fits the cache with its bucket numbers

Counts = npt.NDArray[np.int64]


def threshold_grid(num_thresholds: int, dtype: npt.DTypeLike) -> FloatArray:
    """Return the thresholds -1e-7, 1/(T-1), ..., (T-2)/(T-1), 1 + 1e-7, rounded to ``dtype``.

    With T = 200 this is the grid of FLAIR's published results (Song, Granqvist and Talwar, 2022).

    Args:
        num_thresholds: T, from 2 to 100,000.
        dtype: The dtype of the probabilities, in which they are compared.

    Raises:
        ConfigError: T is out of range.

    Examples:
        >>> threshold_grid(3, np.float64).tolist()
        [-1e-07, 0.5, 1.0000001]
    """
    if not 2 <= num_thresholds <= MAX_THRESHOLDS:
        raise ConfigError(
            f"num_thresholds: expected an integer from 2 to {MAX_THRESHOLDS}, found "
            f"{num_thresholds}; use 200 to compare with published FLAIR results"
        )
    inner = np.arange(1, num_thresholds - 1) / (num_thresholds - 1)
    grid: FloatArray = np.concatenate([[-1e-7], inner, [1 + 1e-7]]).astype(dtype)
    return grid


def count_buckets(
    targets: BoolArray, probabilities: FloatArray, num_thresholds: int
) -> tuple[Counts, Counts]:
    """Count positives and all examples of each class between each two neighbouring thresholds.

    Bucket b of T - 1 holds the scores s with t_b < s <= t_{b+1}; t_b is rounded to the dtype of the
    scores, in which they are compared (float16 is compared in float32).

    Args:
        targets: Labels of shape (examples, classes).
        probabilities: Scores of the same shape, in [0, 1].
        num_thresholds: T.

    Returns:
        Positives and all examples, int64 arrays of shape (classes, T - 1).

    Examples:
        >>> count_buckets(np.array([[True], [False]]), np.array([[0.5], [0.75]]), 3)
        (array([[1, 0]]), array([[1, 1]]))
    """
    if probabilities.dtype == np.float16:  # has no room for 1 + 1e-7
        probabilities = probabilities.astype(np.float32)
    grid = threshold_grid(num_thresholds, probabilities.dtype)
    num_classes, num_buckets = targets.shape[1], num_thresholds - 1
    positives = np.zeros(num_classes * num_buckets, dtype=np.int64)
    totals = np.zeros_like(positives)
    offsets = np.arange(num_classes) * num_buckets
    rows = max(1, _BLOCK_SCORES // max(1, num_classes))
    for start in range(0, len(targets), rows):
        buckets = _buckets(probabilities[start : start + rows], grid) + offsets
        totals += np.bincount(buckets.ravel(), minlength=totals.size)
        hits = buckets[targets[start : start + rows]]
        positives += np.bincount(hits, minlength=positives.size)
    return positives.reshape(-1, num_buckets), totals.reshape(-1, num_buckets)


def binned_values(
    positives: Counts, totals: Counts, average: Average | None
) -> npt.NDArray[np.float64]:
    """Return the binned average precision of each class, or of the pool of all for "micro".

    The scores above threshold t_b are those of bucket b and higher, so the sum over thresholds
    sum_b (R_b - R_{b+1}) * P_b is the sum of steps over buckets.

    Args:
        positives: Positives in each bucket, shape (classes, buckets).
        totals: All examples in each bucket, of the same shape.
        average: "micro" adds up the counts of all classes first.

    Returns:
        float64 array of shape (classes,), or (1,) for "micro"; NaN where there is no positive.

    Examples:
        >>> positives, totals = np.array([[1, 0], [0, 0]]), np.array([[1, 1], [2, 0]])
        >>> binned_values(positives, totals, "macro"), binned_values(positives, totals, "micro")
        (array([0.5, nan]), array([0.25]))
    """
    if average == "micro":
        positives, totals = positives.sum(axis=0, keepdims=True), totals.sum(axis=0, keepdims=True)
    return step_average_precision(positives, np.cumsum(totals[:, ::-1], axis=1)[:, ::-1])


def _buckets(probabilities: FloatArray, grid: FloatArray) -> npt.NDArray[np.intp]:
    """Return the number of the bucket of each score.

    ceil(s * (T - 1)) - 1 is off by one where the product is rounded across an integer, so it is
    held against the two thresholds around it; that is four times faster than a binary search.
    """
    scaled: npt.NDArray[Any] = np.ceil(probabilities * probabilities.dtype.type(len(grid) - 1))
    bucket = np.maximum(scaled.astype(np.intp) - 1, 0)
    bucket -= probabilities <= grid[bucket]
    bucket += probabilities > grid[bucket + 1]
    return bucket
