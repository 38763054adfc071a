"""Reads collections in the parquet files of the data set ``apple/flair`` of Hugging Face.

A row is an image: ``image`` (a struct of ``bytes`` and ``path``, or bytes alone), ``image_id``,
``user_id``, ``labels``, ``fine_grained_labels``; other columns are ignored. The split is that with
which the file's name begins, or its folder's (``data/train-00000-of-00010.parquet``,
``validation/0000.parquet``), or it stands in a column ``partition``.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.faults import Faults, shown
from fedsim.data.index import ImageIndex, ImageRecord, row_order
from fedsim.data.parquet_columns import COLUMNS, column_faults
from fedsim.data.parquet_images import NULL_IMAGE, ParquetImages, ParquetPart, arrow, opened, told
from fedsim.data.records import RecordReader, indexable
from fedsim.data.scan import Scan
from fedsim.errors import DataError, remedy_for

SUFFIX = ".parquet"

_SPLITS = {"train": "train", "val": "val", "validation": "val", "dev": "val", "test": "test"}
_SPLIT_NAME = re.compile(r"(train|validation|val|dev|test)(?![A-Za-z])")
_BATCH_ROWS = 4096


def holds_parquet(path: Path) -> bool:
    """Whether ``path`` is a parquet file or a folder with one at any depth.

    Raises:
        OSError: It, or a folder below it that was looked into, can't be listed.
    """
    if path.is_file():
        return path.suffix.lower() == SUFFIX
    if not path.is_dir():
        return False
    below = os.walk(path, onerror=_refuse)
    return any(name.lower().endswith(SUFFIX) for _, _, names in below for name in names)


def scan_parquet(path: Path) -> Scan:
    """Read all columns but the images, and collect the faults; no image is read.

    Files are taken in the order of their paths, and within a user images stay in that order. An
    ``image_id`` may be a whole number, which stands for its digits; a ``user_id`` may not, since
    users such as 0123 and 123 would have become one.

    Args:
        path: A ``.parquet`` file, or a folder with such files at any depth. Hidden files and
            folders are left alone.

    Raises:
        DataError: There is no such file, or pyarrow is not installed.
    """
    path = path.absolute()
    arrow("pyarrow.parquet", path)
    scanner = _Scanner(path)
    for file in _find(path, scanner.faults):
        try:
            scanner.add(file)
        except DataError as error:
            scanner.faults.add(str(error))
    return scanner.scan()


class _Scanner:
    """Collects the records of one file after the other."""

    def __init__(self, path: Path) -> None:
        self.faults = Faults(str(path))
        self._path = path
        self._reader = RecordReader(self.faults)
        self._records: list[ImageRecord] = []
        self._places: list[int] = []
        self._parts: list[ParquetPart] = []
        self._num_rows = 0

    def add(self, path: Path) -> None:
        """Read the records of a file.

        Raises:
            DataError: The file can't be read or has no such columns.
        """
        is_root = path == self._path
        name = path.name if is_root else path.relative_to(self._path).as_posix()
        split = _split_of(name)
        with told(path), opened(path, None if is_root else self._path) as (file, stamp):
            faults = column_faults(path, file.schema_arrow, split)
            for fault in faults:
                self.faults.add(f"{name}: {fault}")
            if not faults:
                part = _part(path, file, stamp)
                nulls = _null_rows(file, part)
                self._add_rows(name, split, _entries(file, sum(part.group_rows)), nulls)
                self._parts.append(part)

    def scan(self) -> Scan:
        """Return what was found."""
        records = self._records
        if self._parts and not self._num_rows:
            self.faults.add("expected at least one image, found none; copy the files anew")
        records = indexable(records, self.faults)
        places = np.array(self._places, dtype=np.int64)[row_order(records)]
        return Scan(
            images=ParquetImages(self._path, ImageIndex.of(records), tuple(self._parts), places),
            faults=self.faults,
            repeated_labels=self._reader.repeated_labels,
        )

    def _add_rows(
        self, name: str, split: str | None, entries: Iterator[dict[str, Any]], nulls: set[int]
    ) -> None:
        records, places, row = [], [], -1
        for row, entry in enumerate(entries):
            where = f"{name}, row {row}"
            stated = entry.setdefault("partition", split)
            meant = _SPLITS.get(stated or "")
            entry["partition"] = meant or stated  # an unknown one is told by the reader
            agrees = split is None or meant in (split, None)
            if not agrees:
                self.faults.add(
                    f"{where}: partition must be {split} as the file's name says, found "
                    f"{shown(stated)}; mend one of the two"
                )
                entry["partition"] = split
            record = self._reader.read(where, entry)
            if row in nulls:
                self.faults.add(f"{where}: expected {NULL_IMAGE}")
            elif record is not None and agrees:
                records.append(record)
                places.append(self._num_rows + row)
        # A file that breaks off before this gives nothing.
        self._records += records
        self._places += places
        self._num_rows += row + 1


def _find(path: Path, faults: Faults) -> list[Path]:
    """Return every parquet file, sorted by path; those that can't be read are faults."""
    if path.is_file():
        return [path]
    found, root = [], os.path.realpath(path)

    def note(error: OSError) -> None:
        faults.add(
            f"{error.filename}: expected a folder that can be listed, found {error.strerror}; "
            f"{remedy_for(error, 'mend it')}"
        )

    for folder, subfolders, names in os.walk(path, onerror=note):
        for name in subfolders:
            try:
                leads_out = _leads_out(Path(folder, name), root)
            except OSError as error:
                note(error)
                continue
            if leads_out:
                faults.add(
                    f"{Path(folder, name).relative_to(path).as_posix()}: expected a folder inside "
                    f"{root}, found a link that leads out of it; put the files themselves there"
                )
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [
            Path(folder, name)
            for name in names
            if name.lower().endswith(SUFFIX) and not name.startswith(".")
        ]
    if not found:
        raise DataError(f"{path}: expected {SUFFIX} files, found none; give the folder with them")
    files = []
    for file in sorted(found, key=lambda file: file.relative_to(path).as_posix()):
        wrong = _file_fault(file)
        if wrong is None:
            files.append(file)
        else:
            faults.add(f"{file.relative_to(path).as_posix()}: expected a file, found {wrong}")
    return files


def _leads_out(folder: Path, root: str) -> bool:
    # A link to a folder inside is not followed: its files are met where they lie.
    return folder.is_symlink() and not Path(os.path.realpath(folder)).is_relative_to(root)


def _file_fault(path: Path) -> str | None:
    try:
        return None if path.is_file() else "something else"
    except OSError as error:
        return f"{error.strerror}; {remedy_for(error, 'mend it')}"


def _refuse(error: OSError) -> None:
    raise error


def _split_of(name: str) -> str | None:
    """Return the split that a relative path states.

    Examples:
        >>> [_split_of(name) for name in ("a/dev-0.parquet", "test/0.parquet", "trainer.parquet")]
        ['val', 'test', None]
    """
    for part in reversed(name.split("/")[-2:]):
        match = _SPLIT_NAME.match(part)
        if match is not None:
            return _SPLITS[match[1]]
    return None


def _part(path: Path, file: Any, stamp: tuple[int, int]) -> ParquetPart:
    is_struct = file.schema_arrow.field("image").type.num_fields > 0
    column = "image.bytes" if is_struct else "image"
    number = _leaf(file, column)
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    return ParquetPart(
        path=path,
        stamp=stamp,
        column=column,
        group_rows=tuple(group.num_rows for group in groups),
        group_bytes=tuple(group.column(number).total_uncompressed_size for group in groups),
    )


def _leaf(file: Any, column: str) -> int:
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    return paths.index(column)


def _null_rows(file: Any, part: ParquetPart) -> set[int]:
    """Return the rows without an image; images are read only in row groups that count nulls."""
    nulls, start, leaf = set(), 0, _leaf(file, part.column)
    for group, num_rows in enumerate(part.group_rows):
        statistics = file.metadata.row_group(group).column(leaf).statistics
        if statistics is not None and statistics.has_null_count and statistics.null_count:
            row = start
            for batch in file.iter_batches(
                batch_size=64, row_groups=[group], columns=[part.column], use_threads=False
            ):
                for value in batch.column(0):
                    image = value["bytes"] if part.column != "image" and value.is_valid else value
                    if not image.is_valid:
                        nulls.add(row)
                    row += 1
        start += num_rows
    return nulls


def _entries(file: Any, num_rows: int) -> Iterator[dict[str, Any]]:
    """Yield every row without its image, in the words of FLAIR's metadata.

    Raises:
        ValueError: There are fewer or more than ``num_rows`` rows.
    """
    wanted = (*COLUMNS[1:], "partition")
    columns = [name for name in file.schema_arrow.names if name in wanted]
    count = 0
    # By group, since pyarrow can't join the dictionaries of several inside lists.
    for group in range(file.metadata.num_row_groups):
        for batch in file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
        ):
            for entry in batch.to_pylist():
                if isinstance(entry["image_id"], int):
                    entry["image_id"] = str(entry["image_id"])
                yield entry
                count += 1
    if count != num_rows:
        raise ValueError(f"{count} rows instead of the {num_rows} that it states")
