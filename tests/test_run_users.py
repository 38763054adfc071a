"""Whole runs with users' own results, absent users and fitted models."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import RunConfig
from fedsim.jobs import Job
from fedsim.kept_scores import load_kept_scores
from fedsim.metrics import average_precision

YAML = """
name: users
data: {source: openclipart, image_size: 16}
model: {name: cnn, channels: [8]}
federated:
  num_rounds: 3
  cohort_size: 20
  local: {learning_rate: 0.5, batch_size: 4}
  drop_out: {share: 0.3}
  stragglers: {deadline: 5}
strategy: {name: fedavg, weighting: uniform}
evaluation:
  bootstrap_resamples: 0
  num_val_images: 50
  personalization: {learning_rate: 0.1}
  record_clients: true
engine: {workers: 1}
"""


def run(yaml: Path, out: Path, *arguments: str) -> Path:
    command = [sys.executable, "-m", "fedsim.cli", "run", str(yaml), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return out / "users" / "seed0"


@pytest.fixture(scope="module")
def yaml(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("yaml") / "users.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture(scope="module")
def done(yaml: Path, tmp_path_factory) -> Path:
    return run(yaml, tmp_path_factory.mktemp("out"), "centralized={epochs: 2}")


def summary_of(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "summary.json").read_text())
    assert isinstance(content, dict)
    return content


TABLES = ("users.csv", "clients.csv", "personalized_users.csv")


def same_results(one: Path, other: Path) -> None:
    for name in TABLES:
        assert (one / name).read_text() == (other / name).read_text(), name
    for key in ("per_user", "personalization", "num_users_never_in_time", "best_round"):
        assert summary_of(one)[key] == summary_of(other)[key]


def test_what_a_run_says_of_its_users(done: Path) -> None:
    summary = summary_of(done)
    tables = {name: (done / name).read_text().splitlines()[1:] for name in TABLES}
    cells = [row.split(",") for row in tables["users.csv"]]
    held_out = [row for row in cells if row[0] == "test"]
    assert len(held_out) == 91
    kept = load_kept_scores(done)
    ninth = kept.owner == 8
    micro = average_precision(kept.targets[ninth], kept.logits[ninth], average="micro")
    assert (held_out[8][1], int(held_out[8][2])) == (kept.user_ids[8], ninth.sum())
    assert float(held_out[8][3]) == pytest.approx(micro, rel=1e-8)
    mean = sum(float(row[3]) for row in held_out if row[3]) / 91
    assert summary["per_user"]["test"]["micro_ap"]["mean"] == pytest.approx(mean, rel=1e-7)
    # Those of the train split are the users whom the last round heard of.
    last = {row.split(",")[1] for row in tables["clients.csv"] if row.startswith("3,")}
    assert {row[1] for row in cells if row[0] == "train"} == last
    assert summary["per_user"]["diagnostic_train"]["loss"]["num_users"] == len(last)
    lines = [json.loads(text) for text in (done / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["split"] == "train"]
    for line in trained:
        absent = line["diagnostic_num_dropped_out"] + line["diagnostic_num_late"]
        assert line["num_clients"] + absent == 20
        assert absent > 0
        rows = [row for row in tables["clients.csv"] if row.startswith(f"{line['round']},")]
        assert len(rows) == line["num_clients"]
    assert summary["num_users_never_in_time"] > 0


def test_fitted_models_stand_beside_the_global_one(done: Path) -> None:
    found = summary_of(done)["personalization"]
    assert found["num_users"] + found["num_users_left_out"] == 91
    assert found["num_users"] == len((done / TABLES[2]).read_text().splitlines()) - 1
    assert found["num_images_trained_on"] + found["global"]["num_examples"] + found[
        "num_users_left_out"
    ] == len(load_kept_scores(done).owner)
    assert found["global"]["loss"] != found["personalized"]["loss"]
    settings = summary_of(done)["config"]["evaluation"]["personalization"]
    assert settings == {"share": 0.5, "epochs": 1, "batch_size": 4, "learning_rate": 0.1}


def test_the_same_after_a_resume_by_two_workers(yaml: Path, done: Path, tmp_path: Path) -> None:
    folder = run(yaml, tmp_path, "federated.num_rounds=1")
    with (folder / "clients.csv").open("a") as file:
        file.write("2,somebody,3,0.5,1\n2,cut")  # what a kill leaves of a later round
    same_results(run(yaml, tmp_path, "--resume", "engine.workers=2"), done)


def test_baselines_are_compared_with_their_own_start(done: Path) -> None:
    summary = summary_of(done.parent / "centralized-seed0")
    assert summary["per_user"].keys() == {"test"}
    assert summary["per_user"]["test"]["gain"]["mean"] > 0
    assert summary["personalization"]["num_users"] == 41
    assert "num_users_never_in_time" not in summary


def job(**evaluation: object) -> Job:
    local = {"epochs": 3, "learning_rate": 0.25}
    settings = {"name": "x", "federated": {"local": local}, "evaluation": evaluation}
    return Job("x", RunConfig.model_validate(settings))


def test_what_personalization_leaves_out_is_as_users_train() -> None:
    settings = job(personalization={"learning_rate": 0.5}).config.evaluation.personalization
    assert settings is not None
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (3, 16, 0.5)


def test_a_run_goes_on_whatever_is_scored_after_it() -> None:
    plain = job().numbers_depend_on
    assert job(personalization={}, record_clients=True).numbers_depend_on == plain
    assert job(every=2).numbers_depend_on != plain
