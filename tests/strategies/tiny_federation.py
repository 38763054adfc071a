"""The tiny federation with any strategy, its client part and its users' states."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fakes import TinyDataset, tiny_arrays, tiny_model, tiny_transform
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsim import build
from fedsim.arrays import Arrays
from fedsim.client_states import ClientStates
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import CohortStrategy
from fedsim.config import RunConfig
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.flower_seam import to_arrays, to_record
from fedsim.foreign import ForeignStrategy
from fedsim.streams import torch_stream
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer
from fedsim.update_sum import FOLD, USER

USERS = TinyDataset().table
CHECKPOINT_EVERY = 2


def settings(name: str, **parameters: Any) -> RunConfig:
    return RunConfig.model_validate({"name": "tiny", "strategy": {"name": name, **parameters}})


def strategy_of(
    config: RunConfig, cohort_size: int = 10, mechanism: Any = None
) -> CohortStrategy | ForeignStrategy:
    cohort = CohortSampler(USERS, cohort_size, "fixed_size", seed=1)
    return build.build_strategy(config, cohort, mechanism)


def app_of(config: RunConfig, states: Path) -> ClientApp:
    trainer = Trainer(
        tiny_model(),
        TinyDataset(),
        tiny_transform(),
        LocalSettings(epochs=2, batch_size=4, learning_rate=0.1),
        seed=0,
        part=build.build_part(config),
        states=ClientStates(states, CHECKPOINT_EVERY),
    )
    return client_app(trainer)


def app_of_any() -> ClientApp:
    """One app for all strategies, so that they share the workers: a message says which."""
    apps: dict[tuple[str, str], ClientApp] = {}
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked = next(iter(message.content.config_records.values()))
        key = str(asked["config"]), str(asked["states"])
        if key not in apps:
            apps[key] = app_of(RunConfig.model_validate_json(key[0]), Path(key[1]))
        return apps[key](message, context)

    return app


def what_travels(config: RunConfig) -> Arrays:
    strategy, arrays = build.build_plain_strategy(config), tiny_arrays()
    own = isinstance(strategy, CohortStrategy)
    return {**arrays, **(strategy.checked_sent_along(arrays, 1) if own else {})}


class Grids:
    """Grids that are made when they are asked for, and closed together."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, tuple[str, ...]], InProcessGrid] = {}

    def of(self, config: RunConfig, workers: int) -> InProcessGrid:
        like = what_travels(config)
        key = workers, tuple(like)
        if key not in self._made:
            self._made[key] = InProcessGrid(
                app_of_any, like, num_users=len(USERS), num_workers=workers
            )
        return self._made[key]

    def close(self) -> None:
        for grid in self._made.values():
            grid.close()


@dataclass(frozen=True)
class Federation:
    """Trains on a grid, with a folder for what users keep."""

    config: RunConfig
    grid: InProcessGrid
    states: Path

    def play(
        self,
        strategy: CohortStrategy | ForeignStrategy,
        rounds: range,
        arrays: Arrays | None = None,
    ) -> Arrays:
        asked = ConfigRecord({"config": self.config.model_dump_json(), "states": str(self.states)})
        record = to_record(arrays or tiny_arrays())
        for round_num in rounds:
            messages = strategy.configure_train(round_num, record, asked, self.grid)
            record, _ = strategy.aggregate_train(round_num, self.grid.send_and_receive(messages))
        return to_arrays(record)


def equal(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(bool((a[name] == b[name]).all()) for name in a)


Updates = Callable[[str], Arrays]


def random_update(seed: int) -> Updates:
    return lambda user: {
        name: torch.randn(tensor.shape, generator=torch_stream(seed, user, name))
        for name, tensor in tiny_arrays().items()
    }


def replies(messages: list[Message], updates: Updates) -> list[Message]:
    """What made-up users reply; what travels beside the model comes back as it would by a half."""
    answers = []
    for message in messages:
        config = next(iter(message.content.config_records.values()))
        received = to_arrays(next(iter(message.content.array_records.values())))
        update, index = updates(config[USER]), USERS.ids.index(config[USER])
        trained = {name: a + update.get(name, torch.tensor(0.5)) for name, a in received.items()}
        metrics = {"num-examples": int(USERS.num_images[index]), "train_loss": 0.7}
        content = {"arrays": to_record(trained), "metrics": MetricRecord(metrics)}
        plain = {key: record for key, record in message.content.items() if key != FOLD}
        message.content = RecordDict(plain)
        answers.append(Message(RecordDict(content), reply_to=message))
    return answers


class FakeGrid:
    """Nobody asks it: a foreign strategy is shown the cohort alone."""
