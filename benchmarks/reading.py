"""What reading costs, beside uncompressed HDF5 and beside training.

    python benchmarks/reading.py

Reads all train users of OpenClipart (64x64) and of 2,000 made-up photos (256x256 JPEGs of about
FLAIR's size), one user at a time: from fedsim's file, decoded anew and out of the cache, and from
HDF5 as pfl-research's FLAIR benchmark stores it, an array of pixels per user. Prints the bytes,
images per second, and reading's share of a ResNet-18 training step. Times are CPU seconds of this
process, minima over passes, with the files in the system's page cache.

Then trains users with one worker, with and without decoding the next user's images meanwhile, in
seconds of the clock: the gain needs a core that is idle.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import h5py
import numpy as np
import torch
from PIL import Image

from fedsim.arrays import one_thread
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.hdf5_writer import write_hdf5
from fedsim.data.image_dataset import ImageDataset
from fedsim.data.index import About, ImageIndex, ImageRecord, content_sha256
from fedsim.data.sources import OPENCLIPART, open_dataset
from fedsim.data.transforms import Transform
from fedsim.models.cnn import Cnn
from fedsim.models.resnet import resnet18
from fedsim.training.local import LocalSettings
from fedsim.training.step import Sgd, mean_gradient
from fedsim.training.trainer import Trainer

PHOTO_SIZE, QUALITY, NOISE = 256, 75, 8.0
BATCH_SIZE, INPUT_SIZE, NUM_LABELS = 16, 224, 17


def photo(rng: np.random.Generator) -> bytes:
    """Return a JPEG of a smooth image with noise: 13 KB, where FLAIR's 256x256 photos have 14."""
    coarse = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((PHOTO_SIZE, PHOTO_SIZE), Image.Resampling.BICUBIC)
    noisy = np.asarray(smooth) + rng.normal(0, NOISE, (PHOTO_SIZE, PHOTO_SIZE, 3))
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def make_photos(folder: Path, number: int) -> Path:
    """Write a file of photos, of users with 1 to 15 of them."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(number), rng.integers(1, 16, number))[:number]
    photos = [photo(rng) for _ in owners]
    labels = (("label",), ())
    index = ImageIndex.of(
        [ImageRecord(f"{user:04d}", f"{i:04d}", "train", labels) for i, user in enumerate(owners)]
    )
    sizes = np.array([len(data) for data in photos])
    digest = content_sha256(index, (sha256(data).digest() for data in photos))
    path = folder / "photos.h5"
    write_hdf5(path, index, photos, sizes, About("photos"), digest)
    return path


class Users:
    """The train users of a data set and the numbers of their images."""

    def __init__(self, dataset: ImageDataset) -> None:
        table = dataset.users("train")
        ends = np.cumsum(table.num_images)
        self.ids, self.num_images = table.ids, int(ends[-1])
        self.numbers = [
            np.arange(end - n, end) for n, end in zip(table.num_images, ends, strict=True)
        ]


def write_pixels(dataset: ImageDataset, users: Users, path: Path) -> None:
    with h5py.File(path, "w") as file:
        for user, numbers in zip(users.ids, users.numbers, strict=True):
            pixels = dataset.load("train", numbers).images.permute(0, 2, 3, 1).numpy()
            file[f"train/{user}/images"] = pixels


def cpu_seconds(work: Callable[[], object], passes: int) -> float:
    times = []
    for _ in range(passes):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def read_all(dataset: ImageDataset, users: Users) -> None:
    for numbers in users.numbers:
        dataset.load("train", numbers)


def read_pixels(path: Path, users: Users) -> None:
    with h5py.File(path) as file:
        for user in users.ids:
            file[f"train/{user}/images"][()]


def step_seconds(passes: int) -> float:
    """Return the CPU seconds per image of a ResNet-18 training step."""
    model = resnet18(num_labels=NUM_LABELS).to(memory_format=torch.channels_last)
    gradient, parameters = mean_gradient(model), list(model.parameters())
    inputs = torch.randn(BATCH_SIZE, 3, INPUT_SIZE, INPUT_SIZE)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    labels = (torch.rand(BATCH_SIZE, NUM_LABELS) < 0.2).to(torch.uint8)
    with one_thread():
        return (
            cpu_seconds(lambda: Sgd(0.01).step(parameters, gradient(inputs, labels)[1]), passes)
            / BATCH_SIZE
        )


def compare_storage(
    name: str, path: Path, size: int, folder: Path, passes: int, step: float
) -> None:
    """Print a collection's rows of the first table."""
    options = {"labels": "coarse", "image_size": size}
    cold = open_dataset(str(path), **options, cache_mb=0)
    cached = open_dataset(str(path), **options, cache_mb=2048)
    users, pixels = Users(cold), folder / f"{name}_pixels.h5"
    write_pixels(cached, users, pixels)  # fills the cache
    encoded = int(open_hdf5(path).offsets[users.num_images])  # train is stored first
    raw = users.num_images * 3 * size**2
    for way, file, num_bytes, work in (
        ("decoded", path, encoded, lambda: read_all(cold, users)),
        ("cached", path, 0, lambda: read_all(cached, users)),
        ("pixels in HDF5", pixels, raw, lambda: read_pixels(pixels, users)),
    ):
        seconds = cpu_seconds(work, passes) / users.num_images
        print(
            f"| {name}, {size}x{size} | {way} | {file.stat().st_size / 1e6:.1f} | "
            f"{num_bytes / 1e6:.1f} | {1 / seconds:,.0f} | {seconds / step:.2%} |"
        )


def train_users(path: Path, size: int, num_users: int, passes: int) -> tuple[float, float]:
    """Return seconds per user without and with decoding ahead; each decodes every image."""
    dataset = open_dataset(str(path), labels="coarse", image_size=size, cache_mb=0)
    settings = LocalSettings(epochs=2, batch_size=BATCH_SIZE, learning_rate=0.01)
    transform = Transform("none", size, (0.5,) * 3, (0.5,) * 3)
    trainer = Trainer(Cnn(len(dataset.label_names)), dataset, transform, settings, seed=0)
    users = dataset.users("train").ids[:num_users]

    def one_pass(ahead: bool) -> float:
        start = time.perf_counter()
        for user, coming in zip(users, (*users[1:], None), strict=True):
            trainer.announce("train", coming if ahead and coming is not None else [])
            trainer.train(user, 1)
        return (time.perf_counter() - start) / len(users)

    with one_thread():
        pairs = [(one_pass(False), one_pass(True)) for _ in range(passes)]
    return min(plain for plain, _ in pairs), min(ahead for _, ahead in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--photos", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = make_photos(folder, args.photos)
        step = step_seconds(args.passes)
        shape = f"{INPUT_SIZE}x{INPUT_SIZE}, batch {BATCH_SIZE}"
        print(f"ResNet-18, {shape}: {1000 * step:.0f} ms/image\n")
        print("| images | read | MB on disk | MB read | images/s | of a ResNet-18 step |")
        print("|---|---|---|---|---|---|")
        compare_storage("openclipart", OPENCLIPART, 64, folder, args.passes, step)
        compare_storage("photos", photos, PHOTO_SIZE, folder, args.passes, step)
        print("\n| one worker, nothing cached | ms/user in turn | ms/user decoded ahead |")
        print("|---|---|---|")
        for label, path, size in (("photos", photos, 32), ("openclipart", OPENCLIPART, 32)):
            plain, ahead = train_users(path, size, 40, 4 * args.passes)
            print(f"| Cnn, {label} at {size}x{size} | {1000 * plain:.2f} | {1000 * ahead:.2f} |")


if __name__ == "__main__":
    main()
