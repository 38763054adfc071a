"""Whole runs on Ray from the command line, and a cluster that loses a node."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import fedsim
from fedsim.reporter import Silence

# Not importorskip: tests of this process start a Ray that must not have been imported before.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed (fedsim[ray])"
)

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {
    "name": "drawings",
    "data": {"source": "openclipart", "labels": "coarse", "image_size": 16},
    "model": {"name": "cnn", "channels": [8]},
    "federated": {"num_rounds": 3, "cohort_size": 6, "local": {"batch_size": 8}},
    "evaluation": {"bootstrap_resamples": 0, "num_val_images": 60},
    "engine": {"workers": 1},
}
ON_RAY = ("engine.name=ray", "engine.workers=2")


def rounds_here(out: Path, num_rounds: int) -> Path:
    federated = SETTINGS["federated"] | {"num_rounds": num_rounds}
    fedsim.run(SETTINGS | {"federated": federated}, out, Silence())
    return out / "drawings" / "seed0"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rounds_here(tmp_path_factory.mktemp("undisturbed"), 3)


def started(out: Path, *overrides: str) -> subprocess.Popen[str]:
    yaml = out / "drawings.yaml"
    yaml.write_text(json.dumps(SETTINGS))
    return subprocess.Popen(
        [sys.executable, "-m", "fedsim.cli", "run", str(yaml), *overrides, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(run: subprocess.Popen[str], found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (result := found()):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


def actors_of(run: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(run.pid).children(recursive=True)
    return [child for child in children if child.name() == "ray::RayActor"]


def living_members(session: int) -> list[psutil.Process]:
    def belongs(process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == session and process.status() != "zombie"
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False

    return [process for process in psutil.process_iter() if belongs(process)]


def assert_all_gone(session: int) -> None:
    deadline = time.monotonic() + 20
    while members := living_members(session):
        assert time.monotonic() < deadline, members
        time.sleep(0.1)


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text().splitlines()
    free = ("seconds", "num_workers_replaced")
    return [{k: v for k, v in json.loads(line).items() if k not in free} for line in text]


def final_arrays(folder: Path) -> dict[str, torch.Tensor]:
    arrays = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["arrays"]
    assert isinstance(arrays, dict)
    return arrays


def test_a_run_from_in_process_goes_on_on_ray_and_survives_an_actor(
    undisturbed: Path, tmp_path: Path
) -> None:
    folder = rounds_here(tmp_path, 1)
    run = started(tmp_path, *ON_RAY)
    wait_for(run, lambda: actors_of(run))[0].kill()
    _, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert all("(raylet)" in line for line in err.splitlines()), err  # that one has died
    assert_all_gone(run.pid)
    assert lines(folder) == lines(undisturbed)
    expected = final_arrays(undisturbed)
    assert all(torch.equal(a, expected[name]) for name, a in final_arrays(folder).items())
    recorded = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(line.get("num_workers_replaced", 0) for line in recorded) == 1
    assert json.loads((folder / "summary.json").read_text())["num_workers_replaced"] == 1


@pytest.mark.slow
def test_ctrl_c_ends_everything(undisturbed: Path, tmp_path: Path) -> None:
    """In a terminal it reaches all processes of the foreground."""
    run = started(tmp_path, *ON_RAY, "federated.num_rounds=500", "engine.checkpoint_every=1000")
    record = tmp_path / "drawings" / "seed0" / "metrics.jsonl"
    wait_for(run, lambda: record.exists() and record.read_text().count("\n") > 4)
    for member in living_members(run.pid):
        member.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 130
    assert err.splitlines()[-1].startswith("fedsim: stopped; run it again to go on")
    assert "Traceback" not in err
    assert_all_gone(run.pid)
    assert final_arrays(record.parent).keys() == final_arrays(undisturbed).keys()


@pytest.mark.slow
def test_a_lost_node_changes_nothing(tmp_path: Path) -> None:
    paths = [ROOT, ROOT / "strategies", ROOT / "tests", ROOT / "tests" / "engines"]
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "engines" / "ray_cluster_run.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **loopback, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal 1 True"
