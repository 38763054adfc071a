"""The files read here are written by plain csv calls."""

import csv
import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from raw_folders import Entry, encode

from fedsim.data.csv_folder import deal_users, find_csv, scan_csv
from fedsim.data.flair_folder import scan_flair_folder
from fedsim.data.image_files import ImageFiles
from fedsim.data.scan import open_whole
from fedsim.data.sources import open_dataset, scanner_of
from fedsim.errors import DataError

MakeFolder = Callable[..., Path]
HEADER = ["image", "user", "labels", "split"]


def write(path: Path, rows: list[list[str]], encoding: str = "utf-8", **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, **options).writerows(rows)
    return path


def make(folder: Path, *rows: list[str], header: list[str] = HEADER) -> Path:
    """Write a CSV of these rows after a sound one, and images a.png and sub/b.jpg."""
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "a.png").write_bytes(encode(0, image_format="PNG"))
    (folder / "sub" / "b.jpg").write_bytes(encode(1))
    return write(folder / "data.csv", [header, ["a.png", "ann", "cat|dog", "train"], *rows])


def opened(path: Path) -> ImageFiles:
    images = open_whole(scanner_of(str(path)))
    assert isinstance(images, ImageFiles)
    return images


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("options", [{}, {"lineterminator": "\n"}, {"quoting": csv.QUOTE_ALL}])
def test_a_csv_is_the_raw_folder(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    encoding: str,
    options: dict[str, Any],
) -> None:
    raw = make_folder(entries)
    mine = tmp_path / "mine"
    rows = [["note", "fine_labels", "split", "labels", "user", "image"]]
    for entry in json.loads((raw / "labels_and_metadata.json").read_text()):
        labels = ["|".join(entry[key]) for key in ("fine_grained_labels", "labels")]
        note = 'two, with a " and\na new line'
        rows.append(
            [note, labels[0], entry["partition"], labels[1], entry["user_id"], entry["image_id"]]
        )
    write(mine / "any name.CSV", rows, encoding, **options)
    for file in (raw / "small_images").iterdir():
        (mine / file.stem).write_bytes(file.read_bytes())
    theirs = open_whole(lambda: scan_flair_folder(raw))
    ours = pickle.loads(pickle.dumps(opened(mine)))
    assert ours.index.sha256() == theirs.index.sha256()
    everything = range(len(theirs.index))
    assert list(ours.read(everything)) == list(theirs.read(everything))
    assert (ours.about.name, ours.content_sha256) == ("mine", None)
    assert ours.place == str(mine / "any name.CSV")
    a, b = (open_dataset(str(path), labels="fine", image_size=7) for path in (mine, raw))
    images = [data.load("train", np.arange(4)).images for data in (a, b)]
    assert torch.equal(images[0], images[1])


def test_ids_stay_as_written(tmp_path: Path) -> None:
    rows = [["sub/b.jpg", "0042", "0|1", "dev"]]
    index = opened(make(tmp_path, *rows)).index
    assert index.user_ids.cut(0, 2) == ("ann", "0042")
    assert index.image_ids.cut(0, 2) == ("a.png", "sub/b.jpg")
    # Without fine_labels both sets are the same.
    for label_set in ("coarse", "fine"):
        assert index.labels[label_set].names == ("0", "1", "cat", "dog")
        assert index.labels[label_set].dense(np.arange(2)).tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]
    assert scan_csv(tmp_path / "data.csv").unused_files == 0
    (tmp_path / "extra.txt").write_text("")
    assert scan_csv(tmp_path / "data.csv").unused_files == 1


def test_which_csv_is_meant(tmp_path: Path) -> None:
    assert find_csv(tmp_path) is None
    assert find_csv(tmp_path / "none.csv") is None
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=r"one CSV file, found 2 \(a.csv, b.csv\); give the path"):
        open_dataset(str(tmp_path), labels="coarse", image_size=8)
    assert find_csv(tmp_path / "b.csv") == tmp_path / "b.csv"
    make(tmp_path)
    assert find_csv(tmp_path) == tmp_path / "data.csv"
    (tmp_path / "x.txt").write_text("x")
    assert find_csv(tmp_path / "x.txt") is None


def reference_split(user_id: str) -> str:
    """Deal a user by the tenth in which its SHA-256 lies, in hexadecimal."""
    share = int(hashlib.sha256(user_id.encode()).hexdigest()[:16], 16)
    return "test" if share * 10 < 16**16 else "val" if share * 5 < 16**16 else "train"


def test_large_collections_are_dealt_by_the_id_alone() -> None:
    users = [f"user {k}" for k in range(5000)]
    dealt = deal_users(users)
    assert dealt == {user: reference_split(user) for user in users}
    for split in ("val", "test"):
        assert 440 < list(dealt.values()).count(split) < 560
    some = deal_users(users[:200][::-1])
    assert some == {user: dealt[user] for user in users[:200]}


@given(st.sets(st.text(st.characters(codec="utf-8"), min_size=1), min_size=3, max_size=30))
def test_no_split_is_empty_and_few_users_are_moved(users: set[str]) -> None:
    dealt = deal_users(users)
    assert set(dealt) == users
    assert set(dealt.values()) == {"train", "val", "test"}
    empty = {"train", "val", "test"} - {reference_split(user) for user in users}
    moved = [user for user in users if dealt[user] != reference_split(user)]
    assert len(moved) <= 2 * len(empty)


def test_without_a_split_column_users_are_dealt(tmp_path: Path) -> None:
    header = ["image", "user", "labels"]
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(encode(number, image_format="PNG"))
    users = ["ann", "bob", "cid"]
    rows = [[f"{k}.png", user, ""] for k, user in enumerate([*users, "ann"])]
    write(tmp_path / "x.csv", [header, *rows])
    index = opened(tmp_path).index
    for user, split in deal_users(users).items():
        first, stop = index.users_of(split)
        assert index.user_ids.cut(first, stop) == (user,)
    write(tmp_path / "x.csv", [header, *rows[:2], rows[3]])
    with pytest.raises(DataError, match=r"at least 3 users, .* found 2; add a column split"):
        opened(tmp_path)


FAULTS: dict[str, tuple[list[str], str]] = {
    "missing": (["c.png", "bob", "", "train"], "expected the image c.png, found no such file"),
    "no folder": (["c/c.png", "bob", "", "train"], r"image c/c.png, found no such folder"),
    "a folder": (["sub", "bob", "", "train"], "image sub, found something that is no file"),
    "twice": (["a.png", "ann", "", "train"], "image_id 'a.png' must be unique, found in line 2"),
    "user in two": (["sub/b.jpg", "ann", "", "val"], "'ann' must be in one split, found in train"),
    "no user": (["sub/b.jpg", "", "", "train"], "user must not be empty; say whose image it is"),
    "no image": (["", "bob", "", "train"], "image must be the path of an image, found nothing"),
    "absolute": (["/etc/hosts", "bob", "", "train"], 'below the CSV\'s folder, .*"/etc/hosts"'),
    "upwards": (["sub/../a.png", "bob", "", "train"], "image must be a path below the CSV's"),
    "windows": (["sub\\b.jpg", "bob", "", "train"], "image must be a path below the CSV's"),
    "drive": (["C:b.jpg", "bob", "", "train"], "image must be a path below the CSV's"),
    "dot": (["./a.png", "bob", "", "train"], 'a plain path, found "./a.png"; write "a.png"'),
    "slashes": (["sub//b.jpg", "bob", "", "train"], 'found "sub//b.jpg"; write "sub/b.jpg"'),
    "split": (["sub/b.jpg", "bob", "", "trian"], r'split must be train, val .* found "trian"'),
    "no split": (["sub/b.jpg", "bob", "", ""], 'split must be train, val .* found ""'),
    "label": (["sub/b.jpg", "bob", "a||b", "train"], r'labels must be names .* one in "a\|\|b"'),
    "few": (["sub/b.jpg", "bob", ""], "expected 4 fields as in the first line, found 3"),
    "many": (["sub/b.jpg", "bob", "a", "b", "train"], "expected 4 fields .*, found 5; put a field"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_row_is_refused(tmp_path: Path, fault: str) -> None:
    faulty, message = FAULTS[fault]
    path = make(tmp_path, faulty)
    with pytest.raises(DataError, match=rf"found 1; mend it in the source:\n  line 3: .*{message}"):
        opened(path)
    assert list(scan_csv(path).images.read([0])) == [(tmp_path / "a.png").read_bytes()]


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    path = make(tmp_path, *(row for row, _ in FAULTS.values()))
    with pytest.raises(DataError, match=f"expected no faults, found {len(FAULTS)};"):
        opened(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"columns image, user and labels, .* found no image, user, labels .*\(\[\]\); add"),
        (b"image,user\na,b\n", "found no labels in the first line .*; add it$"),
        (b"Image,user,label\n", "add them, or rename 'Image' to 'image', or rename 'label' to"),
        (b"image, user,labels\n", "add it, or rename ' user' to 'user'"),
        (b"image;user;labels\n", 'separated by commas, found ";" in the first line'),
        (b"image,user,labels,user\n", "expected each column once, found user 2 times"),
        (b"image,user,labels\n", "expected a row for every image, found none"),
        (b"image,user,labels\n\n\n", "expected a row for every image, found none"),
        (b"image,user,labels\na.png,Zo\xeb,\n", "text in UTF-8, found other bytes in line 2; save"),
        (b"image,user,labels\na.png,a\0n,\n", "expected text, found a NUL byte in line 2"),
        ("image,user,labels\na.png,ann,\n".encode("utf-16"), "text in UTF-8"),
        (b'image,user,labels\na.png,"ann,\n', "found a line 2 that can't be parsed"),
        (b'image,user,labels\na.png,"a"nn,\n', "found a line 2 that can't be parsed"),
        (b"image,user,labels\na.png," + b"x" * 200_000 + b",\n", "can't be parsed"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "data.csv").write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        opened(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'data.csv'}: expected ")
    assert "\n" not in str(caught.value)


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = make(tmp_path)
    path.write_text(path.read_text() + "\n\nsub/b.jpg,ann,,train\n\n")
    assert len(opened(tmp_path).index) == 2


def test_no_link_is_followed_out_of_the_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "mine", tmp_path / "mine_other"
    outside.mkdir()
    (outside / "b.jpg").write_bytes(encode(3))
    path = make(folder, ["sub/b.jpg", "bob", "", "train"])
    images = opened(path)
    image = folder / "sub" / "b.jpg"
    image.rename(folder / "elsewhere.jpg")
    image.symlink_to("../elsewhere.jpg")
    assert len(list(opened(path).read([0, 1]))) == 2
    image.unlink()
    image.symlink_to(outside / "b.jpg")
    with pytest.raises(DataError, match=r"b.jpg: expected an image inside .*, found a link"):
        list(images.read([1]))  # even if it was put there after the folder was read
    with pytest.raises(DataError, match=r"line 3: .*, found a link that leads out of the folder"):
        opened(path)
    image.unlink()
    image.symlink_to("b.jpg")
    with pytest.raises(DataError, match=r"line 3: .*, found Too many"):
        opened(path)
    image.unlink()
    os.mkfifo(image)
    with pytest.raises(DataError, match=r"line 3: .* found something that is no file"):
        opened(path)
    image.unlink()
    with pytest.raises(DataError, match=r"b.jpg: expected an image, found No such file"):
        list(images.read([1]))
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(outside)
    with pytest.raises(DataError, match=r"line 3: .*, found a link that leads out of the folder"):
        opened(path)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "a.png").write_bytes(b"no image")
    dataset = open_dataset(str(tmp_path), labels="coarse", image_size=8)
    with pytest.raises(DataError, match=r"data.csv: image 'a.png': expected a whole JPEG"):
        dataset.load("train", np.array([0]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image;user;labels\n1.png;ann;cat\n", 'separated by commas, found ";"'),
        ("image\tuser\tlabels\n1.png\tann\tcat\n", "separated by commas"),
        ("image,user,labels,Split\n1.png,ann,cat,train\n", "expected the column split"),
        ("image,user,labels,partition\n1.png,ann,cat,train\n", "expected the column split"),
        ("image,user,labels,fine labels\n1.png,ann,cat,tabby\n", "expected the column fine_labels"),
        ("image,user,labels,split\n1.png,ann ,cat,train\n", "user must not begin or end"),
        ("image,user,labels,split\n1.png,ann,cat| dog,train\n", "spaces around a name"),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "1.png").write_bytes(encode(0, image_format="PNG"))
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_whole(lambda: scan_csv(tmp_path / "data.csv"))
