"""Checks the heaps in which an HDF5 file keeps texts of any length, before HDF5 reads them.

HDF5 goes through a heap by the sizes that it finds there, and goes on for ever where one is zero:
a file whose download broke off and left zeros would stop a program without a word. The layout is
that of "Global Heap" in the HDF5 File Format Specification 3.0, section III.E.
"""

import math
import os
import struct

import h5py
from h5py import h5d

_SIGNATURE = b"GCOL\x01\0\0\0"
_HEADER = 16  # bytes of a heap's header, and of each object's
_BIGGEST = 2**30  # bytes of a heap; HDF5 makes a larger one only for a text of that size
_REFERENCE = struct.Struct("<IQI")  # a text's length, its heap's address, its number in the heap
_OBJECT = struct.Struct("<H6xQ")  # an object's number, and its size


class Heaps:
    """The heaps of an open file, each looked at once.

    Args:
        file: The open file.
    """

    def __init__(self, file: h5py.File) -> None:
        self._descriptor: int = file.id.get_vfd_handle()
        self._start: int = file.userblock_size
        self._is_known = file.id.get_create_plist().get_sizes() == (8, 8)
        self._sizes: dict[int, dict[int, int]] = {}

    def are_sound(self, dataset: h5d.DatasetID) -> bool:
        """Tell whether HDF5 can read an array of texts of any length without losing its way.

        Arrays in chunks are not looked at: they occur where somebody packed a file anew.
        """
        start = dataset.get_offset()
        if start is None or not self._is_known:
            return True
        num_bytes = math.prod(dataset.shape) * _REFERENCE.size
        references = self._read(start, num_bytes)
        return len(references) == num_bytes and all(
            length <= self._sizes_at(heap).get(number, -1)
            for length, heap, number in _REFERENCE.iter_unpack(references)
            if heap
        )

    def _sizes_at(self, address: int) -> dict[int, int]:
        """Return the size of every object of a heap by number; none if the heap is broken."""
        if address not in self._sizes:
            self._sizes[address] = self._walk(address)
        return self._sizes[address]

    def _walk(self, address: int) -> dict[int, int]:
        header = self._read(self._start + address, _HEADER)
        end = int.from_bytes(header[8:], "little")
        if header[:8] != _SIGNATURE or end > _BIGGEST:
            return {}
        heap = self._read(self._start + address, end)
        sizes, place = {}, _HEADER
        while place + _HEADER <= len(heap):
            number, size = _OBJECT.unpack_from(heap, place)
            if number:
                sizes[number] = size
                size = _HEADER + -(-size // 8) * 8
            if size < _HEADER:  # number 0 is free space, whose size counts its header too
                return {}
            place += size
        return sizes if len(heap) == end and place <= end else {}

    def _read(self, start: int, num_bytes: int) -> bytes:
        try:
            return os.pread(self._descriptor, num_bytes, start)
        except (OSError, OverflowError, MemoryError):  # a place or size that no file has
            return b""
