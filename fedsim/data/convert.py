"""Converts a collection of any kind to fedsim's HDF5 format.

The images are read, checked and, where they are pixels, encoded once, in the order in which the
source stores them, into blocks beside the destination (``conversion_blocks``). The HDF5 file is
then made of the blocks in the order of its rows. For that while the images lie there twice; in
turn sizes need not be known before, any order of reading will do, and each block that is done
stays done when the process is killed.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import PIL

import fedsim
from fedsim.data.content import check_stored_hash, hash_of
from fedsim.data.conversion_blocks import (
    BLOCK,
    RECORD,
    Blocks,
    BlockWriter,
    cut,
    load,
    write_blocks,
)
from fedsim.data.conversion_part import Part, open_part, part_folder, source_stamp
from fedsim.data.encode import check_quality
from fedsim.data.faults import Faults
from fedsim.data.hdf5 import SUFFIXES, Hdf5Images, open_hdf5
from fedsim.data.hdf5_writer import write_hdf5
from fedsim.data.image_files import ImageFiles
from fedsim.data.index import SPLITS, About, ImageIndex, Int64s, StoredImages, content_sha256
from fedsim.data.parquet_images import ParquetImages
from fedsim.data.sources import scanner_of
from fedsim.errors import ConfigError, DataError

Progress = Callable[[str, int, int], None]

_STEP = 256  # images between two reports of progress

T = TypeVar("T")


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
        num_encoded: Images that were pixels and were encoded; all others kept their bytes.
        mean_difference: Mean absolute difference that this made to their values (0 to 255), over
            these images; 0 where nothing is lost.
        num_resumed: Images that an interrupted conversion had done already.
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
    num_encoded: int
    mean_difference: float
    num_resumed: int

    def encoding(self, quality: int | None) -> str:
        """Say what became of the images' bytes under a ``quality``."""
        kept = sum(self.num_images.values()) - self.num_encoded
        parts = []
        if kept:
            unused = "" if quality is None else ", whatever the quality asked for"
            parts.append(f"{kept:,} images were encoded already and kept byte for byte{unused}")
        if self.num_encoded:
            how = "without loss (WebP)" if quality is None else f"as JPEG of quality {quality}"
            parts.append(
                f"{self.num_encoded:,} images were pixels and were encoded {how}, mean absolute "
                f"difference {self.mean_difference:.2f} of 255"
            )
        return "; ".join(parts)


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    quality: int | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    about: About | None = None,
) -> Conversion:
    """Convert a collection to an HDF5 file in fedsim's format.

    Every record is checked and every image decoded before the file is made. Encoded images are
    kept byte for byte; pixels are encoded (``fedsim.data.encode``) and compared with what they
    decode to. The written file is read back and compared with the source by counts and hashes. A
    file at ``destination`` is replaced, but only by a complete and checked one. The same source
    gives the same bytes, with any number of workers.

    What is done lies in the folder ``.NAME.part`` beside ``destination``, which holds the images a
    second time until the end. After an interruption or on a full disk it stays, and the same call
    goes on from there; a call with another source, or one that changed, starts afresh.

    Args:
        source: What ``data.source`` may be (``fedsim.data.sources.open_dataset``); a ``Path`` is
            always a path.
        destination: The file to make, named ``*.h5`` or ``*.hdf5``.
        quality: JPEG quality for images that the source has as pixels, 1 to 100; None encodes them
            without loss. Images that are encoded already are kept whatever it is.
        workers: Processes that read, check and encode, at least 1. With more than one, a script
            must call this below ``if __name__ == "__main__":``.
        progress: Called with "reading", "writing" or "checking", the images done and all images.
        about: Name, origin and licence of the collection; None takes the source's own.

    Raises:
        ConfigError: ``quality`` or ``workers`` is out of its range.
        DataError: The source has faults, all of which are reported at once (the first 20 word for
            word), or it changed meanwhile, or the destination can't be written.
    """
    check_quality(quality)
    if type(workers) is not int or workers < 1:
        raise ConfigError(f"workers: expected a whole number from 1 on, found {workers!r}")
    source = str(source.absolute()) if isinstance(source, Path) else source
    destination = Path(destination).absolute()
    with _told(destination):
        _check_destination(destination)
    scan = scanner_of(source)()
    images, index = scan.images, scan.images.index
    progress = progress or (lambda stage, done, total: None)
    about = images.about if about is None else about
    job = _job(images, destination, quality)
    with _told(destination), open_part(destination, job) as part:
        writer = BlockWriter(images, part.folder, quality)
        blocks, num_resumed = _read_all(writer, scan.faults, workers, progress)
        with part.discarded_on_fault():
            scan.faults.check()
            expected = content_sha256(index, map(bytes, blocks.records["sha256"]))
            _check_source(images, expected, job == _job(images, destination, quality))
        _assemble(part, blocks, index, about, expected, destination, progress)
        part.discard()
    records = blocks.records
    return Conversion(
        path=str(destination),
        name=about.name,
        num_users={split: len(_user_sizes(index, split)) for split in SPLITS},
        num_images={split: int(_user_sizes(index, split).sum()) for split in SPLITS},
        num_labels={label_set: len(rows.names) for label_set, rows in index.labels.items()},
        num_bytes=int(records["size"].sum()),
        content_sha256=expected,
        repeated_labels=scan.repeated_labels,
        unused_files=scan.unused_files,
        num_encoded=int(records["encoded"].sum()),
        mean_difference=float(records["difference"].sum() / max(1, records["encoded"].sum())),
        num_resumed=num_resumed,
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


def _job(images: StoredImages, destination: Path, quality: int | None) -> dict[str, str]:
    """Return all that the blocks depend on."""
    root = images.folder if isinstance(images, ImageFiles) else Path(images.place)
    return {
        "source": images.place,
        "stamp": source_stamp(root, (destination, part_folder(destination))),
        "index": images.index.sha256(),
        "quality": str(quality),
        "block": f"{BLOCK} {RECORD}",
        "versions": f"fedsim {fedsim.__version__} Pillow {PIL.__version__}",
    }


@contextlib.contextmanager
def _told(destination: Path) -> Iterator[None]:
    """Turn what the system says while blocks are written into a sentence."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{destination.parent}: expected to write {destination.name}, found "
            f"{error.strerror or error}; free space there or choose another place, then convert "
            "again: what is done stays done"
        ) from error
    except BrokenProcessPool as error:
        raise DataError(
            f"{destination}: expected every worker to live, found one killed, maybe for want of "
            "memory; convert again with fewer workers: what is done stays done"
        ) from error


def _read_all(
    writer: BlockWriter, faults: Faults, workers: int, progress: Progress
) -> tuple[Blocks, int]:
    """Write every block that is missing; return all, and how many images were done before."""
    images = writer.images
    total = len(images.index)
    order = np.arange(total, dtype=np.int64)
    if isinstance(images, ParquetImages):  # it reads fast in one order only
        order = images.storage_order
    blocks = Blocks(writer.folder, order, np.zeros(total, RECORD))
    done, missing = 0, []
    for number, rows in enumerate(cut(order)):
        records = load(writer.folder, number, len(rows))
        if records is None:
            missing.append((number, rows))
        else:
            blocks.records[rows] = records
            done += len(rows)
    num_resumed, pieces = done, dict(missing)
    progress("reading", done, total)
    with contextlib.closing(write_blocks(writer, missing, workers)) as written:
        for number, records, wrong in written:
            for fault in wrong:
                faults.add(fault)
            blocks.records[pieces[number]] = records
            done += len(records)
            progress("reading", done, total)
    return blocks, num_resumed


def _check_source(images: StoredImages, found: str, unchanged: bool) -> None:
    if not unchanged:
        raise DataError(
            f"{images.place}: expected the files that were there when the conversion began, found "
            "some changed since then; leave the source as it is and convert again"
        )
    check_stored_hash(images, found)


def _assemble(
    part: Part,
    blocks: Blocks,
    index: ImageIndex,
    about: About,
    expected: str,
    destination: Path,
    progress: Progress,
) -> None:
    """Make the file of the blocks, read it back, and put it in its place."""
    path, total = part.folder / "whole.h5", len(index)
    stream = _counted(blocks.read(), "writing", total, progress)
    write_hdf5(path, index, stream, blocks.records["size"], about, expected)
    with part.discarded_on_fault():
        _check_result(open_hdf5(path), index, expected, progress)
    path.replace(destination)


def _check_result(
    written: Hdf5Images, index: ImageIndex, expected: str, progress: Progress
) -> None:
    stream = written.read(range(len(written.index)))
    found = hash_of(written.index, _counted(stream, "checking", len(written.index), progress))
    if not expected == found == written.content_sha256:
        raise DataError(
            f"{written.place}: expected {len(index)} images with content {expected[:12]}, found "
            f"{len(written.index)} with {found[:12]}; leave the source as it is and convert again"
        )


def _user_sizes(index: ImageIndex, split: str) -> Int64s:
    first, stop = index.users_of(split)
    return np.diff(index.user_offsets[first : stop + 1])


def _counted(items: Iterable[T], stage: str, total: int, progress: Progress) -> Iterator[T]:
    for done, item in enumerate(items, 1):
        yield item
        if done % _STEP == 0 or done == total:
            progress(stage, done, total)
