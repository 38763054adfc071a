"""Whole runs from the command line, on the packaged drawings."""

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

from fedsim.build import with_defaults
from fedsim.cli import main
from fedsim.comparison import group_by_setting
from fedsim.config import RunConfig
from fedsim.config_file import load_runs
from fedsim.experiment import run_jobs
from fedsim.jobs import jobs_of
from fedsim.kept_scores import load_kept_scores
from fedsim.metrics import average_precision
from fedsim.reporter import Silence

YAML = """
name: drawings
data: {source: openclipart, labels: coarse, image_size: 16}
model: {name: cnn, channels: [4]}
federated:
  num_rounds: 4
  cohort_size: 6
  local: {learning_rate: 0.05, batch_size: 8}
strategy: {name: fedadam, weighting: uniform, server_learning_rate: 0.01}
evaluation: {bootstrap_resamples: 20, num_val_images: 30}
engine: {workers: 1}
"""


def fedsim(*args: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedsim.cli", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
        **kwargs,
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    """A record without what a clock wrote."""
    text = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text]


def checkpoint(folder: Path) -> dict[str, Any]:
    content = torch.load(folder / "checkpoint" / "state.pt", weights_only=True)
    assert isinstance(content, dict)
    return content


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


@pytest.fixture(scope="module")
def yaml(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("yaml") / "drawings.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture(scope="module")
def undisturbed(yaml: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    done = fedsim("run", yaml, "--out", out)
    assert done.returncode == 0, done.stderr
    return out / "drawings" / "seed0"


def test_a_run_s_folder(undisturbed: Path) -> None:
    names = {path.name for path in undisturbed.iterdir()}
    assert names == {
        "config.yaml", "metrics.jsonl", "privacy.json", "summary.json", "test_scores.npz",
        "users.csv", "checkpoint", "origin.json",
    }  # fmt: skip
    record = lines(undisturbed)
    assert [(line["round"], line["split"]) for line in record[:3]] == [
        (0, "val"),
        (1, "train"),
        (1, "val"),
    ]
    keys = {
        "round", "split", "micro_ap", "macro_ap", "micro_ap_binned200", "macro_ap_binned200",
        "micro_f1", "macro_f1", "num_classes_scored", "num_examples", "loss",
    }  # fmt: skip
    assert record[0].keys() == record[-1].keys() == keys
    raw = (undisturbed / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["seconds"] > 0 for line in raw)
    config = (undisturbed / "config.yaml").read_text()
    assert "beta_2: 0.99" in config  # a default of the strategy's own
    summary = json.loads((undisturbed / "summary.json").read_text())
    macro = [line["macro_ap"] for line in record if line["split"] == "val"]
    assert summary["best_round"] == macro.index(max(macro))
    assert record[-1]["split"] == "test"
    assert record[-1]["round"] == summary["best_round"]
    test = summary["test"]
    low, high = test["intervals"]["macro_ap"]
    assert 0 < low < high < 1
    assert len(test["per_class"]) == 17
    assert test["kept_scores"] == "test_scores.npz"
    kept = load_kept_scores(undisturbed)
    assert (kept.logits.shape, len(kept.user_ids)) == ((361, 17), 91)
    assert average_precision(kept.targets, kept.logits) == test["scores"]["macro_ap"]
    [setting] = group_by_setting([summary])
    assert (setting.name, setting.runs) == ("drawings", {0: 0})
    assert setting.by_seed["micro_ap"] == {0: test["scores"]["micro_ap"]}
    assert summary["constant_predictor"]["test"]["micro_ap"] == pytest.approx(0.149, abs=5e-4)
    assert summary["constant_predictor"]["val"]["micro_ap"] == pytest.approx(0.203, abs=5e-4)


def test_bits_do_not_depend_on_workers(yaml: Path, undisturbed: Path, tmp_path: Path) -> None:
    done = fedsim("run", yaml, "engine.workers=3", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "drawings" / "seed0"
    assert lines(folder) == lines(undisturbed)
    assert same(checkpoint(folder), checkpoint(undisturbed))


PRIVATE = (
    "privacy.central={clipping_norm: 0.1, adaptive_quantile: 0.5, epsilon: 3, "
    "noise_cohort_size: 50}",
    "privacy.example_level={max_grad_norm: 1, noise_multiplier: 0.5}",
)


@pytest.fixture(scope="module")
def undisturbed_private(yaml: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("private")
    done = fedsim("run", yaml, *PRIVATE, "--out", out)
    assert done.returncode == 0, done.stderr
    return out / "drawings" / "seed0"


def test_both_levels_of_privacy_each_with_its_epsilon(undisturbed_private: Path) -> None:
    record = [line for line in lines(undisturbed_private) if line["split"] == "val"]
    for name in ("epsilon_as_run", "epsilon_at_noise_cohort", "example_epsilon_max"):
        values = [line[name] for line in record]
        assert values[0] == 0
        assert values == sorted(values)
    card = json.loads((undisturbed_private / "privacy.json").read_text())
    assert card["rounds_done"] == 4
    assert card["central"]["sampling"] == "poisson"
    assert card["central"]["epsilon_at_noise_cohort"] <= 3 < card["central"]["epsilon_as_run"]
    assert card["example_level"]["epsilon_max"] == record[-1]["example_epsilon_max"]


@pytest.mark.parametrize(
    ("overrides", "lines_before_kill", "reference"),
    [((), 2, "undisturbed"), ((), 5, "undisturbed"), (PRIVATE, 5, "undisturbed_private")],
)
def test_killed_and_resumed(
    yaml: Path,
    tmp_path: Path,
    overrides: tuple[str, ...],
    lines_before_kill: int,
    reference: str,
    request: pytest.FixtureRequest,
) -> None:
    """kill -9 in the middle of a round, with workers: none outlives it, and the bits agree."""
    undisturbed = request.getfixturevalue(reference)
    settings = [yaml, *overrides, "engine.workers=2", "--out", tmp_path]
    folder = tmp_path / "drawings" / "seed0"
    run = subprocess.Popen(
        [sys.executable, "-m", "fedsim.cli", "run", *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    record = folder / "metrics.jsonl"
    while not record.exists() or record.read_text().count("\n") < lines_before_kill:
        assert run.poll() is None, "ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    deadline = time.monotonic() + 10
    while _living_members(run.pid):
        assert time.monotonic() < deadline, "a worker outlived the run"
        time.sleep(0.05)
    assert not (folder / "summary.json").exists()
    resumed = fedsim("run", *settings)
    assert resumed.returncode == 0, resumed.stderr
    assert lines(folder) == lines(undisturbed)
    assert same(checkpoint(folder), checkpoint(undisturbed))


def _living_members(session: int) -> list[str]:
    """Processes of a session that are not zombies: state and session in /proc/PID/stat."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, found, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if int(found) == session and state != "Z":
            members.append(stat.parent.name)
    return members


@pytest.fixture
def nothing_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: RunConfig) -> None:
        raise AssertionError("built")

    monkeypatch.setattr("fedsim.build.build_dataset", refuse)
    monkeypatch.setattr("fedsim.build.build_model", refuse)


@pytest.mark.usefixtures("nothing_can_be_built")
def test_a_finished_run_is_skipped_before_anything_is_built(yaml: Path, undisturbed: Path) -> None:
    out = undisturbed.parents[1]
    (job,) = jobs_of(load_runs(yaml))
    done = run_jobs([job], out, Silence(), command="again")
    assert done == {"seed0": json.loads((undisturbed / "summary.json").read_text())}
    # Other settings have to be looked at.
    (other,) = jobs_of(load_runs(yaml, ["engine.checkpoint_every=2"]))
    with pytest.raises(AssertionError, match="built"):
        run_jobs([other], out, Silence(), command="again")


@pytest.mark.usefixtures("nothing_can_be_built")
def test_a_finished_run_is_looked_at_again_if_its_data_are_newer(
    yaml: Path, tmp_path: Path
) -> None:
    data, out = tmp_path / "mine.h5", tmp_path / "out"
    data.touch()
    (job,) = jobs_of(load_runs(yaml, [f"data.source={data}"]))
    settings = with_defaults(job.config).model_dump(mode="json")
    (out / "drawings" / "seed0").mkdir(parents=True)
    summary = out / "drawings" / "seed0" / "summary.json"
    summary.write_text(json.dumps({"config": settings, "num_rounds": 4}))
    assert list(run_jobs([job], out, Silence(), command="again")) == ["seed0"]
    later = summary.stat().st_mtime + 1
    os.utime(data, (later, later))
    with pytest.raises(AssertionError, match="built"):
        run_jobs([job], out, Silence(), command="again")


def test_a_finished_run_resumes_to_nothing(yaml: Path, undisturbed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")}
    done = fedsim("run", yaml, "--out", undisturbed.parents[1])
    assert done.returncode == 0, done.stderr
    assert "was finished before" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*")} == before


def test_a_run_goes_on_beyond_what_it_was_started_for(
    yaml: Path, undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "drawings" / "seed0"
    for arguments in (["federated.num_rounds=2"], ["--resume"]):
        done = fedsim("run", yaml, *arguments, "--out", tmp_path)
        assert done.returncode == 0, done.stderr
    assert json.loads((folder / "origin.json").read_text()) == {
        "place": 0,
        "commands": [
            f"fedsim run {yaml} federated.num_rounds=2 --out {tmp_path}",
            f"fedsim run {yaml} --resume --out {tmp_path}",
        ],
    }
    assert lines(folder) == lines(undisturbed)
    assert same(checkpoint(folder)["arrays"], checkpoint(undisturbed)["arrays"])
    done = fedsim("run", yaml, "federated.num_rounds=3", "--out", tmp_path, "--resume")
    assert done.returncode == 6
    assert "expected a run of at most 3 rounds, found one with 4 rounds done" in done.stderr


def test_a_spent_budget_stops_a_run_with_its_checkpoint(yaml: Path, tmp_path: Path) -> None:
    """The noise stays what the first rounds had; the budget ends the rounds."""
    private = ["privacy.central={clipping_norm: 0.1, epsilon: 3}", "--out", tmp_path]
    folder = tmp_path / "drawings" / "seed0"
    done = fedsim("run", yaml, "federated.num_rounds=2", *private)
    assert done.returncode == 0, done.stderr
    before = checkpoint(folder)
    done = fedsim("run", yaml, *private, "--resume")
    assert done.returncode == 4
    assert "expected a budget for 4 rounds, found it spent after round 2" in done.stderr
    assert same(checkpoint(folder)["arrays"], before["arrays"])
    card = json.loads((folder / "privacy.json").read_text())["central"]
    assert 2.99 < card["epsilon_at_noise_cohort"] <= 3.0
    # A larger budget buys more rounds at the same noise.
    private[0] = private[0].replace("3}", "4}")
    done = fedsim("run", yaml, *private, "--resume")
    assert done.returncode == 0, done.stderr
    later = json.loads((folder / "privacy.json").read_text())["central"]
    assert later["noise_multiplier"] == card["noise_multiplier"]
    assert 3.0 < later["epsilon_at_noise_cohort"] <= 4.0


def test_the_budget_of_a_given_noise_ends_a_resumed_run_too(yaml: Path, tmp_path: Path) -> None:
    given = ["privacy.central={clipping_norm: 0.1, noise_multiplier: 0.5, epsilon: 2}"]
    folder = tmp_path / "drawings" / "seed0"
    refused = fedsim("run", yaml, *given, "federated.num_rounds=40", "--out", tmp_path)
    assert refused.returncode == 4, refused.stderr
    assert not folder.exists()
    done = fedsim("run", yaml, *given, "federated.num_rounds=1", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    done = fedsim("run", yaml, *given, "federated.num_rounds=40", "--out", tmp_path, "--resume")
    assert done.returncode == 4
    last = checkpoint(folder)["round_num"]
    assert f"expected a budget for 40 rounds, found it spent after round {last}" in done.stderr
    card = json.loads((folder / "privacy.json").read_text())["central"]
    assert 1 < last < 40
    assert card["num_releases"] == last
    assert 1.8 < card["epsilon_at_noise_cohort"] <= 2.0


def test_baselines_under_dp_stand_in_the_same_table(yaml: Path, tmp_path: Path) -> None:
    pooled = (
        "centralized={epochs: 1, example_level: {epochs: 1, max_grad_norm: 1, epsilon: 8}, "
        "user_level: {epochs: 1, clipping_norm: 1, epsilon: 4}}"
    )
    done = fedsim("run", yaml, pooled, "federated.num_rounds=1", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("centralized-seed0", "centralized_example_level-seed0"):
        assert f"\n {name}  " in done.stdout
        summary = json.loads((tmp_path / "drawings" / name / "summary.json").read_text())
        assert summary["setting"] == name.removesuffix("-seed0")
    card = json.loads(
        (tmp_path / "drawings" / "centralized_user_level-seed0" / "privacy.json").read_text()
    )
    assert 3.99 < card["central"]["epsilon_as_run"] <= 4.0
    assert card["central"]["num_releases"] == 15  # 285 users, 20 a step


def test_other_settings_are_not_resumed(yaml: Path, undisturbed: Path) -> None:
    out = undisturbed.parents[1]
    done = fedsim("run", yaml, "federated.cohort_size=7", "--out", out, "--resume")
    assert done.returncode == 6
    assert "federated.cohort_size (began with 6, now 7)" in done.stderr


def test_ctrl_c_stops_with_a_checkpoint(yaml: Path, undisturbed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedsim.cli", "run", yaml, "engine.workers=2"]
    command += ["engine.checkpoint_every=100", "--out", tmp_path]
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "round 2/4" in line:
            break
    run.send_signal(signal.SIGINT)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "run it again to go on" in stderr
    assert "Traceback" not in stderr
    folder = tmp_path / "drawings" / "seed0"
    assert checkpoint(folder)["round_num"] >= 1
    resumed = fedsim("run", yaml, "--out", tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert lines(folder) == lines(undisturbed)


PLUGINS = '''
from flwr.serverapp.strategy import FedAvg
from torch import nn
from fedsim.strategy import SumStrategy

class Trimmed(FedAvg):
    """A Flower strategy of one's own."""
    def __init__(self, note: str = ""):
        super().__init__()

class Half(SumStrategy):
    def __init__(self, *, factor: float):
        super().__init__(weighting="uniform")
        self.factor = factor
    def server_step(self, round_num, arrays, update):
        return {name: a + self.factor * update[name] for name, a in arrays.items()}

def nothing(num_labels):
    return None

class InPlace(nn.Sequential):
    def __init__(self, num_labels):
        super().__init__(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(3 * 16 * 16, num_labels))

class Wrong(nn.Sequential):
    def __init__(self, num_labels):
        super().__init__(nn.Flatten(), nn.Linear(3 * 16 * 16, 5))

class Broken(nn.Module):
    def __init__(self, num_labels):
        super().__init__()
        self.layer = nn.Linear(3 * 16 * 16, num_labels)
    def forward(self, x):
        if self.training:
            raise RuntimeError("I do not train")
        return self.layer(x.flatten(1))
'''


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A working folder that has a strategies folder of its own."""
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "__init__.py").touch()
    (tmp_path / "mine.py").write_text(PLUGINS)
    return tmp_path


@pytest.mark.parametrize(
    "strategy",
    [
        "{name: './mine.py:Trimmed', note: hello}",
        "{name: './mine.py:Half', factor: 0.5}",
        "{name: 'flwr.serverapp.strategy:FedMedian'}",
    ],
)
def test_strategies_of_one_s_own(yaml: Path, plugins: Path, strategy: str) -> None:
    settings = (f"strategy={strategy}", "federated.num_rounds=1", "data.labels=fine")
    done = fedsim("run", yaml, *settings, "engine.workers=2", "--out", "runs", cwd=plugins)
    assert done.returncode == 0, done.stderr
    summary = json.loads((plugins / "runs/drawings/seed0/summary.json").read_text())
    assert len(summary["test"]["per_class"]) == 81


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("federated.cohort_size=286", 2, "federated.cohort_size: expected 1 to 285"),
        ("strategy={name: fedavgg}", 2, "did you mean 'fedavg'"),
        ("strategy={name: fedavg, weigting: uniform}", 2, "did you mean 'weighting'"),
        ("model={name: cnn, chanels: [8]}", 2, "did you mean 'channels'"),
        ("data.source=nowhere.h5", 3, "nowhere.h5"),
        ("data.source=OpenClip-art", 3, "did you mean 'openclipart'?"),
        ("data.source=./strategy", 3, "did you mean 'strategies'?"),
        ("data.partition={method: dirichlett}", 2, "did you mean 'dirichlet'?"),
        ("model={name: res_net18}", 2, "did you mean 'resnet18'?"),
        ("model={name: './mine.py:Broken'}", 5, "RuntimeError: I do not train"),
        ("model.name=:X", 2, "model.name: expected a known name"),
        ("model={name: 'math:pi'}", 2, "expected a class or function"),
        ("model={name: './mine.py:nothing'}", 2, "expected a torch.nn.Module, found NoneType"),
        ("model={name: './mine.py:Wrong'}", 2, "expected logits of shape (n, 17)"),
        ("strategy={name: './mine.py:Half', factor: abc}", 5, "strategy Half, round 1: failed"),
        ("cases={a: [1]}", 2, "cases.a: expected dotted keys"),
        ("cases={a b: {}, a/b: {}}", 2, "found two that would be called a_b-seed0"),
        ("cases={centralized: {}} centralized={epochs: 1}", 2, "rename the case 'centralized'"),
        (
            "data={source: openclipart, labels: coarse, augmentation: random_crop, "
            "image_size: 16, input_size: 20}",
            2,
            "input_size: exp",
        ),
        (
            "model={name: './mine.py:InPlace'} "
            "privacy.example_level={max_grad_norm: 1, noise_multiplier: 1}",
            4,
            "works in place",
        ),
        (
            "strategy={name: 'flwr.serverapp.strategy:FedMedian'} "
            "privacy.central={clipping_norm: 1, noise_multiplier: 1}",
            2,
            "expected a strategy whose aggregation is a sum",
        ),
        (
            "strategy={name: fedavg} privacy.central={clipping_norm: 1, noise_multiplier: 1}",
            2,
            "strategy.weighting: expected 'uniform'",
        ),
        (
            "privacy.central={clipping_norm: 1, noise_multiplier: 1, noise_cohort_size: 300}",
            2,
            "noise_cohort_size: expected 6 (the cohort) to 285",
        ),
        (
            "federated.sampling=fixed_size privacy.central={clipping_norm: 1, noise_multiplier: 1}",
            4,
            "accountant: expected rdp",
        ),
    ],
)  # fmt: skip
def test_faults_have_their_sentence_and_exit_code(
    yaml: Path,
    plugins: Path,
    override: str,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    overrides = [part for part in override.replace("} ", "}\n").split("\n") if part]
    if override.startswith("federated.sampling"):
        overrides = override.split(" ", 1)
    # In this process: importing everything anew takes a command seconds.
    monkeypatch.chdir(plugins)
    monkeypatch.setattr(sys, "argv", ["fedsim", "run", str(yaml), *overrides, "--out", "runs"])
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended:
        main()
    signal.signal(signal.SIGINT, handler)
    stderr = capsys.readouterr().err
    assert message in stderr
    assert ended.value.code == code
    if code != 5:
        assert "Traceback" not in stderr
        assert not (plugins / "runs").exists(), "work was done before the fault was found"


def test_converting_nothing_is_a_data_error(tmp_path: Path) -> None:
    done = fedsim("data", "convert", tmp_path / "none", tmp_path / "x.h5")
    assert done.returncode == 3
    assert "found nothing there; correct the path" in done.stderr


def test_help_is_quick_to_import() -> None:
    code = "import sys, fedsim.cli; print({'torch', 'flwr', 'opacus', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert "Example: fedsim run" in fedsim("run", "--help").stdout
