"""Means over seeds, and differences of means, with Student's intervals."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

Interval = tuple[float, float]


@dataclass(frozen=True)
class OverSeeds:
    """A score over the seeds of one setting; the fields have the score's unit.

    Attributes:
        mean: Over the seeds.
        deviation: Standard deviation of one seed's score, n - 1 in the denominator; None for one
            seed.
        interval: 95 % interval of the mean over all seeds that there could be; None for one seed.
    """

    mean: float
    deviation: float | None
    interval: Interval | None


@dataclass(frozen=True)
class SeedDifference:
    """A difference of means over seeds.

    Attributes:
        value: Mean of the one minus mean of the other.
        interval: 95 % interval; None where one seed leaves it unknown.
        method: "paired by seed" or "Welch".
    """

    value: float
    interval: Interval | None
    method: Literal["paired by seed", "Welch"]


def over_seeds(scores: Mapping[int, float], confidence: float = 0.95) -> OverSeeds:
    """Return mean, spread and Student's interval, mean +- t(n - 1) deviation / sqrt(n).

    Args:
        scores: At least one seed's score, by seed.
        confidence: Of the interval, in (0, 1).

    Examples:
        >>> over_seeds({0: 0.25, 1: 0.5, 2: 0.75}).deviation
        0.25
        >>> over_seeds({0: 0.25})
        OverSeeds(mean=0.25, deviation=None, interval=None)
    """
    values = list(scores.values())
    mean = statistics.fmean(values)
    if len(values) == 1:
        return OverSeeds(mean, None, None)
    deviation = statistics.stdev(values)
    error = deviation / math.sqrt(len(values))
    return OverSeeds(mean, deviation, _around(mean, error, len(values) - 1, confidence))


def difference_over_seeds(
    ours: Mapping[int, float], theirs: Mapping[int, float], confidence: float = 0.95
) -> SeedDifference:
    """Return the difference of two means over seeds with a 95 % interval.

    Runs of one seed start from the same weights and, if their cohorts have one size, train the
    same users, so what a lucky seed adds to the one it may add to the other. Where both have the
    same seeds, the interval is therefore Student's of the differences by seed, n - 1 degrees of
    freedom: right however alike the two runs of a seed are. Else it is Welch's, which takes all
    runs to be independent. Pairing costs degrees of freedom: with two or three seeds the interval
    is wide (t = 12.7 or 4.3 standard errors), with five it is 2.8.

    Args:
        ours: Scores by seed, at least one.
        theirs: Scores by seed, at least one.
        confidence: Of the interval, in (0, 1).

    Examples:
        >>> difference_over_seeds({0: 0.5, 1: 0.75}, {0: 0.25, 1: 0.5})
        SeedDifference(value=0.25, interval=(0.25, 0.25), method='paired by seed')

    References:
        Welch: The generalization of Student's problem when several different population variances
        are involved, Biometrika 34, 1947.
    """
    if ours.keys() == theirs.keys():
        paired = over_seeds({seed: ours[seed] - theirs[seed] for seed in ours}, confidence)
        return SeedDifference(paired.mean, paired.interval, "paired by seed")
    one, other = over_seeds(ours), over_seeds(theirs)
    value = one.mean - other.mean
    if one.deviation is None or other.deviation is None:
        return SeedDifference(value, None, "Welch")
    terms = (one.deviation**2 / len(ours), other.deviation**2 / len(theirs))
    if not any(terms):
        return SeedDifference(value, (value, value), "Welch")
    freedom = sum(terms) ** 2 / (
        terms[0] ** 2 / (len(ours) - 1) + terms[1] ** 2 / (len(theirs) - 1)
    )
    return SeedDifference(
        value, _around(value, math.sqrt(sum(terms)), freedom, confidence), "Welch"
    )


def _around(middle: float, error: float, freedom: float, confidence: float) -> Interval:
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    return middle - half, middle + half
