"""RGB pixels to stored images: without loss, or as JPEG of a stated quality."""

import io
from typing import Any

import numpy as np
from PIL import Image

from fedsim.data.decode import decode_image
from fedsim.data.index import Pixels
from fedsim.errors import ConfigError, DataError

_WEBP_LARGEST_SIDE = 16383


def encode_pixels(
    pixels: Pixels, quality: int | None = None, *, name: str = "image"
) -> tuple[bytes, float]:
    r"""Encode an image, decode it again and compare the two.

    Without a quality it becomes a lossless WebP file at the encoder's fastest setting; measured
    against PNG it is a fifth smaller on drawings, 13 to 30 % smaller on photos, and three times as
    fast to write. The slower settings gain at most a tenth more, for five to forty times the time.
    An image with a side of more than 16,383 pixels, WebP's limit, becomes a PNG file.

    With a quality it becomes a JPEG file with full-resolution colour (4:4:4). Half-resolution
    colour (4:2:0) would save 10 to 25 % and lose up to 60 % more (mean absolute difference) where
    colours have hard edges.

    Args:
        pixels: uint8 array of shape (height, width, 3), RGB.
        quality: JPEG quality, 1 to 100; None loses nothing.
        name: What the image is called in an error.

    Returns:
        The encoded image, and the mean absolute difference of its values (0 to 255) from
        ``pixels``, which is 0 without a quality.

    Raises:
        ConfigError: The quality is out of its range.
        DataError: The image can't be encoded (too large, empty, or no such array), or does not
            come back as it was.

    Examples:
        >>> pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> data, difference = encode_pixels(pixels)
        >>> data[8:12], difference, np.array_equal(decode_image(data, None), pixels)
        (b'WEBP', 0.0, True)
        >>> data, difference = encode_pixels(pixels, 90)
        >>> data[:2], 0 < difference < 2
        (b'\xff\xd8', True)
    """
    check_quality(quality)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise DataError(
            f"{name}: expected uint8 pixels of shape (height, width, 3), found {pixels.dtype} of "
            f"shape {pixels.shape}; mend the source"
        )
    data = _encode(pixels, quality, name)
    again = decode_image(data, None, name=name)
    if again.shape != pixels.shape or (quality is None and not np.array_equal(again, pixels)):
        raise DataError(
            f"{name}: expected the same pixels after encoding, found others; "
            "install another release of Pillow"
        )
    if quality is None:
        return data, 0.0
    larger, smaller = np.maximum(again, pixels), np.minimum(again, pixels)
    return data, float(np.mean(larger - smaller))


def check_quality(quality: int | None) -> None:
    """Raise ConfigError unless ``quality`` is None or one of 1 to 100."""
    if quality is not None and (type(quality) is not int or not 1 <= quality <= 100):
        raise ConfigError(f"quality: expected a whole number from 1 to 100, found {quality!r}")


def _encode(pixels: Pixels, quality: int | None, name: str) -> bytes:
    options: dict[str, Any]
    if quality is not None:
        options = {"format": "JPEG", "quality": quality, "subsampling": 0}
    elif max(pixels.shape) <= _WEBP_LARGEST_SIDE:
        options = {"format": "WEBP", "lossless": True, "quality": 0, "method": 0}
    else:
        options = {"format": "PNG", "compress_level": 1}
    buffer = io.BytesIO()
    try:
        Image.fromarray(pixels).save(buffer, **options)
    except (OSError, ValueError, MemoryError) as error:
        height, width, _ = pixels.shape
        raise DataError(
            f"{name}: expected {height} x {width} pixels that can be stored as "
            f"{options['format']}, found that they can't ({error}); scale the image down"
        ) from error
    return buffer.getvalue()
