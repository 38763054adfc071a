"""Precision, recall and F1 at one threshold, and two recipes that are often taken for others."""

from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.metrics.inputs import (
    Average,
    check_choice,
    check_probabilities,
    check_targets,
)

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@overload
def precision_recall_f1(
    targets: npt.NDArray[Any],
    probabilities: npt.NDArray[Any],
    *,
    threshold: float = 0.5,
    average: Average = "macro",
) -> tuple[float, float, float]: ...


@overload
def precision_recall_f1(
    targets: npt.NDArray[Any],
    probabilities: npt.NDArray[Any],
    *,
    threshold: float = 0.5,
    average: None,
) -> tuple[Floats, Floats, Floats]: ...


def precision_recall_f1(
    targets: npt.NDArray[Any],
    probabilities: npt.NDArray[Any],
    *,
    threshold: float = 0.5,
    average: Average | None = "macro",
) -> tuple[float, float, float] | tuple[Floats, Floats, Floats]:
    """Return precision P = TP / (TP + FP), recall R = TP / (TP + FN), F1 = 2TP / (2TP + FP + FN).

    A label is predicted where its probability is **above** the threshold; 0/0 counts as 0, also
    for a class without positives. "macro" is the mean over classes of each of the three, so macro
    F1 is the mean of the classes' F1 (``apple_macro_f1`` is another number); "micro" adds up the
    counts of all classes first.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        probabilities: Floats in [0, 1] of the same shape.
        threshold: Compared in the dtype of the probabilities.
        average: "macro", "micro", or None for a value of each class.

    Returns:
        Precision, recall and F1, each in [0, 1]: floats, or float64 arrays of shape (classes,)
        with ``average=None``. "macro" of no class at all is NaN.

    Raises:
        ConfigError: An unknown ``average``.
        DataError: Unusable labels or probabilities.

    Examples:
        >>> targets = np.array([[1, 0], [1, 1]])
        >>> precision_recall_f1(targets, np.array([[0.9, 0.8], [0.5, 0.7]]), average="micro")
        (0.6666666666666666, 0.6666666666666666, 0.6666666666666666)
    """
    if average is not None:
        check_choice("average", average, Average)
    labels, checked = check_probabilities(targets, probabilities)
    counts = count_predictions(labels, checked > threshold)
    return rates(*counts) if average is None else average_rates(*counts, average)


def apple_macro_f1(
    targets: npt.NDArray[Any], probabilities: npt.NDArray[Any], *, threshold: float = 0.5
) -> float:
    """Return 2PR / (P + R) of macro precision P and macro recall R, FLAIR's published "macro F1".

    It is not the mean of the classes' F1, which ``precision_recall_f1`` returns.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        probabilities: Floats in [0, 1] of the same shape.
        threshold: A label is predicted where its probability is above it.

    Returns:
        A float in [0, 1]; 0 where P + R is 0, and NaN without classes.

    Raises:
        DataError: Unusable labels or probabilities.

    Examples:
        >>> targets = np.array([[1, 0], [1, 1]])
        >>> apple_macro_f1(targets, np.array([[0.9, 0.8], [0.5, 0.7]]))
        0.75

    References:
        Song, Granqvist and Talwar: FLAIR: Federated Learning Annotated Image Repository, 2022,
        arXiv:2207.08869.
    """
    precision, recall, _ = precision_recall_f1(targets, probabilities, threshold=threshold)
    return 2 * precision * recall / (precision + recall) if precision + recall != 0 else 0.0


def card_f1(
    targets: npt.NDArray[Any], predictions: npt.NDArray[Any], average: Average = "micro"
) -> float:
    """Return F1 of 0/1 predictions as the FLAIR evaluation card computes what it calls AP.

    The card's recipe looks at predictions, not at scores, and returns 2PR / (P + R): it is F1 at
    whatever threshold made the predictions (probabilities above 0.5 in the benchmark), and must
    not be reported or compared as average precision. Its three quotients have 1e-8 added to the
    denominator, which puts it below ``precision_recall_f1`` by about 1e-8 and makes 0/0 a 0.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        predictions: 0/1 predictions of the same shape.
        average: "micro" adds up the counts of all classes first, "macro" is the mean over classes.

    Returns:
        A float in [0, 1); NaN for "macro" without classes.

    Raises:
        ConfigError: An unknown ``average``.
        DataError: Labels or predictions that are not 0/1, or of different shapes.

    Examples:
        >>> round(card_f1(np.array([[1, 0], [1, 1]]), np.array([[1, 1], [0, 1]])), 6)
        0.666667
    """
    check_choice("average", average, Average)
    labels, predicted = check_targets(targets), check_targets(predictions, "predictions")
    if labels.shape != predicted.shape:
        raise DataError(
            f"predictions: expected the targets' shape {labels.shape}, found {predicted.shape}; "
            "predict every class of every example once"
        )
    counts = count_predictions(labels, predicted)
    hits, selected, positives = _pooled(*counts) if average == "micro" else counts
    precision, recall = hits / (selected + 1e-8), hits / (positives + 1e-8)
    f1 = 2 * precision * recall / (precision + recall + 1e-8)
    return _mean(f1)


def count_predictions(
    targets: npt.NDArray[np.bool_], predicted: npt.NDArray[np.bool_]
) -> tuple[Counts, Counts, Counts]:
    """Return TP, TP + FP and TP + FN of each class, int64 arrays of shape (classes,).

    Args:
        targets: Labels of shape (examples, classes).
        predicted: Predictions of the same shape.

    Examples:
        >>> count_predictions(np.array([[True], [False]]), np.array([[True], [True]]))
        (array([1]), array([2]), array([1]))
    """
    counted = (targets & predicted, predicted, targets)
    hits, selected, positives = (np.count_nonzero(c, axis=0).astype(np.int64) for c in counted)
    return hits, selected, positives


def rates(hits: Counts, selected: Counts, positives: Counts) -> tuple[Floats, Floats, Floats]:
    """Return precision, recall and F1 from counts of one shape; 0/0 counts as 0.

    Args:
        hits: TP.
        selected: TP + FP.
        positives: TP + FN.

    Examples:
        >>> rates(np.array([1]), np.array([2]), np.array([1]))
        (array([0.5]), array([1.]), array([0.66666667]))
    """
    return _ratio(hits, selected), _ratio(hits, positives), _ratio(2 * hits, selected + positives)


def average_rates(
    hits: Counts, selected: Counts, positives: Counts, average: Average
) -> tuple[float, float, float]:
    """Return macro or micro precision, recall and F1 from counts of each class.

    Args:
        hits: TP of each class.
        selected: TP + FP of each class.
        positives: TP + FN of each class.
        average: "macro" is the mean of the classes' values, "micro" adds up the counts first.

    Examples:
        >>> average_rates(np.array([1, 0]), np.array([1, 0]), np.array([1, 0]), "macro")
        (0.5, 0.5, 0.5)
    """
    if average == "micro":
        hits, selected, positives = _pooled(hits, selected, positives)
    precision, recall, f1 = rates(hits, selected, positives)
    return _mean(precision), _mean(recall), _mean(f1)


def _pooled(hits: Counts, selected: Counts, positives: Counts) -> tuple[Counts, Counts, Counts]:
    """Add up the classes' counts, keeping the dimension of classes."""
    return hits.sum(keepdims=True), selected.sum(keepdims=True), positives.sum(keepdims=True)


def _ratio(numerator: Counts, denominator: Counts) -> Floats:
    result: Floats = np.divide(
        numerator, denominator, out=np.zeros(numerator.shape), where=denominator > 0
    )
    return result


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else float("nan")
