"""The images and labels that all peers train on, as two memory-mapped arrays in one folder."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from workload import IMAGE_SHAPE, IMAGES_PER_USER, NUM_CLASSES, NUM_USERS, SEED

Bytes = npt.NDArray[np.uint8]


def write(folder: Path) -> None:
    """Write ``images.npy`` and ``labels.npy``, the same bytes on every machine.

    The images are noise: the time of a step does not depend on what is in them. Plain ``.npy``
    files rather than an ``.npz`` archive, because they can be mapped: every process of every peer
    then shares one copy of the 154 MB.
    """
    rng = np.random.Generator(np.random.PCG64(SEED))
    shape = (NUM_USERS, IMAGES_PER_USER)
    images = rng.integers(0, 256, size=(*shape, *IMAGE_SHAPE), dtype=np.uint8)
    labels = np.eye(NUM_CLASSES, dtype=np.uint8)[rng.integers(0, NUM_CLASSES, size=shape)]
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)


def load(folder: Path) -> tuple[Bytes, Bytes]:
    """Map the images (users, 50, 32, 32, 3) and the one-hot labels (users, 50, 10), read-only."""
    images = np.load(folder / "images.npy", mmap_mode="r")
    labels = np.load(folder / "labels.npy", mmap_mode="r")
    return images, labels
