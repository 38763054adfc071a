"""A file is there whole, or it is as it was."""

import stat
from pathlib import Path

import pytest

from fedsim.whole_file import whole_file


def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("before")

    def write() -> None:
        with whole_file(path) as place:
            place.write_text("aft")
            raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        write()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_so_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    left_by_a_kill = tmp_path / "state.pt.tmp"
    left_by_a_kill.write_text("old")
    left_by_a_kill.chmod(0o644)
    with whole_file(path, durable=True, private=True) as place, place.open("w") as file:
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        file.write("new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_the_systems_own_error(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x"
    with pytest.raises(FileNotFoundError), whole_file(path) as place:
        place.write_text("x")
