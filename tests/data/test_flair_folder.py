import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raw_folders import Entry, encode

from fedsim.data.convert import convert
from fedsim.data.dataset import FederatedDataset, num_examples
from fedsim.data.decode import decode_image
from fedsim.data.flair_folder import scan_flair_folder
from fedsim.data.index import StoredImages
from fedsim.data.scan import open_whole
from fedsim.data.sources import open_dataset
from fedsim.errors import DataError

MakeFolder = Callable[..., Path]


def open_folder(folder: Path) -> StoredImages:
    return open_whole(lambda: scan_flair_folder(folder))


def test_a_folder_is_read_as_its_metadata_says(
    make_folder: MakeFolder, entries: list[Entry]
) -> None:
    folder = make_folder(entries)
    dataset: FederatedDataset = open_dataset(str(folder), labels="coarse", image_size=8)
    assert dataset.label_names == ("animal", "fire", "plant")
    assert dataset.users("train").ids == ("0123", "b@N00")
    assert dataset.users("train").num_images.tolist() == [1, 3]
    assert dataset.users("val").ids == ("ü ser",)
    assert dataset.users("test").ids == ("z/0",)
    # Within a user images stay in the metadata's order, whatever their ids.
    examples = dataset.load("train", np.arange(4))
    assert examples.labels.tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 1]]
    for image, image_id in zip(examples.images, ("12", "10", "09", "14"), strict=True):
        data = (folder / "small_images" / f"{image_id}.jpg").read_bytes()
        assert np.array_equal(image.permute(1, 2, 0).numpy(), decode_image(data, 8))
    fine = open_dataset(str(folder), labels="fine", image_size=8)
    assert fine.label_names == ("cat", "dog", "grass", "tree")
    assert fine.labels("train", np.array([3])).astype(int).tolist() == [[1, 0, 1, 1]]


@pytest.mark.parametrize("labels", ["coarse", "fine"])
@pytest.mark.parametrize("max_images_per_user", [None, 2])
@pytest.mark.parametrize("cache_mb", [0, 1])
def test_folder_and_file_give_the_same_bits(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    labels: str,
    max_images_per_user: int | None,
    cache_mb: int,
) -> None:
    folder = make_folder(entries)
    convert(folder, tmp_path / "same.h5")
    options: dict[str, Any] = {
        "labels": labels,
        "max_images_per_user": max_images_per_user,
        "cache_mb": cache_mb,
    }
    raw = open_dataset(str(folder), image_size=7, **options)
    file = open_dataset(str(tmp_path / "same.h5"), image_size=7, **options)
    assert raw.label_names == file.label_names
    assert raw.left_out() == file.left_out()
    assert raw.info().index_sha256 == file.info().index_sha256
    assert raw.info().content_sha256 is None
    for split in ("train", "val", "test"):
        assert raw.users(split).ids == file.users(split).ids
        assert np.array_equal(raw.users(split).num_images, file.users(split).num_images)
        everything = np.arange(num_examples(raw, split))[::-1].copy()
        assert np.array_equal(raw.labels(split, everything), file.labels(split, everything))
        ours, theirs = raw.load(split, everything), file.load(split, everything)
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)
        assert ours.images.stride() == theirs.images.stride()


def with_(**changes: Any) -> Callable[[list[Entry]], None]:
    """Change the first entry (user b@N00, image 10, train)."""

    def change(entries: list[Any]) -> None:
        entries[0] = {**entries[0], **changes}

    return change


def without(key: str) -> Callable[[list[Entry]], None]:
    def change(entries: list[Entry]) -> None:
        del entries[0][key]

    return change


FAULTS: dict[str, tuple[Callable[[list[Any]], None], str]] = {
    "user in two splits": (
        with_(partition="test"),
        "record 2: user 'b@N00' must be in one split, found in test and train",
    ),
    "image twice": (
        with_(image_id="14"),
        "record 5: image_id '14' must be unique, found in record 0 too",
    ),
    "image missing": (with_(image_id="77"), "record 0: expected the image 77.jpg, found no such"),
    "path upwards": (with_(image_id="../10"), 'a path is unsafe, found "../10"'),
    "path down": (with_(image_id="a/10"), 'a path is unsafe, found "a/10"'),
    "path absolute": (with_(image_id="/etc/hosts"), 'a path is unsafe, found "/etc/hosts"'),
    "path of windows": (with_(image_id="..\\10"), "a path is unsafe"),
    "drive": (with_(image_id="C:10"), "a path is unsafe"),
    "dots": (with_(image_id=".."), "a path is unsafe"),
    "nul": (with_(image_id="1\x000"), "a path is unsafe"),
    "image id empty": (
        with_(image_id=""),
        'image_id must be text of at least one letter, found ""',
    ),
    "image id number": (with_(image_id=10), "image_id must be text, found the number 10; write it"),
    "user id number": (with_(user_id=123), "user_id must be text, found the number 123; write it"),
    "user id fraction": (with_(user_id=1.5), "user_id must be text, found the number 1.5"),
    "user id null": (
        with_(user_id=None),
        "user_id must be text of at least one letter, found null",
    ),
    "user id empty": (with_(user_id=""), "user_id must be text of at least one letter"),
    "user id surrogate": (with_(user_id="\ud800"), "half a surrogate pair in .*ud800"),
    "partition unknown": (with_(partition="dve"), r'train, val \(or dev\) or test, found "dve"'),
    "partition list": (with_(partition=["train"]), r'or test, found \["train"\]'),
    "labels text": (with_(labels="cat"), 'labels must be a list of names, found "cat"'),
    "labels null": (with_(fine_grained_labels=None), "fine_grained_labels must be a list .* null"),
    "label number": (
        with_(labels=["cat", 3]),
        "every name in labels must be text, found the number",
    ),
    "label list": (
        with_(labels=[["cat"]]),
        r'every name in labels must be text .* found \["cat"\]',
    ),
    "label empty": (with_(labels=[""]), "every name in labels must be text of at least one letter"),
    "label surrogate": (with_(labels=["\udfff"]), "half a surrogate pair"),
    "no user id": (without("user_id"), "record 0: must have the keys .*, found no user_id"),
    "no labels": (without("fine_grained_labels"), "found no fine_grained_labels"),
    "no partition": (without("partition"), "found no partition"),
    "no object": (
        lambda entries: entries.insert(0, ["x"]),
        r'record 0: must be an object, found \["x',
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_record_is_refused(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path, fault: str
) -> None:
    change, message = FAULTS[fault]
    images = {entry["image_id"]: encode(0) for entry in entries}
    change(entries)
    folder = make_folder(entries, images=images)
    with pytest.raises(DataError, match=message) as caught:
        open_dataset(str(folder), labels="coarse", image_size=8).users("train")
    assert str(caught.value).startswith(f"{folder}: expected no faults, found ")
    # A conversion says the same and leaves nothing behind.
    with pytest.raises(DataError, match=message):
        convert(folder, tmp_path / "out.h5")
    assert [found.name for found in tmp_path.iterdir()] == ["raw"]


@pytest.mark.parametrize(
    "user_id", ["12345678@N00", "a/b", "../x", "a b", "0042", "Ünï", "🦋", "NaN", " ", "-"]
)
def test_user_ids_are_kept_verbatim(
    make_folder: MakeFolder, entries: list[Entry], user_id: str
) -> None:
    entries[3]["user_id"] = user_id
    folder = make_folder(entries)
    assert user_id in open_dataset(str(folder), labels="fine", image_size=8).users("train").ids


def test_repeated_labels_count_once_and_are_counted(
    make_folder: MakeFolder, entries: list[Entry]
) -> None:
    entries[0]["labels"] = ["plant", "plant", "animal", "plant"]
    folder = make_folder(entries)
    dataset = open_dataset(str(folder), labels="coarse", image_size=8)
    assert dataset.labels("train", np.array([1])).tolist() == [[True, False, True]]
    assert scan_flair_folder(folder).repeated_labels == 2


def test_other_keys_and_files_do_no_harm(make_folder: MakeFolder, entries: list[Entry]) -> None:
    entries[0]["licence"] = "free"
    folder = make_folder(entries)
    (folder / "small_images" / "extra.jpg").write_bytes(b"")
    assert scan_flair_folder(folder).unused_files == 1
    assert len(open_folder(folder).index) == len(entries)


def test_all_faults_are_counted_and_the_first_twenty_shown(make_folder: MakeFolder) -> None:
    records = [
        {
            "user_id": k,
            "image_id": f"{k}",
            "labels": [],
            "fine_grained_labels": [],
            "partition": "x",
        }
        for k in range(15)
    ]
    with pytest.raises(DataError) as caught:
        open_folder(make_folder(records, images={}))
    head, *shown = str(caught.value).split("\n")
    assert head.endswith(
        "expected no faults, found 30 (the first 20 are shown); mend them in the source:"
    )
    assert len(shown) == 20
    assert shown[0] == "  record 0: user_id must be text, found the number 0; write it in quotes"
    assert shown[-1].startswith("  record 9: partition")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "can't be parsed"),
        (b"[{", "can't be parsed"),
        (b'[{"user_id": "\xff"}]', "can't be parsed"),
        (b"[" * 100_000, "can't be parsed"),
        (b'{"user_id": "a"}', "expected a JSON list with an object for every image, found {"),
        (b"[]", r"expected a JSON list .*, found \[\]"),
        (b"null", "found null"),
    ],
)
def test_metadata_that_is_no_list_is_refused(
    make_folder: MakeFolder, entries: list[Entry], text: bytes, message: str
) -> None:
    folder = make_folder(entries)
    (folder / "labels_and_metadata.json").write_bytes(text)
    with pytest.raises(DataError, match=message) as caught:
        open_folder(folder)
    assert "\n" not in str(caught.value)
    assert str(folder / "labels_and_metadata.json") in str(caught.value)


def test_an_incomplete_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"labels_and_metadata.json: expected FLAIR's metadata"):
        open_folder(tmp_path)
    (tmp_path / "labels_and_metadata.json").write_text(json.dumps([{}]))
    with pytest.raises(DataError, match=r"small_images: expected a folder of images"):
        open_folder(tmp_path)


def test_a_link_inside_the_folder_is_followed(
    make_folder: MakeFolder, entries: list[Entry]
) -> None:
    folder = make_folder(entries)
    image = folder / "small_images" / "10.jpg"
    image.rename(folder / "elsewhere.jpg")
    image.symlink_to("../elsewhere.jpg")
    dataset = open_dataset(str(folder), labels="coarse", image_size=8)
    assert len(dataset.load("train", np.arange(4))) == 4


def test_no_link_is_followed_out_of_the_folder(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    outside = tmp_path / "raw_other"  # a name that starts like the folder's
    outside.mkdir()
    (outside / "secret.jpg").write_bytes(encode(1))
    folder = make_folder(entries)
    dataset = open_dataset(str(folder), labels="coarse", image_size=8, cache_mb=0)
    dataset.load("train", np.arange(4))
    image = folder / "small_images" / "10.jpg"
    image.unlink()
    image.symlink_to(outside / "secret.jpg")
    with pytest.raises(DataError, match=r"10.jpg: expected an image inside .*, found a link"):
        dataset.load("train", np.arange(4))  # even if it was put there after the folder was read
    with pytest.raises(DataError, match=r"record 0: .* 10.jpg, found a link that leads out"):
        open_folder(folder)
    image.unlink()
    image.symlink_to("10.jpg")
    with pytest.raises(DataError, match=r"record 0: expected the image 10.jpg, found Too many"):
        open_folder(folder)
    image.unlink()
    os.mkfifo(image)
    with pytest.raises(DataError, match="found something that is no file"):
        open_folder(folder)
    image.unlink()
    with pytest.raises(DataError, match=r"10.jpg: expected an image, found No such file"):
        dataset.load("train", np.arange(4))
    (folder / "small_images").rename(outside / "small_images")
    (folder / "small_images").symlink_to(outside / "small_images")
    with pytest.raises(DataError, match=r"small_images: expected a folder inside .*, found a link"):
        open_folder(folder)


def test_a_folder_may_itself_be_reached_by_a_link(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    folder = make_folder(entries)
    (tmp_path / "link").symlink_to(folder)
    dataset = open_dataset(str(tmp_path / "link"), labels="coarse", image_size=8)
    assert len(dataset.load("val", np.array([0]))) == 1


def test_a_broken_image_is_named(make_folder: MakeFolder, entries: list[Entry]) -> None:
    folder = make_folder(entries)
    (folder / "small_images" / "12.jpg").write_bytes(b"no image")
    dataset = open_dataset(str(folder), labels="coarse", image_size=8)
    with pytest.raises(DataError, match=r"raw: image '12': expected a whole JPEG"):
        dataset.load("train", np.array([0]))
