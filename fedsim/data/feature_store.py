"""Keeps features of images, computed once: in memory, or in a file that processes share.

Features are computed in blocks of neighbouring examples, always the same ones: what a network makes
of an image depends, in the last bits, on the batch that it is in.
"""

import hashlib
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedsim.data.index import Int64s
from fedsim.errors import EngineError
from fedsim.streams import numpy_stream

Float32s = npt.NDArray[np.float32]

BLOCK = 32
"""Examples of a block. Part of the features' last bits."""

_DIGEST_BYTES = 16


class Blocks(Protocol):
    """Rows of features, some blocks of which are there."""

    @property
    def rows(self) -> Float32s:
        """All rows, shape (examples, features); meaningless in blocks that are not there."""
        ...

    def in_turn(self, numbers: Int64s) -> Int64s:
        """Return the numbers of blocks in the order in which this process is to compute them."""
        ...

    def find(self, block: slice) -> bool:
        """Tell whether the rows of a block are there."""
        ...

    def keep(self, block: slice, values: Float32s) -> bool:
        """Keep a block's rows, and tell whether there was room."""
        ...


class Room:
    """Bytes that are left to all the stores of a process.

    Args:
        max_bytes: At first.
    """

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes

    def take(self, num_bytes: int) -> bool:
        """Take so many bytes, and tell whether they were there."""
        if num_bytes > self._left:
            return False
        self._left -= num_bytes
        return True


class MemoryBlocks:
    """Blocks in this process's memory, the first ones that come, up to a limit.

    Args:
        shape: Examples and features of each.
        room: For features; memory is used as blocks come.
    """

    def __init__(self, shape: tuple[int, int], room: Room) -> None:
        self.rows: Float32s = np.empty(shape, dtype=np.float32)
        self._room = room

    def in_turn(self, numbers: Int64s) -> Int64s:
        """Return them as they are: the first ones are kept."""
        return numbers

    def find(self, block: slice) -> bool:
        """Return False: nobody else puts anything here."""
        return False

    def keep(self, block: slice, values: Float32s) -> bool:
        """Keep a block while there is room."""
        if not self._room.take(values.nbytes):
            return False
        self.rows[block] = values
        return True


class FileBlocks:
    """Blocks in a file, for any number of processes at a time.

    The rows come first, then a digest of each block. A block is there if its digest is right, so
    neither a process that is killed nor two that write the same block can leave a wrong one: what
    they write is the same, and half of it does not count.

    Args:
        path: Made if it is not there; readable for its owner alone, as images may be private. A
            link is not followed.
        shape: Examples and features of each, at least one.

    Raises:
        EngineError: The file can't be made or written.
    """

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        self._path, self._digests_at = path, 4 * shape[0] * shape[1]
        num_blocks = -(-shape[0] // BLOCK)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            weakref.finalize(self, os.close, self._file)
            os.ftruncate(self._file, self._digests_at + _DIGEST_BYTES * num_blocks)
            memory = mmap.mmap(self._file, self._digests_at, access=mmap.ACCESS_READ)
            self.rows: Float32s = np.frombuffer(memory, np.float32).reshape(shape)
        except OSError as error:
            raise self._failed(error) from error

    def in_turn(self, numbers: Int64s) -> Int64s:
        """Return them in another order for each process: those that read the same share the work.

        One that comes to a block finds it there, unless another computes it at that time.
        """
        return numpy_stream(os.getpid(), "feature blocks").permutation(numbers)

    def find(self, block: slice) -> bool:
        """Tell whether somebody has written a block, whole."""
        found = os.pread(self._file, _DIGEST_BYTES, self._digest_at(block))
        return any(found) and found == _digest(self.rows[block])

    def keep(self, block: slice, values: Float32s) -> bool:
        """Write a block; there is room, or an error."""
        values = np.ascontiguousarray(values)
        try:
            self._write(values.tobytes(), 4 * block.start * values.shape[1])
            self._write(_digest(values), self._digest_at(block))
        except OSError as error:
            raise self._failed(error) from error
        return True

    def _write(self, data: bytes, offset: int) -> None:
        while data:
            written = os.pwrite(self._file, data, offset)
            data, offset = data[written:], offset + written

    def _digest_at(self, block: slice) -> int:
        number: int = block.start // BLOCK
        return self._digests_at + _DIGEST_BYTES * number

    def _failed(self, error: OSError) -> EngineError:
        return EngineError(
            f"engine.feature_cache: expected to write features to {self._path}, found "
            f"{error.strerror}; make room there, name another folder, or set it to null"
        )


def _digest(values: Float32s) -> bytes:
    return hashlib.blake2b(values.tobytes(), digest_size=_DIGEST_BYTES).digest()


def num_stored_blocks(path: Path, shape: tuple[int, int]) -> int:
    """Return how many blocks a file seems to have: their digests are there, but not checked.

    Args:
        path: Of ``FileBlocks``; there may be no such file.
        shape: Examples and features of each.
    """
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        file.seek(4 * shape[0] * shape[1])
        digests = np.frombuffer(file.read(), np.uint8)
    whole = len(digests) // _DIGEST_BYTES * _DIGEST_BYTES
    return int(digests[:whole].reshape(-1, _DIGEST_BYTES).any(axis=1).sum())


class FeatureStore:
    """Features of one split's examples, each block of them computed when it is first read.

    Args:
        blocks: Where they are kept.
        compute: From the numbers of a block's examples to their features, shape (numbers,
            features).
    """

    def __init__(self, blocks: Blocks, compute: Callable[[Int64s], Float32s]) -> None:
        self._blocks, self._compute = blocks, compute
        self._is_here = np.zeros(-(-len(blocks.rows) // BLOCK), dtype=np.bool_)

    def read(self, numbers: Int64s) -> Float32s:
        """Return copies of the features of some examples, shape (numbers, features).

        Raises:
            IndexError: A number is not one of the split's.
            EngineError: A block can't be kept.
        """
        num_rows = len(self._blocks.rows)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < num_rows:
            raise IndexError(f"expected examples 0 to {num_rows - 1}, found others")
        owners = numbers // BLOCK
        unkept = {}
        for block in self._blocks.in_turn(np.unique(owners[~self._is_here[owners]])).tolist():
            rows = slice(block * BLOCK, min((block + 1) * BLOCK, num_rows))
            if not self._blocks.find(rows):
                values = self._compute(np.arange(rows.start, rows.stop))
                if not self._blocks.keep(rows, values):
                    unkept[block] = values
                    continue
            self._is_here[block] = True
        found: Float32s = self._blocks.rows.take(numbers, axis=0)
        for block, values in unkept.items():
            places = np.flatnonzero(owners == block)
            found[places] = values[numbers[places] - block * BLOCK]
        return found
