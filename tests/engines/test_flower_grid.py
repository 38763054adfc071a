"""Runs on Flower's nodes, beside the same runs in process; the network is a fake, and may lose."""

import copy
import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from fake_flower import FakeFlower, Fate
from flwr.app import Message

import fedsim
from fedsim import build
from fedsim.attendance import Absent
from fedsim.config import RunConfig
from fedsim.config_file import runs_of
from fedsim.data.sources import open_dataset
from fedsim.data.split import split_for_deployment
from fedsim.engines import exchange, nodes
from fedsim.errors import ConfigError, DataError, EngineError
from fedsim.experiment import run_jobs
from fedsim.flower_app.runtime import FlowerRuntime
from fedsim.flower_app.task import Task
from fedsim.jobs import jobs_of
from fedsim.reporter import Failure, Silence
from fedsim.run_processes import Outcome

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
NETWORK = (
    "seconds",
    "diagnostic_num_dropped_out",
    "diagnostic_num_late",
    "diagnostic_num_resent",
)
SIMULATION: dict[int, dict[str, Any]] = {71: {}, 13: {}, 40: {}}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(exchange, "_SECONDS_BETWEEN_PULLS", 0.0)
    monkeypatch.setattr(nodes, "_SECONDS_BETWEEN_LOOKS", 0.0)


class Notes(Silence):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def noted(self, run_id: str, text: str) -> None:
        self.texts.append(text)


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


@pytest.mark.parametrize(
    "changes",
    [
        {},
        CENTRAL_DP,
        {"strategy": {"name": "scaffold"}},
        {"strategy": {"name": "flwr.serverapp.strategy:FedMedian"}},
        {"privacy": {"example_level": {"max_grad_norm": 0.5, "noise_multiplier": 0.8}}},
    ],
    ids=["fedavg", "central_dp", "scaffold", "foreign", "example_level_dp"],
)
def test_users_on_nodes_give_the_bits_of_users_here(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    given = settings(**changes)
    fedsim.run(given, tmp_path / "here", Silence())
    grid = FakeFlower(SIMULATION)
    summary = on_flower(given, tmp_path / "there", grid)
    assert not isinstance(summary, Failure), summary
    assert_same_run(tmp_path / "there", tmp_path / "here")
    assert {node for node, kind in grid.asked if kind == "train"} == set(SIMULATION)
    clients = [out / "tiny" / "seed0" / "clients.csv" for out in tmp_path.iterdir()]
    assert clients[0].read_bytes() == clients[1].read_bytes()


@pytest.mark.parametrize("what", ["refused", "unavailable", "crashed"])
def test_lost_messages_are_sent_again(what: str, tmp_path: Path) -> None:
    fedsim.run(settings(), tmp_path / "here", Silence())
    fates = iter([what, "answered", what, what])
    grid = FakeFlower(SIMULATION, lambda message: next(fates, "answered"))
    on_flower(settings(), tmp_path / "there", grid)
    assert_same_run(tmp_path / "there", tmp_path / "here")
    training = [line for line in record(tmp_path / "there") if line["split"] == "train"]
    assert [line["diagnostic_num_dropped_out"] for line in training] == [0, 0]
    # Five users on three nodes: messages of 2, 2 and 1. The first and the third are lost; what is
    # sent again is dealt anew, one user a message, of which one is lost again.
    assert training[0]["diagnostic_num_resent"] == 2 + 1 + 1
    assert training[1]["diagnostic_num_resent"] == 0


def lose(share: float) -> Fate:
    """All messages that name one of these users are lost."""

    def fate(message: Message) -> str:
        users = [str(c["user"]) for c in message.content.config_records.values() if "user" in c]
        return (
            "crashed" if any(crc32(user.encode()) / 2**32 < share for user in users) else "answered"
        )

    return fate


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


def test_under_central_dp_lost_users_add_zero_and_noise_and_denominator_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, grid = Notes(), FakeFlower(SIMULATION, lose(0.3))
    on_flower(settings(**CENTRAL_DP), tmp_path / "there", grid, reporter=notes)
    training = [line for line in record(tmp_path / "there") if line["split"] == "train"]
    lost = [line["diagnostic_num_dropped_out"] for line in training]
    assert sum(lost) > 0
    assert sum(line["num_clients"] for line in training) > 0
    assert len(notes.texts) == sum(map(bool, lost))
    with (tmp_path / "there" / "tiny" / "seed0" / "clients.csv").open() as file:
        present = {(int(row["round"]), row["user"]) for row in csv.DictReader(file)}

    monkeypatch.setattr(build, "build_attendance", lambda config, users: Without(users, present))
    fedsim.run(settings(**CENTRAL_DP), tmp_path / "here", Silence())
    assert_same_run(tmp_path / "there", tmp_path / "here")


def test_without_dp_a_simulation_does_not_go_on_without_lost_users(tmp_path: Path) -> None:
    outcome = on_flower(settings(), tmp_path, FakeFlower(SIMULATION, lose(0.3)))
    assert isinstance(outcome, Failure)
    users = open_dataset("openclipart", labels="coarse", image_size=8).users("train").ids
    named = [user for user in users if f" {user}" in outcome.message]
    assert outcome.exit_code == 5
    assert named
    assert "it crashed" in outcome.message


def test_a_node_that_stays_silent_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    grid = FakeFlower(SIMULATION, lambda message: "silence")
    outcome = on_flower(settings(), tmp_path, grid, seconds=0.2)
    assert isinstance(outcome, Failure)
    assert "no answer in 0.2 s" in outcome.message
    assert len(grid.asked) == 3  # and is not sent the same work again


def test_a_client_that_fails_stops_the_run_and_is_named(tmp_path: Path) -> None:
    grid = FakeFlower(SIMULATION, lambda message: "raised")
    outcome = on_flower(settings(**CENTRAL_DP), tmp_path, grid)
    assert isinstance(outcome, Failure)
    assert "round 1, user" in outcome.message
    assert "it raised" in outcome.message
    assert len(grid.asked) == 3  # and is not sent again


# In a deployment each node holds users of its own.


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    list(split_for_deployment("openclipart", folder, 2))
    return folder


def holders(files: Path, *names: str) -> dict[int, dict[str, Any]]:
    return {
        100 + i: {"data": str(files / f"{name}.h5"), "states": str(files / f"{name}-states")}
        for i, name in enumerate(names)
    }


def at_server(files: Path, **changes: Any) -> dict[str, Any]:
    given = settings(**changes)
    given["data"]["source"] = str(files / "server.h5")
    return given


@pytest.mark.parametrize("changes", [{}, {"strategy": {"name": "scaffold"}}])
def test_nodes_with_users_of_their_own_give_the_bits_of_all_users_here(
    changes: dict[str, Any], files: Path, tmp_path: Path
) -> None:
    here = fedsim.run(settings(**changes), tmp_path / "here", Silence())["seed0"]
    grid = FakeFlower(holders(files, "node-2", "node-1"))
    there = on_flower(at_server(files, **changes), tmp_path / "there", grid, num_nodes=2)
    assert not isinstance(there, Failure), there
    assert_same_run(tmp_path / "there", tmp_path / "here")
    for key in ("test", "constant_predictor", "privacy"):
        assert without_seconds(there[key]) == without_seconds(here[key])


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if k != "seconds"}
    return value


def test_a_node_that_leaves_drops_its_users_out_and_one_that_comes_back_brings_them(
    files: Path, tmp_path: Path
) -> None:
    nodes_there = holders(files, "node-1", "node-2")
    first = nodes_there.copy()
    grid = FakeFlower(nodes_there)

    class Leaving(Notes):
        def recorded(self, run_id: str, line: dict[str, Any]) -> None:
            if line["split"] == "val" and line["round"] == 1:
                del grid.nodes[101]
            if line["split"] == "val" and line["round"] == 2:
                grid.nodes[555] = first[101]  # under another id, as without a key

    notes = Leaving()
    given = at_server(files)
    given["federated"]["num_rounds"] = 3
    on_flower(given, tmp_path, grid, num_nodes=2, reporter=notes)
    training = [line for line in record(tmp_path) if line["split"] == "train"]
    dropped = [line["diagnostic_num_dropped_out"] for line in training]
    assert dropped[0] == dropped[2] == 0
    assert dropped[1] == 5 - training[1]["num_clients"] > 0
    assert len(notes.texts) == 1
    assert (555, "train") in grid.asked


def test_a_node_that_joins_later_takes_no_other_s_users(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower(holders(files, "node-1", "node-2"))

    class Joining(Silence):
        def recorded(self, run_id: str, line: dict[str, Any]) -> None:
            grid.nodes = {666: grid.nodes[100], **grid.nodes}

    outcome = on_flower(at_server(files), tmp_path, grid, num_nodes=2, reporter=Joining())
    assert not isinstance(outcome, Failure), outcome
    assert (666, "query") in grid.asked
    assert (666, "train") not in grid.asked


def test_a_federation_that_is_gone_stops_the_run(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower(holders(files, "node-1", "node-2"))

    class Leaving(Silence):
        def recorded(self, run_id: str, line: dict[str, Any]) -> None:
            grid.nodes.clear()

    outcome = on_flower(at_server(files), tmp_path, grid, num_nodes=2, reporter=Leaving())
    assert isinstance(outcome, Failure)
    assert "no node that holds them is connected" in outcome.message


def test_too_few_nodes_are_waited_for_and_then_missed(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower(holders(files, "node-1"))
    with pytest.raises(EngineError, match=r"expected 2 SuperNodes, found 1 connected"):
        on_flower(at_server(files), tmp_path, grid, num_nodes=2, seconds=0.1)


def test_one_user_on_two_nodes_is_refused(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower(holders(files, "node-1", "node-1"))
    with pytest.raises(DataError, match=r"SuperNodes 100 and 101: .* found '.*' on both"):
        on_flower(at_server(files), tmp_path, grid, num_nodes=2)


def test_a_node_s_fault_is_told_by_its_number(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower({7: {"data": str(files / "missing.h5")}})
    with pytest.raises(DataError, match=r"SuperNode 7: .*missing\.h5"):
        on_flower(at_server(files), tmp_path, grid, num_nodes=1)


def test_users_who_keep_something_need_a_place_for_it(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower({7: {"data": str(files / "node-1.h5")}})
    given = at_server(files, strategy={"name": "scaffold"})
    outcome = on_flower(given, tmp_path, grid, num_nodes=1)
    assert isinstance(outcome, Failure)
    assert "expected states=FOLDER" in outcome.message


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"centralized": {"epochs": 1}}, "centralized: expected no baseline"),
        ({"data": {**SETTINGS["data"], "partition": {"method": "iid"}}}, "by_user in a deployment"),
    ],
)
def test_what_needs_the_train_images_is_refused_in_a_deployment(
    changes: dict[str, Any], match: str, files: Path, tmp_path: Path
) -> None:
    config = RunConfig.model_validate({**SETTINGS, **changes})
    runtime = FlowerRuntime(FakeFlower({}), 1, 0.1)
    with pytest.raises(ConfigError, match=match):
        runtime.dataset(config)


def test_the_server_s_paths_mean_nothing_on_a_node_with_data_of_its_own(tmp_path: Path) -> None:
    config = RunConfig.model_validate(SETTINGS)
    sent = Task(config, tmp_path / "server").to_record("../../seed0")
    simulated = Task.on_node(sent, {"partition-id": 0})
    assert simulated == Task(config, tmp_path / "server")
    own = Task.on_node(sent, {"data": "mine.h5", "states": str(tmp_path / "mine")})
    assert own.config.data.source == "mine.h5"
    assert own.states is not None
    assert own.states.parent == tmp_path / "mine"
    assert Task.on_node(sent, {"data": "mine.h5"}).states is None


def test_answers_of_another_release_are_refused(tmp_path: Path) -> None:
    class Other(FakeFlower):
        def _reply(self, message: Message, fate: str) -> Message:
            reply = super()._reply(message, fate)
            del reply.content["pack"]
            return reply

    outcome = on_flower(settings(), tmp_path, Other(SIMULATION))
    assert isinstance(outcome, Failure)
    assert "use the same release of fedsim" in outcome.message
