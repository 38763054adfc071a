"""What is decoded in the background is what would have been decoded without."""

import platform
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from fedsim.data.decode_ahead import DecodeAhead

MAIN = threading.current_thread().name


class Decoder:
    """Decodes a row to an image of that number; each waits for a permit where it is told to."""

    def __init__(self, *, waits: bool = False) -> None:
        self.log: list[tuple[int, str]] = []
        self.permits = threading.Semaphore(0 if waits else 10**6)
        self.began = threading.Semaphore(0)

    def __call__(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        for row in rows.tolist():
            self.began.release()
            assert self.permits.acquire(timeout=10)
            self.log.append((row, threading.current_thread().name))
            if row == 13:
                raise ValueError(f"image {row} is broken")
            yield np.full((1, 1, 3), row, np.uint8)


def numbers(images: Iterator[np.ndarray]) -> list[int]:
    return [int(image[0, 0, 0]) for image in images]


def background() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "fedsim-decode-ahead"]


def test_expected_rows_are_decoded_while_the_caller_goes_on() -> None:
    decoder = Decoder(waits=True)
    ahead = DecodeAhead(decoder)
    ahead.expect(np.array([4, 7]))
    assert decoder.began.acquire(timeout=10)  # before anybody asked for them
    decoder.permits.release(2)
    assert numbers(ahead.decode(np.array([4, 7]))) == [4, 7]
    assert [row for row, _ in decoder.log] == [4, 7]
    assert MAIN not in {name for _, name in decoder.log}
    assert not background()


def test_other_rows_than_expected_are_decoded_all_the_same() -> None:
    decoder = Decoder()
    ahead = DecodeAhead(decoder)
    ahead.expect(np.array([4, 7]))
    assert numbers(ahead.decode(np.array([7, 4]))) == [7, 4]
    assert [row for row, _ in decoder.log[-2:]] == [7, 4]
    decoder.log.clear()
    assert numbers(ahead.decode(np.array([4, 7]))) == [4, 7]  # an expectation serves once
    assert [row for row, _ in decoder.log] == [4, 7]
    assert MAIN not in {name for _, name in decoder.log}
    assert not background()


def test_other_rows_end_what_was_expected() -> None:
    decoder = Decoder(waits=True)
    ahead = DecodeAhead(decoder)
    ahead.expect(np.arange(100))
    assert decoder.began.acquire(timeout=10)
    threading.Timer(0.05, decoder.permits.release, (2,)).start()
    assert numbers(ahead.decode(np.array([200]))) == [200]
    assert not background()
    assert [row for row, _ in decoder.log] == [0, 200]


def test_a_new_expectation_ends_the_one_before() -> None:
    decoder = Decoder(waits=True)
    ahead = DecodeAhead(decoder)
    ahead.expect(np.arange(100))
    assert decoder.began.acquire(timeout=10)
    timer = threading.Timer(0.05, decoder.permits.release, (3,))
    timer.start()
    ahead.expect(np.array([200, 201]))
    assert numbers(ahead.decode(np.array([200, 201]))) == [200, 201]
    assert [row for row, _ in decoder.log] == [0, 200, 201]


def test_no_rows_only_stop() -> None:
    decoder = Decoder(waits=True)
    ahead = DecodeAhead(decoder)
    ahead.expect(np.arange(100))
    assert len(background()) == 1
    threading.Timer(0.05, decoder.permits.release, (100,)).start()
    ahead.expect(np.array([], dtype=np.int64))
    assert not background()
    assert len(decoder.log) < 100


def test_an_error_is_raised_where_the_images_are_asked_for() -> None:
    ahead = DecodeAhead(Decoder())
    ahead.expect(np.array([4, 13, 5]))
    images = ahead.decode(np.array([4, 13, 5]))
    assert int(next(images)[0, 0, 0]) == 4
    with pytest.raises(ValueError, match="image 13 is broken"):
        next(images)
    assert numbers(ahead.decode(np.array([4]))) == [4]


_MANY_LARGE_BLOCKS = """
import re, numpy, torch
from fedsim.data.sources import open_dataset
from fedsim.engines.workers import keep_freed_memory

keep_freed_memory()
torch.set_num_threads(1)
dataset = open_dataset(
    "synthetic", labels="coarse", image_size=64, cache_mb=0, population_size=2000
)
for number in range(40):
    batch = dataset.load("train", numpy.arange(64 * number, 64 * number + 64)).images.float()
    for _ in range(3):  # a model's activations, of several sizes
        batch = torch.relu(batch.repeat(1, 2, 1, 1))
    if number in (9, 39):
        text = open("/proc/self/smaps_rollup").read()
        print(int(re.search(r"Anonymous: +(\\d+)", text)[1]) // 1024)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's heap")
def test_what_decoding_leaves_behind_does_not_break_up_the_memory_of_activations() -> None:
    """Decoded in the caller's thread it grew from 0.5 to 1.1 GB here, and went on so."""
    done = subprocess.run(
        [sys.executable, "-c", _MANY_LARGE_BLOCKS], capture_output=True, text=True, check=True
    )
    early, late = map(int, done.stdout.split())
    assert late < early + 150
