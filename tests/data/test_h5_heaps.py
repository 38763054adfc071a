"""Damaged heaps of texts are told in a sentence, where HDF5 alone would not come back."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from fedsim.data.flair_hdf5 import scan_flair_hdf5
from fedsim.data.h5_heaps import Heaps
from fedsim.data.scan import open_whole
from fedsim.errors import DataError

LABELS = ["cat|dog", "", "ünï", "x" * 5000]


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """HDF5 in an endless loop holds Python's lock: only the system can end it."""
    signal.alarm(60)
    yield
    signal.alarm(0)


def written(path: Path, **options: int) -> Path:
    with h5py.File(path, "w", **options) as file:
        for number, label in enumerate(LABELS):
            group = f"/train/image{number}"
            file[f"{group}/image"] = np.zeros((2, 2, 3), np.uint8)
            file[f"{group}/user_id"] = f"user{number}"
            file[f"{group}/labels"] = label
            file[f"{group}/fine_grained_labels"] = "tabby"
    return path


def heap_of(data: bytes, text: bytes) -> int:
    return data.rindex(b"GCOL", 0, data.index(text))


def reference_to(data: bytes, length: int, heap: int) -> int:
    return data.index(length.to_bytes(4, "little") + heap.to_bytes(8, "little"))


@pytest.mark.parametrize("userblock", [0, 512])
def test_texts_of_any_length_come_back(tmp_path: Path, userblock: int) -> None:
    path = written(tmp_path / "whole.h5", userblock_size=userblock)
    index = open_whole(lambda: scan_flair_hdf5(path)).index
    labels = index.labels["coarse"]
    assert labels.names == ("cat", "dog", "x" * 5000, "ünï")
    assert labels.dense(np.arange(4)).tolist() == [
        [1, 1, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 1, 0],
    ]


def zeros_behind_the_header(data: bytearray, heap: int) -> None:
    data[heap + 16 : heap + 4096] = bytes(4080)


def zeros_from_the_third_object(data: bytearray, heap: int) -> None:
    data[heap + 64 : heap + 4096] = bytes(4032)


def zeros_from_the_header(data: bytearray, heap: int) -> None:
    data[heap : heap + 4096] = bytes(4096)


def a_text_of_4_gigabytes(data: bytearray, heap: int) -> None:
    place = reference_to(data, len("cat|dog"), heap)
    data[place : place + 4] = bytes([255] * 4)


def a_text_longer_than_its_object(data: bytearray, heap: int) -> None:
    place = reference_to(data, len("cat|dog"), heap)
    data[place : place + 4] = (8).to_bytes(4, "little")


def a_heap_beyond_the_end(data: bytearray, heap: int) -> None:
    place = reference_to(data, len("cat|dog"), heap) + 4
    data[place : place + 8] = (2**62).to_bytes(8, "little")


def an_object_that_is_not_there(data: bytearray, heap: int) -> None:
    place = reference_to(data, len("cat|dog"), heap) + 12
    data[place : place + 4] = (999).to_bytes(4, "little")


def a_heap_longer_than_the_file(data: bytearray, heap: int) -> None:
    data[heap + 8 : heap + 16] = (2**29).to_bytes(8, "little")


def an_object_longer_than_the_heap(data: bytearray, heap: int) -> None:
    data[heap + 24 : heap + 32] = (2**40).to_bytes(8, "little")


@pytest.mark.parametrize(
    "damage",
    [
        zeros_behind_the_header,
        zeros_from_the_third_object,
        zeros_from_the_header,
        a_text_of_4_gigabytes,
        a_text_longer_than_its_object,
        a_heap_beyond_the_end,
        an_object_that_is_not_there,
        a_heap_longer_than_the_file,
        an_object_longer_than_the_heap,
    ],
)
def test_damage_is_told(tmp_path: Path, damage: Callable[[bytearray, int], None]) -> None:
    path = written(tmp_path / "damaged.h5")
    data = bytearray(path.read_bytes())
    damage(data, heap_of(data, b"cat|dog"))
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        open_whole(lambda: scan_flair_hdf5(path))
    assert "/train/image0/labels: expected text, found data that can't be read (the heap of" in str(
        caught.value
    )


@pytest.mark.parametrize("storage", [{"chunks": (2,), "compression": "gzip"}, {"chunks": (1,)}, {}])
def test_other_ways_to_store_texts_are_read(tmp_path: Path, storage: dict) -> None:
    path = tmp_path / "packed.h5"
    with h5py.File(path, "w") as file:
        text = h5py.string_dtype()
        file["/train/ann/images"] = np.zeros((3, 2, 2, 3), np.uint8)
        file["/train/ann/image_ids"] = np.array([b"1", b"2", b"3"])
        file.create_dataset("/train/ann/labels", data=["a|b", "", "c"], dtype=text, **storage)
        file.create_dataset("/train/ann/fine_grained_labels", (3,), dtype=text)  # never written
    labels = open_whole(lambda: scan_flair_hdf5(path)).index.labels
    assert labels["coarse"].dense(np.arange(3)).tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert not labels["fine"].names


class _Huge:
    """An array whose shape nobody's memory holds."""

    def __init__(self, length: int) -> None:
        self.shape = (length,)

    def get_offset(self) -> int:
        return 0


@pytest.mark.parametrize("length", [10**15, 10**30])
def test_a_shape_larger_than_any_file_is_damage(tmp_path: Path, length: int) -> None:
    with h5py.File(written(tmp_path / "whole.h5")) as file:
        assert not Heaps(file).are_sound(_Huge(length))
