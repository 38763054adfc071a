"""Files for a deployment."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedsim.cli import main
from fedsim.data.hdf5 import Hdf5Images, open_hdf5
from fedsim.data.index import SPLITS, content_sha256
from fedsim.data.sources import OPENCLIPART
from fedsim.data.split import split_for_deployment
from fedsim.errors import ConfigError, DataError


def images_by_user(images: Hdf5Images) -> dict[tuple[str, str], list[tuple[str, bytes, bytes]]]:
    """(split, user) to id, labels and stored bytes of the images: read one by one, by place."""
    index, found = images.index, {}
    for user in range(len(index.user_ids)):
        rows = range(index.user_offsets[user], index.user_offsets[user + 1])
        found[SPLITS[index.user_splits[user]], index.user_ids[user]] = [
            (
                index.image_ids[row],
                b"".join(
                    index.labels[kind].dense(np.array([row])).tobytes() for kind in index.labels
                ),
                next(iter(images.read([row]))),
            )
            for row in rows
        ]
    return found


def test_every_user_is_in_one_file_with_all_their_images(tmp_path: Path) -> None:
    written = list(split_for_deployment("openclipart", tmp_path / "new" / "folder", 3))
    files = [open_hdf5(path) for path, _, _ in written]
    whole = open_hdf5(OPENCLIPART)
    assert [path.name for path, _, _ in written] == [
        "server.h5", "node-1.h5", "node-2.h5", "node-3.h5"
    ]  # fmt: skip
    parts = [images_by_user(images) for images in files]
    together: dict[tuple[str, str], list[tuple[str, bytes, bytes]]] = {}
    for part in parts:
        assert not together.keys() & part.keys()
        together |= part
    assert together == images_by_user(whole)
    assert {split for split, _ in parts[0]} == {"val", "test"}
    for images, (_, users, number) in zip(files, written, strict=True):
        assert (len(images.index.user_ids), len(images.index)) == (users, number)
        for kind, rows in images.index.labels.items():
            assert rows.names == whole.index.labels[kind].names
        digests = (hashlib.sha256(data).digest() for data in images.read(range(number)))
        assert images.content_sha256 == content_sha256(images.index, digests)
    sizes = [users for _, users, _ in written[1:]]
    assert max(sizes) - min(sizes) <= 1


def test_more_nodes_than_users_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 285"):
        list(split_for_deployment("openclipart", tmp_path, 286))


def test_other_collections_are_to_be_converted_first(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fedsim data convert"):
        list(split_for_deployment("synthetic", tmp_path, 2))


def test_the_source_is_not_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "node-2.h5"
    source.write_bytes(OPENCLIPART.read_bytes())
    with pytest.raises(DataError, match=r"found node-2\.h5 there; choose another folder"):
        list(split_for_deployment(source, tmp_path, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["node-2.h5"]
    assert source.read_bytes() == OPENCLIPART.read_bytes()


def test_the_command_tells_what_is_in_each_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["fedsim", "data", "split", "openclipart", str(tmp_path), "--nodes", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("server.h5: 714 images of 183 users")
    assert len(told) == 3


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file of this process pass 500 kB: a disk that is full in the middle of a write."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_files")
def test_a_split_that_finds_no_room_leaves_nothing_half_written(tmp_path: Path) -> None:
    found = []
    with pytest.raises(DataError, match=r"expected to write a file .*; free space there or choose"):
        found += split_for_deployment("openclipart", tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == [path.name for path, _, _ in found] == []


def test_a_split_onto_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "server.h5").mkdir()
    with pytest.raises(DataError, match=r"server\.h5: expected a place for a file, found Is a dir"):
        next(split_for_deployment("openclipart", tmp_path, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["server.h5"]
