"""Files in pfl-research's layout; test_flair_hdf5.py has what holds for every form."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_writers import write_pfl
from raw_folders import Entry

from fedsim.data.index import StoredImages
from fedsim.data.pfl_hdf5 import scan_pfl_hdf5
from fedsim.data.scan import open_whole
from fedsim.data.sources import open_dataset, scanner_of
from fedsim.errors import DataError

MAPPING = "metadata/label_mapping"


@pytest.fixture
def path(entries: list[Entry], tmp_path: Path) -> Path:
    pixels = {e["image_id"]: np.zeros((2, 2, 3), np.uint8) for e in entries}
    return write_pfl(tmp_path / "pfl.h5", entries, pixels)


def put(path: Path, where: str, value: Any) -> None:
    with h5py.File(path, "r+") as file:
        if where in file:
            del file[where]
        if value is not None:
            file[where] = value


def opened(path: Path) -> StoredImages:
    return open_whole(scanner_of(str(path)))


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        opened(path)
    return str(caught.value)


def test_the_arrays_have_the_types_that_the_layout_states(path: Path) -> None:
    with h5py.File(path) as file:
        group = file["train/b@N00"]
        types = {name: array.dtype.str for name, array in group.items()}
        assert group["labels_row"][...].tolist() == [0, 0, 2]
        assert group["labels_col"][...].tolist() == [2, 0, 2]
        assert json.loads(file[MAPPING][()]) == {"animal": 0, "fire": 1, "plant": 2}
    assert types == {
        "fine_grained_labels_col": "<u2",
        "fine_grained_labels_row": "<u2",
        "image_ids": "|S2",
        "images": "|u1",
        "labels_col": "|u1",
        "labels_row": "<u2",
    }


def test_labels_that_no_image_has_keep_their_columns(path: Path) -> None:
    before = open_dataset(str(path), labels="coarse", image_size=2)
    order = np.arange(4)
    labels = before.load("train", order).labels.numpy()
    put(path, MAPPING, json.dumps({"animal": 0, "fire": 1, "plant": 2, "music": 3, "able": 4}))
    after = open_dataset(str(path), labels="coarse", image_size=2)
    assert after.label_names == ("able", "animal", "fire", "music", "plant")
    wide = after.load("train", order).labels.numpy()
    assert np.array_equal(wide[:, [1, 2, 4]], labels)
    assert not wide[:, [0, 3]].any()


def test_columns_are_mapped_by_name_whatever_their_order(path: Path) -> None:
    expected = opened(path).index.sha256()
    swapped = np.array([2, 1, 0], dtype=np.uint8)
    put(path, MAPPING, json.dumps({"plant": 0, "animal": 2, "fire": 1}))
    with h5py.File(path, "r+") as file:
        for user in ("train/b@N00", "train/0123", "test/z/0", "dev/ü ser"):
            columns = file[f"{user}/labels_col"]
            columns[...] = swapped[columns[...]]
    assert opened(path).index.sha256() == expected


def test_any_whole_numbers_will_do(path: Path) -> None:
    expected = opened(path).index.sha256()
    put(path, "train/b@N00/labels_row", np.array([0, 0, 2], dtype=np.int64))
    assert opened(path).index.sha256() == expected


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "counts": (MAPPING, json.dumps({"animal": 2, "fire": 1, "plant": 3}), "the columns 0 to 2"),
    "a gap": (MAPPING, json.dumps({"animal": 0, "plant": 2, "fire": 3}), "found [0, 2, 3]"),
    "twice": (MAPPING, json.dumps({"animal": 0, "plant": 1, "fire": 1}), "found [0, 1, 1]"),
    "an empty name": (MAPPING, json.dumps({"": 0, "a": 1, "b": 2}), "at least one letter"),
    "half a letter": (MAPPING, '{"\\ud800": 0, "a": 1, "b": 2}', "valid Unicode"),
    "a list": (MAPPING, "[]", "expected a JSON object of names and whole numbers, found []"),
    "no mapping": (MAPPING, None, "/metadata/label_mapping: expected an array, found none"),
    "column": (
        "train/0123/labels_col",
        np.array([3], np.uint8),
        "/train/0123/labels_col: expected numbers from 0 to 2, found 3",
    ),
    "negative column": (
        "train/0123/labels_col",
        np.array([-1], np.int8),
        "/train/0123/labels_col: expected numbers from 0 to 2, found -1",
    ),
    "row": (
        "train/b@N00/labels_row",
        np.array([0, 3, 2], np.uint16),
        "/train/b@N00/labels_row: expected numbers from 0 to 2, found 3",
    ),
    "lengths": (
        "train/b@N00/labels_row",
        np.array([0, 2], np.uint16),
        "expected labels_row and labels_col of equal length, found 2 and 3",
    ),
    "halves": (
        "train/0123/labels_row",
        np.array([0.0]),
        "/train/0123/labels_row: expected whole numbers in one dimension, found float64",
    ),
    "no rows": ("train/0123/fine_grained_labels_row", None, "expected an array, found none"),
    "ids": (
        "train/b@N00/image_ids",
        np.array([b"1", b"2"]),
        "/train/b@N00: expected as many image_ids as images, found 2 and 3",
    ),
    "images": ("test/z/0/images", np.zeros((1, 2, 2, 4), np.uint8), "RGBA and CMYK can't be told"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_in_one_sentence(path: Path, damage: str) -> None:
    where, value, said = DAMAGE[damage]
    put(path, where, value)
    message = refused(path)
    assert message.startswith(f"{path}: expected no faults, found 1; mend it")
    assert said in message


def test_a_file_without_metadata_is_refused(path: Path) -> None:
    put(path, "metadata", None)
    message = refused(path)
    assert "found 2; mend them" in message
    for mapping in ("label_mapping", "fine_grained_label_mapping"):
        assert f"/metadata/{mapping}: expected the columns of the labels, found none" in message


def test_too_many_names_are_refused(path: Path) -> None:
    names = {f"{k:06d}": k for k in range(2**16 + 1)}
    put(path, "metadata/fine_grained_label_mapping", json.dumps(names))
    assert "fine_grained_labels must have at most 65536 different names" in refused(path)


def test_the_first_sound_user_says_whose_layout_it_is(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for name in ("labels_row", "labels_col", "image_ids"):
            del file[f"dev/ü ser/{name}"]
        for key in ("fine_grained_labels_row", "fine_grained_labels_col"):
            del file[f"dev/ü ser/{key}"]
    with pytest.raises(DataError) as caught:
        open_whole(lambda: scan_pfl_hdf5(path))
    assert refused(path) == str(caught.value)
    assert "expected no faults, found 5" in refused(path)
