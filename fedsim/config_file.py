"""From a YAML file to runs: cases, sweep and seeds expanded, every fault reported at once."""

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fedsim.config import Component, RunConfig
from fedsim.errors import ConfigError

_EXPANSIONS = ("seeds", "cases", "sweep")
Tree = dict[str, Any]


def load_runs(path: Path, overrides: Iterable[str] = ()) -> dict[str, RunConfig]:
    """Read a file and return its runs, in order: cases, then the sweep's product, then seeds.

    Args:
        path: A YAML 1.2 file.
        overrides: ``dotted.key=value`` each, the value in YAML; they win over cases and sweep.

    Returns:
        The runs by their id, which is made of the case, the swept settings and the seed, and is
        the same every time.

    Raises:
        ConfigError: Names every fault of the file, each with its dotted path.
    """
    tree = _read(path)
    fixed = dict(_parse_override(text) for text in overrides)
    for key in [key for key in fixed if key.split(".")[0] in _EXPANSIONS]:
        _set(tree, key, fixed.pop(key), str(path))
    runs: dict[str, RunConfig] = {}
    faults = []
    for run_id, settings in _expand(tree, fixed, str(path)):
        if run_id in runs:
            raise ConfigError(
                f"{path}: expected runs that differ in case, swept settings or seed, found two "
                f"that would be called {run_id}; rename a case or drop a repeated value"
            )
        try:
            runs[run_id] = RunConfig.model_validate(settings)
        except ValidationError as error:
            faults += [_describe(fault) for fault in error.errors()]
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in dict.fromkeys(faults))
        raise ConfigError(f"{path}: expected valid settings, found these faults:\n{listed}")
    return runs


def parse_yaml(text: str) -> Any:
    """Parse YAML 1.2 without ever building objects: ``1e-3`` is a number and ``no`` a string.

    Examples:
        >>> parse_yaml("{a: 1e-3, b: no, c: '0123456'}")
        {'a': 0.001, 'b': 'no', 'c': '0123456'}
    """
    return YAML(typ="safe", pure=True).load(text)


def _read(path: Path) -> Tree:
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a readable YAML file, found {error.strerror}; check the path"
        ) from None
    except (YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise ConfigError(f"{path}: expected YAML, found {detail}; mend the syntax") from None
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: expected a mapping of sections, found {type(tree).__name__}; start with "
            "'name: my_run'"
        )
    return tree


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"override {text!r}: expected dotted.key=value, found no key and value; write it like "
            "federated.num_rounds=10"
        )
    try:
        return key, parse_yaml(value)
    except YAMLError as error:
        detail = " ".join(str(error).split())
        raise ConfigError(
            f"override {text!r}: expected a YAML value, found {detail}; quote it"
        ) from None


def _expand(tree: Tree, fixed: Tree, where: str) -> Iterator[tuple[str, Tree]]:
    """Yield every run's id and settings."""
    cases = _mapping(tree, "cases", where) or {None: {}}
    for case, changes in cases.items():
        if not isinstance(changes, dict | None):
            raise ConfigError(
                f"{where}: cases.{case}: expected dotted keys with values, found {changes!r}; "
                "write {federated.num_rounds: 10}, or {} for no change"
            )
    # What the command line sets is not swept.
    sweep = {
        key: values
        for key, values in _mapping(tree, "sweep", where).items()
        if not any(f"{key}.".startswith(f"{override}.") for override in fixed)
    }
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(
                f"{where}: sweep.{key}: expected a list of values, found {values!r}; write [a, b]"
            )
    seeds = tree.get("seeds", [tree.get("seed", 0)])
    if "seed" in fixed:
        seeds = [fixed["seed"]]
    if not isinstance(seeds, list) or not seeds:
        raise ConfigError(f"{where}: seeds: expected a list, found {seeds!r}; write [0, 1, 2]")
    base = {key: value for key, value in tree.items() if key not in _EXPANSIONS}
    for case, changes in cases.items():
        for values in itertools.product(*sweep.values()):
            for seed in seeds:
                settings = _copy(base)
                swept = dict(zip(sweep, values, strict=True))
                for changed in (changes or {}, swept, fixed, {"seed": seed, "case": case}):
                    for key, value in changed.items():
                        _set(settings, key, value, where)
                yield _run_id(case, swept, seed), settings


def _mapping(tree: Tree, key: str, where: str) -> dict[Any, Any]:
    value = tree.get(key) or {}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ConfigError(
            f"{where}: {key}: expected names with what they stand for, found {value!r}; see the "
            "README"
        )
    return value


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def _set(tree: Tree, dotted: str, value: Any, where: str) -> None:
    *parents, last = str(dotted).split(".")
    for parent in parents:
        if tree.get(parent) is None:
            tree[parent] = {}
        tree = tree[parent]
        if not isinstance(tree, dict):
            raise ConfigError(
                f"{where}: {dotted}: expected {parent!r} to be a section, found {tree!r}; "
                "check the dotted key"
            )
    tree[last] = _copy(value)


def _run_id(case: str | None, swept: Tree, seed: Any) -> str:
    parts = [str(case)] if case else []
    names = [key.rpartition(".")[2] for key in swept]
    for key, name in zip(swept, names, strict=True):
        parts.append(f"{key if names.count(name) > 1 else name}={_short(swept[key])}")
    text = "-".join([*parts, f"seed{seed}"])
    return re.sub(r"[^\w.,=+-]+", "_", text)  # a folder's name, whatever the values are


def _short(value: Any) -> str:
    """Write a swept value into a run's id."""
    if isinstance(value, dict):
        return ",".join(f"{key}={_short(item)}" for key, item in value.items())
    return "none" if value is None else str(value)


def _describe(fault: ErrorDetails) -> str:
    """Say where, what was expected, what was found, and the remedy."""
    path = ".".join(str(part) for part in fault["loc"])
    match fault["type"]:
        case "extra_forbidden":
            return f"{path}: expected a known key, found {path!r}; {_nearest(fault['loc'])}"
        case "missing":
            return f"{path}: expected a value, found none; add this key"
        case "value_error":
            return f"{path}: {fault['msg'].removeprefix('Value error, ')}".removeprefix(": ")
    expected = fault["msg"].removeprefix("Input should be ")
    return f"{path}: expected {expected}, found {fault['input']!r}; change it"


def _nearest(loc: tuple[int | str, ...]) -> str:
    model: type[BaseModel] = RunConfig
    for part in loc[:-1]:
        model = _section(model, str(part)) or model
    known = [key for key in model.model_fields if key != "case"]
    if model is RunConfig:
        known += _EXPANSIONS
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"the keys here are {', '.join(known)}"


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    field = model.model_fields.get(key)
    if field is None:
        return None
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return None if issubclass(candidate, Component) else candidate
    return None
