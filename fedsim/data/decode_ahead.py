"""Decodes in the background what is asked for next."""

import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from fedsim.data.index import Int64s, Pixels

Decode = Callable[[Int64s], Iterator[Pixels]]


class DecodeAhead:
    """Decodes images, those that are expected next while the caller does something else.

    Pillow decodes without Python's lock and torch computes without it, so both go on at once where
    a core is idle. No more than one expectation is kept, and its thread ends with it.

    Args:
        decode: Yields the images of rows; called in other threads too.
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
        expected, self._expected = self._expected, None
        if expected is None:
            yield from self._decode(rows)
        elif np.array_equal(expected.rows, rows):
            yield from expected.images()
        else:
            expected.give_up()
            yield from self._decode(rows)


class _Decoding(threading.Thread):
    def __init__(self, rows: Int64s, decode: Decode) -> None:
        super().__init__(name="fedsim-decode-ahead")
        self.rows, self._decode = rows, decode
        self._images: deque[Pixels] = deque()
        self._error: Exception | None = None
        self._given_up = False
        self.start()

    def run(self) -> None:
        try:
            for image in self._decode(self.rows):
                if self._given_up:
                    return
                self._images.append(image)
        except Exception as error:
            self._error = error  # raised where the images are asked for

    def images(self) -> Iterator[Pixels]:
        self.join()
        while self._images:
            yield self._images.popleft()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Stop after the image in hand."""
        self._given_up = True
        self.join()
