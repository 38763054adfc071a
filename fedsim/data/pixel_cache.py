"""Keeps decoded images in memory, up to a limit."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from fedsim.data.index import Int64s, Pixels
from fedsim.errors import ConfigError

_ABSENT = -1


class PixelCache:
    """Decoded images of one collection, kept as they are first read while there is room.

    What is kept stays: nothing is thrown out for another image. A split that is scanned in order
    again and again would otherwise push out every image just before it is needed (least recently
    used finds nothing at all of a split that does not fit), and for images drawn uniformly no
    choice of what to keep is better than another.

    Memory is used as images are kept, not before. Any number of threads may read.

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
            self._pixels = np.empty((capacity, size, size, 3), dtype=np.uint8)
        except MemoryError as error:
            raise ConfigError(
                f"cache_mb: expected memory for {capacity} images of {size}x{size} pixels "
                f"({capacity * 3 * size**2 / 2**20:.0f} MiB), found less; lower it"
            ) from error
        self._slots: npt.NDArray[np.int32] = np.full(num_rows, _ABSENT, dtype=np.int32)
        self._num_kept = 0
        self._lock = threading.Lock()

    def missing(self, rows: Int64s) -> Int64s:
        """Return those of ``rows`` that are not kept, each once, in rising order."""
        return np.unique(rows[self._slots[rows] == _ABSENT])

    def read(self, rows: Int64s, decode: Callable[[Int64s], Iterator[Pixels]]) -> Pixels:
        """Return copies of the images ``rows``, shape (rows, size, size, 3).

        Args:
            rows: May repeat.
            decode: Yields the pixels of the rows that it is given: of ``missing(rows)``.
        """
        slots = self._slots[rows]
        kept = slots != _ABSENT
        if len(rows) and kept.all():
            return self._pixels.take(slots, axis=0)
        unique, inverse = np.unique(rows, return_inverse=True)
        if len(unique) < len(rows):
            return self.read(unique, decode)[inverse]
        images = np.empty((len(rows), *self._pixels.shape[1:]), dtype=np.uint8)
        for place in np.flatnonzero(kept).tolist():
            images[place] = self._pixels[slots[place]]
        places = np.flatnonzero(~kept)
        places = places[np.argsort(rows[places])]  # files are read from front to back
        for place, image in zip(places.tolist(), decode(rows[places]), strict=True):
            images[place] = image
            self._keep(int(rows[place]), image)
        return images

    def _keep(self, row: int, image: Pixels) -> None:
        with self._lock:
            if self._slots[row] == _ABSENT and self._num_kept < len(self._pixels):
                self._pixels[self._num_kept] = image
                self._slots[row] = self._num_kept  # last: who finds a slot finds its pixels
                self._num_kept += 1
