"""Draws the images of the synthetic collection: the user's style, the labels' signs, noise.

The model is in :mod:`fedsim.data.synthetic`.
"""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from fedsim.data.index import Pixels
from fedsim.data.synthetic_labels import CLASS_OF_FINE, COARSE_NAMES
from fedsim.streams import numpy_stream

SIDE = 64  # of an image, in pixels
_SIGN = 20  # side of a label's sign
_JITTER = 14  # pixels by which a sign may lie off its class's place, either way
_NOISE = 64.0  # the noise is uniform on plus and minus this, of 255
_FAINTEST = 0.1  # how opaque the faintest signs are, of 1

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class _Style:
    """How one user's images look.

    Attributes:
        background: Periodic in both directions, shape (SIDE, SIDE, 3), 0 to 255.
        brightness: A factor.
    """

    background: Float32s
    brightness: float


@dataclass(frozen=True, eq=False)
class _Sign:
    """What one fine label looks like.

    Attributes:
        colours: Shape (_SIGN, _SIGN, 3), 0 to 255, and 0 outside the sign's shape.
        inside: Shape (_SIGN, _SIGN, 1), 1 in the shape and 0 outside.
    """

    colours: Float32s
    inside: Float32s


def draw_image(seed: int, row: int, user: int, fine: Sequence[int]) -> Pixels:
    """Draw one image.

    Args:
        seed: Of the collection.
        row: Of the image.
        user: Its owner's number.
        fine: The numbers of its fine labels.

    Returns:
        uint8 array of shape (SIDE, SIDE, 3).
    """
    style = _style(seed, user)
    stream = numpy_stream(seed, "synthetic image", row)
    canvas = np.roll(style.background, stream.integers(SIDE, size=2), axis=(0, 1))
    moves = stream.integers(-_JITTER, _JITTER + 1, size=(len(fine), 2)).tolist()
    opacity = stream.uniform(_FAINTEST, 1, size=len(fine)).astype(np.float32)
    for place in stream.permutation(len(fine)).tolist():
        top, left = _home(int(CLASS_OF_FINE[fine[place]]), *moves[place])
        part = canvas[top : top + _SIGN, left : left + _SIGN]
        sign = _sign(fine[place])
        part -= opacity[place] * sign.inside * part
        part += opacity[place] * sign.colours
    canvas *= style.brightness * stream.uniform(0.9, 1.1)
    noise = np.frombuffer(stream.bytes(canvas.size), dtype=np.int8).reshape(canvas.shape)
    canvas += noise * np.float32(_NOISE / 128)
    return np.clip(canvas, 0, 255, out=canvas).astype(np.uint8)


@lru_cache(maxsize=64)  # a user's images are mostly read together
def _style(seed: int, user: int) -> _Style:
    """Return a user's style: a wave between two pale colours, and a brightness."""
    stream = numpy_stream(seed, "synthetic style", user)
    hue, other = stream.random(2).tolist()
    light, dark = _colour(hue, 0.5, 0.75), _colour(hue + 0.3 * other, 0.5, 0.45)
    down, across = stream.integers(-4, 5, size=2).tolist()
    turn = np.arange(SIDE) * (2 * np.pi / SIDE)
    wave = (0.5 + 0.5 * np.cos(down * turn[:, None] + across * turn)).astype(np.float32)
    background = dark + (light - dark) * wave[:, :, None]
    return _Style(background, float(stream.uniform(0.7, 1.2)))


@cache  # some 6 kB for each of 1,628 labels
def _sign(fine: int) -> _Sign:
    """Return a fine label's sign: its class's flower, striped in the label's own way.

    The number of petals and the main colour are the class's; how the flower and the stripes are
    turned and the second colour are the label's.
    """
    kind = int(CLASS_OF_FINE[fine])
    own = numpy_stream(0, "synthetic sign", fine)  # the same in every collection
    y, x = np.mgrid[-1 : 1 : _SIGN * 1j, -1 : 1 : _SIGN * 1j]
    turn, tilt = (own.random(2) * 2 * np.pi).tolist()
    petals = np.cos(kind % 6 * (np.arctan2(y, x) - turn))
    inside = np.hypot(x, y) < 0.75 + 0.25 * petals
    stripes = np.sin((4 + 2 * (kind % 3)) * (x * np.cos(tilt) + y * np.sin(tilt))) > 0
    hue = kind / len(COARSE_NAMES)
    main, second = _colour(hue, 0.85, 0.95), _colour(hue + own.uniform(-0.1, 0.1), 0.9, 0.5)
    colours = np.where(stripes[:, :, None], main, second) * inside[:, :, None]
    return _Sign(colours, inside[:, :, None].astype(np.float32))


def _home(kind: int, down: int, right: int) -> tuple[int, int]:
    """Return where the sign of a class begins: on a grid of five by four, and a bit off it."""
    free = SIDE - _SIGN
    top, left = kind // 5 * free // 3 + down, kind % 5 * free // 4 + right
    return min(max(top, 0), free), min(max(left, 0), free)


def _colour(hue: float, saturation: float, value: float) -> Float32s:
    return np.float32(255) * np.array(colorsys.hsv_to_rgb(hue % 1, saturation, value), np.float32)
