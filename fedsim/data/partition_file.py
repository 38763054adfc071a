"""Partitions as files: CSV in UTF-8 with the columns image_id and user_id, one row per image."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsim.data.faults import Faults
from fedsim.data.index import SPLITS, ImageIndex
from fedsim.data.partition import Deal
from fedsim.errors import DataError, remedy_for
from fedsim.whole_file import whole_file

HEADER = ["image_id", "user_id"]


def write_partition(index: ImageIndex, path: Path) -> None:
    """Write who owns which image of the train split, in the order of the index.

    Args:
        index: The collection's.
        path: The file; it takes its place when it is whole.

    Raises:
        DataError: The file can't be written.
    """
    _, stop = index.users_of("train")
    try:
        with whole_file(path) as place, place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            for user in range(stop):
                user_id = index.user_ids[user]
                images = index.image_ids.cut(*index.user_offsets[user : user + 2].tolist())
                writer.writerows((image_id, user_id) for image_id in images)
    except OSError as error:
        raise DataError(
            f"{path}: expected to write a partition, found {error.strerror}; choose another path"
        ) from error


def read_partition(index: ImageIndex, *, path: str) -> Deal:
    """Deal as a file says; a user's images are in the file's order.

    Args:
        index: The collection's.
        path: The file. ``~`` is the home folder.

    Raises:
        DataError: The file is none of a partition, or does not name every image of the train split
            exactly once and no other; the message lists what is wrong.
    """
    faults = Faults(path)
    reader = _OwnerReader(index, faults)
    for line, fields in _lines(Path(path).expanduser()):
        reader.read(line, fields)
    reader.finish()
    faults.check()
    rows_of = dict(sorted(reader.rows_of.items()))
    return Deal(
        user_ids=tuple(rows_of),
        sizes=np.array([len(rows) for rows in rows_of.values()], dtype=np.int64),
        rows=np.array([row for rows in rows_of.values() for row in rows], dtype=np.int64),
    )


class _OwnerReader:
    """Takes the lines of a partition one by one, and notes what is wrong."""

    def __init__(self, index: ImageIndex, faults: Faults) -> None:
        _, stop = index.users_of("train")
        self._index, self._faults = index, faults
        self._num_train = int(index.user_offsets[stop])
        self._row = {id_: row for row, id_ in enumerate(index.image_ids.cut(0, len(index)))}
        self._user = {
            id_: user for user, id_ in enumerate(index.user_ids.cut(0, len(index.user_ids)))
        }
        self._line_of_row = np.zeros(self._num_train, dtype=np.int64)
        self.rows_of: dict[str, list[int]] = {}

    def read(self, line: int, fields: list[str]) -> None:
        """Take a line's fields."""
        if len(fields) != len(HEADER) or not all(fields):
            found = ",".join(fields)[:60]
            self._fault(line, f"expected an image id and a user id, found {found!r}")
            return
        image_id, user_id = fields
        row = self._row.get(image_id)
        if row is None or row >= self._num_train:
            split = "no split" if row is None else self._split_of_row(row)
            self._fault(line, f"image {image_id!r} must be of the train split, found in {split}")
            return
        if self._line_of_row[row]:
            first = self._line_of_row[row]
            self._fault(line, f"image {image_id!r} must be named once, found in line {first} too")
            return
        self._line_of_row[row] = line
        if user_id not in self.rows_of:
            self._check_user(line, user_id)
            self.rows_of[user_id] = []
        self.rows_of[user_id].append(row)

    def finish(self) -> None:
        """Note the images that no line named."""
        for row in np.flatnonzero(self._line_of_row == 0).tolist():
            image_id = self._index.image_ids[row]
            self._faults.add(f"image {image_id!r} of the train split must be named, found nowhere")

    def _check_user(self, line: int, user_id: str) -> None:
        user = self._user.get(user_id)
        code = 0 if user is None else int(self._index.user_splits[user])
        if code:
            self._fault(line, f"user {user_id!r} must be in one split, found in {SPLITS[code]} too")

    def _split_of_row(self, row: int) -> str:
        user = int(np.searchsorted(self._index.user_offsets, row, side="right")) - 1
        return SPLITS[self._index.user_splits[user]]

    def _fault(self, line: int, fault: str) -> None:
        self._faults.add(f"line {line}: {fault}")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line after the header; empty ones are left out."""
    try:
        # Spreadsheets put a byte order mark before the text.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if header != HEADER:
                raise DataError(
                    f"{path}: expected the first line {','.join(HEADER)}, found "
                    f"{','.join(header)[:60]!r}; write it as fedsim data partition does"
                )
            yield from ((reader.line_num, fields) for fields in reader if fields)
    except OSError as error:
        raise DataError(
            f"{path}: expected a partition, found {error.strerror}; "
            f"{remedy_for(error, 'correct data.partition.path')}"
        ) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: expected CSV in UTF-8, found {error}; write it as fedsim data partition does"
        ) from error
