"""Multi-label scores at another prevalence of each label.

Average precision and precision grow with the share of positives, so those of a rare and a common
label, or of two splits, can't be compared. At one common prevalence they can.
"""

from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError
from fedsim.metrics.inputs import BoolArray, FloatArray, check_choice, check_scores
from fedsim.metrics.precision_steps import mean_of_scored, step_average_precision

Floats = npt.NDArray[np.float64]
MacroOnly = Literal["macro"]


@overload
def average_precision_at_prevalence(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    prevalence: npt.ArrayLike,
    *,
    average: MacroOnly = "macro",
) -> float: ...


@overload
def average_precision_at_prevalence(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    prevalence: npt.ArrayLike,
    *,
    average: None,
) -> Floats: ...


def average_precision_at_prevalence(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    prevalence: npt.ArrayLike,
    *,
    average: MacroOnly | None = "macro",
) -> float | Floats:
    """Return exact average precision as if a share ``prevalence`` of the examples were positive.

    With R and F the shares of the positives and of the negatives whose score reaches a threshold,
    and pi the prevalence, precision there is pi R / (pi R + (1 - pi) F), and

        AP = sum over falling thresholds of (rise of R) * precision.

    This is the AP of a set in which each positive has weight pi / positives and each negative
    (1 - pi) / negatives: the limit of AP on ever larger resamples of that prevalence. It is the
    plain exact AP at the label's own prevalence, and pi for scores that are all equal.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        scores: Finite scores of the same shape, any float dtype.
        prevalence: pi, between 0 and 1: one for all classes, or shape (classes,).
        average: "macro" is the mean over classes, None gives each class's value.

    Returns:
        A float, or a float64 array of shape (classes,). A class without positives or without
        negatives has no value: NaN, left out of the mean.

    Raises:
        ConfigError: A prevalence of another shape or out of range, or an unknown ``average``.
        DataError: Unusable labels or scores.

    Examples:
        >>> targets = np.array([[1], [0], [1], [0]])
        >>> scores = np.array([[0.9], [0.8], [0.7], [0.1]])
        >>> average_precision_at_prevalence(targets, scores, 0.5)
        0.8333333333333333
        >>> round(average_precision_at_prevalence(targets, scores, 0.1), 6)
        0.590909

    References:
        Siblini et al.: Master Your Metrics with Calibration, 2020, arXiv:1909.02827.
    """
    labels, checked, shares = _checked(targets, scores, prevalence, average)
    columns = zip(labels.T, checked.T, shares, strict=True)
    values = np.array([_average_precision(*column) for column in columns], dtype=float)
    return values if average is None else float(mean_of_scored(values))


@overload
def precision_at_prevalence(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    prevalence: npt.ArrayLike,
    *,
    threshold: float = 0.5,
    average: MacroOnly = "macro",
) -> float: ...


@overload
def precision_at_prevalence(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    prevalence: npt.ArrayLike,
    *,
    threshold: float = 0.5,
    average: None,
) -> Floats: ...


def precision_at_prevalence(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    prevalence: npt.ArrayLike,
    *,
    threshold: float = 0.5,
    average: MacroOnly | None = "macro",
) -> float | Floats:
    """Return precision at a threshold as if a share ``prevalence`` of the examples were positive.

    pi R / (pi R + (1 - pi) F), with R and F the shares of the positives and of the negatives whose
    score is **above** the threshold. 0/0, where no score is, counts as 0, as it does for
    ``precision_recall_f1``.

    Args:
        targets: As for ``average_precision_at_prevalence``, like the other arguments.
        scores: Finite scores.
        prevalence: pi.
        threshold: Compared in the dtype of the scores.
        average: "macro" or None.

    Returns:
        As ``average_precision_at_prevalence``.

    Raises:
        ConfigError: A prevalence of another shape or out of range, or an unknown ``average``.
        DataError: Unusable labels or scores.

    Examples:
        >>> targets = np.array([[1], [0], [1], [0]])
        >>> scores = np.array([[0.9], [0.8], [0.7], [0.1]])
        >>> round(precision_at_prevalence(targets, scores, 0.2), 6)
        0.333333
    """
    labels, checked, shares = _checked(targets, scores, prevalence, average)
    selected = checked > threshold
    positives, negatives = labels.sum(axis=0), (~labels).sum(axis=0)
    defined = (positives > 0) & (negatives > 0)
    hits = shares * (selected & labels).sum(axis=0) / np.maximum(positives, 1)
    misses = (1 - shares) * (selected & ~labels).sum(axis=0) / np.maximum(negatives, 1)
    values = np.divide(hits, hits + misses, out=np.zeros(len(hits)), where=hits + misses > 0)
    values[~defined] = np.nan
    return values if average is None else float(mean_of_scored(values))


def _average_precision(labels: BoolArray, scores: FloatArray, prevalence: float) -> float:
    positive, negative = scores[labels], np.sort(scores[~labels])
    if not (positive.size and negative.size):
        return float("nan")
    cuts, counts = np.unique(positive, return_counts=True)
    caught = np.cumsum(counts[::-1])[::-1] * (prevalence / len(positive))
    alarms = len(negative) - np.searchsorted(negative, cuts)
    selected = caught + alarms * ((1 - prevalence) / len(negative))
    return float(step_average_precision(counts * (prevalence / len(positive)), selected))


def _checked(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    prevalence: npt.ArrayLike,
    average: str | None,
) -> tuple[BoolArray, FloatArray, Floats]:
    if average is not None:
        check_choice("average", average, MacroOnly)
    labels, checked = check_scores(targets, scores)
    shares = np.asarray(prevalence, dtype=float)
    if shares.shape not in ((), labels.shape[1:]) or not ((shares > 0) & (shares < 1)).all():
        raise ConfigError(
            f"prevalence: expected a number between 0 and 1, or one for each of "
            f"{labels.shape[1]} classes, found {shares.tolist()}; 0.1 is one"
        )
    return labels, checked, np.broadcast_to(shares, labels.shape[1:])
