"""Reads a folder of images with a CSV file that says whose each image is.

The CSV's header names the columns ``image`` (a path below the CSV's folder, with ``/``), ``user``
and ``labels`` (joined by ``|``, empty for none), and if you like ``split`` and ``fine_labels``;
other columns are ignored. Without ``split`` the users are dealt to splits by their ids.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from fedsim.data.csv_table import entries_of, read_table
from fedsim.data.faults import Faults
from fedsim.data.image_files import ImageFiles, file_fault
from fedsim.data.index import ImageIndex
from fedsim.data.records import RecordReader, indexable
from fedsim.data.scan import Scan
from fedsim.errors import DataError

SUFFIX = ".csv"


def find_csv(path: Path) -> Path | None:
    """Return the CSV file that ``path`` means: itself, or its ``data.csv``, or its only one.

    Raises:
        DataError: A folder can't be listed, or has several and none is called ``data.csv``.
    """
    if path.is_file():
        return path if path.suffix.lower() == SUFFIX else None
    if not path.is_dir():
        return None
    try:
        files = [file for file in path.iterdir() if file.suffix.lower() == SUFFIX]
        found = sorted(file for file in files if file.is_file())
    except OSError as error:
        raise DataError(
            f"{path}: expected a folder of images, found {error.strerror}; make it readable"
        ) from error
    if len(found) > 1 and path / "data.csv" not in found:
        names = ", ".join(file.name for file in found)
        raise DataError(
            f"{path}: expected one CSV file, found {len(found)} ({names}); "
            "give the path of the one that you mean"
        )
    return path / "data.csv" if len(found) > 1 else next(iter(found), None)


def scan_csv(path: Path) -> Scan:
    """Read a CSV file and collect its faults; no image is read.

    Args:
        path: The CSV file; its images lie in its folder and below.

    Raises:
        DataError: There is no such file, it is no CSV in UTF-8, it lacks a column or has no rows:
            nothing could be said about single rows.
    """
    path = path.absolute()
    header, rows = read_table(path)
    faults, files = Faults(str(path)), _Files(path.parent)
    entries = list(entries_of(header, rows, faults))
    if "split" not in header:
        user_ids = {entry["user_id"] for _, entry in entries}
        if len(user_ids) < 3:
            faults.add(
                "expected at least 3 users, since they are dealt to train, val and test, found "
                f"{len(user_ids)}; add a column split"
            )
        splits = deal_users(user_ids)
        entries = [(w, {**entry, "partition": splits[entry["user_id"]]}) for w, entry in entries]
    reader = RecordReader(faults, files.fault)
    records = [
        record for where, entry in entries if (record := reader.read(where, entry)) is not None
    ]
    records = indexable(records, faults)
    return Scan(
        images=ImageFiles(path.parent, path, ImageIndex.of(records), "{}"),
        faults=faults,
        repeated_labels=reader.repeated_labels,
        unused_files=files.num_unused(path.name),
    )


def deal_users(user_ids: Iterable[str]) -> dict[str, str]:
    """Deal users to splits: a tenth to test, a tenth to val, the others to train.

    A user's share is the first 8 bytes of SHA-256 of its id in UTF-8, as a big-endian number, over
    2**64. Below 0.1 it means test, below 0.2 val, else train, whoever the other users are, so new
    users move no one. Only where a split would have no user is the one whose share is nearest to
    it put there; three users or more thus fill all splits.

    Returns:
        The split of each user.

    Examples:
        >>> deal_users(["ann", "bob", "cid"])
        {'ann': 'test', 'cid': 'val', 'bob': 'train'}
    """
    shares = {user_id: _share(user_id) for user_id in set(user_ids)}
    ordered = sorted(shares, key=lambda user_id: (shares[user_id], user_id))
    num_test = max(1, sum(share < 0.1 for share in shares.values()))
    num_test = min(num_test, max(1, len(ordered) - 2))
    num_val = max(1, sum(share < 0.2 for share in shares.values()) - num_test)
    num_val = min(num_val, max(1, len(ordered) - num_test - 1))
    splits = ["test"] * num_test + ["val"] * num_val
    splits += ["train"] * (len(ordered) - len(splits))
    return dict(zip(ordered, splits, strict=False))


def _share(user_id: str) -> float:
    return int.from_bytes(hashlib.sha256(user_id.encode()).digest()[:8], "big") / 2**64


class _Files:
    """Knows the files of each folder that is asked for, with one look at each folder."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._folder = root
        self._folders: dict[str, dict[str, str | None] | str] = {}
        self._used: set[str] = set()

    def fault(self, image: str) -> str | None:
        """Say what is wrong with the image of a path, if anything."""
        folder, _, name = image.rpartition("/")
        if folder not in self._folders:
            self._folders[folder] = self._look(self._folder / folder)
        files = self._folders[folder]
        self._used.add(image)
        wrong = files if isinstance(files, str) else files.get(name, "no such file")
        return None if wrong is None else f"expected the image {image}, found {wrong}"

    def num_unused(self, csv_name: str) -> int:
        """Count the files of those folders that were not asked for, without the CSV."""
        seen = {
            f"{folder}/{name}" if folder else name
            for folder, files in self._folders.items()
            if isinstance(files, dict)
            for name, wrong in files.items()
            if wrong is None
        }
        return len(seen - self._used - {csv_name})

    def _look(self, folder: Path) -> dict[str, str | None] | str:
        if not Path(os.path.realpath(folder)).is_relative_to(self._root):
            return "a link that leads out of the folder"
        try:
            with os.scandir(folder) as entries:
                return {entry.name: file_fault(self._root, entry) for entry in entries}
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            return "no such folder" if missing else f"no folder to look into ({error.strerror})"
