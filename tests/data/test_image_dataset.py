"""Labels in pieces, and images that are decoded before they are asked for."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fakes import TinyDataset
from raw_folders import encode

from fedsim.data import dataset as dataset_module
from fedsim.data.dataset import ReadsAhead, label_counts, num_examples
from fedsim.data.decode import decode_image
from fedsim.data.image_dataset import ImageDataset
from fedsim.data.index import About, ImageIndex, ImageRecord
from fedsim.errors import DataError

MAIN = threading.current_thread().name


@dataclass(frozen=True, eq=False)
class Stored:
    """Eight images of three users in memory; one of them is broken."""

    index: ImageIndex
    images: tuple[bytes, ...]
    place = "memory"
    about = About("eight")
    content_sha256 = None

    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        for row in rows:
            yield self.images[row]


def stored() -> Stored:
    labels = ((), ())
    records = [ImageRecord(f"u{i // 3}", f"i{i}", "train", labels) for i in range(8)]
    images = [encode(i, (9, 9)) for i in range(8)]
    images[4] = b"no image"
    return Stored(ImageIndex.of(records), tuple(images))


def opened(cache_mb: int = 0) -> ImageDataset:
    return ImageDataset(stored, labels="coarse", image_size=6, cache_mb=cache_mb)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Which thread decodes which image."""
    entries: list[tuple[str, str]] = []

    def noting(data: bytes, size: int, *, name: str) -> Any:
        entries.append((name.split("'")[1], threading.current_thread().name))
        return decode_image(data, size, name=name)

    monkeypatch.setattr("fedsim.data.image_dataset.decode_image", noting)
    return entries


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_what_is_expected_has_the_same_bits(cache_mb: int, log: list[tuple[str, str]]) -> None:
    ahead, plain = opened(cache_mb), opened()
    assert isinstance(ahead, ReadsAhead)
    wanted = [np.array([2, 0, 1]), np.array([7, 6]), np.array([0])]
    expected = [plain.load("train", numbers) for numbers in wanted]
    log.clear()
    for numbers, examples in zip(wanted, expected, strict=True):
        ahead.expect("train", numbers)
        found = ahead.load("train", numbers)
        assert torch.equal(found.images, examples.images)
        assert found.images.stride() == examples.images.stride()
    decoded = ["i0", "i1", "i2", "i6", "i7"] + ([] if cache_mb else ["i0"])
    assert log == [(image, "fedsim-decode-ahead") for image in decoded]


def test_other_examples_may_be_loaded_than_were_expected() -> None:
    dataset = opened()
    dataset.expect("train", np.array([0, 1]))
    assert torch.equal(
        dataset.load("train", np.array([3])).images, opened().load("train", np.array([3])).images
    )


def test_what_is_wrong_is_told_where_it_is_loaded(log: list[tuple[str, str]]) -> None:
    dataset = opened()
    for ahead in (False, True):
        if ahead:
            dataset.expect("train", np.array([3, 4]))
        with pytest.raises(DataError, match=r"memory: image 'i4': expected a whole JPEG"):
            dataset.load("train", np.array([3, 4]))
    assert [thread == MAIN for _, thread in log] == [False] * 4
    dataset.expect("train", np.array([8]))
    with pytest.raises(IndexError, match="0 to 7, found numbers 8 to 8"):
        dataset.load("train", np.array([8]))


def test_labels_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noting(TinyDataset):
        rows: ClassVar[list[int]] = []

        def labels(self, split: str, indices: np.ndarray) -> np.ndarray:
            self.rows += indices.tolist()
            assert len(indices) <= 7
            return super().labels(split, indices)

    dataset = Noting()
    total = num_examples(dataset, "train")
    monkeypatch.setattr(dataset_module, "_CHUNK", 7)
    counts = label_counts(dataset, "train")
    assert dataset.rows == list(range(total))
    assert total % 7
    assert counts.tolist() == TinyDataset().labels("train", np.arange(total)).sum(0).tolist()
