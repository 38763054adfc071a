"""The folder of an unfinished conversion: whose it is, and whether it may go on."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.errors import DataError

_JOB = "job.json"


@dataclass(frozen=True)
class Part:
    """A folder for what is done of one conversion.

    Attributes:
        folder: The folder, beside the destination, on the same disk.
    """

    folder: Path

    def discard(self) -> None:
        """Remove the folder and all in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def discarded_on_fault(self) -> Iterator[None]:
        """Remove the folder if the block raises DataError: what is done can't be used then."""
        try:
            yield
        except DataError:
            self.discard()
            raise


def part_folder(destination: Path) -> Path:
    """Return where what is done of a conversion is kept."""
    return destination.with_name(f".{destination.name}.part")


@contextlib.contextmanager
def open_part(destination: Path, job: dict[str, Any]) -> Iterator[Part]:
    """Give the part of a conversion, empty unless one with the same ``job`` was interrupted.

    Args:
        destination: The file to make.
        job: All that the result depends on, as JSON.

    Raises:
        DataError: Another process is at it, or a stranger's folder lies there.
        OSError: The folder can't be made.
    """
    part = Part(part_folder(destination))
    if os.path.lexists(part.folder) and not _is_part(part.folder):
        raise DataError(
            f"{part.folder}: expected nothing or an unfinished conversion, found something else; "
            "move it away"
        )
    part.folder.mkdir(exist_ok=True)
    with (part.folder / _JOB).open("a+b") as file:
        _lock(file.fileno(), destination)
        file.seek(0)
        wanted = json.dumps(job, sort_keys=True).encode()
        if file.read() != wanted:
            for path in part.folder.iterdir():
                if path.name != _JOB:
                    path.unlink()
            file.truncate(0)
            file.write(wanted)
            file.flush()
        yield part


def source_stamp(root: Path, leave_out: tuple[Path, ...]) -> str:
    """Return a hash of the path, size and time of change of a file, or of all files of a folder.

    It notices what was replaced, added or removed without reading gigabytes. A source that is no
    file gives the hash of nothing.

    Args:
        root: The file or folder.
        leave_out: Files and folders that the conversion itself makes.

    Raises:
        DataError: It can't be listed.
    """
    digest = hashlib.sha256()
    try:
        if root.is_dir():
            _add_folder(digest, root, set(map(str, leave_out)))
        elif root.exists():
            _add(digest, str(root), root.stat())
    except OSError as error:
        raise DataError(
            f"{error.filename or root}: expected to list the source's files, found "
            f"{error.strerror or error}; make them readable and leave them as they are"
        ) from error
    return digest.hexdigest()


def _add_folder(digest: "hashlib._Hash", folder: Path, leave_out: set[str]) -> None:
    folders = [str(folder)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if entry.path in leave_out:
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                _add(digest, entry.path, _status(entry))


def _add(digest: "hashlib._Hash", path: str, status: os.stat_result) -> None:
    digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="replace"))


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:  # a link that leads nowhere; whether it matters, the scan says
        return entry.stat(follow_symlinks=False)


def _is_part(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = [path.name for path in folder.iterdir()]
    return not names or _JOB in names


def _lock(file: int, destination: Path) -> None:
    """Lock the part for as long as the file is open; a killed process leaves no lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DataError(
            f"{destination}: expected that no other process writes it, found one that does; "
            "wait for it or choose another destination"
        ) from error
    except OSError:  # some network drives have no locks
        return
