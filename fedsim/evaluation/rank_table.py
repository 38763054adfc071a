"""Tables of scores for ranking: CSV, Parquet or JSON lines."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import DataError
from fedsim.evaluation.prediction_files import check_columns, column_names, read_table
from fedsim.evaluation.rank import Result

SUBMISSION, DATA_SET, RUN, SCORE, HALF_WIDTH = (
    "submission",
    "data_set",
    "run",
    "score",
    "half_width",
)
_FAILED = ("", "nan", "failed")

_Tables = dict[str, dict[str, list[Result]]]


def read_scores(path: Path, leave_out: Collection[str] = ()) -> _Tables:
    """Read scores, larger ones better, earlier submissions first.

    A table with the columns ``submission``, ``data_set`` and ``score`` has a row per run; ``run``
    tells runs apart, ``half_width`` is that of the score's interval, other columns are ignored. Any
    other table has a row per submission: its name in the first column, and a column per data set.
    An empty cell, ``nan`` or ``failed`` stands for a run that failed.

    Args:
        path: The file.
        leave_out: Columns of the second kind that are no data sets.

    Raises:
        DataError: The file can't be read, has no rows, names something twice, or a score is no
            number.
    """
    names, rows = _rows(path)
    long = (SUBMISSION, DATA_SET, SCORE)
    is_long = len(set(long) & set(names)) >= 2
    if is_long:
        check_columns(path, names, long)
    unknown = [name for name in leave_out if name not in names]
    if unknown:
        raise DataError(
            f"{path}: expected a column {unknown[0]!r} to leave out, found {', '.join(names)}; "
            "correct its name"
        )
    return _long(path, rows) if is_long else _wide(path, names, rows, leave_out)


def _rows(path: Path) -> tuple[tuple[str, ...], list[tuple[str, dict[str, str]]]]:
    """Return the heads, and the rows with where each stands."""
    names = column_names(path)
    table = read_table(path, names)
    columns = [[_text(cell) for cell in table.cells[name]] for name in names]
    rows = [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]
    return names, list(zip(table.places, rows, strict=True))


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _long(path: Path, rows: list[tuple[str, dict[str, str]]]) -> _Tables:
    found: _Tables = {}
    seen: set[tuple[str, str, str]] = set()
    for place, row in rows:
        key = (row[SUBMISSION], row[DATA_SET], row.get(RUN, ""))
        if not row[SUBMISSION] or not row[DATA_SET]:
            raise DataError(
                f"{path}, {place}: expected a submission and a data set, found none; name both"
            )
        if key in seen:
            raise DataError(
                f"{path}, {place}: expected another {SUBMISSION}, {DATA_SET} or {RUN} than "
                f"before, found {', '.join(filter(None, key))} again; leave one row out, or number "
                f"the runs in a column {RUN}"
            )
        seen.add(key)
        half_width = _number(path, place, HALF_WIDTH, row.get(HALF_WIDTH, ""))
        if half_width is not None and half_width < 0:
            raise DataError(
                f"{path}, {place}: expected a half width of at least 0, found {half_width:g}; "
                "mend it"
            )
        result = Result(_number(path, place, SCORE, row[SCORE]), half_width)
        found.setdefault(row[SUBMISSION], {}).setdefault(row[DATA_SET], []).append(result)
    return found


def _wide(
    path: Path,
    names: Sequence[str],
    rows: list[tuple[str, dict[str, str]]],
    leave_out: Collection[str],
) -> _Tables:
    data_sets = [name for name in names[1:] if name not in leave_out]
    if not data_sets:
        raise DataError(
            f"{path}: expected a column of names and one for each data set, found "
            f"{', '.join(names)}; add a data set"
        )
    found: _Tables = {}
    for place, row in rows:
        submission = row[names[0]]
        if submission in found or not submission:
            raise DataError(
                f"{path}, {place}: expected a new submission, found {submission!r}; for "
                f"several runs use the columns {SUBMISSION}, {DATA_SET}, {RUN} and {SCORE}"
            )
        found[submission] = {
            data: [Result(_number(path, place, data, row[data]))] for data in data_sets
        }
    return found


def _number(path: Path, place: str, column: str, text: str) -> float | None:
    if text.lower() in _FAILED:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            f"{path}, {place}, column {column}: expected a finite number, or an empty cell for "
            f"a run that failed, found {text!r}; mend it, or leave the column out"
        )
    return value
