"""What one process has opened and decoded, another one has too."""

import shutil
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from fedsim.data.image_dataset import ImageDataset
from fedsim.data.pixel_cache import PixelCache
from fedsim.data.sources import OPENCLIPART, open_dataset
from fedsim.engines.workers import start_forkserver

SIZE = 4


def read_some(dataset: ImageDataset, split: str, sender: Connection) -> None:
    images = dataset.load(split, np.arange(20)).images
    sender.send((images.numpy(), dataset.info().index_sha256))


def read_in_child(dataset: ImageDataset, split: str) -> tuple[np.ndarray, str]:
    context = start_forkserver(__name__)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=read_some, args=(dataset, split, sender))
    process.start()
    sender.close()
    found: tuple[np.ndarray, str] = receiver.recv()
    process.join()
    return found


def test_index_and_images_are_read_once_for_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "drawings.h5"
    shutil.copyfile(OPENCLIPART, path)
    ours = open_dataset(str(path), labels="coarse", image_size=SIZE)
    val = ours.load("val", np.arange(20)).images.numpy()
    ours.open()
    test, _ = read_in_child(ours, "test")
    path.unlink()
    assert np.array_equal(ours.load("test", np.arange(20)).images.numpy(), test)
    again, index = read_in_child(ours, "val")
    assert np.array_equal(again, val)
    assert index == ours.info().index_sha256


def fill(cache: PixelCache, first: int, sender: Connection) -> None:
    rows = (first + np.arange(100)) % 100
    for row in rows.tolist():
        images = cache.read(
            np.array([row]), lambda rows: iter([np.full((SIZE, SIZE, 3), int(rows[0]), np.uint8)])
        )
        assert images.min() == images.max() == row
    sender.send("done")


def test_processes_that_fill_one_cache_give_no_place_twice() -> None:
    cache = PixelCache(100, SIZE, 60 * 3 * SIZE**2)
    context = start_forkserver(__name__)
    receiver, sender = context.Pipe(duplex=False)
    processes = [context.Process(target=fill, args=(cache, k, sender)) for k in (0, 30, 60)]
    for process in processes:
        process.start()
    sender.close()
    assert [receiver.recv() for _ in processes] == ["done"] * 3
    for process in processes:
        process.join()
    kept = np.setdiff1d(np.arange(100), cache.missing(np.arange(100)))
    assert len(kept) == 60
    images = cache.read(kept, lambda rows: iter(()))
    assert np.array_equal(images[:, 0, 0, 0], kept)
