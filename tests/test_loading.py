"""Recorded runs as data frames, and runs from Python."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import fedsim
from fedsim.cli import app
from fedsim.errors import CheckpointError, ConfigError, EngineError

SETTINGS = {
    "name": "tiny",
    "data": {"image_size": 16},
    "model": {"name": "cnn", "channels": [4]},
    "federated": {"num_rounds": 2, "cohort_size": 4},
    "strategy": {"name": "fedavg", "weighting": "uniform"},
    "privacy": {"central": {"clipping_norm": 1.0, "noise_multiplier": 0.0}},
    "centralized": {"epochs": 1},
    "evaluation": {"bootstrap_resamples": 0, "num_val_images": 50},
    "engine": {"workers": 1},
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    config = fedsim.RunConfig.model_validate(SETTINGS)
    summaries = fedsim.run(config, out)
    assert list(summaries) == ["seed0", "centralized-seed0"]
    assert summaries["seed0"]["test"]["scores"]["num_examples"] == 361
    return out


def test_a_frame_of_runs(out: Path) -> None:
    frame = fedsim.load_runs(out)
    assert list(frame["run_id"]) == ["seed0", "centralized-seed0"]  # as they were run
    assert list(frame["status"]) == ["finished", "finished"]
    row = frame.set_index("run_id").loc["seed0"]
    summary = json.loads((out / "tiny" / "seed0" / "summary.json").read_text())
    assert row["macro_ap"] == summary["test"]["scores"]["macro_ap"]
    assert math.isinf(row["epsilon_as_run"])  # no noise
    assert row["federated.cohort_size"] == 4
    assert row["model.channels"] == "[4]"
    assert row["strategy.weighting"] == "uniform"
    assert (row["name"], row["seed"], row["kind"]) == ("tiny", 0, "federated")
    for path in (out / "tiny", out / "tiny" / "seed0"):
        assert "seed0" in set(fedsim.load_runs(path)["run_id"])
    with pytest.raises(CheckpointError, match="expected a folder of runs"):
        fedsim.load_runs(out / "none")


def test_a_frame_of_rounds(out: Path) -> None:
    rounds = fedsim.load_rounds(out / "tiny" / "seed0")
    assert list(rounds["round"][:5]) == [0, 1, 1, 2, 2]
    assert list(rounds["split"][:5]) == ["val", "train", "val", "train", "val"]
    lines = (out / "tiny" / "seed0" / "metrics.jsonl").read_text().splitlines()
    assert len(rounds) == len(lines)
    assert rounds["macro_ap"].iloc[2] == json.loads(lines[2])["macro_ap"]
    assert math.isinf(rounds["epsilon_as_run"].iloc[-1])


def test_runs_that_have_no_end_are_listed_too(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "tiny", tmp_path / "tiny")
    (tmp_path / "tiny" / "seed0" / "summary.json").unlink()
    (tmp_path / "tiny" / "centralized-seed0" / "summary.json").unlink()
    mark = {"message": "x", "exit_code": 5, "traceback": "", "config": {}}
    (tmp_path / "tiny" / "seed0" / "failed.json").write_text(json.dumps(mark))
    frame = fedsim.load_runs(tmp_path).set_index("run_id")
    assert dict(frame["status"]) == {"centralized-seed0": "unfinished", "seed0": "failed"}
    assert frame.loc["seed0", "federated.num_rounds"] == 2


def test_listing_and_filtering(out: Path) -> None:
    done = CliRunner().invoke(app, ["runs", str(out), "--where", "kind=federated", "--csv"])
    assert done.exit_code == 0
    from io import StringIO

    frame = pd.read_csv(StringIO(done.stdout))
    assert list(frame["run_id"]) == ["seed0"]
    shown = CliRunner().invoke(app, ["runs", str(out)])
    assert "2 runs" in shown.stdout
    assert "centralized-seed0" in shown.stdout
    none = ["--where", "strategy.name=*"]  # no YAML, and no such run
    odd = CliRunner().invoke(app, ["runs", str(out), "--csv", *none, "--where", "seed=0"])
    assert (odd.exit_code, len(odd.stdout.splitlines())) == (0, 1)
    wrong = CliRunner().invoke(app, ["runs", str(out), "--where", "federated.cohort=4"])
    assert isinstance(wrong.exception, ConfigError)
    assert "did you mean 'federated.cohort_size'?" in str(wrong.exception)


def test_faults_from_python_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cohort_sise: expected a known key"):
        fedsim.run({"name": "x", "federated": {"cohort_sise": 3}}, tmp_path)
    (tmp_path / "mine.py").write_text(
        "from fedsim_strategies.fedavg import FedAvg\n"
        "class Mine(FedAvg):\n"
        "    def server_step(self, round_num, arrays, update):\n"
        "        raise ValueError('odd')\n"
    )
    broken = {**SETTINGS, "privacy": {}, "strategy": {"name": f"{tmp_path}/mine.py:Mine"}}
    with pytest.raises(EngineError, match="odd"):
        fedsim.run({**broken, "centralized": None}, tmp_path / "out")


def test_the_schema_describes_the_files_of_this_project() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    done = CliRunner().invoke(app, ["schema"])
    schema = json.loads(done.stdout)
    from fedsim.yaml_text import parse_yaml

    files = sorted((Path(__file__).parents[1] / "experiments").rglob("*.yaml"))
    assert files
    for path in files:
        jsonschema.validate(parse_yaml(path.read_text()), schema)
    for wrong in ({"federated": {"cohort_sise": 3}}, {"seeds": 3}, {"data": {"labels": "huge"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"name": "x", **wrong}, schema)
