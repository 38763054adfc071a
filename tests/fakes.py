"""A small real federation for tests: 24 users with 1 to 9 random images each, a linear model."""

import os
import signal
from pathlib import Path

import numpy as np
import torch
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays
from fedsim.data.dataset import Examples, UserTable
from fedsim.data.transforms import Transform
from fedsim.engines.client_app import client_app
from fedsim.errors import ConfigError
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer

NUM_LABELS, SIDE = 3, 4


class TinyDataset:
    """Random images in memory; every split holds the same users under other names."""

    label_names = ("a", "b", "c")

    def __init__(self, num_users: int = 24) -> None:
        rng = np.random.default_rng(0)
        sizes = rng.integers(1, 10, num_users)
        self.table = UserTable(tuple(f"user{i:05d}" for i in range(num_users)), sizes)
        total = int(sizes.sum())
        self._images = rng.integers(0, 256, (total, SIDE, SIDE, 3)).astype(np.uint8)
        bright = self._images.mean(axis=(1, 2)) > 127
        self._labels = bright

    def users(self, split: str) -> UserTable:
        return self.table

    def labels(self, split: str, indices: np.ndarray) -> np.ndarray:
        return self._labels[indices]

    def load(self, split: str, indices: np.ndarray) -> Examples:
        images = torch.from_numpy(self._images[indices]).permute(0, 3, 1, 2)
        return Examples(images, torch.from_numpy(self._labels[indices].astype(np.uint8)))


def tiny_model() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(8 * 2 * 2, NUM_LABELS),
        )  # fmt: skip


def tiny_transform() -> Transform:
    return Transform("none", SIDE, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def tiny_trainer(settings: LocalSettings | None = None) -> Trainer:
    return Trainer(
        tiny_model(),
        TinyDataset(),
        tiny_transform(),
        settings or LocalSettings(epochs=2, batch_size=4, learning_rate=0.1),
        seed=0,
    )


def tiny_arrays() -> Arrays:
    return {name: p.detach().clone() for name, p in tiny_model().named_parameters()}


def tiny_app() -> ClientApp:
    return client_app(tiny_trainer())


def no_app() -> ClientApp:
    raise ConfigError("no model today")


class _Saboteur:
    """A trainer that does something to one user."""

    def __init__(self, user: str, act: object) -> None:
        self._trainer, self._user, self._act = tiny_trainer(), user, act
        self.arrays = self._trainer.arrays

    def train(self, user: str, round_num: int, received: Arrays) -> object:
        result = self._trainer.train(user, round_num, received)
        if user == self._user:
            self._act(self.arrays)
        return result

    def logits(self, split: str, indices: list[int]) -> torch.Tensor:
        return self._trainer.logits(split, indices)


def app_that_fails(user: str) -> ClientApp:
    def fail(arrays: Arrays) -> None:
        raise KeyError("no such thing")

    return client_app(_Saboteur(user, fail))


def app_that_diverges(user: str) -> ClientApp:
    def diverge(arrays: Arrays) -> None:
        arrays["3.bias"].data[1] = float("nan")

    return client_app(_Saboteur(user, diverge))


def app_killed_once(user: str, marker: Path) -> ClientApp:
    """The process that trains ``user`` is killed the first time."""

    def kill(arrays: Arrays) -> None:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return client_app(_Saboteur(user, kill))


def app_always_killed(user: str) -> ClientApp:
    return client_app(_Saboteur(user, lambda arrays: os.kill(os.getpid(), signal.SIGKILL)))


class FrozenModel(torch.nn.Module):
    """A small frozen network and a last layer that trains."""

    def __init__(self, num_labels: int, bias: bool = True) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 19, 3, stride=2), torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        ).requires_grad_(False)  # fmt: skip
        self.head = torch.nn.Linear(19, num_labels, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(x))
        return logits


def frozen_model(num_labels: int) -> torch.nn.Module:
    """For `model.name: fakes:frozen_model`."""
    return FrozenModel(num_labels)
