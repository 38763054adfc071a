"""The commands: what they print, and how they end."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsim.audit import game
from fedsim.cli import app
from fedsim.errors import ConfigError, PrivacyError

QUICKSTART = str(Path(__file__).parents[2] / "experiments" / "quickstart.yaml")
PLUG_IN = """
from fedsim.strategy import SumStrategy
from fedsim.update_sum import FoldRule

class Unclipped(SumStrategy):
    def _rule(self):
        return FoldRule("uniform")

    def server_step(self, round_num, arrays, update):
        return {name: a + update[name] for name, a in arrays.items()}
"""


@pytest.fixture(autouse=True)
def short_game(monkeypatch) -> None:
    monkeypatch.setattr(game, "GAME_TRIALS", 60)


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_every_run_is_audited_and_passes() -> None:
    baseline = "centralized.user_level={epochs: 1, clipping_norm: 0.5, noise_multiplier: 1}"
    result = invoke("mechanism", QUICKSTART, baseline, "--json")
    assert result.exit_code == 0, result.output
    audited = json.loads(result.stdout)
    assert audited["fedavg-seed0"] == []
    for run_id in ("central_dp-seed0", "centralized_user_level-seed0"):
        verdicts = {row["name"]: row["verdict"] for row in audited[run_id]}
        assert verdicts.pop("adaptive clipping") == "not applicable"
        assert set(verdicts.values()) == {"pass"}
        assert len(verdicts) >= 14


def test_a_run_without_central_dp_has_nothing_to_audit(tmp_path) -> None:
    file = tmp_path / "plain.yaml"
    file.write_text("name: plain\n")
    result = invoke("mechanism", str(file))
    assert result.exit_code == 0
    assert "seed0: no privacy.central, so there is nothing to audit" in result.stdout


def test_a_plug_in_without_clipping_fails_with_exit_code_4(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUG_IN)
    result = invoke("strategy", f"{file}:Unclipped")
    assert isinstance(result.exception, PrivacyError)
    assert result.exception.exit_code == 4
    assert "clipping: an update of 1000 S" in str(result.exception)
    assert "FAIL: one user enters the" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["flwr.serverapp.strategy:FedMedian"], "whose aggregation is not a sum"),
        (["fedavg", "weighting=examples"], "influence would not be bounded"),
    ],
)
def test_a_strategy_without_central_dp_says_why(arguments, reason) -> None:
    result = invoke("strategy", *arguments, "--json")
    assert result.exit_code == 0, result.output
    (rows,) = json.loads(result.stdout).values()
    private = [row for row in rows if row["verdict"] == "not applicable"]
    assert {row["name"] for row in private} >= {"noise", "clipping", "epsilon"}
    assert all(reason in row["explanation"] for row in private)


@pytest.mark.parametrize("parameter", ["server_learning_rate", "=1"])
def test_a_parameter_without_name_or_value_is_a_config_error(parameter: str) -> None:
    result = invoke("strategy", "fedavg", parameter)
    assert isinstance(result.exception, ConfigError)
    assert "expected name=value" in str(result.exception)
