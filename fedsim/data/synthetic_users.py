"""Users of the synthetic collection: how many images each holds, and what they are called.

The model is in :mod:`fedsim.data.synthetic`.
"""

import numpy as np
import numpy.typing as npt

from fedsim.data.index import SPLITS, Int64s, StringTable, offsets_of
from fedsim.streams import numpy_stream

# FLAIR's own numbers.
USERS = {"train": 41_131, "val": 5_141, "test": 5_142}
IMAGES = {"train": 345_879, "val": 39_239, "test": 43_960}

_FEWEST = 4  # users of a split, however small the population

# The share of users with at least so many images; between two knots a power law. The knots at 56.5
# and 803 images are fitted to mean and standard deviation; the last is the largest user's.
_SHARES = (1.0, 0.515, 0.36, 0.24, 0.02, 0.001, 0.5 / USERS["train"])
_SIZES = (1.0, 2.0, 3.0, 6.0, 56.5, 803.0, 4151.5)

_FIRST_USER, _USER_NUMBERS, _USER_STEP = 10_000_000, 90_000_000, 55_623_017
_FIRST_IMAGE, _IMAGE_NUMBERS, _IMAGE_STEP = 1_000_000_000, 9_000_000_000, 5_562_301_729


def num_users(population_size: int) -> dict[str, int]:
    """Return the users of each split for so many train users.

    Examples:
        >>> num_users(41_131), num_users(50)
        ({'train': 41131, 'val': 5141, 'test': 5142}, {'train': 50, 'val': 6, 'test': 6})
    """
    scaled = {split: population_size * USERS[split] / USERS["train"] for split in SPLITS}
    few = min(_FEWEST, population_size)
    return {split: max(few, round(number)) for split, number in scaled.items()}


def image_counts(users: dict[str, int], seed: int) -> tuple[Int64s, ...]:
    """Return how many images each user of each split holds, at least 1.

    Every user is one of as many quantiles, shuffled. Those above 5 images, but for the largest,
    are then scaled alike so that the split's mean is FLAIR's; a split without such users, which
    has but a few, keeps what it has.
    """
    counts = []
    for split, number in users.items():
        wanted = round(IMAGES[split] / USERS[split] * number)
        sizes = _scaled(_quantiles(number), wanted)
        shuffle = numpy_stream(seed, "synthetic sizes", split).bit_generator.random_raw(number)
        counts.append(sizes[np.argsort(shuffle, kind="stable")])
    return tuple(counts)


def user_ids(users: dict[str, int]) -> StringTable:
    """Return unique ids in the style of ``12345678@N00``, sorted within each split."""
    numbers = _FIRST_USER + np.arange(sum(users.values())) * _USER_STEP % _USER_NUMBERS
    bounds = offsets_of(list(users.values()))[1:-1]
    ordered = np.concatenate([np.sort(part) for part in np.split(numbers, bounds)])
    suffix = np.frombuffer(b"@N00", dtype=np.uint8)
    return _table(np.hstack([_digits(ordered, 8), np.tile(suffix, (len(ordered), 1))]))


def image_ids(num_images: int) -> StringTable:
    """Return unique ids of ten digits."""
    numbers = _FIRST_IMAGE + np.arange(num_images) * _IMAGE_STEP % _IMAGE_NUMBERS
    return _table(_digits(numbers, 10))


def _quantiles(number: int) -> Int64s:
    """Return the sizes at the middle of each of ``number`` equal shares, largest first."""
    shares = np.log((np.arange(number) + 0.5) / number)
    knots, sizes = np.log(_SHARES[::-1]), np.log(_SIZES[::-1])
    # Beyond the last knot, which only larger populations reach, its power law goes on.
    slope = (sizes[0] - sizes[1]) / (knots[0] - knots[1])
    beyond = np.minimum(shares - knots[0], 0) * slope
    found: Int64s = np.floor(np.exp(np.interp(shares, knots, sizes) + beyond)).astype(np.int64)
    return found


def _scaled(sizes: Int64s, wanted: int) -> Int64s:
    """Scale the sizes above 5, but for the first, so that all sum to ``wanted``."""
    above = slice(1, int((sizes > 5).sum()))
    excess = sizes[above] - 6
    goal = int(excess.sum()) + wanted - int(sizes.sum())
    if goal < 0 or excess.sum() == 0:
        return sizes
    new = excess * goal // int(excess.sum())
    new[: goal - int(new.sum())] += 1  # what rounding down has left
    return np.concatenate([sizes[:1], new + 6, sizes[above.stop :]])


def _digits(numbers: Int64s, width: int) -> npt.NDArray[np.uint8]:
    digits = np.empty((len(numbers), width), dtype=np.uint8)
    for place in range(width - 1, -1, -1):
        numbers, digits[:, place] = np.divmod(numbers, 10)
    return digits + np.uint8(ord("0"))


def _table(letters: npt.NDArray[np.uint8]) -> StringTable:
    """Make a table of strings that are all as long as a row of ``letters``."""
    offsets = np.arange(len(letters) + 1, dtype=np.int64) * letters.shape[1]
    return StringTable(letters.tobytes(), offsets)
