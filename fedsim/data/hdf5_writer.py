"""Writes fedsim's HDF5 format (``docs/data.md`` has the layout)."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np

from fedsim.data.hdf5 import FORMAT, VERSION
from fedsim.data.index import LABEL_SETS, About, ImageIndex, Int64s, StringTable, offsets_of
from fedsim.errors import DataError

_GROUPS = (
    *("user_ids", "image_ids", "images", "labels"),
    *(f"labels/{label_set}{part}" for label_set in LABEL_SETS for part in ("", "/names")),
)
_OVERHEAD = 2**16  # more bytes than HDF5 takes for itself, since it holds some thirty objects


def write_hdf5(
    path: Path,
    index: ImageIndex,
    images: Iterable[bytes],
    sizes: Int64s,
    about: About,
    content_sha256: str,
) -> None:
    """Write a new HDF5 file; the same arguments give the same bytes.

    Args:
        path: The file to make; one that exists is overwritten.
        index: Who owns which image, with which labels.
        images: Every encoded image, by row; one is held at a time.
        sizes: Length of each encoded image in bytes, known before so that they lie end to end.
        about: Name, origin and licence of the collection.
        content_sha256: The collection's hash (``fedsim.data.index.content_sha256``); it is stored
            and not checked.

    Raises:
        DataError: The file can't be written, or an image has another length than announced.
    """
    offsets = offsets_of(sizes)
    try:
        _check_space(path, index, int(offsets[-1]))
        with _create_file(path) as file:
            file.attrs["version"] = VERSION
            texts = {"format": FORMAT, "content_sha256": content_sha256, **asdict(about)}
            for attribute, text in texts.items():
                _write_text(file, attribute, text)
            _write_index(file, index)
            file["images/offsets"] = offsets
            blob_start = _reserve_blob(file, int(offsets[-1]))
        with path.open("r+b") as plain:
            plain.seek(blob_start)
            for row, (data, size) in enumerate(zip(images, sizes.tolist(), strict=True)):
                if len(data) != size:
                    raise DataError(
                        f"image {index.image_ids[row]!r}: expected {size} bytes as before, found "
                        f"{len(data)}; leave the source as it is while it is read"
                    )
                plain.write(data)
            plain.flush()
            os.fsync(plain.fileno())
    except OSError as error:
        raise DataError(
            f"{path.parent}: expected to write a file with {offsets[-1]} bytes of images, "
            f"found {error.strerror or error}; free space there or choose another place"
        ) from error


def _check_space(path: Path, index: ImageIndex, num_bytes: int) -> None:
    """Raise OSError if the disk has no room for the index, or the file may not be so large.

    HDF5 can end the whole process when a write of its own fails, so it must not come to that. The
    images are then written without HDF5, where a full disk is an ordinary error.
    """
    for_hdf5 = sum(map(len, index.parts())) + 8 * (len(index) + 1) + _OVERHEAD
    with path.open("wb") as file:
        file.write(bytes(for_hdf5))
        file.truncate(for_hdf5 + num_bytes)
        os.fsync(file.fileno())


def _create_file(path: Path) -> h5py.File:
    """Create a file with the groups of the format and no times in it.

    HDF5 1.10's own structures, unlike the older default, carry checksums: a damaged one is found
    where it could otherwise end the process.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    timeless_file = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    timeless_file.set_obj_track_times(False)
    timeless_group = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    timeless_group.set_obj_track_times(False)
    file_id = h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, timeless_file, access)
    for group in _GROUPS:
        h5py.h5g.create(file_id, group.encode(), gcpl=timeless_group)
    return h5py.File(file_id)


def _reserve_blob(file: h5py.File, num_bytes: int) -> int:
    """Make the array of all images without writing to it; return where in the file it begins."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    blob = file.create_dataset("images/bytes", shape=(num_bytes,), dtype=np.uint8, dcpl=layout)
    start: int = blob.id.get_offset()
    return start


def _write_index(file: h5py.File, index: ImageIndex) -> None:
    _write_table(file, "user_ids", index.user_ids)
    file["user_splits"] = index.user_splits
    file["user_offsets"] = index.user_offsets
    _write_table(file, "image_ids", index.image_ids)
    for label_set in LABEL_SETS:
        rows = index.labels[label_set]
        _write_table(file, f"labels/{label_set}/names", StringTable.of(rows.names))
        file[f"labels/{label_set}/indptr"] = rows.indptr
        file[f"labels/{label_set}/indices"] = rows.indices


def _write_text(file: h5py.File, attribute: str, text: str) -> None:
    # Text of a fixed length lies under a checksum; that of any length, the default, does not.
    encoded = text.encode()
    dtype = h5py.string_dtype("utf-8", max(1, len(encoded)))
    file.attrs.create(attribute, encoded, dtype=dtype)


def _write_table(file: h5py.File, where: str, table: StringTable) -> None:
    file[f"{where}/bytes"] = np.frombuffer(table.blob, dtype=np.uint8)
    file[f"{where}/offsets"] = table.offsets
