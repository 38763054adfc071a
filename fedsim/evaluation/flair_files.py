"""Reads what the FLAIR protocol judges: labels, scores, and whose each image is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedsim.data.faults import shown
from fedsim.errors import DataError
from fedsim.evaluation.prediction_arrays import read_arrays
from fedsim.evaluation.prediction_files import (
    PredictionTable,
    check_columns,
    column_names,
    plain_name,
    read_table,
)
from fedsim.metrics.inputs import check_probabilities


@dataclass(frozen=True, eq=False)
class FlairPredictions:
    """Multi-label scores of images, and the truth.

    Attributes:
        targets: Boolean labels of shape (images, labels), of one image and one label at least.
        scores: Floats of the same shape, in the order of which images are ranked.
        probabilities: Floats in [0, 1] of the same shape: the scores, or their sigmoid.
        label_names: Of the columns, no two the same.
        users: Whose each image is, shape (images,); None if nothing is said of it.
    """

    targets: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.floating[Any]]
    probabilities: npt.NDArray[np.floating[Any]]
    label_names: tuple[str, ...]
    users: npt.NDArray[Any] | None = None

    @classmethod
    def of(
        cls,
        targets: npt.NDArray[Any],
        scores: npt.NDArray[Any],
        label_names: Sequence[Any] | npt.NDArray[Any] | None = None,
        users: Sequence[Any] | npt.NDArray[Any] | None = None,
        *,
        where: str = "predictions",
    ) -> Self:
        """Check arrays and put them together.

        Args:
            targets: 0/1 labels of shape (images, labels).
            scores: Floats in [0, 1] of the same shape.
            label_names: Of the columns; the default is 0, 1, ...
            users: An id for each image, text, bytes or integers.
            where: What they are called, for messages.

        Raises:
            DataError: There is nothing, or the arrays do not fit together.

        Examples:
            >>> targets, scores = np.array([[1], [0]]), np.array([[0.5], [0.25]])
            >>> found = FlairPredictions.of(targets, scores, ["cat"])
            >>> found.label_names, found.users
            (('cat',), None)
        """
        try:
            labels, probabilities = check_probabilities(targets, scores, "scores")
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        if not labels.size:
            raise DataError(
                f"{where}: expected at least one image and one label, found shape {labels.shape}; "
                "check what wrote it"
            )
        names = _names(range(labels.shape[1]) if label_names is None else label_names)
        _check_names(where, "labels", names, labels.shape[1], "column")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(
                f"{where}: expected each label once, found {shown(twice)} "
                f"{names.count(twice)} times; rename or remove all but one"
            )
        owners = None if users is None else _names(users)
        if owners is not None:
            _check_names(where, "users", owners, len(labels), "image")
        ids = None if owners is None else np.array(owners, dtype=np.str_)
        return cls(labels, probabilities, probabilities, tuple(map(str, names)), ids)


def read_npz(path: Path) -> FlairPredictions:
    """Read ``targets``, ``scores``, and, where they are given, ``labels`` and ``users``.

    Raises:
        DataError: It is no such file, or the arrays do not fit together.
    """
    arrays = read_arrays(path, ("targets", "scores"), ("labels", "users"))
    return FlairPredictions.of(
        arrays["targets"],
        arrays["scores"],
        arrays.get("labels"),
        arrays.get("users"),
        where=str(path),
    )


def read_two_tables(
    targets: Path, scores: Path, *, id_column: str = "id", user_column: str = "user"
) -> FlairPredictions:
    """Read two CSV or Parquet files, with a row for each image and a column for each label.

    Rows and columns are matched by their names, so their order does not matter; it is that of
    ``targets`` in the result.

    Args:
        targets: 0/1 labels.
        scores: Numbers in [0, 1].
        id_column: What holds the image's id, in both.
        user_column: What holds the user's id, in ``targets``, if it is there; it is no label.

    Raises:
        DataError: It is no such table, the two do not have the same ids and labels, or a value is
            out of range.
    """
    truth_columns, score_columns = column_names(targets), column_names(scores)
    check_columns(targets, truth_columns, [id_column])
    check_columns(scores, score_columns, [id_column])
    labels = [name for name in truth_columns if name not in (id_column, user_column)]
    given = [name for name in score_columns if name not in (id_column, user_column)]
    _check_same(scores, "labels", given, targets, labels)
    has_users = user_column in truth_columns
    truth = read_table(targets, [id_column, *[user_column] * has_users], labels)
    guess = read_table(scores, [id_column], labels)
    ids, found = truth.unique_names(id_column), guess.unique_names(id_column)
    _check_same(scores, "ids", found, targets, ids)
    row_of = {name: row for row, name in enumerate(found)}
    _check_range(truth, labels, (truth.numbers == 0) | (truth.numbers == 1), "0 or 1")
    _check_range(guess, labels, (guess.numbers >= 0) & (guess.numbers <= 1), "a number in [0, 1]")
    return FlairPredictions.of(
        truth.numbers,
        guess.numbers[[row_of[name] for name in ids]],
        labels,
        truth.names(user_column) if has_users else None,
        where=str(scores),
    )


def _names(values: Any) -> list[str | None]:
    """Return names as text; None for what is none."""
    return [plain_name(value) for value in np.atleast_1d(np.asarray(values)).tolist()]


def _check_names(where: str, what: str, names: list[str | None], number: int, of_each: str) -> None:
    if len(names) != number or None in names:
        found = "something else" if None in names else f"{len(names)}"
        raise DataError(
            f"{where}: expected {what} to be {number} names, one for each {of_each}, found "
            f"{found}; write them as text"
        )


def _check_same(
    path: Path, what: str, found: Sequence[str], other: Path, expected: Sequence[str]
) -> None:
    """Raise DataError unless two files name the same labels or ids."""
    in_found, in_expected = set(found), set(expected)
    missing = [name for name in expected if name not in in_found]
    added = [name for name in found if name not in in_expected]
    if missing or added:
        parts = [f"without {shown(missing[:5])}"] * bool(missing)
        parts += [f"with {shown(added[:5])} besides"] * bool(added)
        raise DataError(
            f"{path}: expected the {len(expected)} {what} of {other}, found {len(found)}, "
            f"{' and '.join(parts)}; score the same {what}"
        )


def _check_range(
    table: PredictionTable, labels: Sequence[str], sound: npt.NDArray[np.bool_], expected: str
) -> None:
    if not sound.all():
        row, column = divmod(int((~sound).argmax()), len(labels))
        raise DataError(
            f"{table.path}, {table.places[row]}: expected {expected} in column "
            f"{shown(labels[column])}, found {table.numbers[row, column]:g}; mend what wrote it"
        )
