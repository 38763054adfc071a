"""Reads collections in the raw layout of FLAIR (Song et al. 2022, arXiv 2207.08869).

A folder holds ``labels_and_metadata.json``, a list with an object for every image (``user_id``,
``image_id``, ``labels``, ``fine_grained_labels``, ``partition``; other keys are ignored), and
``small_images/<image_id>.jpg``.
"""

import json
import os
from pathlib import Path, PureWindowsPath
from typing import Any

from fedsim.data.faults import Faults, shown
from fedsim.data.image_files import ImageFiles, file_fault, is_within
from fedsim.data.index import ImageIndex
from fedsim.data.records import RecordReader, indexable
from fedsim.data.scan import Scan
from fedsim.errors import DataError, remedy_for

METADATA = "labels_and_metadata.json"
IMAGES = "small_images"


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
    records = indexable(records, faults)
    return Scan(
        images=ImageFiles(folder, folder, ImageIndex.of(records), f"{IMAGES}/{{}}.jpg"),
        faults=faults,
        repeated_labels=reader.repeated_labels,
        unused_files=len(files.keys() - used),
    )


def _read_metadata(path: Path) -> list[Any]:
    try:
        entries = json.loads(path.read_bytes())
    except OSError as error:
        remedy = remedy_for(error, f"give the folder that holds {METADATA} and {IMAGES}")
        raise DataError(
            f"{path}: expected FLAIR's metadata, found {error.strerror}; {remedy}"
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
    if not is_within(root, images):
        raise DataError(
            f"{images}: expected a folder inside {root}, found a link that leads out of it; "
            "put the images themselves there"
        )
    try:
        with os.scandir(images) as entries:
            return {entry.name: file_fault(root, entry) for entry in entries}
    except OSError as error:
        raise DataError(
            f"{images}: expected a folder of images, found {error.strerror}; "
            f"{remedy_for(error, 'unpack them there')}"
        ) from error


def _is_file_name(image_id: str) -> bool:
    # Windows' rules also know POSIX's separator, and refuse drives and backslashes besides.
    plain = PureWindowsPath(image_id).name == image_id
    return plain and image_id not in (".", "..") and "\0" not in image_id
