"""Decodes in the background, also what is asked for next."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import numpy as np

from fedsim.data.index import Int64s, Pixels

Decode = Callable[[Int64s], Iterator[Pixels]]

_HANDED_OVER = 64  # images at a time: two threads that take turns for each cost half as much again


class DecodeAhead:
    """Decodes images, those that are expected next while the caller does something else.

    Pillow decodes without Python's lock and torch computes without it, so both go on at once where
    a core is idle. No more than one expectation is kept, and its thread ends with it.

    Nothing is decoded in the caller's own thread. What decoding leaves behind (Python's and the
    libraries' small caches) would lie in the heap between a model's large activations, and glibc,
    told to keep what is freed, would ask for new memory where it can't join two holes: a worker
    that scored images of 224 pixels grew to 15 GB. Another thread has another heap.

    Args:
        decode: Yields the images of rows; called in other threads.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._expected: _Decoding | None = None

    def expect(self, rows: Int64s) -> None:
        """Begin with the rows that the next call of ``decode`` is for; none only stops."""
        if self._expected is not None:
            self._expected.give_up()
        self._expected = _Decoding(rows, self._decode) if len(rows) else None

    def decode(self, rows: Int64s) -> Iterator[Pixels]:
        """Yield the images of ``rows``, whatever was expected; raises what decoding them raises."""
        decoding, self._expected = self._expected, None
        if decoding is not None and not np.array_equal(decoding.rows, rows):
            decoding.give_up()
            decoding = None
        decoding = decoding or _Decoding(rows, self._decode)
        try:
            yield from decoding.images()
        finally:
            decoding.give_up()


class _Decoding(threading.Thread):
    def __init__(self, rows: Int64s, decode: Decode) -> None:
        super().__init__(name="fedsim-decode-ahead")
        self.rows, self._decode = rows, decode
        self._done: SimpleQueue[list[Pixels]] = SimpleQueue()  # an empty one is the end
        self._error: Exception | None = None
        self._given_up = False
        self.start()

    def run(self) -> None:
        images: list[Pixels] = []
        try:
            for image in self._decode(self.rows):
                if self._given_up:
                    return
                images.append(image)
                if len(images) == _HANDED_OVER:
                    self._done.put(images)
                    images = []
        except Exception as error:
            self._error = error  # raised where the images are asked for
        finally:
            if images:
                self._done.put(images)
            self._done.put([])

    def images(self) -> Iterator[Pixels]:
        while images := self._done.get():
            yield from images
        self.join()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Stop after the image in hand."""
        self._given_up = True
        self.join()
