import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
from raw_folders import Entry

from fedsim.data import convert as module
from fedsim.data.convert import convert
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.index import About
from fedsim.errors import DataError

MakeFolder = Callable[..., Path]


def test_images_are_kept_byte_for_byte_and_counted(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    folder = make_folder(entries)
    entries[0]["labels"].append("plant")
    (folder / "small_images" / "stray.jpg").write_bytes(b"?")
    steps: list[tuple[int, int]] = []
    summary = convert(
        folder,
        tmp_path / "out.HDF5",
        progress=lambda done, total: steps.append((done, total)),
        about=About("six", "a test", "public domain"),
    )
    files = {
        entry["image_id"]: (folder / "small_images" / f"{entry['image_id']}.jpg").read_bytes()
        for entry in entries
    }
    written = open_hdf5(tmp_path / "out.HDF5")
    ids = written.index.image_ids.cut(0, 6)
    assert dict(zip(ids, written.read(range(6)), strict=True)) == files
    assert ids == ("12", "10", "09", "14", "13", "11")
    assert written.about == About("six", "a test", "public domain")
    assert steps == [(k, 18) for k in range(1, 19)]
    assert summary.path == str(tmp_path / "out.HDF5")
    assert summary.num_users == {"train": 2, "val": 1, "test": 1}
    assert summary.num_images == {"train": 4, "val": 1, "test": 1}
    assert summary.num_labels == {"coarse": 3, "fine": 4}
    assert summary.num_bytes == sum(map(len, files.values()))
    assert summary.unused_files == 1
    # The hash as it is defined: the index's hash, then each image's, by row.
    digest = hashlib.sha256(written.index.sha256().encode())
    for image_id in ids:
        digest.update(hashlib.sha256(files[image_id]).digest())
    assert summary.content_sha256 == written.content_sha256 == digest.hexdigest()


def test_the_same_folder_gives_the_same_bytes(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    folder = make_folder(entries)
    convert(folder, tmp_path / "a.h5")
    time.sleep(1.1)  # HDF5 would store the second in which a group was made
    convert(folder, tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    assert open_hdf5(tmp_path / "a.h5").about == About("raw", "not stated", "not stated")


def test_every_fault_is_reported_before_anything_is_written(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    folder = make_folder(entries)
    images = folder / "small_images"
    (images / "10.jpg").write_bytes((images / "10.jpg").read_bytes()[:-40])
    (images / "11.jpg").write_bytes(b"")
    (images / "13.jpg").unlink()
    with pytest.raises(DataError) as caught:
        convert(folder, tmp_path / "out.h5")
    head, *shown = str(caught.value).split("\n")
    assert "found 3; mend them" in head
    assert "record 4: expected the image 13.jpg, found no such file" in shown[0]
    assert "image '10': expected a whole JPEG" in shown[1]
    assert "image '11': expected a whole JPEG" in shown[2]
    assert [found.name for found in tmp_path.iterdir()] == ["raw"]


class StopError(Exception):
    pass


@pytest.mark.parametrize("step", [1, 7, 12, 13, 18])
def test_an_interruption_leaves_the_old_file_as_it_was(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path, step: int
) -> None:
    folder, destination = make_folder(entries), tmp_path / "out.h5"
    destination.write_bytes(b"old")

    def stop(done: int, total: int) -> None:
        if done == step:
            raise StopError

    with pytest.raises(StopError):
        convert(folder, destination, progress=stop)
    assert destination.read_bytes() == b"old"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["out.h5", "raw"]
    convert(folder, destination)
    assert len(open_hdf5(destination).index) == 6
    assert sorted(found.name for found in tmp_path.iterdir()) == ["out.h5", "raw"]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_source_that_changes_meanwhile_is_refused(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path, same_size: bool
) -> None:
    folder = make_folder(entries)
    image = folder / "small_images" / "13.jpg"
    data = image.read_bytes()

    def change(done: int, total: int) -> None:
        if done == 6:  # all were decoded, none was written
            image.write_bytes(data[:-1] + b"x" if same_size else data + b"x")

    message = "expected 6 images with content" if same_size else "bytes as before, found"
    with pytest.raises(DataError, match=message):
        convert(folder, tmp_path / "out.h5", progress=change)
    assert [found.name for found in tmp_path.iterdir()] == ["raw"]


def test_a_file_that_does_not_hold_the_source_is_refused(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = module.write_hdf5

    def write_and_damage(path: Path, *args: object) -> None:
        real(path, *args)  # type: ignore[arg-type]
        with h5py.File(path, "r+") as file:
            file["images/bytes"][100] ^= 1

    monkeypatch.setattr(module, "write_hdf5", write_and_damage)
    with pytest.raises(DataError, match="expected 6 images with content"):
        convert(make_folder(entries), tmp_path / "out.h5")
    assert [found.name for found in tmp_path.iterdir()] == ["raw"]


def test_a_destination_that_can_t_be_is_refused(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    folder = make_folder(entries)
    (tmp_path / "folder.h5").mkdir()
    for name, message in (
        ("out.zip", "ends in .h5 or .hdf5, found '.zip'"),
        ("out", "ends in .h5 or .hdf5, found 'none'"),
        ("folder.h5", "found a folder of that name"),
        ("missing/out.h5", "found no folder to put it in"),
    ):
        with pytest.raises(DataError, match=message):
            convert(folder, tmp_path / name)


# Without a check beforehand HDF5 ends the process, where even its index finds no room.
@pytest.mark.parametrize("room", [0, 1, 5_000, 70_000])
def test_a_full_disk_is_an_error_and_leaves_nothing(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path, room: int
) -> None:
    resource = pytest.importorskip("resource")
    folder = make_folder(entries)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(DataError, match=r"expected to write .*; free space"):
            convert(folder, tmp_path / "out.h5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [found.name for found in tmp_path.iterdir()] == ["raw"]
