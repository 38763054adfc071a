"""Micro and macro average precision of multi-label scores, exact or on FLAIR's thresholds."""

from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from fedsim.metrics.binned import binned_values, count_buckets
from fedsim.metrics.exact import exact_by_class, exact_pooled
from fedsim.metrics.inputs import (
    Average,
    EmptyClass,
    check_choice,
    check_probabilities,
    check_scores,
)
from fedsim.metrics.precision_steps import fill_empty, mean_of_scored

Method = Literal["exact", "binned"]


@overload
def average_precision(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    *,
    average: Average = "macro",
    method: Method = "exact",
    num_thresholds: int = 200,
    empty_class: EmptyClass = "exclude",
) -> float: ...


@overload
def average_precision(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    *,
    average: None,
    method: Method = "exact",
    num_thresholds: int = 200,
    empty_class: EmptyClass = "exclude",
) -> npt.NDArray[np.float64]: ...


def average_precision(
    targets: npt.NDArray[Any],
    scores: npt.NDArray[Any],
    *,
    average: Average | None = "macro",
    method: Method = "exact",
    num_thresholds: int = 200,
    empty_class: EmptyClass = "exclude",
) -> float | npt.NDArray[np.float64]:
    """Return average precision, AP = sum_k (R_k - R_{k-1}) * P_k over falling thresholds.

    P_k and R_k are precision and recall of the pairs (score, label) that threshold k selects.

    * ``method="exact"``: every distinct score is a threshold and selects the scores that reach it,
      so equal scores are one step. Only the order of the scores matters: logits do as well.
    * ``method="binned"``: the T = ``num_thresholds`` thresholds are -1e-7, 1/(T-1), ...,
      (T-2)/(T-1), 1 + 1e-7, and select the scores **above** them. Scores are probabilities. With
      T = 200 and ``empty_class="zero"`` this is the value that is published for FLAIR.

    Both depend only on the multiset of pairs, not on their order or on how they are batched, and
    are computed from integer counts in bounded memory: beside the input and the positives' scores
    it takes, on each of two threads, a copy of 2 million scores (or of one row or one column, if
    that is longer), and labels that are not stored in one byte are copied to booleans.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        scores: Scores of the same shape, any float dtype; each is compared in its own dtype.
        average: "macro" is the mean over classes, "micro" pools the pairs of all classes, None
            returns a value for each class.
        method: "exact" or "binned".
        num_thresholds: T, at least 2; read by "binned" only.
        empty_class: A class without positives has no AP. "exclude" leaves it out of the mean (NaN
            with ``average=None``), "zero" counts it as 0; "micro" treats the pool of all pairs in
            the same way.

    Returns:
        A float in [0, 1], or a float64 array of shape (classes,) with ``average=None``. NaN where
        it is undefined: with "exclude", "micro" of no positive label and "macro" of no scored
        class; "macro" of no class at all.

    Raises:
        ConfigError: An unknown setting, or ``num_thresholds`` out of range.
        DataError: Arrays that are not two-dimensional or not of one shape, labels other than 0 and
            1, scores that are not floats, not finite, or, with "binned", outside [0, 1].

    Examples:
        >>> targets = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]])
        >>> scores = np.array([[0.9, 0.6, 0.1], [0.8, 0.2, 0.4], [0.7, 0.3, 0.1]])
        >>> average_precision(targets, scores, average=None)
        array([0.83333333, 0.33333333,        nan])
        >>> round(average_precision(targets, scores), 4)
        0.5833
        >>> round(average_precision(targets, scores, empty_class="zero"), 4)
        0.3889

    References:
        Song, Granqvist and Talwar: FLAIR: Federated Learning Annotated Image Repository, 2022,
        arXiv:2207.08869 (the 200 thresholds).
    """
    if average is not None:
        check_choice("average", average, Average)
    check_choice("method", method, Method)
    check_choice("empty_class", empty_class, EmptyClass)
    if method == "exact":
        labels, checked = check_scores(targets, scores)
        pooled = average == "micro"
        values = exact_pooled(labels, checked) if pooled else exact_by_class(labels, checked)
    else:
        labels, checked = check_probabilities(targets, scores, "scores")
        values = binned_values(*count_buckets(labels, checked, num_thresholds), average)
    values = fill_empty(values, empty_class)
    return values if average is None else float(mean_of_scored(values))
