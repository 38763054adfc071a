"""Reads collections in the raw layout of FLAIR (Song et al. 2022, arXiv 2207.08869).

A folder holds ``labels_and_metadata.json``, a list with an object for every image (``user_id``,
``image_id``, ``labels``, ``fine_grained_labels``, ``partition``; other keys are ignored), and
``small_images/<image_id>.jpg``.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from fedsim.data.faults import Faults, shown
from fedsim.data.index import MAX_LABELS, About, ImageIndex
from fedsim.data.records import LABEL_KEYS, RecordReader
from fedsim.data.scan import Scan
from fedsim.errors import DataError

METADATA = "labels_and_metadata.json"
IMAGES = "small_images"


@dataclass(frozen=True, eq=False)
class FolderImages:
    """The encoded images of a folder.

    Attributes:
        folder: The folder; no image outside it is ever read.
        index: Who owns which image, with which labels.
    """

    folder: Path
    index: ImageIndex

    @property
    def place(self) -> str:
        """The folder's path."""
        return str(self.folder)

    @property
    def about(self) -> About:
        """The folder's own name; a folder states no origin and no licence."""
        return About(self.folder.name)

    @property
    def content_sha256(self) -> None:
        """None: a folder stores no hash of its images."""
        return None

    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        """Yield the encoded image of each row."""
        root = os.path.realpath(self.folder)
        for row in rows:
            path = self.folder / IMAGES / f"{self.index.image_ids[row]}.jpg"
            if not _is_within(root, path):
                raise DataError(
                    f"{path}: expected an image inside {root}, found a link that leads out of it; "
                    "put the image itself there"
                )
            try:
                data = path.read_bytes()
            except OSError as error:
                raise DataError(
                    f"{path}: expected an image, found {error.strerror}; put it back or remove "
                    "its record"
                ) from error
            yield data


def scan_flair_folder(folder: Path) -> Scan:
    """Read the metadata of a folder and collect its faults; no image is read.

    Raises:
        DataError: There is no metadata, or it is no JSON list with at least one entry, or there
            is no folder of images: nothing could be said about single records.
    """
    folder = folder.absolute()
    entries = _read_metadata(folder / METADATA)
    files = _list_images(folder)
    faults = Faults(str(folder))
    used: set[str] = set()

    def image_fault(image_id: str) -> str | None:
        if not _is_file_name(image_id):
            return (
                "image_id must be a plain file name, since a path is unsafe, "
                f"found {shown(image_id)}"
            )
        file = f"{image_id}.jpg"
        used.add(file)
        wrong = files.get(file, "no such file")
        return None if wrong is None else f"expected the image {file}, found {wrong}"

    reader = RecordReader(faults, image_fault)
    records = [
        record
        for number, entry in enumerate(entries)
        if (record := reader.read(f"record {number}", entry)) is not None
    ]
    for position, key in enumerate(LABEL_KEYS):
        num_names = len({label for record in records for label in record.labels[position]})
        if num_names > MAX_LABELS:
            faults.add(f"{key} must have at most {MAX_LABELS} different names, found {num_names}")
            records = []  # they can't be indexed
    return Scan(
        images=FolderImages(folder, ImageIndex.of(records)),
        faults=faults,
        repeated_labels=reader.repeated_labels,
        unused_files=len(files.keys() - used),
    )


def _read_metadata(path: Path) -> list[Any]:
    try:
        entries = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{path}: expected FLAIR's metadata, found {error.strerror}; "
            f"give the folder that holds {METADATA} and {IMAGES}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: expected a JSON list in UTF-8, found text that can't be parsed ({error}); "
            "mend it or copy it anew"
        ) from error
    if not isinstance(entries, list) or not entries:
        raise DataError(
            f"{path}: expected a JSON list with an object for every image, "
            f"found {shown(entries)}; copy it anew"
        )
    return entries


def _list_images(folder: Path) -> dict[str, str | None]:
    """Return every file name among the images, with what is wrong with it, if anything."""
    root = os.path.realpath(folder)
    images = folder / IMAGES
    if not _is_within(root, images):
        raise DataError(
            f"{images}: expected a folder inside {root}, found a link that leads out of it; "
            "put the images themselves there"
        )
    try:
        with os.scandir(images) as entries:
            return {entry.name: _file_fault(root, entry) for entry in entries}
    except OSError as error:
        raise DataError(
            f"{images}: expected a folder of images, found {error.strerror}; unpack them there"
        ) from error


def _file_fault(root: str, entry: os.DirEntry[str]) -> str | None:
    if entry.is_symlink() and not _is_within(root, entry.path):
        return "a link that leads out of the folder"
    try:
        return None if entry.is_file() else "something that is no file"
    except OSError as error:  # a link to itself
        return error.strerror


def _is_file_name(image_id: str) -> bool:
    # Windows' rules also know POSIX's separator, and refuse drives and backslashes besides.
    plain = PureWindowsPath(image_id).name == image_id
    return plain and image_id not in (".", "..") and "\0" not in image_id


def _is_within(root: str, path: str | Path) -> bool:
    return os.path.realpath(path).startswith(root.rstrip(os.sep) + os.sep)
