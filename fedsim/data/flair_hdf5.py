"""Reads the HDF5 files that FLAIR's own tool makes (Song et al. 2022, arXiv 2207.08869).

A file grouped by user has for each ``/<partition>/<user_id>/`` the arrays ``images`` (uint8, shape
(images, height, width, 3)), ``labels``, ``fine_grained_labels`` and ``image_ids`` (text, one for
each image; labels are joined by ``|``). One that is not grouped has for each
``/<partition>/<image_id>/`` one ``image`` and the single texts ``labels``, ``fine_grained_labels``
and ``user_id``; pfl-research's is the same. Both may hold, as JSON texts, how often each label
occurs: ``/metadata/label_counter`` and ``/metadata/fine_grained_label_counter``.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsim.data.faults import Faults
from fedsim.data.h5_arrays import DataGroup
from fedsim.data.h5_groups import GroupedFile, open_file
from fedsim.data.h5_pixels import PixelRecords
from fedsim.data.index import ImageRecord
from fedsim.data.records import LABEL_KEYS
from fedsim.data.scan import Scan

LABEL_ARRAYS = ("user_id", *LABEL_KEYS)

_STEMS = ("label", "fine_grained_label")  # of the metadata's names, in the order of LABEL_SETS


def scan_flair_hdf5(path: Path) -> Scan:
    """Read all but the images of a file in ml-flair's layout and collect its faults.

    A user's images are in the order of the file, which is the raw metadata's if it is grouped by
    user, and else that of the image ids (level by level where an id contains ``/``).

    The counts of the labels may be absent, and may be larger than what is found, since there are
    files that hold some of FLAIR's users with the counts of all; they can't be smaller.

    Args:
        path: The file.

    Raises:
        DataError: The file can't be opened, or holds no images.
    """
    with open_file(path) as file:
        faults = Faults(str(path))
        found = GroupedFile(file, faults)
        records = PixelRecords(path, faults)
        for group in found.groups():
            if "image" in group.datasets or "user_id" in group.datasets:
                records.add(group, "image", _entries_of_image(group))
            else:
                records.add(group, "images", _entries_of_user(group))
        if found.metadata is not None:
            _check_counts(found.metadata, records.records)
        return records.scan()


def _entries_of_user(group: DataGroup) -> Iterator[dict[str, Any]]:
    num_images = group.count_images("images", rank=1)
    columns = _columns(group, ("image_ids", *LABEL_KEYS), rank=1)
    if num_images is None or columns is None:
        return
    lengths = [num_images, *map(len, columns)]
    if len(set(lengths)) > 1:
        group.faults.add(
            f"{group.where}: expected images, image_ids, {' and '.join(LABEL_KEYS)} of equal "
            f"length, found the lengths {', '.join(map(str, lengths))}"
        )
        return
    for image_id, *labels in zip(*columns, strict=True):
        yield _entry(group.name, image_id, labels)


def _entries_of_image(group: DataGroup) -> Iterator[dict[str, Any]]:
    num_images = group.count_images("image", rank=0)
    columns = _columns(group, ("user_id", *LABEL_KEYS), rank=0)
    if num_images is not None and columns is not None:
        (user_id,), *labels = columns
        yield _entry(user_id, group.name, [text for (text,) in labels])


def _columns(group: DataGroup, names: Sequence[str], rank: int) -> list[list[str]] | None:
    columns = [group.texts(name, rank) for name in names]  # all, since each may have a fault
    sound = [column for column in columns if column is not None]
    return sound if len(sound) == len(names) else None


def _entry(user_id: str, image_id: str, labels: list[str]) -> dict[str, Any]:
    split = (text.split("|") if text else [] for text in labels)
    return {"user_id": user_id, "image_id": image_id, **dict(zip(LABEL_KEYS, split, strict=True))}


def _check_counts(metadata: DataGroup, records: list[ImageRecord]) -> None:
    """Note labels that occur more often than the file's own counts of them say."""
    for position, stem in enumerate(_STEMS):
        name = f"{stem}_counter"
        if name not in metadata.datasets:
            continue
        counts = metadata.numbers_by_name(name)
        if counts is None:
            continue
        used = Counter(label for record in records for label in record.labels[position])
        for label in sorted(used):
            if used[label] > counts.get(label, 0):
                metadata.faults.add(
                    f"{metadata.where}/{name}: expected a count of at least {used[label]} for "
                    f"{label!r}, as many as there are images with it, "
                    f"found {counts.get(label, 'none')}"
                )
