"""What runs will spend, before any of them trains."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.config import RunConfig
from fedsim.errors import ConfigError
from fedsim.estimate import estimate_costs
from fedsim.jobs import Job
from fedsim.plan import plan_runs

FLAIR = """
name: flair
data: {source: synthetic, population_size: 41131, input_size: 224, image_size: 256}
model: {name: resnet18}
federated: {num_rounds: 5000, cohort_size: 200}
strategy: {name: fedadam, weighting: uniform}
privacy:
  central: {clipping_norm: 0.1, epsilon: 2.0, noise_cohort_size: 5000}
"""
KEYS = {
    "population_size", "sampling_rate", "num_rounds", "cohort_size", "noise_cohort_size", "delta",
    "noise_multiplier", "noise_stddev_mean", "noise_stddev_sum", "epsilon_as_run",
    "epsilon_at_noise_cohort", "accountant", "sampling", "neighboring", "assumptions",
}  # fmt: skip


def planned(tmp_path: Path, *overrides: str) -> list[dict]:
    path = tmp_path / "flair.yaml"
    path.write_text(FLAIR)
    done = CliRunner().invoke(app, ["plan", str(path), *overrides, "--json"])
    assert done.exit_code == 0, done.output
    entries: list[dict] = json.loads(done.stdout)
    return entries


@pytest.mark.parametrize(
    ("accountant", "sigma", "as_run"), [("pld", 17.36, 4.69), ("rdp", 18.67, 4.33)]
)
def test_the_anchor_of_flair(tmp_path, accountant, sigma, as_run) -> None:
    """N = 41,131, T = 5,000, epsilon 2 at cohorts of 5,000, as run with 200."""
    (entry,) = planned(tmp_path, f"privacy.central.accountant={accountant}")
    assert entry.keys() >= KEYS
    assert entry["noise_multiplier"] == pytest.approx(sigma, rel=0.01)
    assert entry["epsilon_as_run"] == pytest.approx(as_run, rel=0.02)
    assert 1.99 < entry["epsilon_at_noise_cohort"] <= 2.0
    assert entry["delta"] == pytest.approx(8.4026e-6, rel=1e-4)
    assert entry["noise_stddev_mean"] == pytest.approx(3.472e-4 * sigma / 17.36, rel=0.01)
    assert entry["noise_stddev_sum"] == pytest.approx(200 * entry["noise_stddev_mean"])
    assert entry["sampling_rate"] == pytest.approx(200 / 41131)
    assert (entry["sampling"], entry["neighboring"]) == ("poisson", "add_or_remove_one")
    assert entry["num_parameters"] == 11_185_233
    assert any("supposes cohorts of 5000; this run draws 200" in a for a in entry["assumptions"])


def test_the_same_noise_costs_more_under_rdp(tmp_path) -> None:
    noise = ["privacy.central.epsilon=null", "privacy.central.noise_multiplier=17.36"]
    (entry,) = planned(tmp_path, *noise, "privacy.central.accountant=rdp")
    assert entry["epsilon_as_run"] == pytest.approx(5.39, rel=0.02)


def test_fixed_size_cohorts_need_more_than_twice_the_noise(tmp_path) -> None:
    (entry,) = planned(tmp_path, "federated.sampling=fixed_size", "privacy.central.accountant=rdp")
    assert entry["noise_multiplier"] == pytest.approx(37.56, rel=0.01)
    assert entry["noise_stddev_mean"] == pytest.approx(75.1 * 0.1 / 5000, rel=0.01)
    assert entry["neighboring"] == "replace_one"


def test_how_long_runs_will_take_is_told_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "{name: tiny, seeds: [0, 1], data: {image_size: 8}, model: {name: cnn, channels: [4]}, "
        "federated: {num_rounds: 3, cohort_size: 5}, centralized: {epochs: 1}, "
        "engine: {workers: 1}}"
    )
    plain = CliRunner().invoke(app, ["plan", str(path)])
    assert "of memory" not in plain.stdout
    told = CliRunner().invoke(app, ["plan", str(path), "--time"])
    assert told.exit_code == 0, told.output
    assert re.search(
        r"4 runs: about \d+ s with \d at a time, [\d.]+ GB of memory, \d+ MB", told.stdout
    )
    one = CliRunner().invoke(app, ["plan", str(path), "--time", "--json", "seeds=[0]"])
    (entry,) = json.loads(one.stdout)
    config = RunConfig.model_validate(
        {"name": "tiny", "data": {"image_size": 8}, "model": {"name": "cnn", "channels": [4]}}
        | {"federated": {"num_rounds": 3, "cohort_size": 5}, "centralized": {"epochs": 1}}
    )
    cost = estimate_costs([Job("seed0", config)])["seed0"]
    assert entry["disk_mb"] == cost.disk_mb
    assert entry["core_seconds"] == pytest.approx(cost.seconds, rel=0.5)


def test_a_run_without_noise_and_one_with_example_level_dp(tmp_path) -> None:
    private = {"example_level": {"max_grad_norm": 1.0, "noise_multiplier": 1.0}}
    settings = {"name": "x", "federated": {"num_rounds": 10, "cohort_size": 57}}
    runs = {
        "plain": RunConfig.model_validate(settings),
        "dp": RunConfig.model_validate({**settings, "privacy": private}),
    }
    plain, example = plan_runs(runs)
    assert plain.keys() >= KEYS
    assert plain["population_size"] == 285
    assert plain["epsilon_as_run"] is None
    assert plain["example_level"] is None
    assert example["example_level"]["participations"] == 2
    assert example["example_level"]["epsilon_max"] > 1


def test_a_foreign_strategy_holds_the_cohort_s_replies() -> None:
    settings = {"name": "x", "federated": {"cohort_size": 20}}
    foreign = {**settings, "strategy": {"name": "flwr.serverapp.strategy:FedMedian"}}
    ours, theirs = plan_runs(
        {"a": RunConfig.model_validate(settings), "b": RunConfig.model_validate(foreign)}
    )
    assert ours["replies_held_mb"] == ours["update_mb"]
    assert theirs["replies_held_mb"] == 20 * ours["update_mb"]


def test_what_users_keep_is_planned(tmp_path) -> None:
    """SCAFFOLD on FLAIR's population with ResNet-18: a control variate for each of 41,131 users."""
    (entry,) = planned(tmp_path, "strategy={name: scaffold}", "privacy.central=null")
    assert entry["client_states_mb"] == pytest.approx(41_131 * 11_185_233 * 4 / 1e6)
    assert entry["update_mb"] == pytest.approx(2 * 11_185_233 * 4 / 1e6)
    (few,) = planned(
        tmp_path, "strategy={name: scaffold}", "privacy.central=null", "federated.num_rounds=3"
    )
    assert few["client_states_mb"] == pytest.approx(600 * 11_185_233 * 4 / 1e6)
    assert plan_runs({"x": RunConfig.model_validate({"name": "x"})})[0]["client_states_mb"] == 0


def test_a_run_s_estimate_counts_what_users_keep() -> None:
    """Four models for the checkpoint; all 285 users take part in 20 rounds of 20, and keep one."""
    jobs = [
        Job(name, RunConfig.model_validate(QUICK | {"strategy": {"name": name}}))
        for name in ("fedavg", "scaffold")
    ]
    costs = estimate_costs(jobs)
    model_mb = costs["fedavg"].disk_mb / 4
    assert costs["scaffold"].disk_mb == pytest.approx((4 + 285) * model_mb)


QUICK = {
    "name": "quick",
    "data": {"source": "openclipart", "image_size": 16},
    "model": {"name": "cnn", "channels": [4]},
    "federated": {"num_rounds": 20, "cohort_size": 20},
}


def test_private_baselines_are_planned_too() -> None:
    pooled = {
        "example_level": {"epochs": 2, "max_grad_norm": 1.0, "epsilon": 8.0},
        "user_level": {"epochs": 2, "clipping_norm": 1.0, "epsilon": 4.0},
    }
    runs = {
        f"seed{seed}": RunConfig.model_validate({"name": "x", "seed": seed, "centralized": pooled})
        for seed in (0, 1)
    }
    entries = plan_runs(runs)
    assert [entry["run_id"] for entry in entries] == [
        "seed0", "seed1",
        "centralized_example_level-seed0", "centralized_user_level-seed0",
        "centralized_example_level-seed1", "centralized_user_level-seed1",
    ]  # fmt: skip
    assert 7.99 < entries[2]["example_level"]["epsilon_max"] <= 8.0
    assert 3.99 < entries[3]["epsilon_as_run"] <= 4.0
    assert entries[3]["num_rounds"] == 30


def test_baselines_are_named_as_their_runs_are() -> None:
    settings = {"name": "x", "centralized": {"user_level": {"clipping_norm": 1.0, "epsilon": 4.0}}}
    other = {"name": "x", "centralized": {"user_level": {"clipping_norm": 1.0, "epsilon": 2.0}}}
    runs = {
        "a": RunConfig.model_validate(settings),
        "b": RunConfig.model_validate(other),
        "c": RunConfig.model_validate(settings),
    }
    assert [entry["run_id"] for entry in plan_runs(runs)] == [
        "a", "b", "c", "centralized_user_level-seed0", "centralized_user_level-seed0-2",
    ]  # fmt: skip


def test_every_fault_of_every_run_is_told() -> None:
    central = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "delta": 0.01}
    bad = {"name": "x", "federated": {"cohort_size": 999}, "privacy": {"central": central}}
    with pytest.raises(ConfigError) as caught:
        plan_runs({"bad": RunConfig.model_validate(bad)})
    for part in ("cohort_size: expected 1 to 285", "delta: expected", "weighting: expected"):
        assert part in str(caught.value)


def test_synthetic_users_are_planned_without_drawing_them(monkeypatch) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("the data were opened")

    monkeypatch.setattr("fedsim.build.build_dataset", refuse)
    data = {"source": "synthetic", "population_size": 10_000_000}
    runs = {
        "large": RunConfig.model_validate({"name": "x", "data": data}),
        "flair": RunConfig.model_validate({"name": "x", "data": {"source": "synthetic"}}),
    }
    large, flair = plan_runs(runs)
    assert (large["population_size"], flair["population_size"]) == (10_000_000, 41_131)
    assert large["assumptions"] == [
        "population_size is taken from data.population_size, not counted"
    ]
    assert "FLAIR's 41,131 train users" in flair["assumptions"][0]
