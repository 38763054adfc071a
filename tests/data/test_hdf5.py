"""The files read here are written by plain h5py calls, and those written here are read by them."""

import hashlib
import multiprocessing
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_folders import encode

from fedsim.data.dataset import FederatedDataset
from fedsim.data.decode import decode_image
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.hdf5_writer import write_hdf5
from fedsim.data.image_dataset import ImageDataset
from fedsim.data.index import About, ImageIndex, ImageRecord
from fedsim.data.sources import open_dataset
from fedsim.errors import ConfigError, DataError

# Four users: train has "0123" (1 image) and "b" (3 images), val has "é", test has "a".
IMAGES = [encode(seed, (6 + seed, 9), "PNG") for seed in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.h5"
    ends = np.cumsum([0, *map(len, IMAGES)])
    with h5py.File(path, "w") as file:
        file.attrs.update(format="fedsim", version=1, name="tiny", origin="here", licence="free")
        file.attrs["content_sha256"] = "f" * 64
        file["user_ids/bytes"] = np.frombuffer("0123béa".encode(), dtype=np.uint8)
        file["user_ids/offsets"] = np.array([0, 4, 5, 7, 8])
        file["user_splits"] = np.array([0, 0, 1, 2], dtype=np.uint8)
        file["user_offsets"] = np.array([0, 1, 4, 5, 6])
        file["image_ids/bytes"] = np.frombuffer(b"i0i1i2i3i4i5", dtype=np.uint8)
        file["image_ids/offsets"] = np.arange(0, 13, 2)
        file["images/bytes"] = np.frombuffer(b"".join(IMAGES), dtype=np.uint8)
        file["images/offsets"] = ends
        file["labels/coarse/names/bytes"] = np.frombuffer(b"catdogowl", dtype=np.uint8)
        file["labels/coarse/names/offsets"] = np.array([0, 3, 6, 9])
        file["labels/coarse/indptr"] = np.array([0, 1, 1, 3, 4, 5, 6])
        file["labels/coarse/indices"] = np.array([0, 0, 2, 1, 2, 2], dtype=np.uint16)
        file["labels/fine/names/bytes"] = np.frombuffer(b"", dtype=np.uint8)
        file["labels/fine/names/offsets"] = np.array([0])
        file["labels/fine/indptr"] = np.zeros(7, dtype=np.int64)
        file["labels/fine/indices"] = np.zeros(0, dtype=np.uint16)
    return path


def open_tiny(path: Path, **options: Any) -> ImageDataset:
    return open_dataset(str(path), **{"labels": "coarse", "image_size": 6, **options})


def test_a_file_made_elsewhere_is_read(path: Path) -> None:
    dataset: FederatedDataset = open_tiny(path)
    assert dataset.label_names == ("cat", "dog", "owl")
    tables = [dataset.users(split) for split in ("train", "val", "test")]
    assert [table.ids for table in tables] == [("0123", "b"), ("é",), ("a",)]
    assert [table.num_images.tolist() for table in tables] == [[1, 3], [1], [1]]
    assert tables[0].num_images.dtype == np.int64
    expected = [[1, 0, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]]
    labels = dataset.labels("train", np.array([1, 3, 0, 2]))
    assert labels.dtype == np.bool_
    assert labels.astype(int).tolist() == [expected[number] for number in (1, 3, 0, 2)]
    examples = dataset.load("train", np.array([3, 0, 3]))
    assert examples.labels.tolist() == [expected[3], expected[0], expected[3]]
    for image, row in zip(examples.images, (3, 0, 3), strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), decode_image(IMAGES[row], 6))
    assert np.array_equal(
        dataset.load("test", np.array([0])).images[0].permute(1, 2, 0), decode_image(IMAGES[5], 6)
    )


def test_a_label_set_without_names_has_no_columns(path: Path) -> None:
    dataset = open_tiny(path, labels="fine")
    assert dataset.label_names == ()
    assert dataset.labels("train", np.arange(4)).shape == (4, 0)
    assert dataset.load("val", np.array([0])).labels.shape == (1, 0)


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_images_are_channels_last_copies(path: Path, cache_mb: int) -> None:
    dataset = open_tiny(path, cache_mb=cache_mb)
    for indices in ([0, 1, 2, 3], [2, 0], [1], []):
        images = dataset.load("train", np.array(indices, dtype=np.int64)).images
        assert images.dtype == torch.uint8
        assert images.shape == (len(indices), 3, 6, 6)
        assert images.permute(0, 2, 3, 1).is_contiguous()
        if indices:  # torch calls no empty tensor channels-last
            assert images.is_contiguous(memory_format=torch.channels_last)
        before = images.clone()
        images.zero_()
        assert torch.equal(dataset.load("train", np.array(indices, dtype=np.int64)).images, before)


def test_the_cache_holds_the_first_images_that_fit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def counting(data: bytes, size: int, *, name: str) -> np.ndarray:
        decoded.append(name.rsplit(" ", 1)[1])
        return decode_image(data, size, name=name)

    monkeypatch.setattr("fedsim.data.image_dataset.decode_image", counting)
    side = 341  # 3 * 341**2 * 3 bytes are just under 1 MiB, and 3 * 342**2 * 3 just over
    dataset = open_tiny(path, cache_mb=1, image_size=side)
    for _ in range(2):
        dataset.load("train", np.array([2, 1, 2]))
    assert decoded == ["'i1'", "'i2'"]
    dataset.load("val", np.array([0]))  # one budget for all splits
    dataset.load("train", np.arange(4))
    assert decoded[2:] == ["'i4'", "'i0'", "'i3'"]
    dataset.load("train", np.arange(4))
    dataset.load("val", np.array([0]))
    assert decoded[5:] == ["'i0'", "'i3'"]
    decoded.clear()
    larger = open_tiny(path, cache_mb=1, image_size=side + 1)
    for _ in range(2):
        larger.load("train", np.array([1, 2]))
        larger.load("val", np.array([0]))
    assert decoded == ["'i1'", "'i2'", "'i4'", "'i4'"]


def test_max_images_per_user_keeps_the_first_train_images(path: Path) -> None:
    capped = open_tiny(path, max_images_per_user=2)
    assert capped.users("train").num_images.tolist() == [1, 2]
    assert capped.left_out() == ("i3",)
    three = np.arange(3)
    assert np.array_equal(capped.labels("train", three), open_tiny(path).labels("train", three))
    assert len(capped.load("train", np.arange(3))) == 3
    for read in (capped.load, capped.labels):
        with pytest.raises(IndexError, match="0 to 2"):
            read("train", np.array([3]))
    one = open_tiny(path, max_images_per_user=1, cache_mb=0)
    assert one.left_out() == ("i2", "i3")
    assert torch.equal(
        one.load("train", np.array([1])).images, open_tiny(path).load("train", np.array([1])).images
    )
    assert one.users("val").num_images.tolist() == [1]
    assert open_tiny(path).left_out() == ()


def test_numbers_outside_the_split_are_refused(path: Path) -> None:
    for wrong in ([4], [-1], [0, 9]):
        with pytest.raises(IndexError, match="train has examples 0 to 3"):
            open_tiny(path).load("train", np.array(wrong))


def test_info_is_what_a_record_needs(path: Path) -> None:
    info = open_tiny(path, max_images_per_user=1).info()
    assert (info.name, info.path, info.content_sha256) == ("tiny", str(path), "f" * 64)
    assert info.num_users == {"train": 2, "val": 1, "test": 1}
    assert info.num_images == {"train": 2, "val": 1, "test": 1}
    assert info.num_left_out == 2
    assert info.index_sha256 == open_tiny(path, labels="fine").info().index_sha256


def digest(dataset: FederatedDataset) -> str:
    examples = dataset.load("train", np.arange(4))
    return hashlib.sha256(examples.images.permute(0, 2, 3, 1).numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("opened_before", [False, True])
def test_a_pickled_copy_is_small_and_opens_for_itself(path: Path, opened_before: bool) -> None:
    dataset = open_tiny(path)
    if opened_before:
        digest(dataset)
    data = pickle.dumps(dataset)
    assert len(data) < 600
    assert digest(pickle.loads(data)) == digest(dataset)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("method", "cache_mb"),
    [("fork", 0), ("fork", 1), pytest.param("forkserver", 1, marks=pytest.mark.slow)],
)
def test_other_processes_read_the_same_bits(path: Path, method: str, cache_mb: int) -> None:
    dataset = open_tiny(path, cache_mb=cache_mb)
    dataset.load("train", np.array([2]))  # opened, and partly decoded, before the fork
    with multiprocessing.get_context(method).Pool(1) as pool:
        found = pool.apply(digest, (dataset,))
    assert found == digest(dataset)


def test_no_handle_stays_open(path: Path) -> None:
    def open_files() -> int:
        return sum(1 for link in Path("/proc/self/fd").iterdir() if link.resolve() == path)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    dataset = open_tiny(path, cache_mb=0)
    digest(dataset)
    assert open_files() == 0


def test_a_relative_path_is_kept_when_the_working_folder_changes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    dataset = open_dataset(str(path.name), labels="coarse", image_size=6)
    monkeypatch.chdir("/")
    assert digest(dataset) == digest(open_tiny(path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "medium"}, 'labels: expected "coarse" or "fine", found \'medium\''),
        ({"image_size": 0}, "image_size: expected a whole number of at least 1, found 0"),
        ({"image_size": 6.0}, "image_size: .* found 6.0"),
        ({"max_images_per_user": 0}, "max_images_per_user: .* at least 1, found 0"),
        ({"cache_mb": -1}, "cache_mb: .* at least 0, found -1"),
        ({"cache_mb": True}, "cache_mb: .* found True"),
    ],
)
def test_arguments_out_of_range_are_refused(
    path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_tiny(path, **options)


def test_an_unknown_split_is_refused(path: Path) -> None:
    with pytest.raises(DataError, match='"train", "val" or "test", found \'dev\''):
        open_tiny(path).users("dev")


def replace(where: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[where]
        if value is not None:
            file[where] = value

    return change


def set_attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value

    return change


def compress(file: h5py.File) -> None:
    data = file["images/bytes"][...]
    del file["images/bytes"]
    file.create_dataset("images/bytes", data=data, compression="gzip")


def letters(text: str | bytes) -> np.ndarray:
    return np.frombuffer(text if isinstance(text, bytes) else text.encode(), dtype=np.uint8)


DAMAGE = {
    "no format": (set_attribute("format", None), 'attribute format="fedsim", found None'),
    "other format": (set_attribute("format", "pfl"), "found 'pfl'"),
    "newer": (set_attribute("version", 2), "format version 1, found .*2"),
    "no version": (set_attribute("version", None), "format version 1, found None"),
    "no licence": (set_attribute("licence", None), "attribute licence: expected text, found none"),
    "name no text": (set_attribute("name", 5), "attribute name: expected text, found .*5"),
    "no group": (replace("labels/fine", None), "labels/fine/names/bytes: .* found none"),
    "no array": (replace("user_splits", None), "user_splits: expected a one-dim.* found none"),
    "group": (replace("user_offsets", h5py.SoftLink("/images")), "found something else"),
    "floats": (replace("user_offsets", np.zeros(5)), "int64 array, found float64 of shape"),
    "matrix": (replace("user_splits", np.zeros((2, 2), np.uint8)), r"shape \(2, 2\)"),
    "offsets fall": (replace("images/offsets", np.array([0, 9, 3, 9, 9, 9, 9])), "rise from 0"),
    "offsets start late": (replace("user_offsets", np.array([1, 1, 4, 5, 6])), "rise from 0 to 6"),
    "offsets end early": (replace("user_offsets", np.array([0, 1, 4, 5, 5])), "rise from 0 to 6"),
    "offsets too few": (replace("images/offsets", np.array([0, 3])), "7 entries, found 2"),
    "offsets none": (replace("image_ids/offsets", np.zeros(0, np.int64)), "rise from 0 to 12"),
    "blob shorter": (
        replace("images/bytes", letters("abc")),
        "images/offsets: .* rise from 0 to 3",
    ),
    "compressed": (compress, "one contiguous, uncompressed array"),
    "user without image": (
        replace("user_offsets", np.array([0, 1, 1, 5, 6])),
        "an image for every",
    ),
    "split unknown": (replace("user_splits", np.array([0, 0, 1, 3], np.uint8)), "0, 1 and 2"),
    "splits mixed": (replace("user_splits", np.array([0, 1, 0, 2], np.uint8)), "0, 1 and 2"),
    "splits too few": (replace("user_splits", np.zeros(3, np.uint8)), "4 entries, found 3"),
    "users unsorted": (replace("user_ids/bytes", letters("bbbb0éa")), "sorted within each split"),
    "user twice": (replace("user_ids/bytes", letters("0123béb")), "an id of two users"),
    "no UTF-8": (replace("user_ids/bytes", letters(b"0123b\xff\xffa")), "UTF-8 text"),
    "cut letter": (replace("user_ids/offsets", np.array([0, 4, 6, 7, 8])), "UTF-8 text"),
    "label number": (
        replace("labels/coarse/indices", np.array([0, 0, 3, 1, 2, 2], np.uint16)),
        "numbers below 3, found 3",
    ),
    "labels unsorted": (replace("labels/coarse/names/bytes", letters("dogcatowl")), "alphabetical"),
    "label twice": (replace("labels/coarse/names/bytes", letters("catcatowl")), "alphabetical"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_in_one_sentence(path: Path, damage: str) -> None:
    change, message = DAMAGE[damage]
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(DataError, match=message) as caught:
        open_tiny(path).users("train")
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_cut_file_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for length in (0, 1, 100, 1000, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(DataError, match="expected a whole HDF5 file") as caught:
            open_hdf5(path)
        assert "\n" not in str(caught.value)


def test_what_is_no_hdf5_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(DataError, match=r"text.h5: expected a whole HDF5 file"):
        open_hdf5(tmp_path / "text.h5")
    with pytest.raises(DataError, match=r"none.h5: expected an HDF5 file, found none"):
        open_hdf5(tmp_path / "none.h5")
    with pytest.raises(DataError, match="expected a whole HDF5 file"):
        open_hdf5(tmp_path)


def test_a_broken_image_is_named(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["images/bytes"][len(IMAGES[0]) : len(IMAGES[0]) + 20] = 0
    dataset = open_tiny(path)
    assert len(dataset.load("train", np.array([0, 2]))) == 2
    with pytest.raises(DataError, match=r"tiny.h5: image 'i1': expected a whole JPEG"):
        dataset.load("train", np.array([0, 1]))


def test_a_file_that_changes_under_a_reader_is_refused(path: Path) -> None:
    dataset = open_tiny(path, cache_mb=0)
    dataset.users("train")
    data = path.read_bytes()
    time.sleep(0.02)
    path.write_bytes(data)
    with pytest.raises(DataError, match="changed since then"):
        dataset.load("train", np.array([0]))
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        dataset.load("train", np.array([0]))


# A collection as a plain dictionary: user -> (split, images), image -> (bytes, coarse, fine).
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
COLLECTIONS = st.dictionaries(
    NAMES,
    st.tuples(
        st.sampled_from(["train", "val", "test"]),
        st.lists(
            st.tuples(
                st.binary(min_size=1, max_size=9), st.sets(NAMES, max_size=3), st.sets(NAMES)
            ),
            min_size=1,
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None)
@given(COLLECTIONS)
def test_everything_written_can_be_read_by_plain_h5py(
    tmp_path_factory: pytest.TempPathFactory, collection: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("round") / "trip.h5"
    records, bytes_of = [], {}
    for user, (split, images) in collection.items():
        for place, (data, coarse, fine) in enumerate(images):
            image_id = f"{user}#{place}"
            bytes_of[image_id] = data
            records.append(ImageRecord(user, image_id, split, (tuple(coarse), tuple(fine))))
    index = ImageIndex.of(records)
    images_in_order = [bytes_of[index.image_ids[row]] for row in range(len(index))]
    sizes = np.array([len(data) for data in images_in_order])
    about = About("n", "ö", "l")
    write_hdf5(path, index, iter(images_in_order), sizes, about, "hash")
    assert read_plainly(path) == collection
    opened = open_hdf5(path)
    assert (opened.about, opened.content_sha256) == (about, "hash")
    assert opened.index.sha256() == index.sha256()
    assert list(opened.read(range(len(index)))) == images_in_order


def read_plainly(path: Path) -> dict[str, Any]:
    """Read a whole file as ``docs/data.md`` describes it, one element at a time."""
    with h5py.File(path) as file:

        def strings(where: str) -> list[str]:
            blob, bounds = file[f"{where}/bytes"][...].tobytes(), file[f"{where}/offsets"][...]
            return [blob[bounds[i] : bounds[i + 1]].decode() for i in range(len(bounds) - 1)]

        def labels(label_set: str, row: int) -> set[str]:
            names = strings(f"labels/{label_set}/names")
            first, stop = file[f"labels/{label_set}/indptr"][row : row + 2]
            return {names[k] for k in file[f"labels/{label_set}/indices"][first:stop]}

        def image(row: int) -> tuple[bytes, set[str], set[str]]:
            first, stop = file["images/offsets"][row : row + 2]
            data = file["images/bytes"][first:stop].tobytes()
            return data, labels("coarse", row), labels("fine", row)

        bounds = file["user_offsets"][...]
        splits = [("train", "val", "test")[code] for code in file["user_splits"][...]]
        return {
            user: (splits[u], [image(row) for row in range(bounds[u], bounds[u + 1])])
            for u, user in enumerate(strings("user_ids"))
        }


def test_the_writer_refuses_a_size_that_was_not_announced(tmp_path: Path) -> None:
    index = ImageIndex.of([ImageRecord("u", "i", "train", ((), ()))])
    with pytest.raises(DataError, match="image 'i': expected 3 bytes as before, found 2"):
        write_hdf5(tmp_path / "a.h5", index, [b"ab"], np.array([3]), About(""), "")
    with pytest.raises(DataError, match=r"none: expected to write .*, found No such file"):
        write_hdf5(tmp_path / "none" / "a.h5", index, [b"ab"], np.array([2]), About(""), "")


def test_a_file_of_41131_users_has_no_more_parts_than_a_small_one(
    path: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    large = tmp_path / "large.h5"
    records = [
        ImageRecord(f"{u}@N00", f"{u}-{i}", "train", (("a",), ()))
        for u in range(41_131)
        for i in range(1 + (u % 1000 == 0))
    ]
    index = ImageIndex.of(records)
    sizes = np.ones(len(index), dtype=np.int64)
    write_hdf5(large, index, (b"x" for _ in sizes), sizes, About(""), "")

    def count_parts(file_path: Path) -> int:
        names: list[str] = []
        with h5py.File(file_path) as file:
            file.visit(names.append)
        return len(names)

    assert count_parts(large) == count_parts(path)
    start = time.perf_counter()
    users = open_dataset(str(large), labels="coarse", image_size=64).users("train")
    record_property("milliseconds to open", 1000 * (time.perf_counter() - start))
    assert len(users) == 41_131
    assert users.num_images.sum() == 41_131 + 42
    assert list(users.ids) == sorted(f"{u}@N00" for u in range(41_131))
