"""Reads fedsim's HDF5 format.

A file holds a few flat arrays, whatever the number of users, so it opens in milliseconds; encoded
images lie end to end in one blob that is read without HDF5. ``docs/data.md`` has the layout.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from fedsim.data.faults import Faults
from fedsim.data.h5_arrays import one_line
from fedsim.data.h5_groups import check_unchanged, no_file, stamp_of
from fedsim.data.index import LABEL_SETS, SPLITS, About, ImageIndex, Int64s, LabelRows, StringTable
from fedsim.data.scan import Scan
from fedsim.errors import DataError

FORMAT = "fedsim"
VERSION = 1
SUFFIXES = (".h5", ".hdf5")


@dataclass(frozen=True, eq=False)
class Hdf5Images:
    """The encoded images of an HDF5 file.

    The file is opened for each ``read`` and closed after it, so a reader may be pickled, forked
    and shared by threads.

    Attributes:
        path: The file.
        index: Who owns which image, with which labels.
        about: Name, origin and licence of the collection.
        content_sha256: Hash of the index and all images, stored when the file was made.
        blob_start: Where in the file the first image begins, in bytes.
        offsets: int64 array of shape (images + 1,), bounds of the images from ``blob_start`` on.
        stamp: Size in bytes and time of change in ns of the file when it was opened.
    """

    path: Path
    index: ImageIndex
    about: About
    content_sha256: str
    blob_start: int
    offsets: Int64s
    stamp: tuple[int, int]

    @property
    def place(self) -> str:
        """The file's path."""
        return str(self.path)

    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        """Yield the encoded image of each row."""
        try:
            with self.path.open("rb", buffering=0) as file:
                check_unchanged(self.path, os.fstat(file.fileno()), self.stamp)
                for row in rows:
                    start, stop = self.offsets[row : row + 2].tolist()
                    yield os.pread(file.fileno(), stop - start, self.blob_start + start)
        except OSError as error:
            raise DataError(
                f"{self.path}: expected to read images, found {error.strerror}; "
                "make the file readable"
            ) from error


def scan_hdf5(path: Path) -> Scan:
    """Open one of fedsim's files as a collection; it has no faults, or can't be opened."""
    return Scan(open_hdf5(path), Faults(str(path)))


def open_hdf5(path: Path) -> Hdf5Images:
    """Read and check the index of an HDF5 file; no image is read.

    Raises:
        DataError: The file is missing, cut short, damaged or of another format.
    """
    try:
        stamp = stamp_of(path.stat())
        # Files are never changed in place, so a lock, which network drives may refuse, is no use.
        with h5py.File(path, "r", locking=False) as file:
            return _read_file(path, file, stamp)
    except (FileNotFoundError, PermissionError) as error:
        raise no_file(path, error) from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
        raise DataError(
            f"{path}: expected a whole HDF5 file, found one that can't be read "
            f"({one_line(error)}); copy it anew, or convert the raw folder again"
        ) from error


def _read_file(path: Path, file: h5py.File, stamp: tuple[int, int]) -> Hdf5Images:
    _check_format(path, file)
    user_ids = _table(path, file, "user_ids")
    image_ids = _table(path, file, "image_ids")
    num_images = len(image_ids)
    user_splits = _array(path, file, "user_splits", np.uint8)
    user_offsets = _offsets(path, file, "user_offsets", len(user_ids), num_images)
    blob = _dataset(path, file, "images/bytes", np.uint8)
    index = ImageIndex(
        user_ids=user_ids,
        user_splits=user_splits,
        user_offsets=user_offsets,
        image_ids=image_ids,
        labels={name: _labels(path, file, f"labels/{name}", num_images) for name in LABEL_SETS},
    )
    _check_users(path, index)
    blob_start = blob.id.get_offset()
    if blob_start is None:
        raise _fault(path, "images/bytes", "one contiguous, uncompressed array", "another storage")
    return Hdf5Images(
        path=path,
        index=index,
        about=About(*(_text(path, file, key) for key in ("name", "origin", "licence"))),
        content_sha256=_text(path, file, "content_sha256"),
        blob_start=blob_start,
        offsets=_offsets(path, file, "images/offsets", num_images, len(blob)),
        stamp=stamp,
    )


def _check_format(path: Path, file: h5py.File) -> None:
    found = _attribute(file, "format")
    if found != FORMAT:
        raise DataError(
            f'{path}: expected the attribute format="{FORMAT}", found {found!r}; only fedsim\'s '
            "files can be read, and those of ml-flair and pfl-research, which have groups train, "
            "val (or dev) or test instead, so convert the raw folder"
        )
    version = file.attrs.get("version")
    if version != VERSION:
        raise DataError(
            f"{path}: expected format version {VERSION}, found {version!r}; use the fedsim that "
            "made the file, or convert the raw folder again"
        )


def _text(path: Path, file: h5py.File, attribute: str) -> str:
    text = _attribute(file, attribute)
    if not isinstance(text, str):
        found = "none" if text is None else repr(text)
        raise _fault(path, f"attribute {attribute}", "text", found)
    return text


def _attribute(file: h5py.File, attribute: str) -> Any:
    value = file.attrs.get(attribute)
    return value.decode() if isinstance(value, bytes) else value  # text of a fixed length


def _check_users(path: Path, index: ImageIndex) -> None:
    splits = index.user_splits
    if len(splits) != len(index.user_ids):
        raise _fault(path, "user_splits", f"{len(index.user_ids)} entries", f"{len(splits)}")
    if (splits >= len(SPLITS)).any() or (splits[1:] < splits[:-1]).any():
        raise _fault(path, "user_splits", "0, 1 and 2 in this order", "other numbers")
    if (np.diff(index.user_offsets) == 0).any():
        raise _fault(path, "user_offsets", "an image for every user", "a user without any")
    ids = [index.user_ids.cut(*index.users_of(split)) for split in SPLITS]
    if any(list(part) != sorted(part) for part in ids):
        raise _fault(path, "user_ids", "ids sorted within each split", "another order")
    if len(set().union(*ids)) != len(index.user_ids):
        raise _fault(path, "user_ids", "every id once", "an id of two users")


def _labels(path: Path, file: h5py.File, where: str, num_images: int) -> LabelRows:
    table = _table(path, file, f"{where}/names")
    names = table.cut(0, len(table))
    if list(names) != sorted(set(names)):
        raise _fault(path, f"{where}/names", "names in alphabetical order", "another order")
    indices = _array(path, file, f"{where}/indices", np.uint16)
    if indices.size and int(indices.max()) >= len(names):
        raise _fault(path, f"{where}/indices", f"numbers below {len(names)}", f"{indices.max()}")
    return LabelRows(
        names, _offsets(path, file, f"{where}/indptr", num_images, len(indices)), indices
    )


def _table(path: Path, file: h5py.File, where: str) -> StringTable:
    letters = _array(path, file, f"{where}/bytes", np.uint8)
    offsets = _offsets(path, file, f"{where}/offsets", None, len(letters))
    blob = letters.tobytes()
    starts = offsets[offsets < len(letters)]
    # If the whole is UTF-8 and no string starts inside a character, then every string is UTF-8.
    if ((letters[starts] & 0xC0) == 0x80).any() or not _is_utf8(blob):
        raise _fault(path, f"{where}/bytes", "UTF-8 text", "other bytes")
    return StringTable(blob, offsets)


def _offsets(path: Path, file: h5py.File, where: str, count: int | None, end: int) -> Int64s:
    """Read bounds of ``count`` pieces (None: any number) that fill 0 to ``end``."""
    offsets: Int64s = _array(path, file, where, np.int64)
    if count is not None and len(offsets) != count + 1:
        raise _fault(path, where, f"{count + 1} entries", f"{len(offsets)}")
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != end or (np.diff(offsets) < 0).any():
        raise _fault(path, where, f"numbers that rise from 0 to {end}", "others")
    return offsets


def _array(path: Path, file: h5py.File, where: str, dtype: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = _dataset(path, file, where, dtype)[...]
    return array


def _dataset(path: Path, file: h5py.File, where: str, dtype: Any) -> h5py.Dataset:
    found = file.get(where)
    wanted = f"a one-dimensional {np.dtype(dtype)} array"
    if not isinstance(found, h5py.Dataset):
        raise _fault(path, where, wanted, "none" if found is None else "something else")
    if found.dtype != np.dtype(dtype) or found.ndim != 1:
        raise _fault(path, where, wanted, f"{found.dtype} of shape {found.shape}")
    return found


def _fault(path: Path, where: str, expected: str, found: str) -> DataError:
    return DataError(
        f"{path}: {where}: expected {expected}, found {found}; the file is damaged, "
        "so copy it anew or convert the raw folder again"
    )


def _is_utf8(blob: bytes) -> bool:
    try:
        blob.decode()
    except UnicodeDecodeError:
        return False
    return True
