"""Labels of the synthetic collection: which coarse and fine labels each image has.

The model is in :mod:`fedsim.data.synthetic`; ``benchmarks/calibrate_synthetic.py`` found the
numbers. Random draws are 16-bit positions in tables, so that the labels do not hang on how some
platform rounds a logarithm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.index import Int64s, LabelRows, offsets_of
from fedsim.streams import numpy_stream

Float32s = npt.NDArray[np.float32]
Uint16s = npt.NDArray[np.uint16]
Uint64s = npt.NDArray[np.uint64]
_Parts = tuple[list[Int64s], list[Uint16s]]  # labels of each image, and the labels

# How many fine labels each coarse class has; 1,628 in all. FLAIR's own numbers are not published.
VOCABULARY = {
    "animal": 200, "art": 40, "celebration": 12, "equipment": 420, "fire": 8, "food": 330,
    "games": 10, "interior_room": 20, "light": 16, "liquid": 20, "material": 60, "music": 14,
    "outdoor": 90, "plant": 150, "recreation": 30, "religion": 8, "structure": 200,
}  # fmt: skip
COARSE_NAMES = tuple(VOCABULARY)

# How much each class is sought.
CLASS_WEIGHTS = {
    "animal": 0.147, "art": 0.06378, "celebration": 0.003245, "equipment": 0.9692, "fire": 0.002669,
    "food": 0.2862, "games": 0.0006766, "interior_room": 0.05188, "light": 0.01462,
    "liquid": 0.1458, "material": 0.412, "music": 0.002116, "outdoor": 0.3643, "plant": 0.3408,
    "recreation": 0.005635, "religion": 0.0005335, "structure": 1.0,
}  # fmt: skip

# FLAIR's twenty most frequent fine labels with their shares of their class's draws. Which class
# they belong to is our reading of the names.
NAMED_SHARES = {
    "equipment": {"plate": 0.112, "container": 0.0636},
    "food": {"food": 0.1329},
    "interior_room": {"interior_room": 0.6004},
    "material": {"wood_processed": 0.4302, "material": 0.3797, "textile": 0.1501},
    "outdoor": {"blue_sky": 0.2043, "cloudy": 0.174, "rocks": 0.1371, "land": 0.113, "sky": 0.1123},
    "plant": {
        "grass": 0.2366, "plant": 0.2216, "foliage": 0.2161, "tree": 0.1745, "vegetation": 0.1112,
    },
    "structure": {"structure": 0.169, "building": 0.0826, "fence": 0.0604},
}  # fmt: skip

_LEVELS = 2**16
_BLOCK = 2**15  # images that are drawn at a time, which bounds the memory
_MIDDLES = (np.arange(_LEVELS) + 0.5) / _LEVELS


@dataclass(frozen=True)
class LabelModel:
    """The numbers of the model; the defaults give FLAIR's statistics.

    Attributes:
        class_weights: w, by coarse class.
        named_shares: The share of its class's draws of fine labels whose counts are published.
        num_coarse: Probabilities of 1, 2, ... coarse labels.
        extra: Scale, tail and shift of the number of fine labels beyond one per coarse label.
        most_extra: The most of them.
        taste: g and h: a user with n images has the taste g n**-h.
        novelty: Scale and tail of how far along the list of their labels a user goes.
        most_images: A user's images beyond this many widen the choice no more.
        zipf: Shift and power of the law of the fine labels without published counts.
    """

    class_weights: Mapping[str, float] = field(default_factory=CLASS_WEIGHTS.copy)
    named_shares: Mapping[str, Mapping[str, float]] = field(default_factory=NAMED_SHARES.copy)
    num_coarse: tuple[float, ...] = (0.125, 0.31, 0.31, 0.18, 0.058, 0.013, 0.003, 0.0008, 0.0002)
    extra: tuple[float, float, float] = (10.8, 5.5, 0.36)
    most_extra: int = 34
    taste: tuple[float, float] = (1.8, 0.24)
    novelty: tuple[float, float] = (0.075, 0.77)
    most_images: int = 330
    zipf: tuple[float, float] = (4.3, 1.16)


FITTED = LabelModel()


def _fine_labels() -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return all fine labels in alphabetical order, and those of each class, most frequent first.

    A class's own name is a fine label too; labels that are not published are numbered.
    """
    of_class = {}
    for name, size in VOCABULARY.items():
        named = dict.fromkeys((*NAMED_SHARES.get(name, ()), name))
        made_up = (f"{name}_{number:03d}" for number in range(1, size - len(named) + 1))
        of_class[name] = (*named, *made_up)
    return tuple(sorted(label for labels in of_class.values() for label in labels)), of_class


FINE_NAMES, FINE_OF_COARSE = _fine_labels()


_NUMBER_OF_FINE = {label: number for number, label in enumerate(FINE_NAMES)}
_COARSE_OF_FINE = {label: name for name, labels in FINE_OF_COARSE.items() for label in labels}

# The number of the coarse class of each fine label.
CLASS_OF_FINE = np.array([COARSE_NAMES.index(_COARSE_OF_FINE[label]) for label in FINE_NAMES])


def draw_labels(
    sizes: Int64s, seed: int, model: LabelModel = FITTED
) -> tuple[LabelRows, LabelRows]:
    """Draw the coarse and the fine labels of all images, user by user.

    Args:
        sizes: How many images each user has.
        seed: Of the collection.
        model: Its numbers.
    """
    drawer = _Drawer(sizes, seed, model)
    coarse: _Parts = ([], [])
    fine: _Parts = ([], [])
    owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    for start in range(0, len(owners), _BLOCK):
        users = owners[start : start + _BLOCK]
        image, kind = drawer.coarse(users)
        _append(coarse, len(users), image, kind)
        _append(fine, len(users), *drawer.fine(users, image, kind))
    return _rows(COARSE_NAMES, coarse), _rows(FINE_NAMES, fine)


class _Drawer:
    """Draws labels of one image after the other."""

    def __init__(self, sizes: Int64s, seed: int, model: LabelModel) -> None:
        self._raw = numpy_stream(seed, "synthetic labels").bit_generator
        self._seed = np.uint64(seed % 2**64)
        self._model = model
        self._waits = np.round(-np.log(_MIDDLES) * 2**20).astype(np.float32)
        self._num_coarse = _table_of(model.num_coarse, np.arange(1, len(model.num_coarse) + 1))
        scale, tail, shift = model.extra
        extra = np.floor(scale * _lomax(tail) + shift)
        self._num_extra = np.minimum(extra, model.most_extra).astype(np.int64)
        self._labels = np.stack([_label_table(name, model) for name in COARSE_NAMES])
        self._distances = _lomax(model.novelty[1]).astype(np.float32)
        reach = model.novelty[0] * np.minimum(sizes, model.most_images)
        self._reach = reach.astype(np.float32)
        self._reserve = self._draw_reserve(sizes)

    def _draw_reserve(self, sizes: Int64s) -> Float32s:
        """Return how little each user seeks each class, shape (users, classes)."""
        strength, fall = self._model.taste
        taste = np.log(-np.log(_MIDDLES))[self._bits(len(sizes) * len(COARSE_NAMES))]
        taste = taste.reshape(len(sizes), -1) * (strength * sizes**-fall)[:, None]
        weights = [self._model.class_weights[name] for name in COARSE_NAMES]
        reserve: Float32s = (np.exp(taste) / weights).astype(np.float32)
        return reserve

    def coarse(self, users: npt.NDArray[np.int32]) -> tuple[Int64s, Int64s]:
        """Return the image (its place in ``users``) and the class of every coarse label."""
        number, classes = len(users), len(COARSE_NAMES)
        wanted = self._num_coarse[self._bits(number)]
        waits = self._waits[self._bits(number * classes)].reshape(number, classes)
        waits *= self._reserve[users]
        last = np.sort(waits, axis=1)[np.arange(number), wanted - 1]
        image, kind = np.divmod(np.flatnonzero(waits <= last[:, None]), classes)
        return image, kind

    def fine(
        self, users: npt.NDArray[np.int32], image: Int64s, kind: Int64s
    ) -> tuple[Int64s, Int64s]:
        """Return the image and the number of every fine label, sorted, each once in an image."""
        numbers = self._numbers(len(users), image)
        owner = users[image]
        first = (self._distances[self._bits(len(image))] * self._reach[owner]).astype(np.int64)
        within = np.arange(numbers.sum()) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        place = np.repeat(first, numbers) + within
        user_class = np.repeat(owner.astype(np.int64) * len(COARSE_NAMES) + kind, numbers)
        level = _hash((user_class << 28) + place, self._seed) >> np.uint64(48)
        label = self._labels[np.repeat(kind, numbers), level.astype(np.int64)]
        drawn = (np.repeat(image, numbers) * len(FINE_NAMES) + label).astype(np.int32)
        drawn.sort()  # many times faster than np.unique
        once = drawn[np.append(True, drawn[1:] != drawn[:-1])]
        return np.divmod(once.astype(np.int64), len(FINE_NAMES))

    def _numbers(self, num_images: int, image: Int64s) -> Int64s:
        """Return how many fine labels are drawn for each coarse label: 1 and the image's extra."""
        extra = self._num_extra[self._bits(num_images)]
        turn = self._bits(num_images).astype(np.int64)
        count = np.bincount(image, minlength=num_images)
        place = np.arange(len(image)) - (np.cumsum(count) - count)[image]
        share, rest = np.divmod(extra, count)
        return 1 + share[image] + ((place + turn[image]) % count[image] < rest[image])

    def _bits(self, number: int) -> Uint16s:
        words = self._raw.random_raw(-(-number // 4)).astype("<u8")
        return words.view("<u2")[:number]


def _hash(keys: Int64s, seed: np.uint64) -> Uint64s:
    """Scatter keys over 64 bits: multiply and fold, twice, in place."""
    mixed = keys.view(np.uint64)
    mixed ^= seed * np.uint64(0xD1B54A32D192ED03)
    for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(odd)
    return mixed ^ (mixed >> np.uint64(32))


def _label_table(name: str, model: LabelModel) -> Uint16s:
    """Return the fine label of each level for one class; every label has one level at least."""
    labels = FINE_OF_COARSE[name]
    shares = tuple(model.named_shares.get(name, {}).values())
    shift, power = model.zipf
    law = (np.arange(len(labels) - len(shares)) + shift) ** -power
    law *= (1 - sum(shares)) / law.sum()
    numbers = np.array([_NUMBER_OF_FINE[label] for label in labels], dtype=np.uint16)
    return _table_of((*shares, *law), numbers)


def _table_of(shares: tuple[float, ...], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a table of all levels that holds each value for its share of them."""
    bounds = np.round(np.cumsum((0.0, *shares)) / np.sum(shares) * _LEVELS).astype(np.int64)
    return np.repeat(values, np.diff(bounds))


def _lomax(tail: float) -> npt.NDArray[np.float64]:
    """Return the quantiles of the law with P(X > x) = (1 + x) ** -tail."""
    return np.asarray((1 - _MIDDLES) ** (-1 / tail) - 1)


def _append(parts: _Parts, num_images: int, image: Int64s, label: Int64s) -> None:
    parts[0].append(np.bincount(image, minlength=num_images))
    parts[1].append(label.astype(np.uint16))


def _rows(names: tuple[str, ...], parts: _Parts) -> LabelRows:
    return LabelRows(names, offsets_of(np.concatenate(parts[0])), np.concatenate(parts[1]))
