"""Flower's real processes on loopback, beside the same run in process.

Each takes 20 to 100 s on an idle machine, most of it the start of Flower's processes: a SuperNode
starts one for every message.
"""

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_processes import flower
from flower_runs import here_with, secret_of

import fedsim
from fedsim import build
from fedsim.attendance import Absent
from fedsim.cohort import CohortSampler
from fedsim.data.sources import open_dataset
from fedsim.reporter import Silence

SETTINGS: dict[str, Any] = {
    "name": "tiny",
    "data": {"source": "openclipart", "labels": "coarse", "image_size": 16},
    "model": {"name": "cnn", "channels": [8]},
    "federated": {
        "num_rounds": 3,
        "cohort_size": 6,
        "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.1},
    },
    "strategy": {"name": "fedavg", "weighting": "examples"},
    "evaluation": {"bootstrap_resamples": 0},
    "engine": {"workers": 1, "checkpoint_every": 1},
}
CLOCKS = ("seconds", "diagnostic_num_dropped_out", "diagnostic_num_resent")


def lines(out: Path) -> list[dict[str, Any]]:
    """The record without what a clock or the network wrote."""
    text = (out / "tiny" / "seed0" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in CLOCKS} for line in text]


def trained(out: Path) -> dict[str, torch.Tensor]:
    stored = torch.load(out / "tiny" / "seed0" / "checkpoint" / "state.pt", weights_only=True)
    arrays = stored["arrays"]
    assert isinstance(arrays, dict)
    return arrays


def same_bits(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("yaml") / "tiny.yaml"
    path.write_text(json.dumps(SETTINGS))  # JSON is YAML
    return path


PRIVATE = "privacy.central.clipping_norm=0.1 privacy.central.noise_multiplier=1"


def in_process(out: Path) -> Path:
    fedsim.run(SETTINGS, out, Silence())
    return out


def deployed(yaml: Path, files: Path, out: Path, overrides: str = "") -> str:
    given = f"data.source={files / 'server.h5'} {overrides}"
    return f'config="{yaml}" overrides="{given}" out="{out}" num-nodes=2'


@pytest.mark.slow
def test_a_deployment_of_two_supernodes_gives_the_bits_of_the_run_in_process(
    yaml: Path, files: Path, tmp_path: Path
) -> None:
    expected, out = in_process(tmp_path / "here"), tmp_path / "out"
    with flower(tmp_path) as runtime:
        runtime.superlink()
        runtime.supernode("node-1", files / "node-1.h5")
        runtime.supernode("node-2", files / "node-2.h5")
        runtime.run(deployed(yaml, files, out))
        runtime.wait(out / "tiny" / "seed0" / "summary.json", "best_round")
    assert same_bits(trained(out), trained(expected))
    assert lines(out) == lines(expected)


@pytest.mark.slow
def test_a_private_deployment_that_is_gone_on_with_has_the_bits_of_its_secret(
    yaml: Path, files: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    overrides = f"strategy.weighting=uniform {PRIVATE}"
    with flower(tmp_path) as runtime:
        runtime.superlink()
        runtime.supernode("node-1", files / "node-1.h5")
        runtime.supernode("node-2", files / "node-2.h5")
        runtime.run(deployed(yaml, files, out, f"{overrides} federated.num_rounds=1"))
        runtime.wait(out / "tiny" / "seed0" / "summary.json", "best_round")
        first = secret_of(out)
        runtime.processes.pop("run").wait(60)
        runtime.run(deployed(yaml, files, out, overrides))
        runtime.wait(out / "tiny" / "seed0" / "summary.json", '"num_rounds": 3')
    assert secret_of(out) == first
    central = {"clipping_norm": 0.1, "noise_multiplier": 1}
    private = {
        "strategy": {"name": "fedavg", "weighting": "uniform"},
        "privacy": {"central": central},
    }
    here_with(first, {**SETTINGS, **private}, tmp_path / "here")
    assert same_bits(trained(out), trained(tmp_path / "here"))
    assert lines(out) == lines(tmp_path / "here")


class OnNodeOneFrom:
    """Attendance: from some round on the users of one file alone answer."""

    def __init__(self, users: Any, kept: frozenset[str], rounds: frozenset[int]) -> None:
        self._users, self._kept, self._rounds = users, kept, rounds

    def absent(self, round_num: int, positions: Iterable[int]) -> Absent:
        lost = [
            round_num in self._rounds and self._users.ids[position] not in self._kept
            for position in positions
        ]
        return Absent(np.array(lost, dtype=np.bool_), np.zeros(len(lost), dtype=np.bool_))

    def num_never_in_time(self) -> int:
        return 0


@pytest.mark.slow
def test_a_supernode_that_is_lost_takes_its_users_with_it_and_the_record_says_so(
    yaml: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    record = out / "tiny" / "seed0" / "metrics.jsonl"
    with flower(tmp_path) as runtime:
        runtime.superlink()
        runtime.supernode("node-1", files / "node-1.h5")
        runtime.supernode("node-2", files / "node-2.h5")
        runtime.run(deployed(yaml, files, out))
        runtime.wait(record, '"round": 1, "split": "train"')
        runtime.kill("node-2")
        runtime.wait(out / "tiny" / "seed0" / "summary.json", "best_round")
        told = runtime.log("run")

    kept = frozenset(
        open_dataset(str(files / "node-1.h5"), labels="coarse", image_size=16).users("train").ids
    )
    everybody = open_dataset("openclipart", labels="coarse", image_size=16).users("train")
    cohorts = CohortSampler(everybody, 6, "fixed_size", seed=0)
    absent = {
        num: sum(everybody.ids[i] not in kept for i in cohorts.draw(num)) for num in (1, 2, 3)
    }
    training = [json.loads(line) for line in record.read_text().splitlines()]
    found = {
        line["round"]: line["diagnostic_num_dropped_out"]
        for line in training
        if line["split"] == "train"
    }
    assert found[1] == 0
    assert found[3] == absent[3] > 0
    assert found[2] in (0, absent[2])  # it may just have answered before it was killed
    assert "dropped out" in told

    lost = frozenset(num for num, number in found.items() if number)
    monkeypatch.setattr(
        build, "build_attendance", lambda config, users: OnNodeOneFrom(users, kept, lost)
    )
    assert same_bits(trained(out), trained(in_process(tmp_path / "here")))


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Flower's simulation needs the package ray"
)
def test_flower_s_simulation_gives_the_bits_of_the_run_in_process(
    yaml: Path, tmp_path: Path
) -> None:
    expected, out = in_process(tmp_path / "here"), tmp_path / "out"
    with flower(tmp_path) as runtime:
        runtime.superlink("--simulation")
        runtime.run(
            f'config="{yaml}" out="{out}"',
            "--federation-config",
            "num-supernodes=2 client-resources-num-cpus=1 client-resources-num-gpus=0.0 "
            "init-args-num-cpus=2",
        )
        runtime.wait(out / "tiny" / "seed0" / "summary.json", "best_round")
    assert same_bits(trained(out), trained(expected))
    assert lines(out) == lines(expected)
