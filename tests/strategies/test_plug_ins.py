"""Strategies by every kind of name, in runs from the command line in a folder of one's own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedsim.errors import ConfigError
from fedsim.plugins import call, registered, resolve
from fedsim.strategy_list import list_strategies, strategies_table

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
YAML = """
name: plug_ins
data: {source: openclipart, labels: coarse, image_size: 16}
model: {name: cnn, channels: [4]}
federated:
  num_rounds: 2
  cohort_size: 6
  local: {learning_rate: 0.05, batch_size: 16}
evaluation: {bootstrap_resamples: 10, num_val_images: 50}
engine: {workers: 1}
cases:
"""
NAMES = {
    "short_name": {"name": "trimmed_mean", "trim": 0.3},
    "dotted_path": {"name": "fedsim_strategies.fedavg:FedAvg", "weighting": "uniform"},
    "file": {"name": "./sign_step.py:SignStep", "server_learning_rate": 0.02},
    "file_that_combines": {"name": "./without_the_largest.py:WithoutTheLargest"},
    "module_here": {"name": "shrinking:Shrinking", "mu": 0.1},
    "state_of_users": {"name": "./remembered_drift.py:RememberedDrift"},
    "entry_point": {"name": "from_a_package", "share": 0.25},
    "flowers_trimmed": {"name": "flwr.serverapp.strategy:FedTrimmedAvg", "beta": 0.3},
    "flowers_adam": {"name": "flwr.serverapp.strategy:FedAdam", "eta": 0.01},
    "flowers_krum": {"name": "flwr.serverapp.strategy:Krum", "num_malicious_nodes": 1},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of one's own, with a ``strategies`` package that has nothing to do with fedsim."""
    folder = tmp_path_factory.mktemp("mine")
    for name in ("sign_step", "without_the_largest", "shrinking", "remembered_drift"):
        shutil.copy(EXAMPLES / f"{name}.py", folder)
    (folder / "strategies").mkdir()
    (folder / "strategies" / "__init__.py").write_text("raise RuntimeError('not for fedsim')\n")
    (folder / "strategies" / "fedavg.py").write_text("raise RuntimeError('not for fedsim')\n")
    (folder / "fedsim_strategies.py").write_text("raise RuntimeError('not for fedsim')\n")
    # What pip leaves behind of a package that has an entry point.
    installed = folder / "installed"
    info = installed / "half_way-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: half-way\nVersion: 1.5\n")
    points = "[fedsim.strategies]\nfrom_a_package = half_way_package:PartOfTheWay\n"
    (info / "entry_points.txt").write_text(f"{points}broken = no_such_package:Nothing\n")
    shutil.copy(EXAMPLES / "part_of_the_way.py", installed / "half_way_package.py")
    cases = [f"  {case}: {{strategy: {json.dumps(given)}}}\n" for case, given in NAMES.items()]
    (folder / "plug_ins.yaml").write_text(YAML + "".join(cases))
    return folder


def fedsim(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command as pip installs it, which does not see the working folder by itself."""
    path = [str(folder / "installed"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-P", "-c", "from fedsim.cli import main; main()", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    return fedsim(folder, "run", "plug_ins.yaml", "seeds=[0]")


def test_every_kind_of_name_runs(folder: Path, ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stderr + ran.stdout
    scores = {}
    for case in NAMES:
        path = folder / "runs" / "plug_ins" / f"{case}-seed0" / "summary.json"
        summary = json.loads(path.read_text())
        assert summary["config"]["strategy"].items() >= NAMES[case].items()
        record = (path.parent / "metrics.jsonl").read_text().splitlines()
        lines = [json.loads(line) for line in record]
        scores[case] = [line["macro_ap"] for line in lines if line["split"] == "val"]
        assert len(scores[case]) == 3
    assert scores.pop("flowers_trimmed") == pytest.approx(scores["short_name"], abs=1e-3)
    assert len({tuple(score) for score in scores.values()}) == len(NAMES) - 1
    states = folder / "runs" / "plug_ins"
    assert list(states.glob("state_of_users*/client_states/*/*/*.pt"))


def test_a_longer_run_goes_on_and_says_what_of_a_foreign_strategy_came_back(
    folder: Path, ran: subprocess.CompletedProcess[str]
) -> None:
    assert ran.returncode == 0
    kept = [f"cases={{flowers_adam: {{strategy: {json.dumps(NAMES['flowers_adam'])}}}}}"]
    longer = fedsim(folder, "run", "plug_ins.yaml", "seeds=[0]", "federated.num_rounds=3", *kept)
    assert longer.returncode == 0, longer.stderr
    assert "resumed after round 2" in longer.stdout
    said = "strategy FedAdam has no state_dict and load_state_dict: its attributes were taken back"
    assert said in longer.stdout
    run = folder / "runs" / "plug_ins" / "flowers_adam-seed0"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (noted,) = [line for line in lines if "note" in line]
    assert (noted["round"], noted["split"]) == (3, "train")
    assert noted["note"].startswith(said)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["notes"] == [{"round": 3, "note": noted["note"]}]


def test_the_list_of_what_is_installed(folder: Path) -> None:
    listed = fedsim(folder, "strategies", "--json")
    assert listed.returncode == 0, listed.stderr
    found = {entry["name"]: entry for entry in json.loads(listed.stdout)}
    assert found.keys() == {*registered("fedsim.strategies"), "from_a_package", "broken"}
    own = found["from_a_package"]
    assert own["source"] == "half-way 1.5"
    assert own["target"] == "half_way_package:PartOfTheWay"
    assert own["parameters"] == {"share": 0.5}
    assert own["summary"] == "Go a part of the way to the mean of the users' arrays."
    assert (own["central_dp"], own["example_level_dp"], own["state_copies"]) == ("no", True, 0)
    assert "expected a module 'no_such_package' that imports" in found["broken"]["fault"]


def test_the_table_tells_the_same(capsys) -> None:
    listed = list_strategies([f"{EXAMPLES}/remembered_drift.py:RememberedDrift", "krum", "nix"])
    Console(width=200).print(strategies_table(listed))
    table = capsys.readouterr().out
    for text in ("3 strategies", "(required)", "1 models", "share: 0.1", "strategy.name:"):
        assert text in table


def test_what_strategies_take() -> None:
    names = [
        "fedavg",
        "scaffold",
        "krum",
        f"{EXAMPLES}/remembered_drift.py:RememberedDrift",
        f"{EXAMPLES}/shrinking.py:Shrinking",
    ]
    taken = [(s.central_dp, s.example_level_dp, s.state_copies) for s in list_strategies(names)]
    assert taken == [
        ("weighting: uniform", True, 0.0),
        ("yes", True, 1.0),
        ("no", True, 0.0),
        ("yes", False, 1.0),
        ("yes", True, 0.0),
    ]


@pytest.mark.parametrize("name", sorted(registered("fedsim.strategies")))
def test_a_parameter_that_is_misspelled_is_refused_with_the_nearest(name: str) -> None:
    factory = resolve(name, registered("fedsim.strategies"), "strategy.name")
    parameters = list_strategies([name])[0].parameters or {}
    for parameter in parameters:
        wrong = parameter[:-1] + "zz" if len(parameter) > 3 else parameter + "u"
        with pytest.raises(ConfigError, match=rf"strategy\.{wrong}: .* did you mean"):
            call(factory, {wrong: 1}, "strategy")


def test_examples_of_the_first_depth_have_twenty_lines_at_most() -> None:
    for name in ("sign_step", "without_the_largest"):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 20
