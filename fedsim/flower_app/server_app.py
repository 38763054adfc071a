"""The ServerApp: runs what a YAML file describes, with users on Flower's nodes."""

import json
import math
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from fedsim.config_file import load_runs
from fedsim.errors import ConfigError
from fedsim.experiment import run_jobs, summaries_of
from fedsim.flower_app.runtime import FlowerRuntime
from fedsim.jobs import jobs_of
from fedsim.progress import shown_progress

app = ServerApp()

KEYS = ("config", "overrides", "out", "num-nodes", "reply-seconds")
"""Of the run config."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the file that the run config names; see docs/deployment.md for the other keys."""
    serve(grid, context.run_config)


def serve(grid: Grid, run_config: Mapping[str, Any]) -> None:
    """Run all runs of a file, one after another; finished ones are skipped, others go on.

    Args:
        grid: Flower's.
        run_config: ``config`` (the YAML file), ``overrides`` (``key=value`` with spaces between),
            ``out`` (the folder of all experiments), ``num-nodes`` (SuperNodes with users of their
            own, or 0 where all nodes read the same data) and ``reply-seconds``.

    Raises:
        FedsimError: The settings are at fault, or a run failed.
    """
    num_nodes, seconds = run_config["num-nodes"], run_config["reply-seconds"]
    if not isinstance(num_nodes, int) or num_nodes < 0:
        raise ConfigError(f"num-nodes: expected a whole number from 0 on, found {num_nodes!r}")
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ConfigError(f"reply-seconds: expected a number above 0, found {seconds!r}")
    path = find_file(str(run_config["config"]))
    jobs = jobs_of(load_runs(path, shlex.split(str(run_config["overrides"]))))
    runtime = FlowerRuntime(grid, num_nodes, float(seconds))
    out = Path(str(run_config["out"])).expanduser()
    given = (f"{key}={_quoted(run_config[key])}" for key in KEYS)
    command = shlex.join(["flwr", "run", ".", "--run-config", " ".join(given)])
    with shown_progress(Console(), 1) as shown:
        outcomes = run_jobs(jobs, out, shown, command=command, repeat_failed=True, runtime=runtime)
    summaries_of(outcomes)


def _quoted(value: str | float) -> str:
    """Return a value as ``flwr run --run-config`` takes it: TOML, without escaped quotes."""
    text = json.dumps(value, ensure_ascii=False)
    return f"'{value}'" if r"\"" in text else text


def find_file(name: str) -> Path:
    """Find the run's file: at its path, or in the app, which Flower puts on Python's path.

    Raises:
        ConfigError: It is in neither place.
    """
    path = Path(name).expanduser()
    for folder in ("", *sys.path):
        if (Path(folder) / path).is_file():
            return Path(folder) / path
    raise ConfigError(
        f"config: expected a YAML file in the app or an absolute path on the server, found no file "
        f'{name!r}; name one like config="experiments/quickstart.yaml"'
    )
