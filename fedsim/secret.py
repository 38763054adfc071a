"""Draws that nobody can make without a key: for noise where others know the run's seed.

Their generator is SHAKE-256 (FIPS 202) of key, purpose and keys. The Mersenne Twister and PCG64 of
``streams`` would not do: who knows a part of their output, say the noise on numbers that nobody's
training moves, can work out the rest of it.
"""

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fedsim.streams import Key

_NUM_BYTES = 32


@dataclass(frozen=True)
class Secret:
    """A key that one machine holds; draws are functions of (key, purpose, keys).

    Attributes:
        key: 32 random bytes; never shown.

    Examples:
        >>> Secret(bytes(32)).uniform(2, "cohort", 1).round(3).tolist()
        [0.577, 0.076]
        >>> Secret(bytes(32))
        Secret()
    """

    key: bytes = field(repr=False)

    @classmethod
    def new(cls) -> "Secret":
        """Draw one from the operating system."""
        return cls(secrets.token_bytes(_NUM_BYTES))

    def uniform(self, size: int, purpose: str, *keys: Key) -> npt.NDArray[np.float64]:
        """Return multiples of 2**-52, shifted by half of one: above 0 and below 1, shape (size,).

        Args:
            size: How many.
            purpose: What the draws are for.
            *keys: What tells them from others for the same purpose.
        """
        name = repr((purpose, *keys)).encode()
        words = np.frombuffer(hashlib.shake_256(self.key + name).digest(8 * size), dtype="<u8")
        return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def normal(self, size: int, purpose: str, *keys: Key) -> npt.NDArray[np.float64]:
        """Return standard normal numbers, shape (size,), by Box and Muller's transform (1958).

        Args:
            size: How many.
            purpose: What the draws are for.
            *keys: What tells them from others for the same purpose.
        """
        one, two = self.uniform(size + size % 2, purpose, *keys).reshape(2, -1)
        length, angle = np.sqrt(-2 * np.log(one)), 2 * np.pi * two
        return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:size]

    def noise(self, like: torch.Tensor, stddev: float, purpose: str, *keys: Key) -> torch.Tensor:
        """Return Gaussian noise, made in float64, of a tensor's shape, type and device.

        Args:
            like: Only its form matters.
            stddev: Of every coordinate.
            purpose: What the draws are for.
            *keys: What tells them from others for the same purpose.
        """
        drawn = stddev * self.normal(like.numel(), purpose, *keys)
        return torch.from_numpy(drawn).to(like).reshape(like.shape)
