import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from raw_folders import Entry, encode

from fedsim.data import conversion_blocks
from fedsim.data import convert as module
from fedsim.data.convert import convert
from fedsim.data.faults import Faults
from fedsim.data.hdf5 import Hdf5Images, open_hdf5
from fedsim.data.index import About
from fedsim.data.parquet_images import ParquetImages
from fedsim.data.scan import Scan
from fedsim.data.sources import OPENCLIPART
from fedsim.errors import ConfigError, DataError

MakeFolder = Callable[..., Path]


def test_images_are_kept_byte_for_byte_and_counted(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = make_folder(entries)
    entries[0]["labels"].append("plant")
    (folder / "small_images" / "stray.jpg").write_bytes(b"?")
    monkeypatch.setattr(conversion_blocks, "BLOCK", 4)
    steps: list[tuple[str, int, int]] = []
    summary = convert(
        folder,
        tmp_path / "out.HDF5",
        progress=lambda *step: steps.append(step),
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
    assert steps == [
        *(("reading", done, 6) for done in (0, 4, 6)),
        ("writing", 6, 6),
        ("checking", 6, 6),
    ]
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


def names(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir())


@pytest.mark.parametrize("step", [("reading", 0), ("reading", 4), ("writing", 6), ("checking", 6)])
def test_an_interruption_leaves_the_old_file_as_it_was(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: tuple[str, int],
) -> None:
    monkeypatch.setattr(conversion_blocks, "BLOCK", 2)
    folder, destination = make_folder(entries), tmp_path / "out.h5"
    destination.write_bytes(b"old")

    def stop(stage: str, done: int, total: int) -> None:
        if (stage, done) == step:
            raise StopError

    with pytest.raises(StopError):
        convert(folder, destination, progress=stop)
    assert destination.read_bytes() == b"old"
    assert names(tmp_path) == [".out.h5.part", "out.h5", "raw"]
    assert convert(folder, destination).num_resumed == (step[1] if step[0] == "reading" else 6)
    assert len(open_hdf5(destination).index) == 6
    assert names(tmp_path) == ["out.h5", "raw"]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_source_that_changes_meanwhile_is_refused(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path, same_size: bool
) -> None:
    folder = make_folder(entries)
    image = folder / "small_images" / "13.jpg"
    data = image.read_bytes()

    def change(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("reading", 6):  # all were read, nothing was written
            image.write_bytes(data[:-1] + b"x" if same_size else data + b"x")

    with pytest.raises(DataError, match="raw: expected the files that were there when"):
        convert(folder, tmp_path / "out.h5", progress=change)
    assert names(tmp_path) == ["raw"]


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
@pytest.mark.parametrize("room", [0, 1, 3_000, 5_000, 70_000])
def test_a_full_disk_is_an_error_and_keeps_what_is_done(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(conversion_blocks, "BLOCK", 4)
    folder = make_folder(entries)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(DataError, match=r"expected to write .*; free space"):
            convert(folder, tmp_path / "out.h5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == [".out.h5.part", "raw"]
    assert not list(tmp_path.rglob("*.tmp"))
    summary = convert(folder, tmp_path / "out.h5")
    assert summary.num_resumed == (6 if room > 4_000 else 0)
    assert names(tmp_path) == ["out.h5", "raw"]
    convert(folder, tmp_path / "undisturbed.h5")
    assert (tmp_path / "out.h5").read_bytes() == (tmp_path / "undisturbed.h5").read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from fedsim.data import conversion_blocks
from fedsim.data.convert import convert

def kill(stage, done, total):
    if (stage, done) == (sys.argv[3], int(sys.argv[4])):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    conversion_blocks.BLOCK = 2
    convert(Path(sys.argv[1]), sys.argv[2], workers=int(sys.argv[5]), progress=kill)
"""


@pytest.mark.parametrize(
    ("stage", "done", "workers"),
    [("reading", 4, 1), ("reading", 4, 2), ("writing", 24, 1), ("checking", 24, 1)],
)
def test_a_killed_conversion_goes_on_where_it_was(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    done: int,
    workers: int,
) -> None:
    monkeypatch.setattr(conversion_blocks, "BLOCK", 2)
    more = [{**entry, "image_id": f"{k}{entry['image_id']}"} for k in range(4) for entry in entries]
    folder = make_folder(more)
    convert(folder, tmp_path / "undisturbed.h5")
    script, destination = tmp_path / "killed.py", tmp_path / "out.h5"
    script.write_text(KILLED)
    arguments = [str(folder), str(destination), stage, str(done), str(workers)]
    process = subprocess.Popen([sys.executable, str(script), *arguments], start_new_session=True)
    assert process.wait() == -signal.SIGKILL
    wait_for_group(process.pid)
    finished = len(list((tmp_path / ".out.h5.part").glob("*.block")))
    assert done // 2 <= finished <= 12
    assert not destination.exists()

    decoded = []
    real = conversion_blocks.decode_image

    def count(data: bytes, size: None, *, name: str) -> np.ndarray:
        decoded.append(name)
        return real(data, size, name=name)

    monkeypatch.setattr(conversion_blocks, "decode_image", count)
    summary = convert(folder, destination)
    assert summary.num_resumed == 2 * finished
    assert len(decoded) == 24 - summary.num_resumed
    assert destination.read_bytes() == (tmp_path / "undisturbed.h5").read_bytes()
    assert names(tmp_path) == ["killed.py", "out.h5", "raw", "undisturbed.h5"]


def wait_for_group(group: int) -> None:
    """Wait until a killed process's workers are gone too."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("workers outlive the conversion")


def interrupt(folder: Path, destination: Path, **options: int) -> None:
    """Stop a conversion after four of six images."""

    def stop(stage: str, done: int, total: int) -> None:
        if done == 4:
            raise StopError

    with pytest.raises(StopError):
        convert(folder, destination, progress=stop, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["image", "metadata", "other folder", "quality", "block"])
def test_what_is_done_of_another_conversion_is_not_used(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    monkeypatch.setattr(conversion_blocks, "BLOCK", 2)
    folder, destination = make_folder(entries), tmp_path / "out.h5"
    interrupt(folder, destination)
    quality, resumed = None, 0
    if change == "image":
        (folder / "small_images" / "12.jpg").write_bytes(encode(99, (8, 11)))
    elif change == "metadata":
        entries[3]["labels"] = ["art"]
        (folder / "labels_and_metadata.json").write_text(json.dumps(entries))
    elif change == "other folder":
        folder = make_folder(entries, "raw2")
    elif change == "quality":
        quality = 90
    else:  # cut short, as a loss of power may leave it
        block = min((tmp_path / ".out.h5.part").glob("*.block"))
        block.write_bytes(block.read_bytes()[1:])
        resumed = 2
    summary = convert(folder, destination, quality=quality, about=About("x"))
    assert summary.num_resumed == resumed
    convert(folder, tmp_path / "undisturbed.h5", about=About("x"))
    assert destination.read_bytes() == (tmp_path / "undisturbed.h5").read_bytes()


def test_faults_are_told_again_after_an_interruption_and_leave_nothing(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversion_blocks, "BLOCK", 2)
    folder = make_folder(entries)
    (folder / "small_images" / "10.jpg").write_bytes(b"?")
    interrupt(folder, tmp_path / "out.h5")
    with pytest.raises(DataError, match=r"found 1; mend it in the source:\n  image '10'"):
        convert(folder, tmp_path / "out.h5")
    assert names(tmp_path) == ["raw"]


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_stranger_in_the_part_s_place_is_left_alone(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path, kind: str
) -> None:
    folder, place = make_folder(entries), tmp_path / ".out.h5.part"
    if kind == "file":
        place.write_text("mine")
    elif kind == "folder":
        place.mkdir()
        (place / "mine").write_text("mine")
    else:
        place.symlink_to(folder, target_is_directory=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=r"out.h5.part: expected nothing or an unfinished"):
        convert(folder, tmp_path / "out.h5")
    assert sorted(tmp_path.rglob("*")) == before


def test_two_at_once_are_refused(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    folder = make_folder(entries)

    def convert_too(stage: str, done: int, total: int) -> None:
        with pytest.raises(DataError, match=r"out.h5: expected that no other process writes it"):
            convert(folder, tmp_path / "out.h5")

    convert(folder, tmp_path / "out.h5", progress=convert_too)
    assert names(tmp_path) == ["out.h5", "raw"]


def test_the_bytes_do_not_depend_on_workers_and_all_faults_are_told_in_order(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversion_blocks, "BLOCK", 2)
    folder = make_folder(entries)
    for workers in (1, 3):
        convert(folder, tmp_path / f"{workers}.h5", workers=workers)
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "3.h5").read_bytes()
    for image_id in ("14", "12", "11"):
        (folder / "small_images" / f"{image_id}.jpg").write_bytes(b"?")
    with pytest.raises(DataError, match=r"(?s)found 3.*image '12'.*image '14'.*image '11'"):
        convert(folder, tmp_path / "3.h5", workers=3)
    for wrong in (0, True, 1.0):
        with pytest.raises(ConfigError, match="workers: expected a whole number from 1 on"):
            convert(folder, tmp_path / "out.h5", workers=wrong)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Deadly(Hdf5Images):
    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        if multiprocessing.parent_process() is not None:
            os._exit(1)
        return super().read(rows)


def test_a_worker_that_is_killed_is_an_error_and_another_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = Deadly(**vars(open_hdf5(OPENCLIPART)))
    scan = Scan(deadly, Faults("deadly"))
    monkeypatch.setattr(module, "scanner_of", lambda source: lambda: scan)
    with pytest.raises(DataError, match="expected every worker to live"):
        convert("openclipart", tmp_path / "out.h5", workers=2)
    convert("openclipart", tmp_path / "out.h5")
    assert (tmp_path / "out.h5").read_bytes() == OPENCLIPART.read_bytes()


def test_a_source_with_another_content_than_it_states_is_refused(tmp_path: Path) -> None:
    with h5py.File(shutil.copy(OPENCLIPART, tmp_path / "bad.h5"), "r+") as file:
        file.attrs["content_sha256"] = "0" * 64
    with pytest.raises(DataError, match="the source is damaged"):
        convert(tmp_path / "bad.h5", tmp_path / "out.h5")
    assert names(tmp_path) == ["bad.h5"]


def write_pixels(path: Path, entries: list[Entry]) -> dict[str, np.ndarray]:
    """Write the layout of ml-flair's HDF5 file; return the pixels by image id."""
    pixels = {
        entry["image_id"]: np.random.default_rng(k).integers(0, 256, (9, 7, 3), np.uint8)
        for k, entry in enumerate(entries)
    }
    with h5py.File(path, "w") as file:
        for entry in entries:
            user = entry["user_id"].replace("/", "-")
            if f"{entry['partition']}/{user}" in file:
                continue
            owned = [other for other in entries if other["user_id"] == entry["user_id"]]
            group = file.create_group(f"{entry['partition']}/{user}")
            group["images"] = np.stack([pixels[other["image_id"]] for other in owned])
            for key in ("labels", "fine_grained_labels"):
                group[key] = ["|".join(other[key]) for other in owned]
            group["image_ids"] = [other["image_id"] for other in owned]
    return pixels


def test_pixels_are_encoded_without_loss_or_at_a_quality(
    entries: list[Entry], tmp_path: Path
) -> None:
    pixels = write_pixels(tmp_path / "pixels.h5", entries)
    summary = convert(tmp_path / "pixels.h5", tmp_path / "a.h5", workers=2)
    assert (summary.num_encoded, summary.mean_difference) == (6, 0.0)
    assert "6 images were pixels and were encoded without loss" in summary.encoding(None)
    written = open_hdf5(tmp_path / "a.h5")
    for row, data in enumerate(written.read(range(6))):
        image = Image.open(io.BytesIO(data))
        assert image.format == "WEBP"
        assert np.array_equal(np.asarray(image), pixels[written.index.image_ids[row]])

    summary = convert(tmp_path / "pixels.h5", tmp_path / "a.h5", quality=70)
    written, differences = open_hdf5(tmp_path / "a.h5"), []
    for row, data in enumerate(written.read(range(6))):
        image = Image.open(io.BytesIO(data))
        assert image.format == "JPEG"
        wanted = pixels[written.index.image_ids[row]].astype(int)
        differences.append(np.abs(np.asarray(image) - wanted).mean())
    assert summary.mean_difference == pytest.approx(np.mean(differences))
    assert summary.mean_difference > 1
    assert "as JPEG of quality 70, mean absolute" in summary.encoding(70)


def test_a_quality_leaves_encoded_images_as_they_are(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    folder = make_folder(entries)
    convert(folder, tmp_path / "a.h5")
    summary = convert(folder, tmp_path / "b.h5", quality=5)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    assert summary.num_encoded == 0
    assert summary.encoding(5) == (
        "6 images were encoded already and kept byte for byte, whatever the quality asked for"
    )
    with pytest.raises(ConfigError, match="quality: expected"):
        convert(folder, tmp_path / "b.h5", quality=101)


def test_a_parquet_file_is_read_once_in_its_own_order(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(conversion_blocks, "BLOCK", 2)
    folder = make_folder(entries)
    rows = [
        {**entry, "image": {"bytes": path.read_bytes(), "path": None}}
        for entry in entries
        for path in [folder / "small_images" / f"{entry['image_id']}.jpg"]
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=2)
    asked: list[list[int]] = []
    real = ParquetImages.read

    def read(self: ParquetImages, rows: list[int]) -> Iterator[bytes]:
        asked.append(rows)
        return real(self, rows)

    monkeypatch.setattr(ParquetImages, "read", read)
    convert(tmp_path / "a.parquet", tmp_path / "a.h5", about=About("six"))
    convert(folder, tmp_path / "b.h5", about=About("six"))
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    # Rows: users 0123, b@N00 (10, 09, 14), ü ser, z/0; each row group is read in one piece.
    assert asked == [[1, 5], [2, 0], [4, 3]]


def test_an_image_that_can_t_be_read_does_not_hide_the_next(
    make_folder: MakeFolder, entries: list[Entry], tmp_path: Path
) -> None:
    folder = make_folder(entries)

    def remove(*step: object) -> None:  # the folder was listed, nothing was read
        for image_id in ("09", "14"):
            (folder / "small_images" / f"{image_id}.jpg").unlink(missing_ok=True)

    with pytest.raises(DataError, match=r"(?s)found 2; .*09.jpg: expected an im.*14.jpg: expected"):
        convert(folder, tmp_path / "out.h5", progress=remove)
    assert names(tmp_path) == ["raw"]


def test_a_destination_inside_the_source_is_no_change_of_it(
    make_folder: MakeFolder, entries: list[Entry]
) -> None:
    folder = make_folder(entries)
    convert(folder, folder / "out.h5")
    assert len(open_hdf5(folder / "out.h5").index) == 6
    convert(folder / "out.h5", folder / "out.h5")
    assert names(folder) == ["labels_and_metadata.json", "out.h5", "small_images"]
