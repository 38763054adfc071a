"""From one tree of settings to those of every run: cases, swept values, seeds.

cases:                      # a name to what it changes; one run each
  small: {federated.cohort_size: 10}
sweep:                      # every combination of the values
  federated.local.epochs: [1, 2]
  federated.local.learning_rate: {logspace: [0.01, 1, 5]}
  zip:                      # these go together, so that a group is one choice
    - {federated.num_rounds: [40, 80], federated.cohort_size: [40, 20]}
  exclude:                  # combinations that are left out
    - {case: small, federated.local.epochs: 2}
seeds: [0, 1, 2]
"""

import hashlib
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fedsim.errors import ConfigError

EXPANSIONS = ("seeds", "cases", "sweep")
Tree = dict[str, Any]

_LONGEST_VALUE, _LONGEST_ID = 40, 160  # letters; a folder's name has room for 255 bytes


@dataclass(frozen=True)
class Expanded:
    """One run before its settings are checked.

    Attributes:
        run_id: Made of case, swept values and seed; the same every time.
        settings: The whole tree.
        origins: Where a dotted key was set, if not by the section that it belongs to.
    """

    run_id: str
    settings: Tree
    origins: dict[str, str] = field(default_factory=dict)


def expand(tree: Tree, fixed: Tree, where: str) -> Iterator[Expanded]:
    """Yield the runs of a file, in order: cases, then the sweep's product, then seeds.

    Args:
        tree: The file.
        fixed: Dotted keys with values that win over cases and sweep; what they set is not swept.
        where: The file's name, for errors.

    Raises:
        ConfigError: An expansion is not what it has to be.
    """
    cases = _cases(tree, where)
    choices = _choices(tree, fixed, where)
    excluded = _excluded(tree, where)
    seeds = [fixed["seed"]] if "seed" in fixed else tree.get("seeds", [tree.get("seed", 0)])
    if not isinstance(seeds, list) or not seeds:
        raise ConfigError(f"{where}: seeds: expected a list, found {seeds!r}; write [0, 1, 2]")
    base = {key: value for key, value in tree.items() if key not in EXPANSIONS}
    used: set[int] = set()
    for case, combination, seed in itertools.product(
        cases.items(), itertools.product(*choices), seeds
    ):
        name, changes = case
        swept: Tree = {key: value for choice in combination for key, value in choice.items()}
        settings, origins = copied(base), {}
        layers = ((f"cases.{name}", changes), ("sweep", swept), ("the command line", fixed))
        for origin, layer in layers:
            # A method first, since it drops the parameters of another one.
            for key, value in sorted(
                layer.items(), key=lambda item: not item[0].endswith(".method")
            ):
                set_dotted(settings, key, value, where)
                origins[key] = origin
        settings |= {"seed": seed, "case": name}
        matching = [number for number, rule in enumerate(excluded) if _matches(settings, rule)]
        used.update(matching)
        if not matching:
            yield Expanded(_run_id(name, swept, seed), settings, origins)
    idle = [rule for number, rule in enumerate(excluded) if number not in used]
    if idle and not fixed:  # what the command line sets may leave a rule without work
        raise ConfigError(
            f"{where}: sweep.exclude: expected rules that leave out a run, found {idle[0]}, which "
            "fits none; correct or drop it"
        )


def set_dotted(tree: Tree, dotted: str, value: Any, where: str) -> None:
    """Set the value at a dotted key of a tree, making the sections on the way."""
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
    if last == "method" and tree.get(last, value) != value:
        tree.clear()  # the parameters of one method are not another's
    tree[last] = copied(value)


def copied(value: Any) -> Any:
    """Return a copy of nested mappings that shares nothing with them but what they hold."""
    return {k: copied(v) for k, v in value.items()} if isinstance(value, dict) else value


def spaced(kind: str, first: float, last: float, number: int) -> list[float]:
    """Return evenly spaced numbers, to 6 significant digits; whole ones between whole bounds.

    Args:
        kind: "linspace", or "logspace" for even ratios.
        first: The first number; above 0 for "logspace".
        last: The last one.
        number: How many, at least 2.

    Examples:
        >>> spaced("linspace", 10, 50, 5), spaced("logspace", 0.01, 1, 3)
        ([10, 20, 30, 40, 50], [0.01, 0.1, 1.0])
    """
    log = kind == "logspace"
    low, high = (math.log(first), math.log(last)) if log else (first, last)
    steps = [low + (high - low) * step / (number - 1) for step in range(number)]
    values = [float(f"{math.exp(step) if log else step:.6g}") for step in steps]
    if isinstance(first, int) and isinstance(last, int):
        return [int(value) if value.is_integer() else value for value in values]
    return values


def _cases(tree: Tree, where: str) -> dict[Any, Tree]:
    cases = _mapping(tree, "cases", where) or {None: {}}
    for case, changes in cases.items():
        if not isinstance(changes, dict | None):
            raise ConfigError(
                f"{where}: cases.{case}: expected dotted keys with values, found {changes!r}; "
                "write {federated.num_rounds: 10}, or {} for no change"
            )
    return {case: changes or {} for case, changes in cases.items()}


def _choices(tree: Tree, fixed: Tree, where: str) -> list[list[Tree]]:
    """Return what is swept: for each axis of the product its choices, as dotted keys and values."""
    sweep = _mapping(tree, "sweep", where)
    groups = sweep.get("zip", [])
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ConfigError(
            f"{where}: sweep.zip: expected a list of groups, found {groups!r}; write "
            "[{a.b: [1, 2], c.d: [3, 4]}]"
        )
    axes = [{key: values} for key, values in sweep.items() if key not in ("zip", "exclude")]
    choices = []
    for axis in [*axes, *groups]:
        listed = {
            key: _values(f"{where}: sweep.{key}", values)
            for key, values in axis.items()
            if not any(f"{key}.".startswith(f"{override}.") for override in fixed)
        }
        sizes = {key: len(values) for key, values in listed.items()}
        if len(set(sizes.values())) > 1:
            raise ConfigError(
                f"{where}: sweep.zip: expected lists of one length in a group, found {sizes}; "
                "make them equally long"
            )
        if listed:
            rows = zip(*listed.values(), strict=True)
            choices.append([dict(zip(listed, row, strict=True)) for row in rows])
    return choices


def _values(where: str, values: Any) -> list[Any]:
    if isinstance(values, list) and values:
        return values
    if isinstance(values, dict) and len(values) == 1:
        ((kind, bounds),) = values.items()
        if kind in ("linspace", "logspace") and _are_bounds(kind, bounds):
            return spaced(kind, *bounds)
    raise ConfigError(
        f"{where}: expected a list of values, found {values!r}; write [a, b], or "
        "{linspace: [first, last, number]}, or {logspace: [first, last, number]} of numbers above 0"
    )


def _are_bounds(kind: str, bounds: Any) -> bool:
    if not isinstance(bounds, list) or len(bounds) != 3:
        return False
    if any(isinstance(bound, bool) or not isinstance(bound, int | float) for bound in bounds):
        return False
    first, last, number = bounds
    above_zero = kind == "linspace" or (first > 0 and last > 0)
    finite = math.isfinite(first) and math.isfinite(last)
    return isinstance(number, int) and number >= 2 and finite and above_zero


def _excluded(tree: Tree, where: str) -> list[Tree]:
    rules = _mapping(tree, "sweep", where).get("exclude", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and rule for rule in rules):
        raise ConfigError(
            f"{where}: sweep.exclude: expected a list of combinations, found {rules!r}; write "
            "[{case: a, federated.local.epochs: 2}]"
        )
    swept = {key for choice in _choices(tree, {}, where) for key in choice[0]}
    cases = _cases(tree, where)
    known = {"case", "seed", *swept, *(key for changes in cases.values() for key in changes)}
    for key in [key for rule in rules for key in rule if key not in known]:
        raise ConfigError(
            f"{where}: sweep.exclude: expected keys that vary ({', '.join(sorted(known))}), found "
            f"{key!r}; name what is swept"
        )
    return rules


def _matches(settings: Tree, rule: Tree) -> bool:
    return all(_get(settings, key) == value for key, value in rule.items())


def _get(tree: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _mapping(tree: Tree, key: str, where: str) -> dict[Any, Any]:
    value = tree.get(key) or {}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ConfigError(
            f"{where}: {key}: expected names with what they stand for, found {value!r}; see the "
            "README"
        )
    return value


def _run_id(case: str | None, swept: Tree, seed: Any) -> str:
    parts = [str(case)] if case else []
    names = [key.rpartition(".")[2] for key in swept]
    for key, name in zip(swept, names, strict=True):
        shown = _shortened(_flat(swept[key]), _LONGEST_VALUE)
        parts.append(f"{key if names.count(name) > 1 else name}={shown}")
    text = re.sub(r"[^\w.,=+~-]+", "_", "-".join(parts))  # a folder's name, whatever is swept
    return "-".join([*([_shortened(text, _LONGEST_ID)] if text else []), f"seed{seed}"])


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={_flat(item)}" for key, item in value.items())
    return "none" if value is None else str(value)


def _shortened(text: str, longest: int) -> str:
    """Cut a long text, and let a hash tell it from others that begin alike."""
    if len(text.encode()) <= longest:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    kept = text.encode()[: longest - 9].decode(errors="ignore")
    return f"{kept}~{digest}"
