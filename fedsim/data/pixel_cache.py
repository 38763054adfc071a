"""Keeps decoded images in memory, up to a limit, for this process and those that it starts."""

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.index import Int64s, Pixels
from fedsim.errors import ConfigError

_COUNTER_BYTES = 8


class PixelCache:
    """Decoded images of one collection, kept as they are first read while there is room.

    What is kept stays: nothing is thrown out for another image. A split that is scanned in order
    again and again would otherwise push out every image just before it is needed (least recently
    used finds nothing at all of a split that does not fit), and for images drawn uniformly no
    choice of what to keep is better than another.

    Memory is used as images are kept, not before. Any number of threads may read, and a process
    that is started with a cache among its arguments shares it: what one of them decodes, all have.
    The memory has no name, so it is gone with the last process that uses it, however that ends.

    Args:
        num_rows: Images of the collection.
        size: Their height and width in pixels.
        max_bytes: Of pixels, ``3 * size**2`` an image; 0 keeps nothing.

    Raises:
        ConfigError: The system refuses so much memory.
    """

    def __init__(self, num_rows: int, size: int, max_bytes: int) -> None:
        capacity = min(num_rows, max_bytes // (3 * size**2))
        try:
            self._file = _nameless_file()
            os.ftruncate(self._file, _COUNTER_BYTES + 4 * num_rows + capacity * 3 * size**2)
            self._map(num_rows, size)
        except (OSError, OverflowError, ValueError) as error:
            raise ConfigError(
                f"cache_mb: expected memory for {capacity} images of {size}x{size} pixels "
                f"({capacity * 3 * size**2 / 2**20:.0f} MiB), found less; lower it"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a process that is being started makes its own view of the memory from."""
        file = reduction.DupFd(self._file)
        return _shared, (file, len(self._slots), self._pixels.shape[1])

    def _map(self, num_rows: int, size: int) -> None:
        """Lay the arrays over the file, which begins as zeros."""
        memory = mmap.mmap(self._file, 0)
        slots_end = _COUNTER_BYTES + 4 * num_rows
        self._num_kept = np.frombuffer(memory, np.int64, 1)
        # Of each row: 0, or one more than its place among the pixels.
        self._slots: npt.NDArray[np.int32] = np.frombuffer(
            memory, np.int32, num_rows, _COUNTER_BYTES
        )
        pixels = np.frombuffer(memory, np.uint8, offset=slots_end)
        self._pixels = pixels.reshape(-1, size, size, 3)
        self._lock, self._fence = threading.Lock(), threading.Lock()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def missing(self, rows: Int64s) -> Int64s:
        """Return those of ``rows`` that are not kept, each once, in rising order."""
        return np.unique(rows[self._slots[rows] == 0])

    def read(self, rows: Int64s, decode: Callable[[Int64s], Iterator[Pixels]]) -> Pixels:
        """Return copies of the images ``rows``, shape (rows, size, size, 3).

        Args:
            rows: May repeat.
            decode: Yields the pixels of the rows that it is given: of ``missing(rows)``.
        """
        slots = self._slots[rows]
        kept = slots != 0
        if len(rows) and kept.all():
            return self._pixels.take(slots - 1, axis=0)
        unique, inverse = np.unique(rows, return_inverse=True)
        if len(unique) < len(rows):
            return self.read(unique, decode)[inverse]
        images = np.empty((len(rows), *self._pixels.shape[1:]), dtype=np.uint8)
        for place in np.flatnonzero(kept).tolist():
            images[place] = self._pixels[slots[place] - 1]
        places = np.flatnonzero(~kept)
        places = places[np.argsort(rows[places])]  # files are read from front to back
        for place, image in zip(places.tolist(), decode(rows[places]), strict=True):
            images[place] = image
            self._keep(int(rows[place]), image)
        return images

    def _keep(self, row: int, image: Pixels) -> None:
        if self._num_kept[0] >= len(self._pixels):
            return
        with self._alone():
            place = int(self._num_kept[0])
            if self._slots[row] or place >= len(self._pixels):
                return
            # In this order: a process that is killed here loses a place, and gives none twice.
            self._num_kept[0] = place + 1
            with self._fence:
                self._pixels[place] = image
            with self._fence:  # in this order for every processor: who finds a slot finds pixels
                self._slots[row] = place + 1

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads, and other processes with the same memory, from adding images."""
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # given back if the process dies
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


def _nameless_file() -> int:
    """Return a file in memory, or on disk where the system has no others."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedsim-pixels")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _shared(file: Any, num_rows: int, size: int) -> PixelCache:
    cache = PixelCache.__new__(PixelCache)
    cache._file = file.detach()
    cache._map(num_rows, size)
    return cache
