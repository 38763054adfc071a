"""Logistic regression in float64 on the small federation, and the same in NumPy, for comparison.

What a test runs is the real thing: strategy, cohort, grid, trainer. What it compares with is a
loop over plain vectors, of which only the order of the batches is taken from fedsim.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from fakes import NUM_LABELS, SIDE, TinyDataset, tiny_transform
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from fedsim.arrays import Arrays
from fedsim.client_states import ClientStates
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import CohortStrategy
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.flower_seam import to_arrays, to_record
from fedsim.streams import torch_stream
from fedsim.training.local import LocalSettings, shuffled_batches
from fedsim.training.trainer import Trainer

Vector = np.ndarray
NUM_USERS, NUM_WEIGHTS = 24, NUM_LABELS * (3 * SIDE * SIDE + 1)
SETTINGS = LocalSettings(epochs=2, batch_size=4, learning_rate=0.1)


class ToDouble(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.double().flatten(1)


def linear_model() -> torch.nn.Module:
    model = torch.nn.Sequential(ToDouble(), torch.nn.Linear(3 * SIDE * SIDE, NUM_LABELS)).double()
    weights = np.random.default_rng(1).normal(scale=0.1, size=NUM_WEIGHTS)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), arrays_of(weights).values(), strict=True):
            parameter.copy_(value)
    return model


def arrays_of(vector: Vector) -> Arrays:
    weight, bias = np.split(vector, [-NUM_LABELS])
    shape = (NUM_LABELS, 3 * SIDE * SIDE)
    return {"1.weight": torch.from_numpy(weight).reshape(shape), "1.bias": torch.from_numpy(bias)}


def vector_of(arrays: Arrays) -> Vector:
    return np.concatenate([arrays[name].flatten().numpy() for name in ("1.weight", "1.bias")])


INITIAL = vector_of({name: p.detach() for name, p in linear_model().named_parameters()})

Make = Callable[[], CohortStrategy]


def make_app(make: Make, settings: LocalSettings, num_users: int, states: Path | None) -> ClientApp:
    """Made in every process that trains."""
    trainer = Trainer(
        linear_model(),
        TinyDataset(num_users),
        tiny_transform(),
        settings,
        seed=0,
        part=make().client_part(),
        states=ClientStates(states, 2) if states else None,
    )
    return client_app(trainer)


@dataclass
class Federation:
    """A federation that a strategy runs in.

    Attributes:
        make: Makes the strategy.
        settings: How users train.
        cohort_size, sampling, num_users: Who takes part.
        states: Where users keep what they keep.
        workers: Processes.
    """

    make: Make
    settings: LocalSettings = SETTINGS
    cohort_size: int = 8
    sampling: str = "fixed_size"
    num_users: int = NUM_USERS
    states: Path | None = None
    workers: int = 1

    def cohort(self) -> CohortSampler:
        users = TinyDataset(self.num_users).table
        return CohortSampler(users, self.cohort_size, self.sampling, seed=1)

    def grid(self) -> InProcessGrid:
        arrays = {name: p.detach() for name, p in linear_model().named_parameters()}
        app = functools.partial(make_app, self.make, self.settings, self.num_users, self.states)
        like = {**arrays, **self.make().sent_along(arrays)}
        return InProcessGrid(app, like, num_users=self.num_users, num_workers=self.workers)

    def strategy(self) -> CohortStrategy:
        strategy = self.make()
        strategy.compose(self.cohort())
        return strategy

    def run(self, num_rounds: int) -> Vector:
        with self.grid() as grid:
            return self.rounds(self.strategy(), grid, range(1, num_rounds + 1))

    def rounds(
        self, strategy: Strategy, grid: InProcessGrid, numbers: range, start: Vector = INITIAL
    ) -> Vector:
        arrays = to_record(arrays_of(start.copy()))
        for number in numbers:
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages)
            arrays, _ = strategy.aggregate_train(number, replies)
        return vector_of(to_arrays(arrays)).copy()


def by_hand(federation: Federation) -> "ByHand":
    return ByHand(federation.settings, TinyDataset(federation.num_users), federation.cohort())


@dataclass
class ByHand:
    """The users in NumPy."""

    settings: LocalSettings
    dataset: TinyDataset
    sampler: CohortSampler

    def cohort(self, round_num: int) -> list[int]:
        return [int(index) for index in self.sampler.draw(round_num)]

    def data(self, user: int) -> tuple[Vector, Vector]:
        sizes = self.dataset.table.num_images
        numbers = np.arange(sizes[:user].sum(), sizes[: user + 1].sum())
        examples = self.dataset.load("train", numbers)
        inputs = tiny_transform().eval_batch(examples.images)
        return inputs.flatten(1).double().numpy(), examples.labels.double().numpy()

    def num_examples(self, user: int) -> int:
        return int(self.dataset.table.num_images[user])

    def loss(self, w: Vector, user: int) -> float:
        inputs, labels = self.data(user)
        z = self._logits(w, inputs)
        return float(np.mean(np.logaddexp(0, z) - labels * z))

    def gradient(self, w: Vector, user: int, rows: Vector | slice = slice(None)) -> Vector:
        inputs, labels = self.data(user)
        inputs, labels = inputs[rows], labels[rows]
        slope = (1 / (1 + np.exp(-self._logits(w, inputs))) - labels) / labels.size
        return np.concatenate([(slope.T @ inputs).ravel(), slope.sum(axis=0)])

    def train(
        self, w: Vector, user: int, round_num: int, extra: Callable[[Vector], Vector] | float = 0.0
    ) -> tuple[Vector, int]:
        """Return the trained weights and the number of steps; ``extra`` is added to gradients."""
        local, buffer, steps = self.settings, np.zeros_like(w), 0
        stream = torch_stream(0, "batches", round_num, self.dataset.table.ids[user])
        num_examples = self.num_examples(user)
        for rows in shuffled_batches(num_examples, local.batch_size, local.epochs, stream):
            g = self.gradient(w, user, rows.numpy()) + (extra(w) if callable(extra) else extra)
            buffer = local.momentum * buffer + g
            w = w - local.learning_rate * buffer
            steps += 1
        return w, steps

    @staticmethod
    def _logits(w: Vector, inputs: Vector) -> Vector:
        weight, bias = np.split(w, [-NUM_LABELS])
        return inputs @ weight.reshape(NUM_LABELS, -1).T + bias


def with_settings(federation: Federation, **changes: object) -> Federation:
    return replace(federation, settings=replace(federation.settings, **changes))
