"""Checks of labels, scores and settings, and the array types that all metrics share."""

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError, DataError

Average = Literal["macro", "micro"]
EmptyClass = Literal["exclude", "zero"]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating[Any]]


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise ConfigError unless ``value`` is one of the strings of the ``Literal`` ``choices``."""
    if value not in get_args(choices):
        expected = ", ".join(map(repr, get_args(choices)))
        raise ConfigError(f"{name}: expected one of {expected}, found {value!r}; use one of them")


def check_targets(targets: npt.NDArray[Any], name: str = "targets") -> BoolArray:
    """Return 0/1 labels as a boolean array, without a copy when an entry is one byte.

    Args:
        targets: Array of shape (examples, classes), boolean or numeric.
        name: What the array is called, for the message.

    Raises:
        DataError: The array is not two-dimensional, or an entry is neither 0 nor 1.

    Examples:
        >>> check_targets(np.array([[0, 1]])).tolist()
        [[False, True]]
    """
    targets = np.asarray(targets)
    _check_matrix(targets, name)
    if targets.dtype == np.bool_:
        return targets
    if targets.dtype.kind not in "iuf":
        raise DataError(
            f"{name}: expected entries 0 or 1, found dtype {targets.dtype}; "
            "convert the labels to booleans"
        )
    if targets.dtype == np.uint8 and targets.max(initial=0) <= 1:
        return targets.view(np.bool_)
    as_bool: BoolArray = targets != 0
    if (targets != as_bool).any():
        where, value = _first(targets != as_bool, targets)
        raise DataError(
            f"{name} {where}: expected 0 or 1, found {value}; "
            "convert the labels to one 0/1 column for each class"
        )
    return as_bool


def check_scores(
    targets: npt.NDArray[Any], scores: npt.NDArray[Any], name: str = "scores"
) -> tuple[BoolArray, FloatArray]:
    """Return labels as booleans and scores unchanged, once both have been found usable.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        scores: Array of any float dtype and of the same shape.
        name: What the scores are called, for the message.

    Raises:
        DataError: Another number of dimensions, different shapes, labels that are neither 0 nor 1,
            scores that are not floats, or a score that is NaN or infinite.

    Examples:
        >>> check_scores(np.array([[1, 0]]), np.array([[0.5, np.nan]]))
        Traceback (most recent call last):
        ...
        fedsim.errors.DataError: scores [row 0, class 1]: expected a finite number, found nan; ...
    """
    targets, scores = check_targets(targets), np.asarray(scores)
    _check_matrix(scores, name)
    if targets.shape != scores.shape:
        raise DataError(
            f"{name}: expected the targets' shape {targets.shape}, found {scores.shape}; "
            "score every class of every example once"
        )
    if scores.dtype.kind != "f":
        raise DataError(
            f"{name}: expected floats, found dtype {scores.dtype}; convert them with astype"
        )
    # Minimum and maximum pass NaN on, and need no temporary as large as the scores.
    if scores.size and not (np.isfinite(scores.min()) and np.isfinite(scores.max())):
        where, value = _first(~np.isfinite(scores), scores)
        raise DataError(
            f"{name} {where}: expected a finite number, found {value}; "
            "mend the model that gave it, or leave the example out"
        )
    return targets, scores


def check_probabilities(
    targets: npt.NDArray[Any], probabilities: npt.NDArray[Any], name: str = "probabilities"
) -> tuple[BoolArray, FloatArray]:
    """Return labels as booleans and probabilities unchanged, once both have been found usable.

    Args:
        targets: 0/1 labels of shape (examples, classes).
        probabilities: Array of any float dtype and of the same shape, entries in [0, 1].
        name: What the probabilities are called, for the message.

    Raises:
        DataError: As for ``check_scores``, or an entry lies outside [0, 1].

    Examples:
        >>> check_probabilities(np.array([[1, 0]]), np.array([[0.5, 1.5]]))
        Traceback (most recent call last):
        ...
        fedsim.errors.DataError: probabilities [row 0, class 1]: expected a number in [0, 1], ...
    """
    targets, probabilities = check_scores(targets, probabilities, name)
    if probabilities.size and not (probabilities.min() >= 0 and probabilities.max() <= 1):
        where, value = _first((probabilities < 0) | (probabilities > 1), probabilities)
        raise DataError(
            f"{name} {where}: expected a number in [0, 1], found {value}; "
            "apply the sigmoid to logits first"
        )
    return targets, probabilities


def _check_matrix(array: npt.NDArray[Any], name: str) -> None:
    """Raise DataError unless ``array`` has the two dimensions (examples, classes)."""
    if array.ndim != 2:
        raise DataError(
            f"{name}: expected two dimensions (examples, classes), found shape {array.shape}; "
            "reshape a single class to (examples, 1)"
        )


def _first(faulty: BoolArray, array: npt.NDArray[Any]) -> tuple[str, object]:
    """Return the place of the first faulty entry, in words, and the entry."""
    row, column = np.unravel_index(int(faulty.argmax()), faulty.shape)
    return f"[row {row}, class {column}]", array[row, column].item()
