"""The collection that comes with fedsim, beside the raw folder that it was made from."""

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim.data.dataset import num_examples
from fedsim.data.flair_folder import scan_flair_folder
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.index import StoredImages, content_sha256
from fedsim.data.sources import OPENCLIPART, open_dataset

RAW = Path(__file__).parents[2] / ".." / "shared" / "data" / "openclipart64"
needs_raw = pytest.mark.skipif(not RAW.is_dir(), reason="needs ../shared/data/openclipart64")

COUNTS = {"train": (285, 4364), "val": (92, 353), "test": (91, 361)}


def test_counts() -> None:
    for labels, num_labels in (("coarse", 17), ("fine", 81)):
        dataset = open_dataset("openclipart", labels=labels, image_size=64)
        assert len(dataset.label_names) == num_labels
        for split, (num_users, num_images) in COUNTS.items():
            users = dataset.users(split)
            assert (len(users), users.num_images.sum()) == (num_users, num_images)
            assert dataset.labels(split, np.arange(num_images)).shape == (num_images, num_labels)
            assert users.num_images.min() == 1
    info = open_dataset("openclipart", labels="coarse", image_size=64).info()  # type: ignore[attr-defined]
    assert info.name == "OpenClipart"
    assert info.content_sha256 in OPENCLIPART.with_name("OPENCLIPART.md").read_text()


def test_the_cap_holds_for_train_only() -> None:
    capped = open_dataset("openclipart", labels="fine", image_size=64, max_images_per_user=1)
    assert {split: num_examples(capped, split) for split in COUNTS} == {
        "train": 285,
        "val": 353,
        "test": 361,
    }
    assert len(set(capped.left_out())) == 4364 - 285  # type: ignore[attr-defined]


def test_every_image_decodes_to_its_stored_pixels() -> None:
    images = open_hdf5(OPENCLIPART)
    rows = range(0, len(images.index), 97)
    for data in images.read(rows):
        assert Image.open(io.BytesIO(data)).size == (64, 64)
    examples = open_dataset("openclipart", labels="coarse", image_size=64).load(
        "train", np.array(rows)[:20]
    )
    for image, data in zip(examples.images, images.read(list(rows)[:20]), strict=True):
        assert np.array_equal(image.permute(1, 2, 0), np.asarray(Image.open(io.BytesIO(data))))


@needs_raw
@pytest.mark.parametrize("labels", ["coarse", "fine"])
def test_it_says_what_the_raw_folder_says(labels: str) -> None:
    key = {"coarse": "labels", "fine": "fine_grained_labels"}[labels]
    records = json.loads((RAW / "labels_and_metadata.json").read_text())
    names = sorted({label for record in records for label in record[key]})
    dataset = open_dataset("openclipart", labels=labels, image_size=64)
    assert list(dataset.label_names) == names
    for split in COUNTS:
        of_user: dict[str, list[dict[str, object]]] = {}
        for record in records:
            if record["partition"] == split:
                of_user.setdefault(record["user_id"], []).append(record)
        assert dataset.users(split).ids == tuple(sorted(of_user))
        ordered = [record for user in sorted(of_user) for record in of_user[user]]
        expected = [[name in record[key] for name in names] for record in ordered]  # type: ignore[operator]
        assert np.array_equal(dataset.labels(split, np.arange(len(ordered))), expected)
        picks = np.arange(0, len(ordered), 41)
        for image, pick in zip(dataset.load(split, picks).images, picks, strict=True):
            with Image.open(RAW / "small_images" / f"{ordered[pick]['image_id']}.jpg") as raw:
                assert np.array_equal(image.permute(1, 2, 0), np.asarray(raw))


def test_the_file_holds_what_its_hash_says() -> None:
    images = open_hdf5(OPENCLIPART)
    assert hash_of(images) == images.content_sha256


@needs_raw
def test_the_raw_folder_has_the_same_hash() -> None:
    assert hash_of(scan_flair_folder(RAW).images) == open_hdf5(OPENCLIPART).content_sha256


def hash_of(images: StoredImages) -> str:
    encoded = images.read(range(len(images.index)))
    return content_sha256(images.index, (hashlib.sha256(data).digest() for data in encoded))
