"""Converts a folder in FLAIR's raw layout to fedsim's HDF5 format."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.data.decode import decode_image
from fedsim.data.faults import Faults
from fedsim.data.flair_folder import scan_flair_folder
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.hdf5_writer import complete_or_absent, write_hdf5
from fedsim.data.index import SPLITS, About, ImageIndex, Int64s, StoredImages, content_sha256
from fedsim.errors import DataError

SUFFIXES = (".h5", ".hdf5")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Conversion:
    """What was converted.

    Attributes:
        path: The file that was made.
        name: What the collection is called.
        num_users: Users of each split.
        num_images: Images of each split.
        num_labels: Label names of each label set.
        num_bytes: Size of all encoded images.
        content_sha256: Hash of the index and of every image.
        repeated_labels: Labels named again within one list of the source, which count once.
        unused_files: Files of the source that no record names, which are left behind.
    """

    path: str
    name: str
    num_users: dict[str, int]
    num_images: dict[str, int]
    num_labels: dict[str, int]
    num_bytes: int
    content_sha256: str
    repeated_labels: int
    unused_files: int


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    progress: Progress | None = None,
    about: About | None = None,
) -> Conversion:
    """Convert a folder in FLAIR's raw layout to an HDF5 file.

    Every record is checked and every image decoded before anything is written; the encoded images
    are kept byte for byte; the written file is read back and compared with the source by counts
    and hashes. A file at ``destination`` is replaced, but only by a complete and checked one. The
    same folder gives the same bytes.

    Args:
        source: The folder.
        destination: The file to make, named ``*.h5`` or ``*.hdf5``.
        progress: Called with the steps done and the steps in all; an image takes three steps, for
            it is decoded, written and checked.
        about: Name, origin and licence of the collection; None takes the folder's name, with
            nothing stated.

    Raises:
        DataError: The source has faults, all of which are reported at once (the first 20 word for
            word), or the destination can't be written.
    """
    source, destination = Path(source).absolute(), Path(destination).absolute()
    _check_destination(destination)
    scan = scan_flair_folder(source)
    images, index = scan.images, scan.images.index
    step = _counter(progress, 3 * len(index))
    sizes, expected = _decode_all(images, scan.faults, step)
    scan.faults.check()
    about = images.about if about is None else about
    with complete_or_absent(destination) as part:
        stream = map(step, images.read(range(len(index))))
        write_hdf5(part, index, stream, sizes, about, expected)
        _check_result(open_hdf5(part), index, expected, step)
    return Conversion(
        path=str(destination),
        name=about.name,
        num_users={split: len(_user_sizes(index, split)) for split in SPLITS},
        num_images={split: int(_user_sizes(index, split).sum()) for split in SPLITS},
        num_labels={label_set: len(rows.names) for label_set, rows in index.labels.items()},
        num_bytes=int(sizes.sum()),
        content_sha256=expected,
        repeated_labels=scan.repeated_labels,
        unused_files=scan.unused_files,
    )


def _check_destination(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: expected a name that ends in .h5 or .hdf5, found {path.suffix or 'none'!r}; "
            "rename the destination"
        )
    if path.is_dir() or not path.parent.is_dir():
        found = "a folder of that name" if path.is_dir() else "no folder to put it in"
        raise DataError(f"{path}: expected a place for a file, found {found}; choose another")


def _decode_all(
    images: StoredImages, faults: Faults, step: Callable[[bytes], bytes]
) -> tuple[Int64s, str]:
    """Read and decode every image; return their sizes and the collection's hash."""
    sizes, digests = [], []
    for row in range(len(images.index)):
        try:
            (data,) = images.read([row])
            decode_image(step(data), None, name=f"image {images.index.image_ids[row]!r}")
        except DataError as error:
            faults.add(str(error))
        else:
            sizes.append(len(data))
            digests.append(hashlib.sha256(data).digest())
    return np.array(sizes, dtype=np.int64), content_sha256(images.index, digests)


def _check_result(
    written: StoredImages, index: ImageIndex, expected: str, step: Callable[[bytes], bytes]
) -> None:
    stream = map(step, written.read(range(len(written.index))))
    found = content_sha256(written.index, (hashlib.sha256(data).digest() for data in stream))
    if not expected == found == written.content_sha256:
        raise DataError(
            f"{written.place}: expected {len(index)} images with content {expected[:12]}, found "
            f"{len(written.index)} with {found[:12]}; leave the source as it is and convert again"
        )


def _user_sizes(index: ImageIndex, split: str) -> Int64s:
    first, stop = index.users_of(split)
    return np.diff(index.user_offsets[first : stop + 1])


def _counter(progress: Progress | None, total: int) -> Callable[[bytes], bytes]:
    """Return a function that passes its argument on and counts a step."""
    done = 0

    def step(data: bytes) -> bytes:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)
        return data

    return step
