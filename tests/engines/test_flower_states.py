"""What users keep between rounds on nodes, where the server did not get what belongs to it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_flower import FakeFlower
from flower_runs import (
    CENTRAL_DP,
    SETTINGS,
    SIMULATION,
    Without,
    answered,
    assert_same_run,
    at_server,
    on_flower,
    record,
    settings,
    trained,
)
from flwr.app import Message

import fedsim
from fedsim import build
from fedsim.engines import exchange
from fedsim.engines.pack import unpack
from fedsim.reporter import Failure, Silence
from fedsim.update_sum import ROUND, USER

pytestmark = pytest.mark.usefixtures("no_pauses")

LOSSY, FATES = 101, {2: "forgotten", 3: "crashed"}


class Lossy(FakeFlower):
    """One node does the work of round 2 and gets none in round 3: no answer comes."""

    def __init__(
        self, there: dict[int, dict[str, Any]], asked: dict[int, set[str]], lossy: int = LOSSY
    ) -> None:
        super().__init__(there, self._lose)
        self._asked_of_it, self._lossy = asked, lossy

    def _lose(self, message: Message) -> str:
        if message.metadata.message_type != "train" or message.metadata.dst_node_id != self._lossy:
            return "answered"
        told = [c for u in unpack(message.content) for c in u.config_records.values() if USER in c]
        round_num = int(str(told[0][ROUND]))
        self._asked_of_it.setdefault(round_num, set()).update(str(c[USER]) for c in told)
        return FATES.get(round_num, "answered")


def scaffold(num_rounds: int) -> dict[str, Any]:
    federated = {**SETTINGS["federated"], "num_rounds": num_rounds, "cohort_size": 80}
    return {"strategy": {"name": "scaffold"}, "federated": federated}


def test_what_a_user_kept_is_forgotten_if_the_answer_was_lost(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run, in two sittings, is that in which these users have dropped out."""
    monkeypatch.setattr(exchange, "MAX_RESENDS", 0)
    asked: dict[int, set[str]] = {}
    nodes = {
        100 + i: {"data": str(files / f"node-{i + 1}.h5"), "states": str(tmp_path / f"states-{i}")}
        for i in range(2)
    }
    for num_rounds in (2, 5):
        given = at_server(files, **scaffold(num_rounds))
        outcome = on_flower(given, tmp_path / "there", Lossy(nodes, asked), num_nodes=2)
        assert not isinstance(outcome, Failure), outcome
    training = [line for line in record(tmp_path / "there") if line["split"] == "train"]
    dropped = [line["diagnostic_num_dropped_out"] for line in training]
    assert dropped == [0, len(asked[2]), len(asked[3]), 0, 0]
    later = asked[4] | asked[5]
    assert asked[1] & asked[2] & later, "nobody was to find what an earlier round left"
    assert asked[2] & asked[3] & later, "nobody was to be told of round 2 twice"
    assert (asked[2] & later) - asked[3], "nobody was to be told of round 2 after the first sitting"

    present = answered(tmp_path / "there")
    monkeypatch.setattr(build, "build_attendance", lambda config, users: Without(users, present))
    fedsim.run(settings(**scaffold(5)), tmp_path / "here", Silence())
    assert_same_run(tmp_path / "there", tmp_path / "here")


def test_a_simulation_that_goes_on_in_process_forgets_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MAX_RESENDS", 0)
    asked: dict[int, set[str]] = {}
    first, whole = ({**CENTRAL_DP, **scaffold(num_rounds)} for num_rounds in (2, 4))
    lossy = Lossy(SIMULATION, asked, min(SIMULATION))
    outcome = on_flower(settings(**first), tmp_path / "there", lossy)
    assert not isinstance(outcome, Failure), outcome
    present = answered(tmp_path / "there")
    assert not {(2, user) for user in asked[2]} & present
    fedsim.run(settings(**whole), tmp_path / "there", Silence())
    later = answered(tmp_path / "there")
    assert asked[2] & {user for round_num, user in later if round_num > 2}

    monkeypatch.setattr(build, "build_attendance", lambda config, users: Without(users, later))
    fedsim.run(settings(**whole), tmp_path / "here", Silence())
    found, expected = trained(tmp_path / "there"), trained(tmp_path / "here")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
