"""What fedsim and pfl-research train in ``gpu.py``: users of many sizes, images of noise."""

import numpy as np
import numpy.typing as npt

LABELS, BATCH_SIZE, EPOCHS, LEARNING_RATE = 17, 16, 2, 0.01
SHEET = 64
"""Different images; users' images are taken from them in turn, so that none is decoded."""


def sheet(side: int) -> npt.NDArray[np.uint8]:
    """Return images of shape (64, side, side, 3)."""
    return np.random.default_rng(0).integers(0, 256, (SHEET, side, side, 3), dtype=np.uint8)


def labels(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return the labels of some rows of the whole, shape (rows, 17)."""
    result: npt.NDArray[np.bool_] = (rows[:, None] * 7 + np.arange(LABELS) * 3) % 6 == 0
    return result
