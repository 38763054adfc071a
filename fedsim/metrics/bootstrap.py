"""Resamples of users: how much average precision depends on which users were tested."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedsim.errors import ConfigError, DataError
from fedsim.metrics.inputs import BoolArray, FloatArray, check_scores
from fedsim.metrics.precision_steps import mean_of_scored
from fedsim.streams import numpy_stream

_IN_CACHE, _IN_MEMORY = 2**15, 2**20  # counts that are worked on at a time: a wish, and a limit

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Users = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Resampled:
    """An average precision of the users as they are, and of resamples of them.

    Attributes:
        value: Of every user once; NaN without any positive label.
        resamples: Of each resample, shape (resamples,); NaN for one without any positive label.
    """

    value: float
    resamples: Floats


def bootstrap_by_user(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    user_of_example: npt.NDArray[Any],
    *,
    num_resamples: int,
    seed: int,
    confidence: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Return bootstrap intervals of exact micro and macro average precision over many users.

    Micro AP has percentile intervals, macro AP has basic ones (``basic_interval``), since few
    users make macro AP too large: by chance a rare class has few positives that rank high. The
    resamples are biased in the same way once more, so percentiles would lean away from the truth,
    and BCa, which takes quantiles of the same resamples, can only move within them. Shares of 300
    drawn samples whose 95 % interval holds the value of 60,000 users (17 classes as rare as in the
    packaged drawings, 400 resamples; a weak model at the left, then a good one):

        users                        91     91    400
        macro AP, percentile       0.17   0.71   0.89
        macro AP, BCa              0.45   0.84   0.92
        macro AP, basic            0.88   0.88   0.93
        micro AP, percentile       0.92   0.92   0.94
        micro AP, BCa              0.89   0.90   0.95
        micro AP, basic            0.86   0.89   0.95

    (150 samples at 400 users.) So expect about nine in ten of the 95 % intervals to hold it.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        scores: Scores of the same shape, any float dtype.
        user_of_example: Id of the user that each example belongs to, shape (examples,); numbers or
            strings.
        num_resamples: Resamples drawn, at least 1.
        seed: The run's seed.
        confidence: c, in (0, 1).

    Returns:
        "micro_ap" and "macro_ap", each with the low and the high end. Resamples without any
        positive label have no value and are left out; if all are, both ends are NaN. A single
        user, resampled, is always the same: both ends are the value.

    Raises:
        ConfigError: ``num_resamples`` or ``confidence`` is out of range.
        DataError: Unusable labels or scores, no example, or not one user id for each example.

    Examples:
        >>> targets, users = np.array([[1], [0], [1], [0]]), np.array(["a", "a", "b", "b"])
        >>> scores = np.array([[0.9], [0.1], [0.3], [0.4]])
        >>> bootstrap_by_user(targets, scores, users, num_resamples=100, seed=0)["micro_ap"]
        (0.5, 1.0)

    References:
        Efron and Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13.
        Davison and Hinkley: Bootstrap Methods and their Application, 1997, chapter 5 (basic).
    """
    found = resample_users(targets, scores, user_of_example, num_resamples=num_resamples, seed=seed)
    return {
        "micro_ap": percentile_interval(found["micro_ap"], confidence),
        "macro_ap": basic_interval(found["macro_ap"], confidence),
    }


def resample_users(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    user_of_example: npt.NDArray[Any],
    *,
    num_resamples: int,
    seed: int,
) -> dict[str, Resampled]:
    """Return exact micro and macro average precision of resamples of the users.

    Examples of one user are alike, so users, not examples, are drawn: a resample draws as many
    users as there are, with replacement, and repeats all examples of a user as often as the user
    was drawn. In each resample a class without positives is left out of the macro mean.

    Args:
        targets: As for ``bootstrap_by_user``, like the other arguments.
        scores: Scores.
        user_of_example: Users.
        num_resamples: Resamples drawn, at least 1.
        seed: Users' multiplicities are a function of it, of the number of resamples and of the
            number of users: scores of the same users meet the same resamples.

    Returns:
        "micro_ap" and "macro_ap".

    Raises:
        ConfigError: ``num_resamples`` is out of range.
        DataError: Unusable labels or scores, no example, or not one user id for each example.
    """
    if num_resamples < 1:
        raise ConfigError(
            f"num_resamples: expected at least 1, found {num_resamples}; 1000 is customary"
        )
    labels, checked = check_scores(targets, scores)
    users = _number_users(user_of_example, len(labels))
    num_users = int(users.max()) + 1
    multiplicities = _multiplicities(num_users, num_resamples, seed)
    found = _average_precisions(labels, checked, users, multiplicities)
    return {name: Resampled(float(values[0]), values[1:]) for name, values in found.items()}


@functools.lru_cache(maxsize=2)
def _multiplicities(num_users: int, num_resamples: int, seed: int) -> Counts:
    """Return how often each user is in each resample, after a row of all users once."""
    drawn = numpy_stream(seed, "bootstrap").multinomial(
        num_users, np.full(num_users, 1 / num_users), size=num_resamples
    )
    found = np.concatenate([np.ones((1, num_users), dtype=np.int64), drawn])
    found.setflags(write=False)
    return found


def percentile_interval(resampled: Resampled, confidence: float = 0.95) -> tuple[float, float]:
    """Return the (1 - c)/2 and (1 + c)/2 quantiles of the resamples, interpolated linearly.

    Args:
        resampled: Resamples that are NaN are left out; if all are, both ends are NaN.
        confidence: c, in (0, 1).

    Raises:
        ConfigError: ``confidence`` is out of range.

    Examples:
        >>> percentile_interval(Resampled(0.5, np.array([0.5, 0.625, 0.75])), confidence=0.5)
        (0.5625, 0.6875)
    """
    if not 0 < confidence < 1:
        raise ConfigError(
            f"confidence: expected a number between 0 and 1, found {confidence}; 0.95 is customary"
        )
    defined = resampled.resamples[~np.isnan(resampled.resamples)]
    if not defined.size:
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def basic_interval(resampled: Resampled, confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval (low, high) reflected at the value v, within [0, 1].

    (2 v - high, 2 v - low): as far as resamples lie above the value, so far is the truth taken to
    lie below it. With resamples that are all too large the value can lie above the interval.

    Args:
        resampled: Resamples that are NaN are left out; if all are, both ends are NaN.
        confidence: c, in (0, 1).

    Raises:
        ConfigError: ``confidence`` is out of range.

    Examples:
        >>> basic_interval(Resampled(0.5, np.array([0.5, 0.625, 0.75])), confidence=0.5)
        (0.3125, 0.4375)
    """
    low, high = percentile_interval(resampled, confidence)
    ends = np.clip([2 * resampled.value - high, 2 * resampled.value - low], 0.0, 1.0)
    return float(ends[0]), float(ends[1])


class _Ranking:
    """Pairs (score, label) sorted once, to be scored under many multiplicities of their users.

    A step is a group of equal score that holds a positive, together with all pairs of higher score
    that belong to no earlier step. Only how many pairs a user has in a step counts.
    """

    def __init__(self, targets: BoolArray, scores: FloatArray, users: Users) -> None:
        labels, flat = targets.ravel(), scores.ravel()
        order = np.argsort(flat)[::-1]
        ranked, positive = flat[order], labels[order]
        owner = users[order // targets.shape[1]]
        group = np.cumsum(np.append(False, ranked[1:] != ranked[:-1]))
        holds_positive = np.bincount(group, positive) > 0
        step: Users = (np.cumsum(holds_positive) - holds_positive)[group]
        shape = int(holds_positive.sum()), int(users.max()) + 1
        before_last = step < shape[0]
        self._pairs = _count_matrix(step[before_last], owner[before_last], shape)
        self._positives = _count_matrix(step[positive], owner[positive], shape)

    def average_precision(self, multiplicities: Counts) -> Floats:
        """Return AP under each row of multiplicities, shape (resamples, users); NaN if undefined.

        AP is the sum over steps of (share of the positives in the step) * (precision after it).
        """
        values = np.full(len(multiplicities), np.nan)
        num_steps = max(1, self._pairs.shape[0])
        size = max(1, _IN_CACHE // num_steps, min(64, _IN_MEMORY // num_steps))
        for start in range(0, len(values) if self._pairs.shape[0] else 0, size):
            drawn = np.ascontiguousarray(multiplicities[start : start + size].T)
            positives = self._positives @ drawn
            hits = np.cumsum(positives, axis=0)
            selected = self._pairs @ drawn
            np.cumsum(selected, axis=0, out=selected)
            terms = positives * hits / np.maximum(selected, 1, out=selected)
            area = np.cumsum(terms, axis=0)[-1]  # in one order, however many are in the block
            block = values[start : start + size]
            np.divide(area, hits[-1], out=block, where=hits[-1] > 0)
        return values


def _count_matrix(rows: Users, columns: Users, shape: tuple[int, int]) -> sparse.csr_array:
    """Count how often each (row, column) occurs."""
    ones = np.ones(len(rows), dtype=np.int64)
    return sparse.coo_array((ones, (rows, columns)), shape=shape).tocsr()


def _average_precisions(
    targets: BoolArray, scores: FloatArray, users: Users, multiplicities: Counts
) -> dict[str, Floats]:
    """Return micro and macro AP under each row of users' multiplicities."""
    micro = _Ranking(targets, scores, users).average_precision(multiplicities)
    by_class = np.empty((targets.shape[1], len(multiplicities)))
    for c in range(targets.shape[1]):
        ranking = _Ranking(targets[:, [c]], scores[:, [c]], users)
        by_class[c] = ranking.average_precision(multiplicities)
    return {"micro_ap": micro, "macro_ap": mean_of_scored(by_class.T)}


def _number_users(user_of_example: npt.NDArray[Any], num_examples: int) -> Users:
    """Number the users in the order of their ids, so that the order of examples has no effect."""
    ids = np.asarray(user_of_example)
    if ids.shape != (num_examples,) or num_examples == 0:
        raise DataError(
            f"user_of_example: expected an id for each of {num_examples} examples, at least one, "
            f"found shape {ids.shape}; pass the users in the order of the scores"
        )
    numbers: Users = np.unique(ids, return_inverse=True)[1]
    return numbers
