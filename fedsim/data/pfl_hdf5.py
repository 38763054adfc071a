"""Reads the HDF5 files that pfl-research's tool makes of FLAIR, grouped by user.

For each ``/<partition>/<user_id>/`` there are the arrays ``images`` (uint8, shape (images, height,
width, 3)), ``image_ids`` (text), and for both label sets the places of the ones in the matrix of
images and labels: ``labels_row``, ``labels_col``, ``fine_grained_labels_row`` and
``fine_grained_labels_col``. ``/metadata/label_mapping`` and
``/metadata/fine_grained_label_mapping`` are JSON texts that give every label name its column.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsim.data.faults import Faults, shown
from fedsim.data.h5_arrays import DataGroup
from fedsim.data.h5_groups import GroupedFile, open_file
from fedsim.data.h5_pixels import PixelRecords
from fedsim.data.index import LABEL_SETS, Int64s
from fedsim.data.records import LABEL_KEYS
from fedsim.data.scan import Scan

_MAPPINGS = ("label_mapping", "fine_grained_label_mapping")  # in the order of LABEL_SETS

LABEL_ARRAYS = tuple(f"{key}_{axis}" for key in LABEL_KEYS for axis in ("row", "col"))


def scan_pfl_hdf5(path: Path) -> Scan:
    """Read all but the images of a file in pfl-research's layout and collect its faults.

    A user's images are in the order of the file. The label names are those of the file's
    mappings, whether or not an image has them, in alphabetical order whatever their columns are.

    Args:
        path: The file.

    Raises:
        DataError: The file can't be opened, or holds no images.
    """
    with open_file(path) as file:
        faults = Faults(str(path))
        found = GroupedFile(file, faults)
        names = [_names(found.metadata, mapping, faults) for mapping in _MAPPINGS]
        records = PixelRecords(path, faults)
        for group in found.groups():
            records.add(group, "images", _entries(group, names))
        return records.scan(
            {
                label_set: columns
                for label_set, columns in zip(LABEL_SETS, names, strict=True)
                if columns is not None
            }
        )


def _names(metadata: DataGroup | None, mapping: str, faults: Faults) -> list[str] | None:
    """Return the label names by column."""
    if metadata is None:
        faults.add(f"/metadata/{mapping}: expected the columns of the labels, found none")
        return None
    columns = metadata.numbers_by_name(mapping)
    if columns is None:
        return None
    if sorted(columns.values()) != list(range(len(columns))):
        faults.add(
            f"/metadata/{mapping}: expected the columns 0 to {len(columns) - 1}, each once, "
            f"found {shown(sorted(columns.values()))}"
        )
        return None
    names = sorted(columns, key=columns.__getitem__)
    wrong = [name for name in names if not name or not _is_unicode(name)]
    if wrong:
        faults.add(
            f"/metadata/{mapping}: expected names of at least one letter in valid Unicode, "
            f"found {shown(wrong[0])}"
        )
        return None
    return names


def _entries(group: DataGroup, names: Sequence[list[str] | None]) -> Iterator[dict[str, Any]]:
    num_images = group.count_images("images", rank=1)
    image_ids = group.texts("image_ids")
    labels = [
        found
        for key, columns in zip(LABEL_KEYS, names, strict=True)
        if (found := _labels(group, key, columns, num_images)) is not None
    ]
    if num_images is None or image_ids is None or len(labels) < len(LABEL_KEYS):
        return
    if len(image_ids) != num_images:
        group.faults.add(
            f"{group.where}: expected as many image_ids as images, "
            f"found {len(image_ids)} and {num_images}"
        )
        return
    for image_id, *of_image in zip(image_ids, *labels, strict=True):
        key_labels = zip(LABEL_KEYS, of_image, strict=True)
        yield {"user_id": group.name, "image_id": image_id, **dict(key_labels)}


def _labels(
    group: DataGroup, key: str, names: list[str] | None, num_images: int | None
) -> list[list[str]] | None:
    """Return the label names of each image."""
    rows = _numbers_below(group, f"{key}_row", num_images)
    columns = _numbers_below(group, f"{key}_col", None if names is None else len(names))
    if rows is None or columns is None or num_images is None or names is None:
        return None
    if len(rows) != len(columns):
        group.faults.add(
            f"{group.where}: expected {key}_row and {key}_col of equal length, "
            f"found {len(rows)} and {len(columns)}"
        )
        return None
    labels: list[list[str]] = [[] for _ in range(num_images)]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        labels[row].append(names[column])
    return labels


def _numbers_below(group: DataGroup, name: str, limit: int | None) -> Int64s | None:
    numbers = group.numbers(name)
    if numbers is None or limit is None:
        return numbers
    wrong = numbers[(numbers < 0) | (numbers >= limit)]
    if wrong.size:
        group.faults.add(
            f"{group.where}/{name}: expected numbers from 0 to {limit - 1}, found {wrong[0]}"
        )
        return None
    return numbers


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
