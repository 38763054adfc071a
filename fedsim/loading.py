"""Runs that were recorded, as data frames for a notebook."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ruamel.yaml.error import YAMLError

from fedsim.errors import CheckpointError, ConfigError
from fedsim.nearest import hint
from fedsim.record import RunFolder
from fedsim.yaml_text import parse_yaml

if TYPE_CHECKING:
    import pandas as pd

_SCORES = (
    *("macro_ap", "micro_ap", "macro_ap_binned200", "micro_ap_binned200"),
    *("macro_f1", "micro_f1"),
)
_CENTRAL = ("noise_multiplier", "epsilon_at_noise_cohort", "epsilon_as_run")


def load_runs(*paths: str | Path) -> "pd.DataFrame":
    """Return a data frame with a row for every run below some folders.

    Args:
        *paths: Folders that runs were written to: all experiments, one, or a single run.

    Returns:
        Columns: ``name``, ``run_id``, ``setting`` (what runs of other seeds share), ``case``,
        ``seed``, ``kind`` ("federated" or "centralized"), ``status`` ("finished", "failed" or
        "unfinished"), ``num_rounds`` and ``best_round``; the scores on test as fractions; what
        central DP spent (``noise_multiplier``, both epsilons, infinite without noise) and
        ``example_epsilon_max``; ``seconds``, ``path``; and every setting under its dotted key.

    Raises:
        CheckpointError: There is no run, or a record can't be read.
    """
    import pandas as pd

    return pd.DataFrame([_row(folder) for folder in find_runs(paths)])


def load_rounds(*paths: str | Path) -> "pd.DataFrame":
    """Return a data frame with a row for every line that runs recorded: one per round and split.

    Args:
        *paths: As for ``load_runs``.

    Returns:
        ``run_id``, ``path`` and the keys of ``metrics.jsonl``; scores are fractions.

    Raises:
        CheckpointError: There is no run, or a record can't be read.
    """
    import pandas as pd

    rows = [
        {"run_id": folder.path.name, "path": str(folder.path), **_numbers(line)}
        for folder in find_runs(paths)
        for line in folder.lines()
    ]
    return pd.DataFrame(rows)


def kept(frame: "pd.DataFrame", conditions: Iterable[str]) -> "pd.DataFrame":
    """Return the rows of a frame that meet conditions, the best test macro AP first.

    Args:
        frame: From ``load_runs``.
        conditions: ``column=value`` each; the value is compared as text.

    Raises:
        ConfigError: A condition is none, or names no column.
    """
    for condition in conditions:
        column, equals, value = condition.partition("=")
        if not equals:
            raise ConfigError(
                f"where {condition!r}: expected column=value, found no value; write it like "
                "status=finished"
            )
        if column not in frame:
            remedy = hint(column, list(frame), "see fedsim runs --csv for the columns")
            raise ConfigError(
                f"where {condition!r}: expected column=value of a known column, found {column!r}; "
                f"{remedy}"
            )
        frame = frame[np.array([_is(found, value) for found in frame[column]], dtype=np.bool_)]
    if "macro_ap" not in frame:
        return frame
    return frame.sort_values("macro_ap", ascending=False, kind="stable", na_position="last")


def _is(found: Any, value: str) -> bool:
    """Tell whether a cell is what a condition says: equal as numbers, or as text."""
    wanted = _parsed(value)
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in (found, wanted)):
        return bool(found == wanted)
    return str(found) == value


def _parsed(value: str) -> Any:
    try:
        return parse_yaml(value)
    except YAMLError:  # as of "*" or "[": text
        return value


def find_runs(paths: Iterable[str | Path]) -> list[RunFolder]:
    """Return the folders of all runs below some folders, each experiment in its file's order.

    Raises:
        CheckpointError: A path is no folder, or there is no run below it.
    """
    folders = []
    for path in map(Path, paths):
        configs = sorted(path.glob("config.yaml")) or sorted(
            [*path.glob("*/config.yaml"), *path.glob("*/*/config.yaml")]
        )
        if not configs:
            found = "a folder without runs" if path.is_dir() else "no folder"
            raise CheckpointError(
                f"{path}: expected a folder of runs, with their config.yaml, found {found}; give "
                "the folder that fedsim run wrote to"
            )
        folders += sorted((RunFolder(config.parent) for config in configs), key=_order)
    return folders


def _order(folder: RunFolder) -> tuple[Path, float, Path]:
    place = folder.origin()["place"]
    return folder.path.parent, math.inf if place is None else place, folder.path


def _row(folder: RunFolder) -> dict[str, Any]:
    if not folder.finished:
        settings = parse_yaml((folder.path / "config.yaml").read_text(encoding="utf-8"))
        rounds = [line["round"] for line in folder.lines()]
        return {
            "name": settings["name"],
            "run_id": folder.path.name,
            "case": settings["case"],
            "seed": settings["seed"],
            "status": "failed" if folder.failure() is not None else "unfinished",
            "num_rounds": max(rounds, default=0),
            "path": str(folder.path),
            **dotted(settings),
        }
    summary = folder.read_json("summary.json")
    scores, privacy = summary["test"]["scores"], summary["privacy"]
    central, example = privacy.get("central") or {}, privacy.get("example_level") or {}
    return {
        **{key: summary[key] for key in ("name", "run_id", "setting", "case", "seed", "kind")},
        "status": "finished",
        **{key: summary[key] for key in ("num_rounds", "best_round")},
        **{key: scores[key] for key in _SCORES},
        **_numbers({key: central.get(key) for key in _CENTRAL}),
        **_numbers({"example_epsilon_max": example.get("epsilon_max")}),
        "seconds": summary["seconds"],
        "path": str(folder.path),
        **dotted(summary["config"]),
    }


def _numbers(line: dict[str, Any]) -> dict[str, Any]:
    """Return a record's numbers with "infinity", JSON's substitute, as the number."""
    return {key: float("inf") if value == "infinity" else value for key, value in line.items()}


def dotted(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return every setting of a tree under its dotted key, without name, case and seed.

    Examples:
        >>> dotted({"name": "x", "data": {"source": "a.h5", "labels": ["b"]}})
        {'data.source': 'a.h5', 'data.labels': '["b"]'}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= dotted(value, f"{prefix}{key}.")
        elif prefix or key not in ("name", "case", "seed"):
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return flat
