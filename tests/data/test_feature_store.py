"""Features are computed once, kept whole or not at all, and shared."""

import errno
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.feature_store import BLOCK, FeatureStore, FileBlocks, MemoryBlocks, Room
from fedsim.errors import EngineError

SHAPE = (2 * BLOCK + 5, 3)


def truth(numbers: np.ndarray) -> np.ndarray:
    return np.stack([numbers, numbers**2, -numbers], axis=1).astype(np.float32)


class Counted:
    """Computes, and remembers which blocks it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        self.asked.append((int(numbers[0]), len(numbers)))
        return truth(numbers)


def file_store(path: Path, compute) -> FeatureStore:
    return FeatureStore(FileBlocks(path, SHAPE), compute)


WANTED = np.array([BLOCK + 3, 0, SHAPE[0] - 1, 2, 2])


@pytest.mark.parametrize("in_file", [False, True])
def test_each_block_is_computed_once(tmp_path: Path, in_file: bool) -> None:
    compute = Counted()
    blocks = FileBlocks(tmp_path / "f", SHAPE) if in_file else MemoryBlocks(SHAPE, Room(10**6))
    store = FeatureStore(blocks, compute)
    for _ in range(2):
        np.testing.assert_array_equal(store.read(WANTED), truth(WANTED))
    assert sorted(compute.asked) == [(0, BLOCK), (BLOCK, BLOCK), (2 * BLOCK, 5)]
    assert store.read(np.empty(0, dtype=np.int64)).shape == (0, 3)


def test_processes_that_read_the_same_compute_in_other_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    for process in (4000, 4001):
        monkeypatch.setattr(os, "getpid", lambda number=process: number)
        compute = Counted()
        store = FeatureStore(FileBlocks(tmp_path / str(process), (20 * BLOCK, 3)), compute)
        store.read(np.arange(20 * BLOCK))
        asked.append([first // BLOCK for first, _ in compute.asked])
    one, two = asked
    assert sorted(one) == sorted(two) == list(range(20))
    assert len(set(one[:10]) & set(two[:10])) < 8  # so they share the work


def test_memory_is_bounded_and_numbers_are_not_affected() -> None:
    compute = Counted()
    store = FeatureStore(MemoryBlocks(SHAPE, Room(BLOCK * 3 * 4)), compute)
    for _ in range(2):
        np.testing.assert_array_equal(store.read(WANTED), truth(WANTED))
    assert [start for start, _ in compute.asked] == [0, BLOCK, 2 * BLOCK, BLOCK, 2 * BLOCK]


def test_splits_share_the_room() -> None:
    room, compute = Room(3 * BLOCK * 3 * 4), Counted()
    stores = [FeatureStore(MemoryBlocks(SHAPE, room), compute) for _ in range(2)]
    for _ in range(2):
        for store in stores:
            store.read(np.arange(2 * BLOCK))
    assert [start for start, _ in compute.asked] == [0, BLOCK, 0, BLOCK, BLOCK]


def test_a_file_is_shared_and_private(tmp_path: Path) -> None:
    path = tmp_path / "made" / "f"
    first, second = file_store(path, truth), file_store(path, None)
    first.read(WANTED)
    np.testing.assert_array_equal(second.read(WANTED), truth(WANTED))
    np.testing.assert_array_equal(file_store(path, None).read(WANTED), truth(WANTED))
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("offset", [0, SHAPE[0] * 12])
def test_a_block_that_is_not_whole_is_computed_again(tmp_path: Path, offset: int) -> None:
    """A byte of the first block's rows, or of its digest, is not what was written."""
    path = tmp_path / "f"
    file_store(path, truth).read(WANTED)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
    compute = Counted()
    np.testing.assert_array_equal(file_store(path, compute).read(WANTED), truth(WANTED))
    assert sorted(compute.asked) == [(0, BLOCK)]


def test_a_file_that_was_cut_short_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file_store(path, truth).read(WANTED)
    os.truncate(path, 10)
    np.testing.assert_array_equal(file_store(path, truth).read(WANTED), truth(WANTED))


def test_a_link_to_somebody_s_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "f").symlink_to(tmp_path / "precious")
    with pytest.raises(EngineError, match=r"feature_cache.*/f, found"):
        FileBlocks(tmp_path / "f", SHAPE)
    assert (tmp_path / "precious").read_text() == "mine"


def write_all(path: Path) -> None:
    for _ in range(20):
        file_store(path, truth).read(np.arange(SHAPE[0]))


def test_processes_that_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    writers = [context.Process(target=write_all, args=(tmp_path / "f",)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    everything = np.arange(SHAPE[0])
    np.testing.assert_array_equal(
        file_store(tmp_path / "f", None).read(everything), truth(everything)
    )


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path, monkeypatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = file_store(tmp_path / "f", truth)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(EngineError, match=r"feature_cache.*No space left.*null"):
        store.read(WANTED)
    (tmp_path / "a_file").touch()
    with pytest.raises(EngineError, match=r"feature_cache.*a_file"):
        FileBlocks(tmp_path / "a_file" / "f", SHAPE)


@pytest.mark.parametrize("wrong", [-1, SHAPE[0]])
def test_other_numbers_are_refused(wrong: int) -> None:
    store = FeatureStore(MemoryBlocks(SHAPE, Room(10**6)), truth)
    with pytest.raises(IndexError):
        store.read(np.array([0, wrong]))
