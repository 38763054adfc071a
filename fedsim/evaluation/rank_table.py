"""Tables of scores for ranking, as CSV."""

import csv
import math
from collections.abc import Collection
from pathlib import Path

from fedsim.errors import DataError
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
    is_long = {SUBMISSION, DATA_SET, SCORE} <= set(names)
    unknown = [name for name in leave_out if name not in names]
    if unknown:
        raise DataError(
            f"{path}: expected a column {unknown[0]!r} to leave out, found {', '.join(names)}; "
            "correct its name"
        )
    return _long(path, rows) if is_long else _wide(path, names, rows, leave_out)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the heads, and the rows with the number of their line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip() for name in next(reader, [])]
            lines = [(reader.line_num, [c.strip() for c in cells]) for cells in reader if cells]
    except FileNotFoundError:
        raise DataError(f"{path}: expected a CSV file, found no file; check the path") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a CSV file in UTF-8, found {error}; mend it") from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: expected different columns, found {twice[0]!r} twice; rename one")
    for line, cells in lines:
        if len(cells) != len(names):
            raise DataError(
                f"{path}, line {line}: expected {len(names)} cells, found {len(cells)}; fill it up"
            )
    if not lines:
        raise DataError(f"{path}: expected rows under a line of column names, found none; add them")
    return names, [(line, dict(zip(names, cells, strict=True))) for line, cells in lines]


def _long(path: Path, rows: list[tuple[int, dict[str, str]]]) -> _Tables:
    found: _Tables = {}
    seen: set[tuple[str, str, str]] = set()
    for line, row in rows:
        key = (row[SUBMISSION], row[DATA_SET], row.get(RUN, ""))
        if not row[SUBMISSION] or not row[DATA_SET]:
            raise DataError(
                f"{path}, line {line}: expected a submission and a data set, found none; name both"
            )
        if key in seen:
            raise DataError(
                f"{path}, line {line}: expected another {SUBMISSION}, {DATA_SET} or {RUN} than "
                f"before, found {', '.join(filter(None, key))} again; leave one row out, or number "
                f"the runs in a column {RUN}"
            )
        seen.add(key)
        half_width = _number(path, line, HALF_WIDTH, row.get(HALF_WIDTH, ""))
        if half_width is not None and half_width < 0:
            raise DataError(
                f"{path}, line {line}: expected a half width of at least 0, found {half_width:g}; "
                "mend it"
            )
        result = Result(_number(path, line, SCORE, row[SCORE]), half_width)
        found.setdefault(row[SUBMISSION], {}).setdefault(row[DATA_SET], []).append(result)
    return found


def _wide(
    path: Path, names: list[str], rows: list[tuple[int, dict[str, str]]], leave_out: Collection[str]
) -> _Tables:
    data_sets = [name for name in names[1:] if name not in leave_out]
    if not data_sets:
        raise DataError(
            f"{path}: expected a column of names and one for each data set, found "
            f"{', '.join(names)}; add a data set"
        )
    found: _Tables = {}
    for line, row in rows:
        submission = row[names[0]]
        if submission in found or not submission:
            raise DataError(
                f"{path}, line {line}: expected a new submission, found {submission!r}; for "
                f"several runs use the columns {SUBMISSION}, {DATA_SET}, {RUN} and {SCORE}"
            )
        found[submission] = {
            data: [Result(_number(path, line, data, row[data]))] for data in data_sets
        }
    return found


def _number(path: Path, line: int, column: str, text: str) -> float | None:
    if text.lower() in _FAILED:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(
            f"{path}, line {line}, column {column}: expected a finite number, or an empty cell for "
            f"a run that failed, found {text!r}; mend it, or leave the column out"
        )
    return value
