"""The repository as a Flower app: what is in the bundle, and what its run config may hold."""

import io
import shlex
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fake_flower import FakeFlower
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.common.config import parse_config_args
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from fedsim.config_file import load_runs
from fedsim.errors import ConfigError, EngineError
from fedsim.flower_app.server_app import find_file, serve
from fedsim.flower_app.task import Task
from fedsim.record import RunFolder

ROOT = Path(__file__).parents[1]
APP: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
YAMLS = sorted((ROOT / "experiments").rglob("*.yaml"))

TINY = """
name: tiny
data: {source: openclipart, labels: coarse, image_size: 8}
model: {name: cnn, channels: [4]}
federated: {num_rounds: 1, cohort_size: 3}
evaluation: {bootstrap_resamples: 0, num_val_images: 20}
"""


def run_config(**changes: Any) -> dict[str, Any]:
    return {**APP["config"], **{key.replace("_", "-"): value for key, value in changes.items()}}


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_bundle_holds_the_experiments_and_no_code() -> None:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(ROOT))) as bundle:
        names = set(bundle.namelist())
    yamls = {path.relative_to(ROOT).as_posix() for path in YAMLS}
    assert names == yamls | {"pyproject.toml", ".info/CONTENT"}


def test_the_apps_are_what_flower_asks_for(tmp_path: Path) -> None:
    server = load_app(APP["components"]["serverapp"], ValueError, tmp_path)
    client = load_app(APP["components"]["clientapp"], ValueError, tmp_path)
    sys.path.remove(str(tmp_path))
    assert isinstance(server, ServerApp)
    assert isinstance(client, ClientApp)


def test_a_file_is_found_in_the_app_and_at_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text(TINY)
    assert find_file(str(tmp_path / "mine.yaml")) == tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match=r"no file 'mine\.yaml'"):
        find_file("mine.yaml")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_file("mine.yaml") == tmp_path / "mine.yaml"


def test_the_run_config_s_file_is_run_with_its_overrides(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    given = run_config(
        config=str(tmp_path / "tiny.yaml"),
        overrides='seed=3 federated.cohort_size="2"',
        out=str(tmp_path / "out"),
    )
    serve(FakeFlower({1: {}}), given)
    folder = tmp_path / "out" / "tiny" / "seed3"
    assert (folder / "summary.json").exists()
    (command,) = RunFolder(folder).origin()["commands"]
    *words, told = shlex.split(command)
    assert words == ["flwr", "run", ".", "--run-config"]
    assert parse_config_args([told]) == given


def test_a_run_that_fails_fails_for_flower_too(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    given = run_config(config=str(tmp_path / "tiny.yaml"), out=str(tmp_path / "out"))
    with pytest.raises(EngineError, match="it raised"):
        serve(FakeFlower({1: {}}, lambda message: "raised"), given)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_nodes": -1}, "num-nodes: expected a whole number"),
        ({"num_nodes": "two"}, "num-nodes: expected a whole number"),
        ({"reply_seconds": 0}, "reply-seconds: expected a number above 0"),
        ({"reply_seconds": float("nan")}, "reply-seconds: expected a number above 0"),
        ({"config": "none.yaml"}, "expected a YAML file"),
    ],
)
def test_faults_of_the_run_config_are_named(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        serve(FakeFlower({}), run_config(**changes))


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_settings_arrive_as_they_were_sent(path: Path) -> None:
    for config in load_runs(path, []).values():
        assert Task.on_node(Task(config).to_record(), {}).config == config
