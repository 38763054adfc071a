"""Small collections in FLAIR's raw layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_folders import Entry, encode


@pytest.fixture
def entries() -> list[Entry]:
    """Six images of four users in all three splits, listed out of order."""

    def entry(user: str, image: str, partition: str, coarse: list[str], fine: list[str]) -> Entry:
        return {
            "user_id": user,
            "image_id": image,
            "labels": coarse,
            "fine_grained_labels": fine,
            "partition": partition,
        }

    return [
        entry("b@N00", "10", "train", ["plant", "animal"], ["cat", "grass"]),
        entry("z/0", "11", "test", ["animal"], ["dog"]),
        entry("b@N00", "09", "train", [], []),
        entry("0123", "12", "train", ["fire"], []),
        entry("ü ser", "13", "dev", ["plant"], ["grass"]),
        entry("b@N00", "14", "train", ["plant"], ["tree", "cat", "grass"]),
    ]


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a raw folder; images default to noise of unequal sizes."""

    def make(entries: list[Any], name: str = "raw", images: dict[str, bytes] | None = None) -> Path:
        folder = tmp_path / name
        (folder / "small_images").mkdir(parents=True)
        (folder / "labels_and_metadata.json").write_text(json.dumps(entries))
        if images is None:
            images = {e["image_id"]: encode(k, (8 + k, 8)) for k, e in enumerate(entries)}
        for image_id, data in images.items():
            (folder / "small_images" / f"{image_id}.jpg").write_bytes(data)
        return folder

    return make
