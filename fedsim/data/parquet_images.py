"""Reads single images out of parquet files, in any order and within little memory.

A parquet file can't give one image: the least that can be read is a page of a row group, some
hundred images or a thousand. So what is asked for together is sorted by where it lies.
"""

import contextlib
import importlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.index import About, ImageIndex, Int64s, offsets_of
from fedsim.errors import DataError

_WINDOW_BYTES = 64 * 2**20  # images that are held so as to give them back in the order asked for
_BATCH_BYTES = 4 * 2**20  # images that are decoded at a time
_BUFFER_BYTES = 2**18
_IMAGE_OVERHEAD = 256  # what an image takes in memory besides its bytes

Stamp = tuple[int, int]


@dataclass(frozen=True)
class ParquetPart:
    """One of the files of a collection.

    Attributes:
        path: The file.
        stamp: Its size in bytes and time of change in ns when it was first opened.
        column: What holds the images: "image.bytes" in a struct, or "image".
        group_rows: Rows of each row group.
        group_bytes: Bytes of the images of each row group, before compression.
    """

    path: Path
    stamp: Stamp
    column: str
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ParquetImages:
    """The encoded images of one parquet file or a folder of them.

    Files are opened for each ``read`` and closed after it, so a reader may be pickled, forked and
    shared by threads.

    Attributes:
        path: The folder, outside which no file is ever read, or the file.
        index: Who owns which image, with which labels.
        parts: The files, in the order in which their rows are counted.
        places: int64 array of shape (images,): each row's place in storage, when the rows of all
            files are counted one after the other.
    """

    path: Path
    index: ImageIndex
    parts: tuple[ParquetPart, ...]
    places: Int64s

    @property
    def place(self) -> str:
        """The path of the folder or file."""
        return str(self.path)

    @property
    def about(self) -> About:
        """The name of the folder or file; it states no origin and no licence."""
        return About(self.path.stem if self.path.suffix.lower() == ".parquet" else self.path.name)

    @property
    def content_sha256(self) -> None:
        """None: parquet files store no hash of their images."""
        return None

    @property
    def storage_order(self) -> Int64s:
        """All rows, in the order in which they lie in the files: the only fast order to read."""
        return np.argsort(self.places, kind="stable").astype(np.int64)

    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        """Yield the encoded image of each row.

        Rows are looked ahead at until their images take some 64 MiB, and every row group that
        holds one of them is read once for all of them. A row group is read from its start to the
        last image wanted; a call that goes on where it stopped reads nothing twice.
        """
        with contextlib.closing(_Cursor(self)) as cursor:
            for window in self._windows(rows):
                places = self.places[window].tolist()
                found = {place: cursor.image(place) for place in sorted(set(places))}
                for row, place in zip(window, places, strict=True):
                    data = found[place]
                    if data is None:
                        raise DataError(
                            f"{cursor.path_of(place)}: image {self.index.image_ids[row]!r}: "
                            f"expected {NULL_IMAGE}"
                        )
                    yield data

    @cached_property
    def group_starts(self) -> Int64s:
        """Where each row group of all files begins, and where the last ends, as places."""
        return offsets_of([rows for part in self.parts for rows in part.group_rows])

    @cached_property
    def groups(self) -> list[tuple[int, int]]:
        """The number of the file and that within the file of each row group."""
        return [
            (number, group)
            for number, part in enumerate(self.parts)
            for group in range(len(part.group_rows))
        ]

    def group_of(self, place: int) -> int:
        """Return which row group of all files holds a place."""
        return int(np.searchsorted(self.group_starts, place, side="right")) - 1

    def image_bytes(self, group: int) -> int:
        """Return the mean size of the images of a row group, at least 1."""
        number, within = self.groups[group]
        part = self.parts[number]
        return max(1, part.group_bytes[within] // max(1, part.group_rows[within]))

    def _windows(self, rows: Iterable[int]) -> Iterator[list[int]]:
        window, size = [], 0
        for row in rows:
            window.append(row)
            size += self.image_bytes(self.group_of(self.places[row])) + _IMAGE_OVERHEAD
            if size >= _WINDOW_BYTES:
                yield window
                window, size = [], 0
        if window:
            yield window


NULL_IMAGE = (
    "an image's bytes, found null (a path beside them is never followed); "
    "write the file anew with the images inside"
)


class _Cursor:
    """Gives images by their place in storage, and reads nothing twice while that rises."""

    def __init__(self, images: ParquetImages) -> None:
        self._images = images
        self._opened = contextlib.ExitStack()
        self._file: Any = None
        self._number = self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = ()
        self._start = 0  # the place of the batch's first image

    def close(self) -> None:
        self._opened.close()

    def path_of(self, place: int) -> Path:
        images = self._images
        return images.parts[images.groups[images.group_of(place)][0]].path

    def image(self, place: int) -> bytes | None:
        """Return the image at ``place``; None if the file holds null there."""
        group = self._images.group_of(place)
        with told(self.path_of(place)):
            if group != self._group or place < self._start:
                self._begin(group)
            while place >= self._start + len(self._batch):
                self._start += len(self._batch)
                self._batch = next(self._batches, None)
                if self._batch is None:
                    raise ValueError("a row group with fewer rows than it states")
                self._batch = self._batch.column(0)
            value = self._batch[place - self._start].as_py()
        data: bytes | None = value["bytes"] if isinstance(value, dict) else value
        return data

    def _begin(self, group: int) -> None:
        images = self._images
        number, within = images.groups[group]
        part = images.parts[number]
        if number != self._number:
            self._group = self._number = -1
            self._opened.close()
            root = None if part.path == images.path else images.path
            self._file, stamp = self._opened.enter_context(opened(part.path, root))
            if stamp != part.stamp:
                raise DataError(
                    f"{part.path}: expected the file that was opened before, found one changed "
                    "since then; put the old file back, or start again with the new one"
                )
            self._number = number
        self._batches = self._file.iter_batches(
            batch_size=max(1, min(1024, _BATCH_BYTES // images.image_bytes(group))),
            row_groups=[within],
            columns=[part.column],
            use_threads=False,
        )
        self._batch, self._start, self._group = (), int(images.group_starts[group]), group


def arrow(module: str, path: Path) -> Any:
    """Import a module of pyarrow, which is an optional package and has no types.

    Raises:
        DataError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{path}: expected the package pyarrow to read parquet files with, found none; "
            'run pip install "fedsim[parquet]"'
        ) from error


@contextlib.contextmanager
def opened(path: Path, root: Path | None) -> Iterator[tuple[Any, Stamp]]:
    """Open a parquet file for reading in small pieces; gives its stamp too.

    Args:
        path: The file.
        root: The folder that it must not lead out of; None does not look.

    Raises:
        DataError: It is a link that leads out of ``root``.
    """
    if root is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise DataError(
            f"{path}: expected a file inside {root}, found a link that leads out of it; "
            "put the file itself there"
        )
    parquet = arrow("pyarrow.parquet", path)
    with path.open("rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        whole = parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        yield whole, (status.st_size, status.st_mtime_ns)


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises about a file into a DataError that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: expected a parquet file, found none; put it back") from error
    except PermissionError as error:
        raise DataError(
            f"{path}: expected a parquet file, found {error.strerror}; make it readable"
        ) from error
    except (OSError, ValueError, arrow("pyarrow", path).ArrowException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path}: expected a whole parquet file, found one that can't be read "
            f"({reason[:200]}); copy it anew"
        ) from error
