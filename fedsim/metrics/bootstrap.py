"""Bootstrap intervals of average precision, resampled by user."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError, DataError
from fedsim.metrics.inputs import BoolArray, FloatArray, check_scores
from fedsim.metrics.precision_steps import mean_of_scored, step_average_precision
from fedsim.streams import numpy_stream

_BLOCK_WEIGHTS = 2**21

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def bootstrap_by_user(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    user_of_example: npt.NDArray[Any],
    *,
    num_resamples: int,
    seed: int,
    confidence: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Return percentile bootstrap intervals of exact micro and macro average precision.

    Examples of one user are alike, so users, not examples, are drawn: a resample draws as many
    users as there are, with replacement, and repeats all examples of a user as often as the user
    was drawn. The interval reaches from the (1 - c)/2 to the (1 + c)/2 quantile of the values of
    the resamples, interpolated linearly. In each resample a class without positives is left out of
    the macro mean.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        scores: Scores of the same shape, any float dtype.
        user_of_example: Id of the user that each example belongs to, shape (examples,); numbers or
            strings.
        num_resamples: Resamples drawn, at least 1.
        seed: The run's seed; the users' multiplicities are a function of it, of the number of
            resamples and of the number of users.
        confidence: c, in (0, 1).

    Returns:
        "micro_ap" and "macro_ap", each with the low and the high end. Resamples without any
        positive label have no value and are left out; if all are, both ends are NaN.

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
    """
    if num_resamples < 1:
        raise ConfigError(
            f"num_resamples: expected at least 1, found {num_resamples}; 1000 is customary"
        )
    if not 0 < confidence < 1:
        raise ConfigError(
            f"confidence: expected a number between 0 and 1, found {confidence}; 0.95 is customary"
        )
    labels, checked = check_scores(targets, scores)
    users = _number_users(user_of_example, len(labels))
    num_users = int(users.max()) + 1
    multiplicities = numpy_stream(seed, "bootstrap").multinomial(
        num_users, np.full(num_users, 1 / num_users), size=num_resamples
    )
    resampled = _resampled(labels, checked, users, multiplicities)
    return {name: _interval(values, confidence) for name, values in resampled.items()}


@dataclass(frozen=True)
class _Ranking:
    """Pairs (score, label) sorted once, to be scored under many weights of their examples.

    Attributes:
        examples: Example of each pair, in descending order of score.
        hits: Example of each positive pair, in the same order.
        selected_end: For each group of equal score that holds a positive, its last pair.
        hits_end: For each of those groups, its last positive pair.
    """

    examples: npt.NDArray[np.intp]
    hits: npt.NDArray[np.intp]
    selected_end: npt.NDArray[np.intp]
    hits_end: npt.NDArray[np.intp]

    @classmethod
    def of(cls, targets: BoolArray, scores: FloatArray) -> "_Ranking":
        """Sort the pairs of arrays of shape (examples, classes)."""
        labels, flat = targets.ravel(), scores.ravel()
        order = np.argsort(flat)[::-1]
        ranked, positive = flat[order], labels[order]
        group_end = np.append(ranked[1:] != ranked[:-1], True).nonzero()[0]
        hits_to_end = np.cumsum(positive)[group_end]
        holds_hit = np.diff(hits_to_end, prepend=0) > 0
        examples = order // targets.shape[1]
        return cls(examples, examples[positive], group_end[holds_hit], hits_to_end[holds_hit] - 1)

    def average_precision(self, weights: Counts) -> Floats:
        """Return AP under each row of weights, an array of shape (resamples, examples)."""
        selected = np.cumsum(weights[:, self.examples], axis=1)[:, self.selected_end]
        hits = np.cumsum(weights[:, self.hits], axis=1)[:, self.hits_end]
        positives = np.diff(hits, axis=1, prepend=0)
        return step_average_precision(positives[:, ::-1], selected[:, ::-1])


def _resampled(
    targets: BoolArray,
    scores: FloatArray,
    users: npt.NDArray[np.intp],
    multiplicities: Counts,
) -> dict[str, Floats]:
    """Return micro and macro AP under each row of users' multiplicities, block by block."""
    pool = _Ranking.of(targets, scores)
    classes = [_Ranking.of(targets[:, [c]], scores[:, [c]]) for c in range(targets.shape[1])]
    rows = max(1, _BLOCK_WEIGHTS // max(1, scores.size))
    micro, macro = [], []
    for start in range(0, len(multiplicities), rows):
        weights = multiplicities[start : start + rows, users]
        micro.append(pool.average_precision(weights))
        by_class = [ranking.average_precision(weights) for ranking in classes]
        macro.append(mean_of_scored(np.array(by_class).reshape(len(classes), -1).T))
    return {"micro_ap": np.concatenate(micro), "macro_ap": np.concatenate(macro)}


def _interval(values: Floats, confidence: float) -> tuple[float, float]:
    """Return the central quantiles of the values that are not NaN."""
    defined = values[~np.isnan(values)]
    if not defined.size:
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _number_users(user_of_example: npt.NDArray[Any], num_examples: int) -> npt.NDArray[np.intp]:
    """Number the users in the order of their ids, so that the order of examples has no effect."""
    ids = np.asarray(user_of_example)
    if ids.shape != (num_examples,) or num_examples == 0:
        raise DataError(
            f"user_of_example: expected an id for each of {num_examples} examples, at least one, "
            f"found shape {ids.shape}; pass the users in the order of the scores"
        )
    numbers: npt.NDArray[np.intp] = np.unique(ids, return_inverse=True)[1]
    return numbers
