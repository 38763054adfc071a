"""Makes in the background what is asked for next."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")

_END = object()


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield ``items`` as they are, each made while the caller uses the one before.

    All are made one after the other in one other thread, so what they draw from a generator of
    their own is what they would draw here. Torch and Pillow compute without Python's lock, so both
    threads go on at once where a core is idle. Close it to stop early: then nothing is left behind.

    Args:
        items: Touched by nobody else meanwhile. What it raises is raised here.

    Examples:
        >>> list(ahead(iter("abc")))
        ['a', 'b', 'c']
    """
    # The number of torch's threads is a setting of each thread, and other numbers give other bits.
    start = (torch.set_num_threads, (1,))
    with ThreadPoolExecutor(1, "fedsim-ahead", *start) as thread:
        coming = thread.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, items, _END)
            yield item  # type: ignore[misc]
