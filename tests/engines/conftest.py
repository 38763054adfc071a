"""What tests of Flower's nodes share."""

import hashlib
import itertools
from pathlib import Path

import pytest

from fedsim.data.split import split_for_deployment
from fedsim.engines import exchange, nodes
from fedsim.secret import Secret


@pytest.fixture(autouse=True)
def secrets_of_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cohorts and noise of a test be the same whenever it runs: a secret decides on them."""
    numbers = itertools.count()

    def new() -> Secret:
        return Secret(hashlib.sha256(str(next(numbers)).encode()).digest())

    monkeypatch.setattr(Secret, "new", new)


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
