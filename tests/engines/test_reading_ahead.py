"""Users whose images are decoded while others train: the same bits, and nothing left behind."""

import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp

from fedsim.cohort import CohortSampler
from fedsim.data.dataset import Examples, UserTable
from fedsim.data.decode import decode_image
from fedsim.data.decode_ahead import DecodeAhead
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.sources import OPENCLIPART, open_dataset
from fedsim.data.transforms import Transform
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import DataError
from fedsim.evaluation.scoring import SplitScorer
from fedsim.flower_seam import to_arrays, to_record
from fedsim.models.cnn import Cnn
from fedsim.replies import drain
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer
from fedsim_strategies.fedavg import FedAvg

SIDE = 16


def opened(source: str = "openclipart") -> Any:
    return open_dataset(source, labels="coarse", image_size=SIDE, max_images_per_user=3, cache_mb=0)


class Plain:
    """The same data set without what it may offer besides."""

    def __init__(self, dataset: Any) -> None:
        self.label_names, self._dataset = dataset.label_names, dataset

    def users(self, split: str) -> UserTable:
        return self._dataset.users(split)

    def labels(self, split: str, indices: np.ndarray) -> np.ndarray:
        return self._dataset.labels(split, indices)

    def load(self, split: str, indices: np.ndarray) -> Examples:
        return self._dataset.load(split, indices)


def model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Cnn(17, channels=(8,))


def make_app(source: str, plain: bool) -> ClientApp:
    transform = Transform("flip", SIDE, (0.5,) * 3, (0.5,) * 3)
    settings = LocalSettings(epochs=1, batch_size=2, learning_rate=0.1)
    dataset = Plain(opened(source)) if plain else opened(source)
    return client_app(Trainer(model(), dataset, transform, settings, seed=0))


def grid(workers: int, source: str = "openclipart", *, plain: bool = False) -> InProcessGrid:
    arrays = {name: p.detach().clone() for name, p in model().named_parameters()}
    make = functools.partial(make_app, source, plain)
    return InProcessGrid(make, arrays, num_users=285, num_workers=workers)


def cohort(size: int) -> CohortSampler:
    return CohortSampler(opened().users("train"), size, "fixed_size", seed=0)


def messages_of(strategy: FedAvg, engine: InProcessGrid) -> Any:
    arrays = {name: p.detach().clone() for name, p in model().named_parameters()}
    return strategy.configure_train(1, to_record(arrays), ConfigRecord(), engine)


def run(engine: InProcessGrid) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Train for a round, then score; a cohort of 40 makes blocks of one and of two users."""
    strategy = FedAvg(weighting="examples")
    strategy.compose(cohort(40))
    replies = engine.send_and_receive(messages_of(strategy, engine))
    record, _ = strategy.aggregate_train(1, replies)
    scorer = SplitScorer(engine, opened(), "val", batch_size=30, num_images=80)
    return to_arrays(record), scorer.logits(record)


def background() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "fedsim-decode-ahead"]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bits_are_those_of_reading_in_turn(workers: int) -> None:
    with grid(1, plain=True) as engine:
        arrays, logits = run(engine)
    with grid(workers) as engine:
        ahead_arrays, ahead_logits = run(engine)
    assert all(torch.equal(ahead_arrays[name], arrays[name]) for name in arrays)
    assert np.array_equal(ahead_logits, logits)


def test_all_but_the_first_are_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = {True: 0, False: 0}
    expected: list[np.ndarray] = []
    expect, decode = DecodeAhead.expect, DecodeAhead.decode

    def expecting(self: DecodeAhead, rows: np.ndarray) -> None:
        expected[:] = [rows]
        expect(self, rows)

    def decoding(self: DecodeAhead, rows: np.ndarray) -> Any:
        decoded[bool(expected) and np.array_equal(expected[0], rows)] += len(rows)
        return decode(self, rows)

    monkeypatch.setattr(DecodeAhead, "expect", expecting)
    monkeypatch.setattr(DecodeAhead, "decode", decoding)
    with grid(1) as engine:
        run(engine)
    # The round's first user (at most 3 images) and the first batch to score.
    assert 31 <= decoded[False] <= 33
    assert decoded[True] >= 39 + 50


@pytest.mark.parametrize("workers", [1, 2])
def test_a_broken_image_fails_at_its_own_user(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "broken.h5"
    path.write_bytes(OPENCLIPART.read_bytes())
    user = int(cohort(40).draw(1)[25])
    images = open_hdf5(path)
    row = int(images.index.user_offsets[user])
    with path.open("r+b") as file:
        file.seek(images.blob_start + int(images.offsets[row]))
        file.write(bytes(20))
    with grid(workers, str(path)) as engine, pytest.raises(DataError) as caught:
        run(engine)
    name, image = images.index.user_ids[user], images.index.image_ids[row]
    assert str(caught.value).startswith(f"round 1, user {name!r}: {path}: image {image!r}: ")
    assert not background()


def test_no_thread_outlives_a_grid_that_is_left_early(monkeypatch: pytest.MonkeyPatch) -> None:
    release, threads = threading.Event(), set[threading.Thread]()

    def slow(data: bytes, size: int, *, name: str) -> Any:
        threads.add(threading.current_thread())
        if len(threads) > 1:  # the first decodes what is waited for
            release.wait(5)
        return decode_image(data, size, name=name)

    monkeypatch.setattr("fedsim.data.image_dataset.decode_image", slow)
    strategy = FedAvg(weighting="examples")
    strategy.compose(cohort(20))
    with grid(1) as engine:
        next(drain(engine.send_and_receive(messages_of(strategy, engine))))
        assert len(background()) == 1
        threading.Timer(0.1, release.set).start()
    assert not background()
