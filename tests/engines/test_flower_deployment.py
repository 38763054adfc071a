"""Nodes that hold users of their own, as in a deployment; they come and go, and may not fit."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from fake_flower import FakeFlower
from flower_runs import (
    SETTINGS,
    Clock,
    Notes,
    assert_same_run,
    at_server,
    holders,
    on_flower,
    record,
    settings,
    without_network,
)
from flwr.app import Message

import fedsim
from fedsim.config import RunConfig
from fedsim.config_file import runs_of
from fedsim.engines import nodes
from fedsim.errors import ConfigError, DataError, EngineError
from fedsim.experiment import run_jobs
from fedsim.flower_app.runtime import FlowerRuntime
from fedsim.flower_app.task import Task
from fedsim.jobs import jobs_of
from fedsim.reporter import Failure, Silence

pytestmark = pytest.mark.usefixtures("no_pauses")


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


def test_too_few_nodes_are_waited_for_once_and_then_missed(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, grid = Clock(), FakeFlower(holders(files, "node-1"))
    monkeypatch.setattr(nodes, "time", clock)
    with pytest.raises(EngineError, match=r"expected 2 SuperNodes, found 1 connected"):
        on_flower(at_server(files, seeds=[0, 1]), tmp_path, grid, num_nodes=2, seconds=30)
    assert 30 < clock.now < 40


class Changed(FakeFlower):
    """A node's answer about its users is changed."""

    def __init__(self, there: dict[int, dict[str, Any]], node: int, **changes: Any) -> None:
        super().__init__(there)
        self._node, self.changes = node, changes

    def _reply(self, message: Message, fate: str) -> Message:
        reply = super()._reply(message, fate)
        if message.metadata.dst_node_id == self._node and "answer" in reply.content:
            reply.content["answer"].update(self.changes)
        return reply


@pytest.mark.parametrize(
    "changes",
    [
        {"users": [1, 2], "num-images": [1, 1]},
        {"users": ["b", "a"], "num-images": [1, 1]},
        {"users": ["a", "b"], "num-images": [1.0, 1.0]},
        {"users": ["a", "b"], "num-images": [1, 0]},
        {"users": ["a", "b"], "num-images": [1]},
        {"labels": ["animals"], "label-counts": [-1]},
    ],
    ids=str,
)
def test_a_table_of_users_that_can_not_be_is_refused(
    changes: dict[str, Any], files: Path, tmp_path: Path
) -> None:
    grid = Changed(holders(files, "node-1"), 100, **changes)
    with pytest.raises(EngineError, match="SuperNode 100: expected sorted ids of its users"):
        on_flower(at_server(files), tmp_path, grid, num_nodes=1)


MISFITS = {
    "version": ({"fedsim": "0.0.1"}, "SuperNode 666: expected fedsim .*, found 0.0.1"),
    "labels": (
        {"labels": ["cats"], "label-counts": [1]},
        "SuperNode 666: expected the server's 17 labels, found 1 ",
    ),
    "table": ({"users": ["b", "a"]}, "SuperNode 666: expected sorted ids"),
    "fault": ({"reason": "no data"}, "SuperNode 666: no data"),
    "user": ({}, "SuperNode 666: expected users of its own, found '.*' of SuperNode 100"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_node_that_joins_later_and_does_not_fit_is_left_out(
    kind: str, files: Path, tmp_path: Path
) -> None:
    changes, why = MISFITS[kind]
    grid = Changed(holders(files, "node-1", "node-2"), 666, **changes)

    class Joining(Notes):
        def recorded(self, run_id: str, line: dict[str, Any]) -> None:
            if (line["split"], line["round"]) == ("val", 1):
                grid.nodes = {666: grid.nodes[100], **grid.nodes}

    given, notes = at_server(files), Joining()
    given["federated"]["num_rounds"] = 4
    summary = on_flower(given, tmp_path / "there", grid, num_nodes=2, reporter=notes)
    assert not isinstance(summary, Failure), summary
    assert [node for node, kind in grid.asked if node == 666] == [666]  # asked once, of its users
    (text,) = notes.texts
    assert re.match(f"a SuperNode that connected late is left out: {why}", text)
    assert summary["notes"] == [{"round": 2, "note": text}]

    given = settings()
    given["federated"]["num_rounds"] = 4
    fedsim.run(given, tmp_path / "here", Silence())
    found = record(tmp_path / "there")
    assert [line.pop("note", None) for line in found if line["split"] == "train"][1] == text
    assert without_network(found) == without_network(record(tmp_path / "here"))


@pytest.mark.parametrize("kind", sorted(MISFITS.keys() - {"user"}))
def test_a_node_that_does_not_fit_at_the_start_stops_the_run(
    kind: str, files: Path, tmp_path: Path
) -> None:
    changes, why = MISFITS[kind]
    grid = Changed({666: holders(files, "node-1")[100]}, 666, **changes)
    with pytest.raises((DataError, EngineError), match=why):
        on_flower(at_server(files), tmp_path, grid, num_nodes=1)


def test_two_nodes_that_do_not_fit_at_the_start_are_told_together(
    files: Path, tmp_path: Path
) -> None:
    grid = FakeFlower({7: {"data": "missing.h5"}, 8: {"data": "lost.h5"}})
    with pytest.raises(DataError, match=r"(?s)SuperNode 7: .*missing\.h5.*SuperNode 8: .*lost\.h5"):
        on_flower(at_server(files), tmp_path, grid, num_nodes=2)


def test_a_node_that_was_left_out_is_asked_anew_when_it_comes_back(
    files: Path, tmp_path: Path
) -> None:
    """It left with another release, and comes back with it, and then with the right one."""
    grid = Changed(holders(files, "node-1", "node-2"), 555, fedsim="0.0.1")

    class Moving(Notes):
        def recorded(self, run_id: str, line: dict[str, Any]) -> None:
            if line["split"] != "val":
                return
            if line["round"] == 1:
                grid.nodes[555] = grid.nodes.pop(101)
            if line["round"] == 2:
                grid.nodes[101] = grid.nodes.pop(555)
            if line["round"] == 3:
                grid.nodes[555] = grid.nodes.pop(101)
                grid.changes = {}

    given, notes = at_server(files), Moving()
    given["federated"]["num_rounds"] = 4
    outcome = on_flower(given, tmp_path, grid, num_nodes=2, reporter=notes)
    assert not isinstance(outcome, Failure), outcome
    dropped = [x["diagnostic_num_dropped_out"] for x in record(tmp_path) if x["split"] == "train"]
    assert [number > 0 for number in dropped] == [False, True, False, False]
    assert sum("555: expected fedsim" in text for text in notes.texts) == 1
    assert grid.asked.count((555, "query")) == 2


def test_a_node_that_joins_later_and_says_nothing_is_asked_once(
    files: Path, tmp_path: Path
) -> None:
    grid = FakeFlower(
        holders(files, "node-1", "node-2"),
        lambda message: "silence" if message.metadata.dst_node_id == 666 else "answered",
    )

    class Joining(Silence):
        def recorded(self, run_id: str, line: dict[str, Any]) -> None:
            grid.nodes[666] = grid.nodes[100]

    outcome = on_flower(at_server(files), tmp_path, grid, num_nodes=2, reporter=Joining())
    assert not isinstance(outcome, Failure), outcome
    assert grid.asked.count((666, "query")) == 1


def test_nodes_are_asked_anew_for_each_run_of_a_file(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower(holders(files, "node-1", "node-2"))

    class Moving(Silence):
        def finished(self, run_id: str, summary: dict[str, Any], skipped: bool) -> None:
            if 101 in grid.nodes:
                grid.nodes[555] = grid.nodes.pop(101)

    jobs = jobs_of(runs_of(at_server(files, seeds=[0, 1]), {}, "the settings"))
    runtime = FlowerRuntime(grid, 2, 30)
    outcomes = run_jobs(jobs, tmp_path, Moving(), command="", repeat_failed=True, runtime=runtime)
    assert outcomes.keys() == {"seed0", "seed1"}
    assert not [outcome for outcome in outcomes.values() if isinstance(outcome, Failure)]
    assert {(101, "train"), (555, "train")} <= set(grid.asked)


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


def test_a_run_does_not_find_what_users_kept_in_another(files: Path, tmp_path: Path) -> None:
    grid = FakeFlower(holders(files, "node-1", "node-2"))
    given = at_server(files, strategy={"name": "scaffold"})
    many = copy.deepcopy(given)
    many["federated"] |= {"cohort_size": 100, "num_rounds": 1}
    for name, run in (("first", many), ("there", given)):
        outcome = on_flower(run, tmp_path / name, grid, num_nodes=2)
        assert not isinstance(outcome, Failure), outcome
    fedsim.run(settings(strategy={"name": "scaffold"}), tmp_path / "here", Silence())
    assert_same_run(tmp_path / "there", tmp_path / "here")


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


def test_settings_of_another_release_are_told_as_such() -> None:
    sent = Task(RunConfig.model_validate(SETTINGS)).to_record()
    sent["settings"] = str(sent["settings"]).replace('"seed"', '"sead"')
    with pytest.raises(
        ConfigError, match=r"(?s)expected those of fedsim .*install the same release"
    ):
        Task.on_node(sent, {})
