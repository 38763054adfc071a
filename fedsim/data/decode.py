"""Stored images, encoded or not, to RGB pixels."""

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedsim.data.index import Pixels, Stored
from fedsim.errors import DataError

# What people upload. Pillow would also hand EPS to an interpreter, which data must never reach.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")

_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(data: Stored, size: int | None, *, name: str = "image") -> Pixels:
    """Decode an image to upright RGB pixels, stretched to a square.

    The image is turned as its EXIF orientation says (EXIF that can't be read counts as none).
    Gray, palette and CMYK become RGB, 16-bit gray keeps its high byte, transparent pixels are laid
    over white, an animation gives its first frame, and colour profiles are ignored. An image of
    another size, square or not, is stretched to ``size`` x ``size`` with Pillow's antialiased
    bilinear filter; nothing is cropped or padded, as with FLAIR's own 256 x 256 images, which are
    whole photos whatever their shape was.

    Args:
        data: A JPEG, PNG, WebP, GIF or BMP file, or RGB pixels of shape (height, width, 3).
        size: Height and width of the result in pixels, at least 1; None keeps the stored size.
        name: What the image is called in an error.

    Returns:
        uint8 array of shape (height, width, 3), C-contiguous, writable, owned by the caller.

    Raises:
        DataError: The bytes are no such image, are cut short or broken, or hold more pixels than
            Pillow's limit against decompression bombs (``PIL.Image.MAX_IMAGE_PIXELS``).

    Examples:
        >>> buffer = io.BytesIO()
        >>> Image.new("L", (6, 4), color=7).save(buffer, "PNG")
        >>> decode_image(buffer.getvalue(), 2).tolist()
        [[[7, 7, 7], [7, 7, 7]], [[7, 7, 7], [7, 7, 7]]]
        >>> decode_image(buffer.getvalue(), None).shape
        (4, 6, 3)
    """
    if isinstance(data, np.ndarray):
        return np.array(_stretched(Image.fromarray(data), size))
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image)
            image.load()
            upright = _upright(_to_rgb(image), image)
        return np.array(_stretched(upright, size))
    # Broken bytes lead Pillow's plug-ins to nearly every exception there is.
    except Exception as error:
        raise DataError(
            f"{name}: expected a whole JPEG, PNG, WebP, GIF or BMP image, found {len(data)} bytes "
            f"that can't be decoded ({_reason(error)}); replace the file or remove its record"
        ) from error


def _stretched(image: Image.Image, size: int | None) -> Image.Image:
    if size is None or image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BILINEAR)


def _check_pixels(image: Image.Image) -> None:
    """Refuse what Pillow only warns of: between one and two times its limit."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise Image.DecompressionBombError(
            f"{image.width} x {image.height} pixels, more than the limit of {limit}"
        )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if image.mode.startswith("I;16"):  # Pillow would clip at 255 where a scale is meant
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        white = Image.new("RGBA", colours.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, colours).convert("RGB")
    return image.convert("RGB")


def _upright(pixels: Image.Image, stored: Image.Image) -> Image.Image:
    try:
        orientation = stored.getexif().get(_EXIF_ORIENTATION)
    except Exception:  # a broken EXIF block does not break the pixels
        return pixels
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return pixels if turn is None else pixels.transpose(turn)


def _reason(error: Exception) -> str:
    """Say what went wrong without the address of a buffer, which would differ between runs."""
    if isinstance(error, UnidentifiedImageError):
        return "no such format"
    return str(error) or type(error).__name__
