"""From a YAML file to runs, with every fault reported at once."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml.error import YAMLError

from fedsim.config import Component, RunConfig
from fedsim.errors import ConfigError, FedsimError
from fedsim.nearest import hint
from fedsim.sweep import EXPANSIONS, Expanded, Tree, copied, expand, set_dotted
from fedsim.yaml_text import fault_of, parse_yaml

_EXTENDS = "extends"


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
    tree = _read_whole(path, ())
    fixed = dict(_parse_override(text) for text in overrides)
    for key in [key for key in fixed if key.split(".")[0] in EXPANSIONS]:
        set_dotted(tree, key, fixed.pop(key))
    return runs_of(tree, fixed, str(path))


def runs_of(tree: Tree, fixed: Tree, where: str) -> dict[str, RunConfig]:
    """Return the runs that the mapping of a YAML file describes, by their id.

    Args:
        tree: The mapping, with its cases, sweep and seeds.
        fixed: Dotted keys with values that win over all of it.
        where: What the mapping is called in errors.

    Raises:
        ConfigError: Names every fault, each with its dotted path.
    """
    runs: dict[str, RunConfig] = {}
    unfit: list[FedsimError] = []
    faults: list[str] = []
    taken: set[str] = set()
    for run in expand(tree, fixed, unfit):
        if run.run_id in taken:
            faults.append(
                "expected runs that differ in case, swept settings or seed, found two that would "
                f"be called {run.run_id}; rename a case or drop a repeated value"
            )
        taken.add(run.run_id)
        try:
            runs[run.run_id] = RunConfig.model_validate(run.settings)
        except ValidationError as error:
            faults += [_describe(fault, run) for fault in error.errors()]
    faults = list(dict.fromkeys([*map(str, unfit), *faults]))
    if len(faults) > 1:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigError(f"{where}: expected valid settings, found these faults:\n{listed}")
    if faults:
        raise ConfigError(f"{where}: {faults[0]}")
    return runs


def json_schema() -> Tree:
    """Return the JSON schema of a YAML file, for editors."""
    schema: Tree = RunConfig.model_json_schema()
    mapping = {"type": "object", "additionalProperties": {"type": ["object", "null"]}}
    schema["properties"] |= {
        "extends": {"type": "string", "description": "Another file; this one's keys win."},
        "seeds": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
        "cases": {**mapping, "description": "A name to the dotted keys that it changes."},
        "sweep": {"type": "object", "description": "A dotted key to its values, zip, exclude."},
    }
    schema["required"] = []  # a file that extends another may leave anything out
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _read_whole(path: Path, extended_by: tuple[Path, ...]) -> Tree:
    """Read a file and what it extends: its own keys win, sections are merged key by key.

    A strategy or model of another name takes nothing over.
    """
    tree = _read(path)
    base = tree.pop(_EXTENDS, None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ConfigError(
            f"{path}: {_EXTENDS}: expected the path of a YAML file, found {base!r}; write "
            f"'{_EXTENDS}: base.yaml'"
        )
    if path.resolve() in extended_by:
        raise ConfigError(f"{path}: {_EXTENDS}: expected an end, found a file that extends itself")
    return _merged(_read_whole(path.parent / base, (*extended_by, path.resolve())), tree)


def _merged(base: Tree, own: Tree) -> Tree:
    merged: Tree = copied(base)
    for key, value in own.items():
        other = merged.get(key)
        if isinstance(value, dict) and isinstance(other, dict) and _are_of_one_kind(other, value):
            merged[key] = _merged(other, value)
        else:
            merged[key] = copied(value)
    return merged


def _are_of_one_kind(base: Tree, own: Tree) -> bool:
    """Return False for two strategies, say: the parameters of one are not the other's."""
    return all(key not in own or own[key] == base.get(key) for key in ("name", "method"))


def _read(path: Path) -> Tree:
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a readable YAML file, found {error.strerror}; check the path"
        ) from None
    except (YAMLError, UnicodeDecodeError) as error:
        where, found, remedy = fault_of(error)
        raise ConfigError(f"{path}{where}: expected YAML, found {found}; {remedy}") from None
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
        _, found, remedy = fault_of(error)
        raise ConfigError(
            f"override {text!r}: expected a YAML value, found {found}; {remedy}"
        ) from None


def _describe(fault: ErrorDetails, run: Expanded) -> str:
    """Say where, what was expected, what was found, and the remedy."""
    path = ".".join(_locate(fault["loc"])[1])
    if fault["type"].startswith("union_tag"):
        path += "." + fault["ctx"]["discriminator"].strip("'")
    for key, origin in run.origins.items():
        if f"{path}.".startswith(f"{key}."):
            return f"{_described(fault, path)} (set by {origin})"
    return _described(fault, path)


def _described(fault: ErrorDetails, path: str) -> str:
    match fault["type"]:
        case "extra_forbidden":
            return f"{path}: expected a known key, found {path!r}; {_nearest(fault['loc'])}"
        case "model_type" | "model_attributes_type":
            return f"{path}: expected keys with values, found {fault['input']!r}; indent them"
        case "union_tag_invalid" | "union_tag_not_found":
            return f"{path}: {_describe_choice(fault)}"
        case "missing":
            return f"{path}: expected a value, found none; add this key"
        case "value_error":
            return f"{path}: {fault['msg'].removeprefix('Value error, ')}".removeprefix(": ")
    expected = fault["msg"].removeprefix("Input should be ")
    return f"{path}: expected {expected}, found {fault['input']!r}; change it"


def _nearest(loc: tuple[int | str, ...]) -> str:
    model = _locate(loc)[0]
    known = [key for key in model.model_fields if key != "case"]
    if model is RunConfig:
        known += [*EXPANSIONS, _EXTENDS]
    return hint(str(loc[-1]), known, f"the keys here are {', '.join(known)}")


def _describe_choice(fault: ErrorDetails) -> str:
    """Describe a fault of the key that tells apart the sections which a place can hold."""
    holder, keys = _locate(fault["loc"])
    choices = list(_choices(holder, keys[-1]))
    found = fault.get("ctx", {}).get("tag")
    shown = "none" if found is None else repr(found)
    remedy = hint(found or "", choices, "choose one")
    return f"expected one of {', '.join(choices)}, found {shown}; {remedy}"


def _locate(loc: tuple[int | str, ...]) -> tuple[type[BaseModel], list[str]]:
    """Return the section that holds a fault's key, and the keys as they stand in the file.

    Where a place can hold one of several sections, the fault names the chosen one after the place.
    """
    holder: type[BaseModel] = RunConfig
    inner: type[BaseModel] | None = None
    choices: dict[str, type[BaseModel]] = {}
    keys: list[str] = []
    for part in map(str, loc):
        if part in choices:
            inner, choices = choices[part], {}
            continue
        holder = inner or holder
        inner, choices = _section(holder, part), _choices(holder, part)
        keys.append(part)
    return holder, keys


def _choices(model: type[BaseModel], key: str) -> dict[str, type[BaseModel]]:
    """Return the sections that a place can hold, by what tells them apart."""
    field = model.model_fields.get(key)
    if field is None or not isinstance(field.discriminator, str):
        return {}
    tag = field.discriminator
    sections = get_args(field.annotation)
    return {get_args(part.model_fields[tag].annotation)[0]: part for part in sections}


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    field = model.model_fields.get(key)
    if field is None:
        return None
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return None if issubclass(candidate, Component) else candidate
    return None
