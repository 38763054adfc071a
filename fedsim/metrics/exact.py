"""Exact average precision of many scores: plain sorts, two threads, bounded memory.

Only groups of equal score that hold a positive add to the sum of steps. So it is enough to know,
for each distinct score of a positive, how many of all scores reach it: the scores are sorted block
by block, without their labels, and the few distinct scores are searched for in each block. The
counts are integers and add up to the same whatever the blocks are.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fedsim.arrays import one_thread
from fedsim.metrics.inputs import BoolArray, FloatArray
from fedsim.metrics.precision_steps import step_average_precision

BLOCK_SCORES = 2**20  # scores that a thread copies and sorts at a time
BLOCK_CLASSES = 32  # wide enough for whole cache lines of row-major scores
FEW_CUTS = 32
RADIX_FROM = 2**15  # for fewer values torch's sort is another one
THREADS = 2  # np.sort and np.searchsorted release the interpreter's lock

T = TypeVar("T")


def exact_pooled(targets: BoolArray, scores: FloatArray) -> npt.NDArray[np.float64]:
    """Return the exact average precision of all pairs (score, label) as one list.

    Args:
        targets: Labels of shape (examples, classes).
        scores: Finite scores of the same shape, any float dtype, any memory order.

    Returns:
        float64 array of shape (1,), in (0, 1]; NaN if no label is positive.

    Examples:
        >>> exact_pooled(np.array([[True, False], [True, False]]), np.array([[3.0, 2], [1, 0]]))
        array([0.83333333])
    """
    cuts, positives = np.unique(scores[targets], return_counts=True)
    rows = _block_length(*scores.shape)

    def count(starts: Sequence[int]) -> npt.NDArray[np.int64]:
        reached = np.zeros(len(cuts), dtype=np.int64)
        for start in starts:
            # Not ravel: of row-major scores that is a view, and the sort is in place.
            reached += _count_reached(scores[start : start + rows].flatten(), cuts)
        return reached

    starts = range(0, len(scores), rows)
    selected = sum(_in_threads(count, starts), np.zeros(len(cuts), dtype=np.int64))
    return step_average_precision(positives[None], selected[None])


def exact_by_class(targets: BoolArray, scores: FloatArray) -> npt.NDArray[np.float64]:
    """Return the exact average precision of each class.

    Args:
        targets: Labels of shape (examples, classes).
        scores: Finite scores of the same shape, any float dtype, any memory order.

    Returns:
        float64 array of shape (classes,); NaN for a class without positives.

    Examples:
        >>> exact_by_class(np.array([[True, False], [False, False]]), np.array([[1.0, 1], [2, 2]]))
        array([0.5, nan])
    """
    num_examples, num_classes = scores.shape
    result = np.full(num_classes, np.nan)
    columns = min(BLOCK_CLASSES, _block_length(num_classes, num_examples))

    def score(starts: Sequence[int]) -> None:
        for start in starts:
            block = slice(start, start + columns)
            # Not np.ascontiguousarray: of one column that is a view, and the sort is in place.
            block_scores = np.array(scores[:, block].T, order="C", copy=True)
            block_targets = np.array(targets[:, block].T, order="C", copy=True)
            for i, (column, labels) in enumerate(zip(block_scores, block_targets, strict=True)):
                cuts, positives = np.unique(column[labels], return_counts=True)
                result[start + i] = step_average_precision(positives, _count_reached(column, cuts))

    _in_threads(score, range(0, num_classes, columns))
    return result


def _block_length(length: int, width: int) -> int:
    """Return how many of ``length`` rows (or columns) of ``width`` scores to take at a time."""
    return max(1, min(BLOCK_SCORES // max(1, width), -(-length // THREADS)))


def _count_reached(values: FloatArray, cuts: FloatArray) -> npt.NDArray[np.int64]:
    """Count the values that reach each cut, after which the values' order is lost.

    For a few cuts, as rare classes have, comparing is faster than sorting.
    """
    if len(cuts) <= FEW_CUTS:
        return np.array([np.count_nonzero(values >= cut) for cut in cuts], dtype=np.int64)
    if values.dtype == np.float32 and len(values) > RADIX_FROM and radix_is_faster():
        bits = radix_sorted(values)
        return len(bits) - np.searchsorted(bits, _ordered_bits(cuts.copy()))
    values.sort()
    return len(values) - np.searchsorted(values, cuts)


def radix_sorted(values: FloatArray) -> npt.NDArray[np.int32]:
    """Sort float32 values by torch's radix sort, as integers in the same order.

    The values' memory is used up.

    Examples:
        >>> radix_sorted(np.array([1.0, -1.0, 0.0, -0.0], dtype=np.float32)).tolist()
        [-1065353217, 0, 0, 1065353216]
    """
    bits: npt.NDArray[np.int32] = torch.from_numpy(_ordered_bits(values)).sort().values.numpy()
    return bits


@cache
def radix_is_faster() -> bool:
    """Try which sort is faster on this processor; the counts are the same.

    NumPy's is, by a factor of two, but where one of its AVX-512 instructions is slow (AMD Zen 4 and
    5) it runs at a fifth of its usual speed.
    """
    values = np.sin(np.arange(2 * RADIX_FROM, dtype=np.float32))

    def seconds(sort: Callable[[FloatArray], object]) -> float:
        start = time.thread_time()
        sort(values.copy())
        return time.thread_time() - start

    return min(seconds(radix_sorted) for _ in range(5)) < min(seconds(np.sort) for _ in range(5))


def _ordered_bits(values: FloatArray) -> npt.NDArray[np.int32]:
    """Return the bits as integers in the values' order, in the values' memory."""
    values += 0.0  # -0.0 becomes 0.0
    bits: npt.NDArray[np.int32] = values.view(np.int32)
    bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)  # of negative values, more bits are smaller
    return bits


def _in_threads(work: Callable[[Sequence[int]], T], starts: Sequence[int]) -> list[T]:
    """Deal the blocks to the threads, so that each holds one block and one result at a time."""
    shares = [starts[i::THREADS] for i in range(min(THREADS, len(starts)))]
    if len(shares) < 2:
        return [work(share) for share in shares]
    with ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(one_thread()(work), shares))
