"""Walks HDF5 files that have a group for every user or image, trusting nothing that they hold.

The files in which FLAIR's tools put it have a group for each partition, below it a group for each
user (or image) that holds its arrays, and ``metadata``. A file may hold many hundred thousand
arrays, so they are opened through h5py's low-level interface, which takes a third of the time.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
from h5py import h5d, h5g, h5l, h5o

from fedsim.data.faults import Faults
from fedsim.data.h5_arrays import HDF5_ERRORS, DataGroup, one_line
from fedsim.data.h5_heaps import Heaps
from fedsim.errors import DataError

PARTITIONS = ("train", "val", "dev", "test")
METADATA = "metadata"

_DENIED = os.strerror(errno.EACCES)  # where HDF5 says it at length


class GroupedFile:
    """The groups of an open HDF5 file.

    Args:
        file: The open file.
        faults: Takes what is wrong.

    Attributes:
        partitions: The groups of the partitions, by name.
        metadata: What ``/metadata`` holds, None if there is none.
    """

    def __init__(self, file: h5py.File, faults: Faults) -> None:
        self._faults = faults
        self._heaps = Heaps(file)
        self._seen: set[int] = set()
        self.partitions: dict[str, h5g.GroupID] = {}
        self.metadata: DataGroup | None = None
        for name, item in self._items(file.id, ""):
            if name == METADATA and isinstance(item, h5g.GroupID):
                found = self._items(item, f"/{name}")
                arrays = {key: value for key, value in found if isinstance(value, h5d.DatasetID)}
                self.metadata = DataGroup(name, "", arrays, self._heaps, faults)
            elif name in PARTITIONS and isinstance(item, h5g.GroupID):
                self.partitions[name] = item
            else:
                faults.add(
                    f"/{name}: expected the groups train, val (or dev), test and metadata, "
                    f"found another {'group' if isinstance(item, h5g.GroupID) else 'thing'}"
                )

    def groups(self) -> Iterator[DataGroup]:
        """Yield every group below a partition that holds arrays, sorted by name level by level."""
        for partition, root in self.partitions.items():
            for name, item in self._items(root, f"/{partition}"):
                if isinstance(item, h5g.GroupID):
                    yield from self._groups_from(partition, name, item)
                else:  # as the id "." leads to
                    self._faults.add(
                        f"/{partition}/{name}: expected a group for every id, found an array"
                    )

    def _groups_from(self, partition: str, name: str, group: h5g.GroupID) -> Iterator[DataGroup]:
        """Yield a group and those inside it, as far as they hold arrays."""
        waiting = [(name, group)]
        while waiting:
            name, group = waiting.pop()
            arrays, inner = {}, []
            for key, item in self._items(group, f"/{partition}/{name}"):
                if isinstance(item, h5d.DatasetID):
                    arrays[key] = item
                else:
                    inner.append((f"{name}/{key}", item))
            if arrays:
                yield DataGroup(partition, name, arrays, self._heaps, self._faults)
            elif not inner:
                self._faults.add(f"/{partition}/{name}: expected arrays, found an empty group")
            waiting += reversed(inner)

    def _items(self, group: Any, where: str) -> Iterator[tuple[str, Any]]:
        """Open the arrays and groups that a group holds, by name; anything else is a fault."""
        links: list[tuple[bytes, int, Any]] = []
        try:
            group.links.iterate(
                lambda name, info: links.append((name, info.type, info.u)), info=True
            )
        except HDF5_ERRORS as error:
            self._faults.add(f"{where or '/'}: expected a group, found {one_line(error)}")
        for raw, kind, address in links:
            item = self._open(group, raw, kind, address)
            if isinstance(item, str):
                name = raw.decode(errors="backslashreplace")
                self._faults.add(
                    f"{where}/{name}: expected a group or an array of its own, found {item}"
                )
            else:
                yield raw.decode(), item

    def _open(self, group: Any, name: bytes, kind: int, address: Any) -> Any:
        """Open a link's end; returns a text that says what is wrong with it."""
        if kind != h5l.TYPE_HARD:
            return "a link to another place, which is not followed"
        if not _is_utf8(name) or b"/" in name or name == b".":
            return f"the name {name!r}"
        try:
            item = h5o.open(group, name)
        except HDF5_ERRORS as error:
            return f"something that can't be opened ({one_line(error)})"
        if isinstance(item, h5g.GroupID):
            if address in self._seen:
                return "a group that has another name too"
            self._seen.add(address)
        elif not isinstance(item, h5d.DatasetID):
            return "a type"
        return item


def open_file(path: Path) -> h5py.File:
    """Open an HDF5 file for reading.

    Raises:
        DataError: It is missing, cut or no HDF5 file.
    """
    try:
        # Files are never changed in place, so a lock, which network drives may refuse, is no use.
        return h5py.File(path, "r", locking=False)
    except (FileNotFoundError, PermissionError) as error:
        raise no_file(path, error) from error
    except HDF5_ERRORS as error:
        raise DataError(
            f"{path}: expected a whole HDF5 file, found one that can't be read "
            f"({one_line(error)}); copy or make it anew"
        ) from error


def no_file(path: Path, error: OSError) -> DataError:
    """Return what to say of a file that is not there, or may not be read."""
    if isinstance(error, PermissionError):
        return DataError(f"{path}: expected an HDF5 file, found {_DENIED}; make it readable")
    return DataError(f"{path}: expected an HDF5 file, found none; correct the path")


def stamp_of(status: os.stat_result) -> tuple[int, int]:
    """Return a file's size in bytes and time of change in ns, which tell whether it changed."""
    return status.st_size, status.st_mtime_ns


def check_unchanged(path: Path, status: os.stat_result, stamp: tuple[int, int]) -> None:
    """Raise DataError if an opened file's stamp is not the one that it had before."""
    if stamp_of(status) != stamp:
        raise DataError(
            f"{path}: expected the file that was opened before, found one changed "
            "since then; put the old file back, or start again with the new one"
        )


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
