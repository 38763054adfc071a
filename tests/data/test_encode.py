import io

import numpy as np
import pytest
from PIL import Image

from fedsim.data import encode as module
from fedsim.data.encode import encode_pixels
from fedsim.errors import ConfigError, DataError


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    down, across = np.mgrid[:height, :width]
    return np.stack([down * 3, across * 2, down + across], axis=2).astype(np.uint8)


@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 5, 3), (64, 64, 3)])
@pytest.mark.parametrize("make", [noise, lambda *shape: np.full(shape, 255, np.uint8)])
def test_without_a_quality_pillow_reads_back_the_same_pixels(shape, make) -> None:  # type: ignore[no-untyped-def]
    pixels = make(*shape)
    data, difference = encode_pixels(pixels)
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.mode) == ("WEBP", "RGB")
    assert np.array_equal(np.asarray(image), pixels)
    assert difference == 0.0


@pytest.mark.parametrize(("side", "image_format"), [(16383, "WEBP"), (16384, "PNG")])
def test_a_side_beyond_webp_becomes_png(side: int, image_format: str) -> None:
    for pixels in (smooth(2, side), smooth(side, 2)):
        image = Image.open(io.BytesIO(encode_pixels(pixels)[0]))
        assert image.format == image_format
        assert np.array_equal(np.asarray(image), pixels)


def test_a_quality_gives_jpeg_in_full_colour_with_the_difference_told() -> None:
    pixels = smooth(40, 30)
    differences, sizes = [], []
    for quality in (1, 50, 100):
        data, difference = encode_pixels(pixels, quality)
        image = Image.open(io.BytesIO(data))
        assert image.format == "JPEG"
        # 4:4:4: every component is sampled as often as the first.
        assert {layer[1:3] for layer in image.layer} == {(1, 1)}  # type: ignore[attr-defined]
        slow = np.abs(np.asarray(image).astype(int) - pixels.astype(int)).mean()
        assert difference == pytest.approx(slow)
        differences.append(difference)
        sizes.append(len(data))
    assert differences == sorted(differences, reverse=True)
    assert sizes == sorted(sizes)
    assert differences[0] > 3
    assert 0 < differences[-1] < 1.5


@pytest.mark.parametrize("quality", [0, 101, -1, True, 80.0])
def test_another_quality_is_refused(quality: int) -> None:
    with pytest.raises(ConfigError, match="quality: expected a whole number from 1 to 100"):
        encode_pixels(noise(2, 2, 3), quality)


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 4), (0, 2, 3), (1, 2, 2, 3)])
def test_other_arrays_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="image '7': expected uint8 pixels of shape"):
        encode_pixels(np.zeros(shape, np.uint8), name="image '7'")
    with pytest.raises(DataError, match="found int16 of shape"):
        encode_pixels(np.zeros((2, 2, 3), np.int16))  # type: ignore[arg-type]


def test_what_can_t_be_encoded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="image: expected 1 x 65501 pixels that can be stored as J"):
        encode_pixels(noise(1, 65501, 3), 90)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match="limit of 100 pixels"):
        encode_pixels(noise(11, 10, 3))


def test_pixels_that_come_back_changed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = noise(4, 4, 3)
    monkeypatch.setattr(module, "decode_image", lambda *args, **names: pixels ^ np.uint8(1))
    with pytest.raises(DataError, match="expected the same pixels after encoding"):
        encode_pixels(pixels)
    monkeypatch.setattr(module, "decode_image", lambda *args, **names: pixels[1:])
    with pytest.raises(DataError, match="expected the same pixels after encoding"):
        encode_pixels(pixels, 90)
