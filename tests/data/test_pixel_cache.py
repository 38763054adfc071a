"""The cache against a dictionary that keeps what comes first."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.data.pixel_cache import PixelCache
from fedsim.errors import ConfigError

SIZE = 2
IMAGE_BYTES = 3 * SIZE**2


def image_of(row: int) -> np.ndarray:
    return np.random.default_rng(row).integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)


class Decoder:
    """Makes images and notes the rows."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        for row in rows.tolist():
            self.rows.append(row)
            yield image_of(row)


READS = st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=8)


@given(READS, st.integers(0, 11))
def test_the_first_that_fit_are_kept(reads: list[list[int]], capacity: int) -> None:
    cache, kept = PixelCache(10, SIZE, capacity * IMAGE_BYTES + IMAGE_BYTES - 1), set[int]()
    for rows in reads:
        decode = Decoder()
        wanted = np.array(rows, dtype=np.int64)
        expected = sorted(set(rows) - kept)
        assert cache.missing(wanted).tolist() == expected
        images = cache.read(wanted, decode)
        assert decode.rows == expected
        assert images.shape == (len(rows), SIZE, SIZE, 3)
        assert images.dtype == np.uint8
        assert images.flags.c_contiguous
        for image, row in zip(images, rows, strict=True):
            assert np.array_equal(image, image_of(row))
        images[:] = 0  # copies: nobody can write into the cache
        kept.update(expected[: capacity - len(kept)])


def test_a_scan_that_does_not_fit_hits_what_fits() -> None:
    cache = PixelCache(100, SIZE, 60 * IMAGE_BYTES)
    for scan in range(3):
        decode = Decoder()
        for start in range(0, 100, 7):
            cache.read(np.arange(start, min(start + 7, 100)), decode)
        assert decode.rows == list(range(60 if scan else 0, 100))


def test_an_image_that_fails_is_not_kept() -> None:
    def failing(rows: np.ndarray) -> Iterator[np.ndarray]:
        yield image_of(int(rows[0]))
        raise ValueError("broken")

    cache, decode = PixelCache(4, SIZE, 1000), Decoder()
    with pytest.raises(ValueError, match="broken"):
        cache.read(np.array([2, 0, 1]), failing)
    assert np.array_equal(cache.read(np.array([1, 0]), decode)[1], image_of(0))
    assert decode.rows == [1]


class _KilledAfterwards(np.ndarray):
    def __setitem__(self, key, value) -> None:
        super().__setitem__(key, value)
        raise KeyboardInterrupt


@pytest.mark.parametrize("last", ["_num_kept", "_pixels", "_slots"])
def test_what_a_killed_process_was_keeping_is_overwritten_by_nobody(last: str) -> None:
    cache = PixelCache(4, SIZE, 1000)
    memory = getattr(cache, last)
    setattr(cache, last, memory.view(_KilledAfterwards))
    with pytest.raises(KeyboardInterrupt):
        cache.read(np.array([0]), Decoder())
    setattr(cache, last, memory)
    for _ in range(2):
        for row in (3, 0, 1):
            assert np.array_equal(cache.read(np.array([row]), Decoder())[0], image_of(row))


def test_an_image_that_two_read_at_once_takes_one_place() -> None:
    cache = PixelCache(3, SIZE, 2 * IMAGE_BYTES)

    def overtaken(rows: np.ndarray) -> Iterator[np.ndarray]:
        cache.read(rows, Decoder())  # as another thread would, meanwhile
        yield from Decoder()(rows)

    cache.read(np.array([0]), overtaken)
    cache.read(np.array([1]), Decoder())
    assert cache.missing(np.arange(3)).tolist() == [2]


def test_threads_share_it() -> None:
    cache, wrong = PixelCache(64, SIZE, 40 * IMAGE_BYTES), []
    images = np.stack([image_of(row) for row in range(64)])

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            rows = rng.integers(0, 64, 9)
            found = cache.read(rows, lambda missing: iter(images[missing]))
            if not np.array_equal(found, images[rows]):
                wrong.append(rows)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cache.missing(np.arange(64))) == 24  # no slot was lost or given twice


def test_memory_is_used_as_images_are_kept() -> None:
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        pytest.skip("needs /proc")

    def resident_mib() -> float:
        return int(statm.read_text().split()[1]) * 4096 / 2**20

    side, before = 512, resident_mib()
    cache = PixelCache(1000, side, 2**30)
    assert resident_mib() - before < 50
    for row in range(100):  # 75 MiB
        cache.read(np.array([row]), lambda rows: iter([np.ones((side, side, 3), np.uint8)]))
    assert 60 < resident_mib() - before < 150


def test_more_than_the_system_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache_mb: expected memory for 4 images .* lower it"):
        PixelCache(4, 2**25, 2**60)
