"""Files in ml-flair's layout, grouped by user and not, written by plain h5py calls."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hdf5_writers import (
    PixelsById,
    WriteFlair,
    write_grouped,
    write_pfl,
    write_pfl_ungrouped,
    write_ungrouped,
)
from PIL import Image
from raw_folders import Entry, encode

from fedsim.data.decode import decode_image
from fedsim.data.flair_folder import scan_flair_folder
from fedsim.data.flair_hdf5 import scan_flair_hdf5
from fedsim.data.h5_pixels import PixelImages
from fedsim.data.scan import open_whole
from fedsim.data.sources import open_dataset, scanner_of
from fedsim.errors import DataError

RAW = Path(__file__).parents[2] / ".." / "shared" / "data" / "openclipart64"
needs_raw = pytest.mark.skipif(not RAW.is_dir(), reason="needs ../shared/data/openclipart64")

EVERY_FORM: list[WriteFlair] = [write_grouped, write_pfl, write_ungrouped, write_pfl_ungrouped]
BY_USER: list[WriteFlair] = [write_grouped, write_pfl]


def asarray(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image)


def pixels_of(folder: Path, entries: list[Entry]) -> PixelsById:
    ids = [entry["image_id"] for entry in entries]
    return {image_id: asarray(folder / "small_images" / f"{image_id}.jpg") for image_id in ids}


def noise(entries: list[Entry], shape: tuple[int, ...] = (6, 8, 3)) -> PixelsById:
    draw = np.random.default_rng(0)
    return {e["image_id"]: draw.integers(0, 256, shape, dtype=np.uint8) for e in entries}


def entry(user: str, image: str, partition: str = "train", **labels: list[str]) -> Entry:
    own = {"labels": [], "fine_grained_labels": [], **labels}
    return {"user_id": user, "image_id": image, "partition": partition, **own}


def open_file(path: Path) -> PixelImages:
    images = open_whole(scanner_of(str(path)))
    assert isinstance(images, PixelImages)
    return images


def ids_of(images: PixelImages) -> tuple[list[str], list[str]]:
    tables = images.index.user_ids, images.index.image_ids
    users, image_ids = (list(table.cut(0, len(table))) for table in tables)
    return users, image_ids


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_file(path)
    return str(caught.value)


@pytest.mark.parametrize("write", EVERY_FORM)
def test_a_file_is_the_same_collection_as_the_raw_folder(
    make_folder: Callable[..., Path], entries: list[Entry], tmp_path: Path, write: WriteFlair
) -> None:
    if write not in BY_USER:
        entries = sorted(entries, key=lambda e: str(e["image_id"]))  # the order of HDF5's groups
    images = {e["image_id"]: encode(k, (8, 6)) for k, e in enumerate(entries)}
    folder = make_folder(entries, images=images)
    raw = open_whole(lambda: scan_flair_folder(folder))
    found = open_file(write(tmp_path / "flair.hdf5", entries, pixels_of(folder, entries)))
    assert found.index.sha256() == raw.index.sha256()
    rows = [4, 0, 1, 2, 5, 3, 3]
    for pixels, data in zip(found.read(rows), raw.read(rows), strict=True):
        assert np.array_equal(decode_image(pixels, 5), decode_image(data, 5))
    dataset = open_dataset(str(tmp_path / "flair.hdf5"), labels="fine", image_size=8)
    assert dataset.users("train").ids == ("0123", "b@N00")
    assert dataset.users("val").ids == ("ü ser",)
    assert dataset.users("test").ids == ("z/0",)
    assert dataset.load("train", np.arange(3)).images.shape == (3, 3, 8, 8)


@needs_raw
@pytest.mark.parametrize("write", EVERY_FORM)
def test_all_drawings_are_the_same_collection_in_any_form(
    tmp_path: Path, write: WriteFlair
) -> None:
    records = json.loads((RAW / "labels_and_metadata.json").read_text())
    if write not in BY_USER:  # a group for each image is slow to write
        records = sorted(records, key=lambda record: str(record["image_id"]))[:500]
    # The pixels of 400; the rest share one image, since decoding all takes long.
    shared = asarray(RAW / "small_images" / f"{records[0]['image_id']}.jpg")
    pixels = {record["image_id"]: shared for record in records}
    pixels.update(pixels_of(RAW, records[:400]))
    found = open_file(write(tmp_path / "drawings.h5", records, pixels))
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "labels_and_metadata.json").write_text(json.dumps(records))
    (folder / "small_images").mkdir()
    for record in records:
        (folder / "small_images" / f"{record['image_id']}.jpg").touch()
    assert found.index.sha256() == scan_flair_folder(folder).images.index.sha256()
    for row, read in enumerate(found.read(range(len(records)))):
        assert np.array_equal(read, pixels[found.index.image_ids[row]])


def test_ids_of_every_kind_come_back_letter_by_letter(tmp_path: Path) -> None:
    users = [
        "z",
        "z/0",
        "0/images",
        "0123",
        "123",
        "12345678@N00",
        "a.b",
        "..",
        "Zoë 🎈",
        "images",
    ]
    for write in EVERY_FORM:
        entries = [entry(user, f"{k:03d}.{user}/x") for k, user in enumerate(users)]
        found = open_file(write(tmp_path / "ids.h5", entries, noise(entries)))
        order = sorted(range(len(users)), key=users.__getitem__)
        assert ids_of(found) == (
            [users[k] for k in order],
            [entries[k]["image_id"] for k in order],
        )


@pytest.mark.parametrize("write", BY_USER)
def test_users_with_one_and_with_4151_images(tmp_path: Path, write: WriteFlair) -> None:
    entries = [entry("large", f"{k:05d}", labels=["a"] * (k % 2)) for k in range(4151)]
    entries.insert(7, entry("small", "one"))
    pixels = noise(entries, (2, 3, 3))
    found = open_file(write(tmp_path / "large.h5", entries, pixels))
    assert found.index.user_offsets.tolist() == [0, 4151, 4152]
    assert found.index.labels["coarse"].dense(np.arange(4152)).sum() == 2075
    for row, read in zip((4150, 4151, 0), found.read([4150, 4151, 0]), strict=True):
        assert np.array_equal(read, pixels[found.index.image_ids[row]])


@pytest.mark.parametrize("write", EVERY_FORM)
def test_gray_images_become_rgb(tmp_path: Path, write: WriteFlair) -> None:
    entries = [entry("gray", "1"), entry("gray", "2"), entry("colour", "3")]
    pixels = {**noise(entries), **noise(entries[:2], (6, 3))}
    found = open_file(write(tmp_path / "gray.h5", entries, pixels))
    for row, read in enumerate(found.read(range(3))):
        image = Image.fromarray(pixels[found.index.image_ids[row]])
        assert np.array_equal(read, np.asarray(image.convert("RGB")))


def test_compressed_chunks_are_read(tmp_path: Path) -> None:
    entries = [entry("ann", str(k)) for k in range(9)]
    pixels = noise(entries)
    path = write_grouped(tmp_path / "gzip.h5", entries, pixels)
    with h5py.File(path, "r+") as file:
        stack = file["train/ann/images"][...]
        del file["train/ann/images"]
        file.create_dataset("train/ann/images", data=stack, chunks=(4, 6, 8, 3), compression="gzip")
    found = open_file(path)
    assert all(
        np.array_equal(read, pixels[str(row)])
        for row, read in zip((8, 2, 3), found.read([8, 2, 3]), strict=True)
    )


def test_only_the_images_that_are_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry("ann", str(k)) for k in range(9)]
    found = open_file(write_grouped(tmp_path / "nine.h5", entries, noise(entries)))
    whole, shapes = h5py.Dataset.__getitem__, []

    def spy(dataset: h5py.Dataset, place: Any) -> Any:
        value = whole(dataset, place)
        shapes.append(value.shape)
        return value

    monkeypatch.setattr(h5py.Dataset, "__getitem__", spy)
    list(found.read([3, 4]))
    assert shapes == [(6, 8, 3)] * 2


def test_a_pickled_copy_reads_and_a_changed_file_is_refused(tmp_path: Path) -> None:
    entries = [entry("ann", "1")]
    pixels = noise(entries)
    path = write_grouped(tmp_path / "one.h5", entries, pixels)
    found: PixelImages = pickle.loads(pickle.dumps(open_file(path)))
    assert np.array_equal(next(found.read([0])), pixels["1"])
    assert (found.place, found.about.name, found.content_sha256) == (str(path), "one", None)
    write_grouped(path, [*entries, entry("ann", "2")], {**pixels, "2": pixels["1"]})
    with pytest.raises(DataError, match="found one changed since then"):
        next(found.read([0]))


def test_dev_and_val_are_one_split_and_repeated_labels_count_once(tmp_path: Path) -> None:
    entries = [entry("ann", "1", "val", labels=["b", "a", "b"]), entry("bob", "2", "dev")]
    path = write_grouped(tmp_path / "split.h5", entries, noise(entries))
    with h5py.File(path, "r+") as file:
        file.copy("val/ann", "dev/ann")
        file["dev/ann/image_ids"][...] = np.array([b"3"])
        file["metadata/label_counter"][()] = json.dumps({"a": 2, "b": 4})
    scan = scan_flair_hdf5(path)
    scan.faults.check()
    assert scan.repeated_labels == 2
    assert ids_of(scan.images) == (["ann", "bob"], ["3", "1", "2"])  # type: ignore[arg-type]
    assert scan.images.index.labels["coarse"].names == ("a", "b")
    assert scan.images.index.users_of("val") == (0, 2)


# What is done to the file of ``sound`` below, and what is said of it.
Change = Callable[[h5py.File], Any]


def put(where: str, value: Any) -> Change:
    def change(file: h5py.File) -> None:
        if where in file:
            del file[where]
        file[where] = value

    return change


def external(file: h5py.File) -> None:
    del file["train/ann/labels"]
    storage = [("other.bin", 0, 4)]
    file.create_dataset("train/ann/labels", shape=(2,), dtype="S2", external=storage)


def virtual(file: h5py.File) -> None:
    shape = file["train/ann/images"].shape
    del file["train/ann/images"]
    layout = h5py.VirtualLayout(shape, dtype="u1")
    layout[...] = h5py.VirtualSource("other.h5", "x", shape)
    file.create_virtual_dataset("train/ann/images", layout)


def loop(file: h5py.File) -> None:
    file["train/ann/again"] = file["train"]


def bad_name(file: h5py.File) -> None:
    file["train"].move("ann", b"ann\xff")


PIXELS = "expected uint8 pixels of shape (images, height, width, 3), or (images, height, width)"
DAMAGE: dict[str, tuple[Change, list[str]]] = {
    "no labels": (
        lambda file: file.pop("train/ann/labels"),
        ["/train/ann/labels: expected an array, found none"],
    ),
    "no images": (
        lambda file: file.pop("train/ann/images"),
        ["/train/ann/images: expected an array, found none"],
    ),
    "16 bits": (
        put("train/ann/images", np.zeros((2, 6, 8, 3), np.uint16)),
        [f"/train/ann/images: {PIXELS} if gray, found uint16 of shape (2, 6, 8, 3)"],
    ),
    "four channels": (
        put("train/ann/images", np.zeros((2, 6, 8, 4), np.uint8)),
        ["since RGBA and CMYK can't be told apart", "found uint8 of shape (2, 6, 8, 4)"],
    ),
    "rank": (
        put("train/ann/images", np.zeros((2, 6), np.uint8)),
        [f"{PIXELS} if gray, found uint8 of shape (2, 6)"],
    ),
    "null": (
        put("train/ann/images", h5py.Empty("u1")),
        [f"{PIXELS} if gray, found uint8 of shape None"],
    ),
    "huge": (
        lambda file: [
            file.pop("train/ann/images"),
            file.create_dataset(
                "train/ann/images", (2, 10**5, 10**5, 3), "u1", chunks=(1, 9, 9, 3)
            ),
        ],
        ["/train/ann/images: expected images of at most 89478485 pixels"],
    ),
    "no image": (
        put("train/ann/images", np.zeros((0, 6, 8, 3), np.uint8)),
        ["/train/ann/images: expected at least one image, of at least one pixel"],
    ),
    "lengths": (
        put("train/ann/labels", np.array([b"a"])),
        [
            "/train/ann: expected images, image_ids, labels and fine_grained_labels of equal "
            "length, found the lengths 2, 2, 1, 2",
        ],
    ),
    "numbers for text": (
        put("train/ann/image_ids", np.arange(2)),
        ["/train/ann/image_ids: expected text in one dimension, found int64 of shape (2,)"],
    ),
    "not UTF-8": (
        put("train/ann/image_ids", np.array([b"1", b"\xff"])),
        ["/train/ann/image_ids: expected text in UTF-8, found the bytes b'\\xff'"],
    ),
    "an empty id": (
        put("train/ann/image_ids", np.array([b"1", b""])),
        ["/train/ann: image 1: image_id must be text of at least one letter"],
    ),
    "an empty label": (
        put("train/ann/labels", np.array([b"a||b", b""])),
        ["/train/ann: image 0: every name in labels must be text of at least one letter"],
    ),
    "an id twice in a user": (
        put("train/ann/image_ids", np.array([b"1", b"1"])),
        ["/train/ann: image 1: image_id '1' must be unique, found in /train/ann: image 0 too"],
    ),
    "an id of two users": (
        put("train/ann/image_ids", np.array([b"1", b"3"])),
        ["image_id '3' must be unique"],
    ),
    "two splits": (
        lambda file: [
            file.copy("train/ann", "test/ann"),
            put("test/ann/image_ids", np.array([b"8", b"9"]))(file),
        ],
        ["user 'ann' must be in one split, found in test and train"],
    ),
    "an empty group": (
        lambda file: file.create_group("val/cem/0"),
        ["/val/cem/0: expected arrays, found an empty group"],
    ),
    "an id of a dot": (
        put("val/images", np.zeros((1, 2, 2, 3), np.uint8)),
        ["/val/images: expected a group for every id, found an array"],
    ),
    "another partition": (
        lambda file: file.move("train", "training"),
        ["/training: expected the groups train, val (or dev), test and metadata"],
    ),
    "a lone array": (put("extra", np.zeros(3)), ["/extra: expected", "found another thing"]),
    "soft link": (
        put("train/cem", h5py.SoftLink("/train/ann")),
        ["/train/cem: expected a group or an array of its own, found a link to another place"],
    ),
    "external link": (
        put("train/cem", h5py.ExternalLink("other.h5", "/x")),
        ["/train/cem: expected a group or an array of its own, found a link to another place"],
    ),
    "external data": (
        external,
        ["/train/ann/labels: expected an array in this file, found one whose data lies in another"],
    ),
    "virtual data": (
        virtual,
        ["/train/ann/images: expected an array in this file, found one whose data lies in another"],
    ),
    "a type": (put("train/ann/kind", np.dtype("f4")), ["/train/ann/kind", "found a type"]),
    "a loop": (loop, ["/train/ann/again: expected", "found a group that has another name too"]),
    "a name not in UTF-8": (bad_name, ["/train/ann\\xff: expected", "found the name b'ann\\xff'"]),
    "a label more often than counted": (
        put("metadata/label_counter", json.dumps({"a": 1})),
        ["/metadata/label_counter: expected a count of at least 2 for 'a'", "found 1"],
    ),
    "a label not counted": (
        put("metadata/fine_grained_label_counter", json.dumps({"x": 5})),
        ["/metadata/fine_grained_label_counter: expected a count of at least 1 for 'y'", "none"],
    ),
    "counts that are no JSON": (
        put("metadata/label_counter", "{"),
        ["/metadata/label_counter: expected a JSON object", "can't be parsed"],
    ),
    "counts that are no numbers": (
        put("metadata/label_counter", json.dumps({"a": "2"})),
        ['/metadata/label_counter: expected a JSON object of names and whole numbers, found {"a"'],
    ),
    "counts that are no text": (
        put("metadata/label_counter", 3),
        ["/metadata/label_counter: expected a single text, found int64 of shape ()"],
    ),
}


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    entries = [
        entry("ann", "1", labels=["a"], fine_grained_labels=["x", "y"]),
        entry("ann", "2", labels=["a"]),
        entry("bob", "3", "test"),
    ]
    return write_grouped(tmp_path / "sound.h5", entries, noise(entries))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_in_one_sentence(sound: Path, damage: str) -> None:
    open_file(sound)
    change, said = DAMAGE[damage]
    with h5py.File(sound, "r+") as file:
        change(file)
    message = refused(sound)
    assert message.startswith(f"{sound}: expected no faults, found 1; mend it")
    for part in said:
        assert part in message


def test_all_faults_are_told_at_once(sound: Path) -> None:
    with h5py.File(sound, "r+") as file:
        for name in ("no labels", "16 bits", "an empty group", "soft link", "a lone array"):
            DAMAGE[name][0](file)
    assert "expected no faults, found 5; mend them" in refused(sound)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("image", np.zeros((6, 8, 4), np.uint8), "uint8 pixels of shape (height, width, 3)"),
        ("image", np.zeros((1, 6, 8, 3), np.uint8), "or (height, width) if gray"),
        ("labels", np.array([b"a"]), "expected a single text, found |S1 of shape (1,)"),
        ("user_id", "", "user_id must be text of at least one letter"),
        ("user_id", "bob", "user 'bob' must be in one split"),
    ],
)
def test_faults_of_single_images(tmp_path: Path, where: str, value: Any, said: str) -> None:
    entries = [entry("ann", "1", "train"), entry("bob", "2", "test")]
    path = write_ungrouped(tmp_path / "single.h5", entries, noise(entries))
    with h5py.File(path, "r+") as file:
        put(f"train/1/{where}", value)(file)
    message = refused(path)
    assert "found 1; mend it" in message
    assert said in message


def test_a_group_without_its_single_image_has_one_fault(tmp_path: Path) -> None:
    entries = [entry("ann", "1"), entry("bob", "2", "test")]
    path = write_ungrouped(tmp_path / "none.h5", entries, noise(entries))
    with h5py.File(path, "r+") as file:
        del file["train/1/image"]
    assert "found 1; mend it in the source:\n  /train/1/image: expected an array" in refused(path)


@pytest.mark.parametrize("write", EVERY_FORM)
def test_some_users_with_the_counts_of_all_are_read(tmp_path: Path, write: WriteFlair) -> None:
    entries = [entry("ann", "1", labels=["a"]), entry("bob", "2", labels=["a", "b"])]
    path = write(tmp_path / "some.h5", entries, noise(entries))
    with h5py.File(path, "r+") as file:
        del file["train/bob" if write in BY_USER else "train/2"]
    assert ids_of(open_file(path)) == (["ann"], ["1"])


@pytest.mark.parametrize("write", [write_grouped, write_ungrouped])
def test_counts_may_be_absent(tmp_path: Path, write: WriteFlair) -> None:
    entries = [entry("ann", "1", labels=["a"])]
    path = write(tmp_path / "plain.h5", entries, noise(entries))
    with h5py.File(path, "r+") as file:
        del file["metadata"]
    assert open_file(path).index.labels["coarse"].names == ("a",)


def test_cut_empty_and_foreign_files_are_refused(sound: Path) -> None:
    whole = sound.read_bytes()
    for data in (whole[: len(whole) // 2], whole[:-1], b"", b"\x89HDF\r\n\x1a\n" + bytes(99)):
        sound.write_bytes(data)
        assert f"{sound}: expected a whole HDF5 file" in refused(sound)
    with h5py.File(sound, "w") as file:
        file["weights/layer1"] = np.zeros(3)
    assert "expected the attribute format" in refused(sound)
    with h5py.File(sound, "w") as file:
        file.create_group("train")
    assert "expected images of users in /train" in refused(sound)
    with h5py.File(sound, "r+") as file:
        file.attrs["format"] = "other"
    assert "expected the attribute format=\"fedsim\", found 'other'" in refused(sound)


def test_damaged_pixels_are_named(tmp_path: Path) -> None:
    entries = [entry("ann", "1"), entry("ann", "2")]
    path = write_grouped(tmp_path / "broken.h5", entries, noise(entries))
    with h5py.File(path, "r+") as file:
        stack = file["train/ann/images"][...]
        del file["train/ann/images"]
        options = {"chunks": (1, 6, 8, 3), "fletcher32": True}
        chunked = file.create_dataset("train/ann/images", data=stack, **options)
        start = chunked.id.get_chunk_info(1).byte_offset
    data = bytearray(path.read_bytes())
    data[start] ^= 1
    path.write_bytes(data)
    found = open_file(path)
    assert np.array_equal(next(found.read([0])), stack[0])
    with pytest.raises(DataError, match="image '2': expected pixels, found data that can't be"):
        next(found.read([1]))
