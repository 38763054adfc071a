"""Many runs of one file: side by side, broken off, failed, repeated."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

YAML = """
name: sweep
seeds: [0, 1]
data: {source: openclipart, labels: coarse, image_size: 8, max_images_per_user: 4}
model: {name: cnn, channels: [2]}
federated:
  num_rounds: 3
  cohort_size: 3
  local: {learning_rate: 0.05, batch_size: 8}
strategy: {name: fedadam, weighting: uniform, server_learning_rate: 0.01}
cases:
  plain: {}
  private:
    privacy.central:
      clipping_norm: 0.1
      epsilon: 8
      accountant: rdp
      deployment: {population_size: 9999, cohort_size: 50}
centralized: {epochs: 1}
evaluation: {bootstrap_resamples: 5, num_val_images: 30}
"""
RUNS = [
    *(f"{case}-seed{seed}" for case in ("plain", "private") for seed in (0, 1)),
    *(f"centralized-seed{seed}" for seed in (0, 1)),
]
# A strategy that fails in its second round as long as a file is there.
FRAGILE = """
from pathlib import Path
from fedsim_strategies.fedavg import FedAvg

class Fragile(FedAvg):
    def __init__(self, *, flag: str) -> None:
        super().__init__(weighting="uniform")
        self.flag = flag

    def server_step(self, round_num, arrays, update):
        if round_num == 2 and Path(self.flag).exists():
            raise ValueError("odd")
        return super().server_step(round_num, arrays, update)
"""


def fedsim(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedsim.cli", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def record(folder: Path) -> list[dict[str, Any]]:
    """What a run recorded, but for the clock."""
    text = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text]


def arrays(folder: Path) -> dict[str, torch.Tensor]:
    found = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)["arrays"]
    assert isinstance(found, dict)
    return found


def assert_same_runs(out: Path, other: Path) -> None:
    for run_id in RUNS:
        one, two = out / "sweep" / run_id, other / "sweep" / run_id
        assert record(one) == record(two), run_id
        a, b = arrays(one), arrays(two)
        assert all(torch.equal(a[name], b[name]) for name in a), run_id


@pytest.fixture(scope="module")
def yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("yaml") / "sweep.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture(scope="module")
def one_by_one(yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, one after another in one process."""
    out = tmp_path_factory.mktemp("one_by_one")
    script = (
        "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from fedsim.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "run", str(yaml), "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "with 1 at a time" in done.stdout
    return out


def test_runs_side_by_side_give_the_bits_of_one_after_another(
    yaml: Path, one_by_one: Path, tmp_path: Path
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    done = fedsim("run", yaml, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "6 runs: about" in done.stdout
    assert "with 1 at a time" not in done.stdout
    assert done.stdout.count("done in") == 6
    assert_same_runs(tmp_path, one_by_one)
    again = fedsim("run", yaml, "--out", tmp_path)
    assert again.returncode == 0
    assert again.stdout.count("was finished before") == 6


def test_a_sweep_that_is_killed_twice_ends_like_one_left_alone(
    yaml: Path, one_by_one: Path, tmp_path: Path
) -> None:
    for num_records in (1, 4):
        run = subprocess.Popen(
            [sys.executable, "-m", "fedsim.cli", "run", str(yaml), "--out", str(tmp_path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("sweep/*/checkpoint/state.pt"))) < num_records:
            assert run.poll() is None, "ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        run.send_signal(signal.SIGKILL)
        run.wait()
    done = fedsim("run", yaml, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_runs(tmp_path, one_by_one)


def test_an_interrupt_saves_every_run(yaml: Path, one_by_one: Path, tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "fedsim.cli", "run", str(yaml), "engine.checkpoint_every=99",
         "federated.num_rounds=200", "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    first = tmp_path / "sweep" / "plain-seed0" / "metrics.jsonl"
    while not first.exists() or first.read_text().count("\n") < 4:
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "run it again" in stderr
    assert (first.parent / "checkpoint" / "state.pt").exists()
    assert len(record(first.parent)) >= 4


def test_a_failed_run_stops_no_other_and_is_repeated_when_asked(yaml: Path, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    (tmp_path / "fragile.py").write_text(FRAGILE)
    strategy = f"{{name: '{tmp_path}/fragile.py:Fragile', flag: '{flag}'}}"
    cases = f"cases={{a: {{}}, b: {{strategy: {strategy}}}}}"
    run = ["run", yaml, cases, "seeds=[0]", "--out", tmp_path / "out"]
    done = fedsim(*run)
    assert done.returncode == 5, done.stderr
    assert done.stdout.count("done in") == 2
    assert done.stdout.count(": failed: ") == 1
    assert "odd" in done.stderr
    folder = tmp_path / "out" / "sweep" / "b-seed0"
    assert json.loads((folder / "failed.json").read_text())["exit_code"] == 5
    flag.unlink()
    again = fedsim(*run)
    assert again.returncode == 5
    assert again.stdout.count("failed before; --resume repeats it") == 1
    repeated = fedsim(*run, "--resume")
    assert repeated.returncode == 0, repeated.stderr
    assert repeated.stdout.count("was finished before") == 2
    assert not (folder / "failed.json").exists()


def test_two_at_once_do_not_write_to_one_folder(
    yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep").mkdir()
    with (tmp_path / "sweep" / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = fedsim("run", yaml, "--out", tmp_path)
    assert done.returncode == 6
    assert "found another fedsim at work" in done.stderr


@pytest.mark.parametrize("delay", [0.4, 1.2])
def test_an_interrupt_during_imports_is_one_line(yaml: Path, tmp_path: Path, delay: float) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "fedsim.cli", "run", str(yaml), "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    time.sleep(delay)
    os.killpg(run.pid, signal.SIGINT)
    shown, _ = run.communicate(timeout=60)
    assert run.returncode in (130, -signal.SIGINT)  # before fedsim's first line, it is Python's
    if run.returncode == 130:
        assert "Traceback" not in shown
        assert shown.splitlines()[-1].startswith("fedsim: stopped")


def test_a_script_without_a_main_guard_is_told_what_is_missing(tmp_path: Path) -> None:
    settings = (
        '{"name": "x", "data": {"image_size": 16}, "model": {"name": "cnn", "channels": [4]}, '
        '"federated": {"num_rounds": 1, "cohort_size": 4}, "engine": {"workers": 2}}'
    )
    script = tmp_path / "script.py"
    script.write_text(f"import fedsim\n\nfedsim.run({settings}, {str(tmp_path / 'out')!r})\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 1
    assert 'put the call of run() under `if __name__ == "__main__":`' in done.stderr
    assert "expected workers to start" in done.stderr
