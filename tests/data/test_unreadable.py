"""Files and folders that may not be read: one sentence each."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hdf5_writers import write_grouped, write_pfl
from raw_folders import Entry, encode
from test_five_forms import write_folder, write_parquet

from fedsim.data.convert import convert
from fedsim.data.csv_folder import scan_csv
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.index import StoredImages
from fedsim.data.parquet import scan_parquet
from fedsim.data.partition_file import read_partition, write_partition
from fedsim.data.scan import open_whole
from fedsim.data.sources import OPENCLIPART, scanner_of
from fedsim.data.split import split_for_deployment
from fedsim.errors import DataError

MakeFolder = Callable[..., Path]

_CAPABILITY_VERSION = 0x20080522  # and the numbers of two capabilities, from linux/capability.h
_BYPASS_MODES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@pytest.fixture
def modes_bind() -> Iterator[None]:
    """Take from root, whom no mode of a file binds, what makes it so."""
    if os.geteuid():
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root can't be bound here")
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, and their upper halves
    assert libc.capget(header, sets) == 0
    before = sets[0]
    sets[0] &= ~_BYPASS_MODES
    assert libc.capset(header, sets) == 0
    yield
    sets[0] = before
    assert libc.capset(header, sets) == 0


@pytest.fixture
def entries(entries: list[Entry]) -> list[Entry]:
    """Name the validation split as all forms do."""
    return [
        {**entry, "partition": "val"} if entry["partition"] == "dev" else entry for entry in entries
    ]


def write_csv(path: Path, entries: list[Entry], jpegs: dict[str, bytes]) -> Path:
    (path / "images").mkdir(parents=True)
    lines = ["image,user,labels,split"]
    for entry in entries:
        image = f"images/{entry['image_id']}.jpg"
        (path / image).write_bytes(jpegs[entry["image_id"]])
        lines.append(f"{image},{entry['user_id']},,{entry['partition']}")
    (path / "data.csv").write_text("\n".join(lines))
    return path


def write_own(path: Path, entries: list[Entry], jpegs: dict[str, bytes]) -> Path:
    convert(write_folder(path.with_name("raw"), entries, jpegs), path)
    return path


def as_noise(write: Callable[..., Path]) -> Callable[..., Path]:
    def written(path: Path, entries: list[Entry], jpegs: dict[str, bytes]) -> Path:
        return write(path, entries, {name: np.zeros((4, 4, 3), np.uint8) for name in jpegs})

    return written


FORMS = {
    "csv": write_csv,
    "raw": write_folder,
    "parquet": write_parquet,
    "own.h5": write_own,
    "ml.h5": as_noise(write_grouped),
    "pfl.h5": as_noise(write_pfl),
}


_TOLD = r"found (Permission denied; make it readable|no folder to look into \(Permission denied\))"


def open_and_read(path: Path) -> StoredImages:
    images = open_whole(scanner_of(str(path)))
    for _ in images.read(range(len(images.index))):
        pass
    return images


@pytest.mark.usefixtures("modes_bind")
@pytest.mark.parametrize(
    ("form", "closed", "mode"),
    [
        *((form, ".", 0o000) for form in FORMS),
        *((form, "..", 0o000) for form in FORMS),
        *((form, ".", 0o444) for form in ("csv", "raw", "parquet")),
        *((form, ".", 0o311) for form in ("csv", "parquet")),
        *(("csv", inner, 0o000) for inner in ("data.csv", "images", "images/10.jpg")),
        *(("raw", inner, 0o000) for inner in ("labels_and_metadata.json", "small_images")),
        *(("raw", inner, 0o444) for inner in ("small_images",)),
        ("raw", "small_images/10.jpg", 0o000),
        ("parquet", "train-00000-of-00001.parquet", 0o000),
    ],
)
def test_what_may_not_be_read_is_told(
    entries: list[Entry], tmp_path: Path, form: str, closed: str, mode: int
) -> None:
    jpegs = {entry["image_id"]: encode(0) for entry in entries}
    (tmp_path / "in").mkdir()
    path = FORMS[form](tmp_path / "in" / form, entries, jpegs)
    open_and_read(path)
    target = Path(os.path.normpath(path / closed))
    usual = target.stat().st_mode
    target.chmod(mode)
    try:
        with pytest.raises(DataError, match=_TOLD) as caught:
            open_and_read(path)
    finally:
        target.chmod(usual)
    assert str(path) in str(caught.value)


@pytest.mark.usefixtures("modes_bind")
@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_a_folder_among_parquet_files_may_be_closed(
    entries: list[Entry], tmp_path: Path, mode: int
) -> None:
    path = write_parquet(tmp_path / "a", entries, {e["image_id"]: encode(0) for e in entries})
    write_parquet(path / "sub", entries, {e["image_id"]: encode(0) for e in entries})
    (path / "sub" / "deeper").mkdir()
    (path / "sub").chmod(mode)
    try:
        with pytest.raises(DataError, match=r"a/sub.*: expected .*, found Permission denied; make"):
            scan_parquet(path).faults.check()
    finally:
        (path / "sub").chmod(0o755)


@pytest.mark.usefixtures("modes_bind")
def test_other_files_that_may_not_be_read(entries: list[Entry], tmp_path: Path) -> None:
    index = open_hdf5(OPENCLIPART).index
    (tmp_path / "partition.csv").touch(mode=0o000)
    with pytest.raises(DataError, match="expected a partition, found Permission denied; make it"):
        read_partition(index, path=str(tmp_path / "partition.csv"))
    write_csv(tmp_path / "csv", entries, {entry["image_id"]: encode(0) for entry in entries})
    images = scan_csv(tmp_path / "csv" / "data.csv").images
    (tmp_path / "csv" / "images").chmod(0o000)
    with pytest.raises(DataError, match=r"images/12.jpg: .* found Permission denied; make it"):
        list(images.read([0]))
    (tmp_path / "csv" / "images").chmod(0o755)


@pytest.mark.usefixtures("modes_bind")
def test_a_wrong_name_in_a_folder_that_may_not_be_listed_is_a_wrong_name(tmp_path: Path) -> None:
    tmp_path.chmod(0o311)
    try:
        with pytest.raises(DataError, match="found nothing there; correct the path"):
            scanner_of(str(tmp_path / "own.h5"))
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.usefixtures("modes_bind")
def test_a_place_that_may_not_be_looked_at_is_no_place_to_write(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    with pytest.raises(DataError, match=r"expected to write a\.h5, found Permission denied"):
        convert("openclipart", closed / "a.h5")
    with pytest.raises(DataError, match="expected a folder to write to, found Permission denied"):
        next(split_for_deployment("openclipart", closed / "split", 1))
    with pytest.raises(DataError, match="expected to write a partition, found Permission denied"):
        write_partition(open_hdf5(OPENCLIPART).index, closed / "a.csv")
