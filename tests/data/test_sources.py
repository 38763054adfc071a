from collections.abc import Callable
from pathlib import Path

import pytest
from raw_folders import Entry

from fedsim.data.convert import convert
from fedsim.data.hdf5 import Hdf5Images
from fedsim.data.image_files import ImageFiles
from fedsim.data.scan import open_whole
from fedsim.data.sources import open_dataset, scanner_of
from fedsim.errors import ConfigError, DataError

MakeFolder = Callable[..., Path]


def test_each_kind_of_source_is_opened(
    make_folder: MakeFolder,
    entries: list[Entry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = make_folder(entries, name="openclipart")
    convert(folder, tmp_path / "a.h5")
    (tmp_path / "a.h5").rename(tmp_path / "A.HDF5")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for source, kind, num_users in (
        ("openclipart", Hdf5Images, 285),
        ("./openclipart", ImageFiles, 2),
        (str(folder), ImageFiles, 2),
        ("~/openclipart", ImageFiles, 2),
        ("A.HDF5", Hdf5Images, 2),
    ):
        dataset = open_dataset(source, labels="coarse", image_size=8)
        assert type(open_whole(scanner_of(source))) is kind
        assert len(dataset.users("train")) == num_users


def test_arguments_are_passed_on(make_folder: MakeFolder, entries: list[Entry]) -> None:
    folder = str(make_folder(entries))
    dataset = open_dataset(folder, labels="fine", image_size=5, max_images_per_user=1)
    assert dataset.label_names == ("cat", "dog", "grass", "tree")
    assert dataset.users("train").num_images.tolist() == [1, 1]
    with pytest.raises(ConfigError, match="image_size"):
        open_dataset(folder, labels="fine", image_size=-1)
    with pytest.raises(ConfigError, match="cache_mb"):
        open_dataset(folder, labels="fine", image_size=1, cache_mb=-1)


def test_anything_else_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("a,b")
    for path, found in (
        (tmp_path / "none.h5", "nothing there"),
        (tmp_path, "a folder without it"),
        (tmp_path / "data.txt", "a file of another kind"),
    ):
        with pytest.raises(DataError) as caught:
            open_dataset(str(path), labels="coarse", image_size=8)
        message = str(caught.value)
        assert repr(str(path)) in message
        assert f"found {found}" in message
        for accepted in ('"openclipart"', ".h5", "labels_and_metadata.json", ".csv", ".parquet"):
            assert accepted in message
