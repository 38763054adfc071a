import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from fedsim.data.decode import decode_image
from fedsim.errors import DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)


def encode(image: Image.Image, image_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("image_format", ["PNG", "BMP", "GIF"])
def test_lossless_formats_give_the_stored_pixels(image_format: str) -> None:
    gray = PIXELS[..., 0]
    expected = np.stack([gray] * 3, axis=-1)
    assert (decode_image(encode(Image.fromarray(gray), image_format), None) == expected).all()


def test_rgb_is_kept_and_the_result_is_the_callers_own() -> None:
    data = encode(Image.fromarray(PIXELS))
    first = decode_image(data, None)
    assert (first == PIXELS).all()
    assert first.flags.writeable
    assert first.flags.c_contiguous
    first[:] = 0
    assert (decode_image(data, None) == PIXELS).all()


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (1, lambda x: x),
        (2, lambda x: x[:, ::-1]),
        (3, lambda x: x[::-1, ::-1]),
        (4, lambda x: x[::-1]),
        (5, lambda x: x.swapaxes(0, 1)),
        (6, lambda x: np.rot90(x, -1)),
        (7, lambda x: x[::-1, ::-1].swapaxes(0, 1)),
        (8, lambda x: np.rot90(x, 1)),
        (9, lambda x: x),
    ],
)
def test_exif_orientation(orientation: int, turn: object) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode_image(encode(Image.fromarray(PIXELS), exif=exif), None)
    assert np.array_equal(decoded, turn(PIXELS))  # type: ignore[operator]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_broken_exif_does_not_break_an_image() -> None:
    plain = encode(Image.fromarray(PIXELS), "JPEG")
    exif = b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff"
    broken = encode(Image.fromarray(PIXELS), "JPEG", exif=exif)
    assert np.array_equal(decode_image(broken, None), decode_image(plain, None))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_laid_over_white(mode: str) -> None:
    image = Image.fromarray(RNG.integers(0, 256, (5, 7, 4), dtype=np.uint8)).convert(mode)
    values = np.asarray(image).astype(float)
    colour, alpha = values[..., :-1], values[..., -1:] / 255
    expected = np.broadcast_to(colour * alpha + 255 * (1 - alpha), (5, 7, 3))
    assert np.abs(decode_image(encode(image), None) - expected).max() <= 1


def test_transparent_palette_and_colour_key_become_white() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    expected = [[[10, 20, 30], [255, 255, 255]]]
    for image_format in ("PNG", "GIF"):
        assert (
            decode_image(encode(palette, image_format, transparency=1), None).tolist() == expected
        )
    assert decode_image(encode(palette, transparency=b"\xff\x00"), None).tolist() == expected
    keyed = encode(palette.convert("RGB"), transparency=(40, 50, 60))
    assert decode_image(keyed, None).tolist() == expected


def test_cmyk_becomes_rgb() -> None:
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # no cyan, all magenta and yellow: red
    decoded = decode_image(encode(cmyk, "JPEG", quality=100), None).astype(int)
    assert np.abs(decoded - [255, 0, 0]).max() <= 3


def test_sixteen_bit_gray_keeps_its_high_byte() -> None:
    gray = np.array([[0, 255, 256, 65535]], dtype=np.uint16)
    assert decode_image(encode(Image.fromarray(gray)), None)[0, :, 0].tolist() == [0, 0, 1, 255]


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("L", (2, 2), shade) for shade in (10, 200)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (decode_image(data, None) == 10).all()


@pytest.mark.parametrize("shape", [(40, 64), (64, 40), (50, 50), (9, 5)])
def test_resizing_stretches_with_an_antialiased_filter(shape: tuple[int, int]) -> None:
    pixels = RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)
    channels = torch.from_numpy(pixels).permute(2, 0, 1)[None].double()
    reference = torch.nn.functional.interpolate(
        channels, (16, 16), mode="bilinear", antialias=True, align_corners=False
    )
    decoded = decode_image(encode(Image.fromarray(pixels)), 16)
    assert decoded.shape == (16, 16, 3)
    difference = decoded - reference[0].permute(1, 2, 0).numpy()
    assert np.abs(difference).max() <= 1.01  # Pillow rounds after each of its two passes


def test_a_stored_square_of_the_right_size_is_not_filtered() -> None:
    pixels = RNG.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    assert (decode_image(encode(Image.fromarray(pixels)), 6) == pixels).all()


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_a_cut_file_is_an_error_or_loses_nothing(image_format: str) -> None:
    data = encode(Image.fromarray(PIXELS), image_format)
    whole = decode_image(data, None)
    refused = 0
    for length in range(len(data)):
        try:
            decoded = decode_image(data[:length], None, name="image 'x'")
        except DataError as error:
            refused += str(error).startswith("image 'x': expected a whole")
        else:
            assert np.array_equal(decoded, whole)
    assert refused > 0.8 * len(data)  # a checksum or an end mark may be cut


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        encode(Image.fromarray(PIXELS), "EPS"),
        encode(Image.fromarray(PIXELS))[:-30] + b"\x00" * 30,
    ],
    ids=["empty", "text", "svg", "eps", "overwritten"],
)
def test_other_bytes_are_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(DataError, match=r"^image '7': expected .*; replace the file") as caught:
        decode_image(data, 4, name="image '7'")
    assert "\n" not in str(caught.value)
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("limit", [34, 20, 3])
def test_more_pixels_than_the_limit_are_refused(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(Image.fromarray(PIXELS))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 35)
    decode_image(data, None)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(DataError, match="pixels"):
        decode_image(data, None)


@pytest.mark.filterwarnings("default::PIL.Image.DecompressionBombWarning")
def test_the_limit_holds_where_pillow_only_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 34)
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(DataError, match="7 x 5 pixels, more than the limit of 34"),
    ):
        decode_image(encode(Image.fromarray(PIXELS)), None)


def test_a_small_file_that_claims_to_be_huge_is_refused_before_it_is_decoded() -> None:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", b"")
    with pytest.raises(DataError, match="exceeds limit"):
        decode_image(data, 4)
