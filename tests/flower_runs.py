"""Tiny runs on Flower's nodes, as a simulation or a deployment, and what they leave behind."""

import copy
import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fake_flower import FakeFlower

from fedsim import runtime
from fedsim.attendance import Absent
from fedsim.config import RunConfig
from fedsim.config_file import runs_of
from fedsim.experiment import run_jobs
from fedsim.flower_app.runtime import FlowerRuntime
from fedsim.jobs import jobs_of
from fedsim.reporter import Failure, Silence
from fedsim.run_processes import Outcome
from fedsim.secret import Secret
from fedsim.state import load_checkpoint

SETTINGS: dict[str, Any] = {
    "name": "tiny",
    "data": {"source": "openclipart", "labels": "coarse", "image_size": 8},
    "model": {"name": "cnn", "channels": [4]},
    "federated": {
        "num_rounds": 2,
        "cohort_size": 5,
        "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.1},
    },
    "strategy": {"name": "fedavg", "weighting": "examples"},
    "evaluation": {"bootstrap_resamples": 0, "num_val_images": 20, "record_clients": True},
    "engine": {"workers": 1, "checkpoint_every": 1},
}
CENTRAL_DP = {
    "federated": {**SETTINGS["federated"], "cohort_size": 12},
    "strategy": {"name": "fedavg", "weighting": "uniform"},
    "privacy": {"central": {"clipping_norm": 0.01, "noise_multiplier": 0.3}},
}
EXAMPLE_LEVEL_DP = {"privacy": {"example_level": {"max_grad_norm": 0.5, "noise_multiplier": 0.8}}}
NETWORK = (
    "seconds",
    "diagnostic_num_dropped_out",
    "diagnostic_num_late",
    "diagnostic_num_resent",
)
SIMULATION: dict[int, dict[str, Any]] = {71: {}, 13: {}, 40: {}}


class Notes(Silence):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def noted(self, run_id: str, text: str) -> None:
        self.texts.append(text)


class Clock:
    """Stands in for the module ``time``."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 1


class Without:
    """Attendance in process of those who answer in a record."""

    def __init__(self, users: Any, present: set[tuple[int, str]]) -> None:
        self._users, self._present = users, present

    def absent(self, round_num: int, positions: Iterable[int]) -> Absent:
        ids = [self._users.ids[position] for position in positions]
        lost = np.array([(round_num, user) not in self._present for user in ids], dtype=np.bool_)
        return Absent(lost, np.zeros_like(lost))

    def num_never_in_time(self) -> int:
        return 0


def answered(out: Path) -> set[tuple[int, str]]:
    """Rounds and users whose answers came."""
    with (out / "tiny" / "seed0" / "clients.csv").open() as file:
        return {(int(row["round"]), row["user"]) for row in csv.DictReader(file)}


def settings(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy({**SETTINGS, **changes})


def on_flower(
    given: dict[str, Any],
    out: Path,
    grid: FakeFlower,
    *,
    num_nodes: int = 0,
    seconds: float = 30,
    reporter: Silence | None = None,
) -> Outcome:
    jobs = jobs_of(runs_of(given, {}, "the settings"))
    runtime = FlowerRuntime(grid, num_nodes, seconds)
    outcomes = run_jobs(
        jobs, out, reporter or Silence(), command="", repeat_failed=True, runtime=runtime
    )
    (outcome,) = outcomes.values()
    return outcome


def record(out: Path) -> list[dict[str, Any]]:
    text = (out / "tiny" / "seed0" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in text]


def without_network(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in NETWORK} for line in lines]


def trained(out: Path) -> dict[str, torch.Tensor]:
    path = out / "tiny" / "seed0" / "checkpoint" / "state.pt"
    arrays = torch.load(path, weights_only=True)["arrays"]
    assert isinstance(arrays, dict)
    return arrays


def assert_same_run(one: Path, two: Path) -> None:
    a, b = trained(one), trained(two)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert without_network(record(one)) == without_network(record(two))


def holders(files: Path, *names: str) -> dict[int, dict[str, Any]]:
    return {
        100 + i: {"data": str(files / f"{name}.h5"), "states": str(files / f"{name}-states")}
        for i, name in enumerate(names)
    }


def at_server(files: Path, **changes: Any) -> dict[str, Any]:
    given = settings(**changes)
    given["data"]["source"] = str(files / "server.h5")
    return given


class HereWithSecret:
    """All users are here, and the noise is that of a given secret."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self.dataset, self.grid = runtime.HERE.dataset, runtime.HERE.grid

    def secret(self, config: RunConfig) -> Secret | None:
        return self._secret


def here_with(secret: Secret, given: dict[str, Any], out: Path) -> None:
    jobs = jobs_of(runs_of(given, {}, "the settings"))
    outcomes = run_jobs(
        jobs, out, Silence(), command="", repeat_failed=True, runtime=HereWithSecret(secret)
    )
    (outcome,) = outcomes.values()
    assert not isinstance(outcome, Failure), outcome


def secret_of(out: Path) -> Secret:
    path = out / "tiny" / "seed0" / "checkpoint" / "state.pt"
    content = torch.load(path, weights_only=True)
    secret = load_checkpoint(path, content["settings"]).secret
    assert secret is not None
    return secret
