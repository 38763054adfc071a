"""Reads, checks and encodes the images of a conversion, block by block, in worker processes.

A block is some two thousand images that lie together in the source. Its file holds them end to end
and then a record of each, and takes its name only when it is whole: a block whose file is there is
done, and a conversion that was killed goes on with the others. Workers write these files
themselves, so that no image travels between processes and a worker holds one image at a time.
Processes, not threads: the small steps between Pillow's calls hold the interpreter's lock.
"""

import contextlib
import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.decode import decode_image
from fedsim.data.encode import encode_pixels
from fedsim.data.index import Int64s, Stored, StoredImages, offsets_of
from fedsim.errors import DataError

BLOCK = 2048

Records = npt.NDArray[np.void]

# What is known of an image once it is stored.
RECORD = np.dtype([("size", "<i8"), ("sha256", "u1", 32), ("encoded", "?"), ("difference", "<f8")])


@dataclass(frozen=True, eq=False)
class BlockWriter:
    """Writes blocks of one collection.

    Attributes:
        images: The collection.
        folder: Where the blocks go.
        quality: JPEG quality of images that are pixels, 1 to 100; None loses nothing.
    """

    images: StoredImages
    folder: Path
    quality: int | None

    def write(self, number: int, rows: Int64s) -> tuple[Records, list[str]]:
        """Write the block of the images ``rows``, unless one of them has a fault.

        Returns:
            A record of each image, and all faults; with faults there is no file.

        Raises:
            DataError: The source can't be read at all.
            OSError: The block can't be written.
        """
        records, faults = np.zeros(len(rows), RECORD), []
        path = self.folder / _name(number)
        # A worker of a killed conversion may still be at it for a moment: each writes its own.
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                for position, stored in _each(self.images, rows):
                    try:
                        data, records[position] = self._checked(stored, int(rows[position]))
                    except DataError as error:
                        faults.append(str(error))
                    else:
                        file.write(data)
                file.write(records.tobytes())
            if not faults:
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return records, faults

    def _checked(self, stored: Stored | DataError, row: int) -> tuple[bytes, tuple[Any, ...]]:
        if isinstance(stored, DataError):
            raise stored
        name = f"image {self.images.index.image_ids[row]!r}"
        difference = 0.0
        if isinstance(stored, bytes):
            data = stored
            decode_image(data, None, name=name)
        else:
            data, difference = encode_pixels(stored, self.quality, name=name)
        digest = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
        return data, (len(data), digest, not isinstance(stored, bytes), difference)


@dataclass(frozen=True, eq=False)
class Blocks:
    """All blocks of a collection, once they are written.

    Attributes:
        folder: Where they are.
        order: int64 array of shape (images,): the rows in the order of the blocks.
        records: The record of each image, by row.
    """

    folder: Path
    order: Int64s
    records: Records

    def read(self) -> Iterator[bytes]:
        """Yield every image, by row."""
        places = np.argsort(self.order)
        starts = offsets_of(self.records["size"][self.order])
        last, opened = -1, contextlib.ExitStack()
        with opened:
            for place, size in zip(places.tolist(), self.records["size"].tolist(), strict=True):
                number = place // BLOCK
                if number != last:
                    opened.close()
                    path = self.folder / _name(number)
                    file = opened.enter_context(path.open("rb", buffering=0))
                    last = number
                yield os.pread(file.fileno(), size, int(starts[place] - starts[number * BLOCK]))


def cut(order: Int64s) -> list[Int64s]:
    """Return the rows of each block."""
    return [order[start : start + BLOCK] for start in range(0, len(order), BLOCK)]


def load(folder: Path, number: int, num_images: int) -> Records | None:
    """Return the records of a block that was written before; None if there is none."""
    path = folder / _name(number)
    if not path.is_file():
        return None
    num_bytes = num_images * RECORD.itemsize
    with path.open("rb") as file:
        total = file.seek(0, os.SEEK_END)
        file.seek(max(0, total - num_bytes))
        data = file.read()
    if len(data) != num_bytes:
        return None
    records = np.frombuffer(data, RECORD)
    # A machine that lost its power may have kept a name and lost what it names.
    sizes = records["size"]
    return records if (sizes >= 0).all() and sizes.sum() == total - num_bytes else None


def write_blocks(
    writer: BlockWriter, missing: list[tuple[int, Int64s]], num_workers: int
) -> Generator[tuple[int, Records, list[str]], None, None]:
    """Write blocks, given as their number and rows, and yield what became of each, in order.

    The results do not depend on the number of workers.

    Raises:
        DataError: The source can't be read at all.
        OSError: A block can't be written.
        BrokenProcessPool: A worker was killed.
    """
    if num_workers == 1 or len(missing) < 2:
        for number, rows in missing:
            yield number, *writer.write(number, rows)
        return
    with _workers(writer, min(num_workers, len(missing))) as pool:
        done = pool.map(_write, *zip(*missing, strict=True))
        for (number, _), result in zip(missing, done, strict=True):
            yield number, *result


@contextlib.contextmanager
def _workers(writer: BlockWriter, num_workers: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("forkserver")
    # Workers end when the other end of this pipe closes, which this process's death does too.
    lifeline, end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        num_workers, mp_context=context, initializer=_start, initargs=(lifeline, writer)
    )
    try:
        yield pool
    finally:  # the blocks in hand are finished: the next conversion need not do them again
        pool.shutdown(wait=True, cancel_futures=True)
        end.close()
        lifeline.close()


_writer: BlockWriter


def _start(lifeline: Connection, writer: BlockWriter) -> None:
    global _writer
    _writer = writer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _write(number: int, rows: Int64s) -> tuple[Records, list[str]]:
    return _writer.write(number, rows)


def _each(images: StoredImages, rows: Int64s) -> Iterator[tuple[int, Stored | DataError]]:
    """Yield the position of each row, and what is stored of it or what is wrong with it."""
    position, last = 0, ""
    while position < len(rows):
        try:
            for stored in _read(images, rows[position:].tolist()):
                yield position, stored
                position += 1
        except DataError as error:
            if str(error) == last:  # it is not about a single image
                raise
            last = str(error)
            yield position, error
            position += 1


def _read(images: StoredImages, rows: list[int]) -> Iterable[Stored]:
    return (stored for _, stored in zip(rows, images.read(rows), strict=True))


def _name(number: int) -> str:
    return f"{number:06d}.block"
