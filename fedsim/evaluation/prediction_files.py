"""Reads tables of predictions and of truth: CSV, Parquet and JSON lines.

A table is read in two parts: columns whose cells stay as they are stored (ids, names, lists of
labels), and columns of numbers, which become one matrix.
"""

import csv
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.faults import shown
from fedsim.data.parquet_images import arrow, told
from fedsim.errors import DataError

TABLES = (".csv", ".parquet", ".jsonl")
_LONGEST_FIELD = 2**24
_INDEX_OF_PANDAS = re.compile(r"__index_level_\d+__")  # a column that nobody asked for


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """Some columns of a table.

    Attributes:
        path: The file.
        places: Where each row stands, like ``line 7`` or ``row 3``.
        cells: Columns as they are stored, by name: text in a CSV file, whatever was written in
            the others.
        numbers: Float matrix of shape (rows, number columns): float32 if a Parquet file holds
            nothing else, float64 otherwise. All are finite.
    """

    path: Path
    places: Sequence[str]
    cells: dict[str, list[Any]]
    numbers: npt.NDArray[np.floating[Any]]

    def names(self, column: str) -> list[str]:
        """Return a column's cells as names, by ``plain_name``, each of which must be there."""
        found = []
        for place, cell in zip(self.places, self.cells[column], strict=True):
            name = plain_name(cell)
            if not name:
                raise DataError(
                    f"{self.path}, {place}: expected a name in column {column}, found "
                    f"{cell!r:.60}; give every row one"
                )
            found.append(name)
        return found

    def unique_names(self, column: str) -> list[str]:
        """Return a column's cells as names, no two of which may be the same."""
        names = self.names(column)
        first: dict[str, str] = {}
        for place, name in zip(self.places, names, strict=True):
            if name in first:
                raise DataError(
                    f"{self.path}: expected each {column} once, found {shown(name)} in "
                    f"{first[name]} and in {place}; remove one of them"
                )
            first[name] = place
        return names


def plain_name(cell: Any) -> str | None:
    r"""Return a name that is stored as text, as bytes, as Python shows bytes, or as an integer.

    Examples:
        >>> plain_name("a.JPEG"), plain_name(b"a.JPEG"), plain_name("b'a.JPEG'"), plain_name(7)
        ('a.JPEG', 'a.JPEG', 'a.JPEG', '7')
        >>> plain_name(1.5), plain_name(b"\xff")
        (None, None)
    """
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(cell, int | np.integer) and not isinstance(cell, bool):
        return str(cell)
    if not isinstance(cell, str):
        return None
    shown_bytes = len(cell) > 3 and cell[:2] in ("b'", 'b"') and cell[-1] == cell[1]
    return str(cell[2:-1] if shown_bytes else cell)


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names of a table's columns.

    Raises:
        DataError: There is no such file, it is no table, or two columns have one name.
    """
    kind = _kind(path)
    if kind == ".csv":
        names = next(_csv_rows(path), ("", []))[1]
    elif kind == ".jsonl":
        names = list(dict.fromkeys(name for _, row in _json_rows(path) for name in row))
    else:
        with told(path):
            written = arrow("pyarrow.parquet", path).read_schema(path).names
        names = [name for name in written if not _INDEX_OF_PANDAS.fullmatch(name)]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise DataError(
            f"{path}: expected each column once, found {shown(twice[0])} {names.count(twice[0])} "
            "times; remove all but one"
        )
    return tuple(names)


def check_columns(path: Path, found: Sequence[str], needed: Iterable[str]) -> None:
    """Raise DataError if a table lacks a column, with the names that come near it."""
    missing = [name for name in needed if name not in found]
    if not missing:
        return
    near = difflib.get_close_matches(missing[0], found, n=1)
    advice = f"rename {shown(near[0])} to it" if near else "add or rename it"
    raise DataError(
        f"{path}: expected a column {shown(missing[0])}, found the columns {shown(list(found))}; "
        f"{advice}"
    )


def read_table(path: Path, cells: Sequence[str], numbers: Sequence[str] = ()) -> PredictionTable:
    """Read columns of a CSV (UTF-8, commas), Parquet or JSON-lines file, told by its suffix.

    Args:
        path: The file.
        cells: Columns to keep as they are stored.
        numbers: Columns of finite numbers.

    Raises:
        DataError: There is no such file, it is no such table, a column is missing or there twice,
            it has no rows, or a cell of ``numbers`` is no finite number.
    """
    names = column_names(path)
    check_columns(path, names, [*cells, *numbers])
    kind = _kind(path)
    if kind == ".csv":
        table = _csv_table(path, list(names), cells, numbers)
    elif kind == ".jsonl":
        table = _json_table(path, cells, numbers)
    else:
        table = _parquet_table(path, cells, numbers)
    if not table.places:
        raise DataError(f"{path}: expected at least one row, found none; check what wrote it")
    finite = np.isfinite(table.numbers)
    if not finite.all():
        row, column = divmod(int((~finite).argmax()), finite.shape[1])
        raise DataError(
            f"{path}, {table.places[row]}: expected a finite number in column "
            f"{shown(numbers[column])}, found {table.numbers[row, column]}; mend the model that "
            "gave it, or leave the example out"
        )
    return table


def _kind(path: Path) -> str:
    kind = path.suffix.lower()
    if kind not in TABLES:
        raise DataError(
            f"{path}: expected a table that ends in {', '.join(TABLES)}, found another ending; "
            "rename or convert it"
        )
    if not path.is_file():
        raise DataError(f"{path}: expected a table, found no such file; correct the path")
    return kind


@contextmanager
def file_faults(path: Path, what: str) -> Iterator[None]:
    """Turn what opening or decoding a file raises into a DataError that says what it should be."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path}: expected {what}, found {reason}; correct the path") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected text in UTF-8, found other bytes; save it as UTF-8"
        ) from error


def _csv_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a CSV file, with where they stand; blank lines are none."""
    csv.field_size_limit(_LONGEST_FIELD)
    with (
        file_faults(path, "a CSV file"),
        path.open(encoding="utf-8-sig", newline="") as file,
    ):
        reader = csv.reader(file, strict=True)
        try:
            for row in reader:
                if row:
                    yield f"line {reader.line_num}", row
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: expected CSV, found what can't be parsed "
                f"({error}); mend it"
            ) from error


def _csv_table(
    path: Path, names: list[str], cells: Sequence[str], numbers: Sequence[str]
) -> PredictionTable:
    kept = [(name, names.index(name)) for name in cells]
    number_columns = [names.index(name) for name in numbers]
    places: list[str] = []
    columns: dict[str, list[Any]] = {name: [] for name in cells}
    matrix: list[npt.NDArray[np.float64]] = []
    rows = _csv_rows(path)
    next(rows, None)
    for place, row in rows:
        if len(row) != len(names):
            raise DataError(
                f"{path}, {place}: expected {len(names)} fields as in the first line, found "
                f"{len(row)}; put a field that holds a comma in quotes"
            )
        places.append(place)
        for name, column in kept:
            columns[name].append(row[column])
        if numbers:
            matrix.append(_floats(path, place, numbers, [row[k] for k in number_columns]))
    stacked = np.array(matrix) if matrix else np.empty((len(places), 0))
    return PredictionTable(path, places, columns, stacked)


def _floats(
    path: Path, place: str, names: Sequence[str], fields: list[Any]
) -> npt.NDArray[np.float64]:
    try:
        return np.array([float(field) for field in fields])
    except (TypeError, ValueError):
        for name, field in zip(names, fields, strict=True):
            try:
                float(field)
            except (TypeError, ValueError) as error:
                raise DataError(
                    f"{path}, {place}: expected a number in column {shown(name)}, found "
                    f"{field!r:.60}; write one"
                ) from error
        raise


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with file_faults(path, "JSON lines"), path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number}: expected a JSON object, found what can't be parsed "
                    f"({error}); write one object a line"
                ) from error
            if not isinstance(row, dict):
                raise DataError(
                    f"{path}, line {number}: expected a JSON object, found {shown(row)}; write "
                    "one object a line"
                )
            yield f"line {number}", row


def _json_table(path: Path, cells: Sequence[str], numbers: Sequence[str]) -> PredictionTable:
    rows = list(_json_rows(path))
    for place, row in rows:
        missing = [name for name in (*cells, *numbers) if name not in row]
        if missing:
            raise DataError(
                f"{path}, {place}: expected {shown(missing[0])} in every object, found an object "
                "without it; add it"
            )
    matrix = [_floats(path, place, numbers, [row[n] for n in numbers]) for place, row in rows]
    columns = {name: [row[name] for _, row in rows] for name in cells}
    stacked = np.array(matrix) if matrix else np.empty((0, len(numbers)))
    return PredictionTable(path, [place for place, _ in rows], columns, stacked)


def _parquet_table(path: Path, cells: Sequence[str], numbers: Sequence[str]) -> PredictionTable:
    with told(path), arrow("pyarrow.parquet", path).ParquetFile(path) as file:
        table = file.read(columns=[*cells, *numbers])
    types = arrow("pyarrow.types", path)
    for name in numbers:
        kind = table.schema.field(name).type
        if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
            raise DataError(
                f"{path}: expected numbers in column {shown(name)}, found {kind}; write it as such"
            )
    single = bool(numbers) and all(table.schema.field(n).type == "float" for n in numbers)
    matrix = np.empty((table.num_rows, len(numbers)), dtype=np.float32 if single else np.float64)
    for column, name in enumerate(numbers):
        # A missing number becomes NaN, which is refused with its place.
        matrix[:, column] = table.column(name).to_pandas()
    columns = {name: table.column(name).to_pylist() for name in cells}
    places = [f"row {number}" for number in range(1, table.num_rows + 1)]
    return PredictionTable(path, places, columns, matrix)
