"""What tests of Flower's nodes share."""

from pathlib import Path

import pytest

from fedsim.data.split import split_for_deployment
from fedsim.engines import exchange, nodes


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(exchange, "_SECONDS_BETWEEN_PULLS", 0.0)
    monkeypatch.setattr(nodes, "_SECONDS_BETWEEN_LOOKS", 0.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's file, and the files of two nodes."""
    folder = tmp_path_factory.mktemp("files")
    list(split_for_deployment("openclipart", folder, 2))
    return folder
