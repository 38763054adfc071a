"""What the tests' small collections are made of."""

import io
from typing import Any

import numpy as np
from PIL import Image

Entry = dict[str, Any]


def encode(seed: int, size: tuple[int, int] = (8, 8), image_format: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, image_format)
    return buffer.getvalue()
