"""Random streams: every draw is a function of (seed, purpose, keys), never of global state.

The keys of a stream are hashed with SHAKE-256, and the hash fills the *whole* state of the
generator. ``torch.Generator.manual_seed`` would not do: on CPUs it keeps the low 32 bits of its
argument, so among the millions of (round, user, step) streams of a run some noise would be drawn
twice.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch

Key = str | int

_MT_WORDS = 624
_MT_OFFSET = 24  # bytes before the words in torch's legacy generator state


def _digest(seed: int, purpose: str, keys: tuple[Key, ...], num_bytes: int) -> bytes:
    """Hash the stream's name; ``repr`` keeps 1 and "1", and ("ab",) and ("a", "b"), apart."""
    return hashlib.shake_256(repr((seed, purpose, *keys)).encode()).digest(num_bytes)


def numpy_stream(seed: int, purpose: str, *keys: Key) -> np.random.Generator:
    """Return the NumPy generator of one stream.

    Args:
        seed: The run's seed.
        purpose: What the draws are for, e.g. ``"cohort"``.
        *keys: Round, user id, step: whatever tells this stream from its siblings.

    Examples:
        >>> numpy_stream(0, "cohort", 3).permutation(4).tolist()
        [1, 3, 0, 2]
    """
    entropy = int.from_bytes(_digest(seed, purpose, keys, 32), "little")
    return np.random.Generator(np.random.PCG64(entropy))


def torch_stream(seed: int, purpose: str, *keys: Key, device: str = "cpu") -> torch.Generator:
    """Return the torch generator of one stream, on ``device``.

    Args:
        seed: The run's seed.
        purpose: What the draws are for, e.g. ``"noise"``.
        *keys: Round, user id, step: whatever tells this stream from its siblings.
        device: Where the numbers are made; the same stream differs between devices.

    Examples:
        >>> a = torch.rand(2, generator=torch_stream(0, "noise", 1))
        >>> bool((a == torch.rand(2, generator=torch_stream(0, "noise", 1))).all())
        True
        >>> bool((a == torch.rand(2, generator=torch_stream(0, "noise", 2))).all())
        False
    """
    generator = torch.Generator(device=device)
    if device != "cpu":
        return generator.manual_seed(int.from_bytes(_digest(seed, purpose, keys, 8), "little") >> 1)
    words = np.frombuffer(_digest(seed, purpose, keys, 4 * _MT_WORDS), dtype="<u4")
    state = _fresh_mt_state().copy()
    state[_MT_OFFSET : _MT_OFFSET + 8 * _MT_WORDS] = words.astype(np.uint64).view(np.uint8)
    return generator.set_state(torch.from_numpy(state))


@cache
def _fresh_mt_state() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """State of a just-seeded generator: its first draw renews all words."""
    return torch.Generator().manual_seed(0).get_state().numpy()


@contextmanager
def global_torch_stream(seed: int, purpose: str, *keys: Key, device: str = "cpu") -> Iterator[None]:
    """Let torch's global generators be one stream for a while, and restore them after.

    For code that can't take a generator: dropout, a model's constructor, somebody's layer.

    Args:
        seed: The run's seed.
        purpose: What the draws are for.
        *keys: What tells this stream from its siblings.
        device: Whose generator, beside the CPU's.
    """
    before = torch.random.get_rng_state()
    torch.random.set_rng_state(torch_stream(seed, purpose, *keys).get_state())
    try:
        with _device_stream(seed, purpose, *keys, device=device):
            yield
    finally:
        torch.random.set_rng_state(before)


@contextmanager
def _device_stream(seed: int, purpose: str, *keys: Key, device: str) -> Iterator[None]:
    if device == "cpu":
        yield
        return
    of_device = torch.get_device_module(device)
    before = of_device.get_rng_state(device)
    of_device.set_rng_state(torch_stream(seed, purpose, *keys, device=device).get_state(), device)
    try:
        yield
    finally:
        of_device.set_rng_state(before, device)
