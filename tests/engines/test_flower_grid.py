"""Runs on Flower's nodes, beside the same runs in process; the network is a fake, and may lose."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from fake_flower import FakeFlower, Fate
from flower_runs import (
    CENTRAL_DP,
    EXAMPLE_LEVEL_DP,
    SETTINGS,
    SIMULATION,
    Clock,
    Notes,
    Without,
    answered,
    assert_same_run,
    on_flower,
    record,
    settings,
)
from flwr.app import Message

import fedsim
from fedsim import build, cohort_strategy
from fedsim.config import RunConfig
from fedsim.data.sources import open_dataset
from fedsim.engines import exchange, flower_grid
from fedsim.flower_app.task import Task
from fedsim.reporter import Failure, Silence

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        CENTRAL_DP,
        {"strategy": {"name": "scaffold"}},
        {"strategy": {"name": "flwr.serverapp.strategy:FedMedian"}},
        EXAMPLE_LEVEL_DP,
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


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("refused", {}),
        ("unavailable", {}),
        ("crashed", {}),
        ("forgotten", {"strategy": {"name": "scaffold"}}),
        ("forgotten", EXAMPLE_LEVEL_DP),
    ],
)
def test_lost_messages_are_sent_again_and_the_work_done_again_is_the_same(
    what: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    given = settings(**changes)
    fedsim.run(given, tmp_path / "here", Silence())
    fates = iter([what, "answered", what, what])
    grid = FakeFlower(SIMULATION, lambda message: next(fates, "answered"))
    on_flower(given, tmp_path / "there", grid)
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
    present = answered(tmp_path / "there")
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


def test_a_node_is_given_its_time_for_each_of_several_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, times_to_live = Clock(), []

    class Slow(FakeFlower):
        """Answers one message in 20 s, and then the next."""

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            clock.now += 20
            return super().pull_messages(message_ids)

    def fate(message: Message) -> str:
        times_to_live.append(message.metadata.ttl)
        return "answered"

    monkeypatch.setattr(exchange, "time", clock)
    monkeypatch.setattr(flower_grid, "_BYTES_PER_MESSAGE", 1)
    outcome = on_flower(settings(), tmp_path, Slow({71: {}}, fate), seconds=30)
    assert not isinstance(outcome, Failure), outcome
    assert times_to_live == 2 * [31, 61, 91, 121, 151]


def test_a_client_that_fails_stops_the_run_and_is_named(tmp_path: Path) -> None:
    grid = FakeFlower(SIMULATION, lambda message: "raised")
    outcome = on_flower(settings(**CENTRAL_DP), tmp_path, grid)
    assert isinstance(outcome, Failure)
    assert "round 1, user" in outcome.message
    assert "it raised" in outcome.message
    assert len(grid.asked) == 3  # and is not sent again


@pytest.mark.parametrize("default", [False, True])
def test_features_are_kept_where_the_settings_say_and_on_a_node_where_it_says(
    default: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    kept = tmp_path / "features"
    engine = {**SETTINGS["engine"], **({} if default else {"feature_cache": str(kept)})}
    given = settings(model={"name": "fakes:frozen_model"}, engine=engine)
    summary = on_flower(given, tmp_path / "out", FakeFlower(SIMULATION))
    assert not isinstance(summary, Failure), summary
    assert summary["trained_on"] == "features"
    by_default = tmp_path / "home" / ".cache" / "fedsim"
    assert (kept.exists(), by_default.exists()) == (not default, default)

    sent = Task(RunConfig.model_validate({**SETTINGS, "engine": engine})).to_record()
    on_node = Task.on_node(sent, {"data": "mine.h5"}).config.engine.feature_cache
    assert on_node == "~/.cache/fedsim/features"


def test_a_last_layer_s_cohort_is_dealt_to_as_many_blocks_as_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealt, deal = [], cohort_strategy.deal

    def watched(sizes: Any, num_blocks: int) -> list[list[int]]:
        dealt.append(num_blocks)
        return deal(sizes, num_blocks)

    monkeypatch.setattr(cohort_strategy, "deal", watched)
    given = settings(model={"name": "fakes:frozen_model"})
    given["engine"] = {**given["engine"], "feature_cache": None}
    fedsim.run(given, tmp_path / "here", Silence())
    on_flower(given, tmp_path / "there", FakeFlower(SIMULATION))
    rounds = given["federated"]["num_rounds"]
    assert dealt == 2 * rounds * [8]


def test_features_that_are_not_to_be_kept_are_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    engine = {**SETTINGS["engine"], "feature_cache": None}
    given = settings(model={"name": "fakes:frozen_model"}, engine=engine)
    summary = on_flower(given, tmp_path / "out", FakeFlower(SIMULATION))
    assert not isinstance(summary, Failure), summary
    assert not (tmp_path / "home" / ".cache" / "fedsim").exists()
    sent = Task(RunConfig.model_validate({**SETTINGS, "engine": engine})).to_record()
    assert Task.on_node(sent, {"data": "mine.h5"}).config.engine.feature_cache is None
