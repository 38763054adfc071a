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

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fedsim.errors import ConfigError, FedsimError, noted
from fedsim.nearest import hint
from fedsim.run_id import run_id_of

EXPANSIONS = ("seeds", "cases", "sweep")
Tree = dict[str, Any]

_NAMED = ("strategy", "model")  # sections with a name: another one has other parameters


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


def expand(tree: Tree, fixed: Tree, faults: list[FedsimError]) -> Iterator[Expanded]:
    """Yield the runs of a file, in order: cases, then the sweep's product, then seeds.

    Args:
        tree: The file.
        fixed: Dotted keys with values that win over cases and sweep; what they set is not swept.
        faults: What is wrong with the expansions is appended, and the runs are those without it.
    """
    cases: dict[Any, Tree] = {None: {}}
    with noted(faults):
        cases = _cases(tree)
    choices, excluded, seeds = _choices(tree, fixed, faults), _Excluded([]), [0]
    with noted(faults):
        excluded = _Excluded(_rules(tree))
    with noted(faults):
        seeds = [fixed["seed"]] if "seed" in fixed else _seeds(tree)
    base = {key: value for key, value in tree.items() if key not in EXPANSIONS}
    is_whole = not faults and not fixed  # what is left out may leave a rule without work
    any_left = False
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
                with noted(faults):
                    set_dotted(settings, key, value)
                origins[key] = origin
        settings |= {"seed": seed, "case": name}
        if not excluded.takes(settings):
            any_left = True
            yield Expanded(run_id_of(name, swept, seed), settings, origins)
    if is_whole:
        with noted(faults):
            excluded.check()
    if not any_left:
        text = "sweep.exclude: expected runs to be left, found none; drop a rule"
        faults.append(ConfigError(text))


def set_dotted(tree: Tree, dotted: str, value: Any) -> None:
    """Set the value at a dotted key of a tree, making the sections on the way."""
    *parents, last = str(dotted).split(".")
    for parent in parents:
        if tree.get(parent) is None:
            tree[parent] = {}
        tree = tree[parent]
        if not isinstance(tree, dict):
            raise ConfigError(
                f"{dotted}: expected {parent!r} to be a section, found {tree!r}; check the dotted "
                "key"
            )
    if last == "method" and tree.get(last, value) != value:
        tree.clear()  # the parameters of one method are not another's
    if not parents and last not in (*_NAMED, *EXPANSIONS):
        _check_nothing_dropped(last, tree.get(last), value)
    tree[last] = copied(value)


def _check_nothing_dropped(section: str, before: Any, value: Any) -> None:
    """Raise ConfigError if a whole section is set without keys that it has, which are forgotten."""
    if not isinstance(before, dict) or not isinstance(value, dict):
        return
    dropped = [f"{section}.{key}" for key in before if key not in value]
    if dropped and value:
        raise ConfigError(
            f"{section}: expected dotted keys, found a whole section, without "
            f"{', '.join(dropped)} of the file's; write "
            + ", ".join(f"{section}.{key}: {given!r}" for key, given in value.items())
        )


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


def _seeds(tree: Tree) -> list[Any]:
    seeds = tree.get("seeds", [tree.get("seed", 0)])
    if not isinstance(seeds, list) or not seeds:
        raise ConfigError(f"seeds: expected a list, found {seeds!r}; write [0, 1, 2]")
    return seeds


def _cases(tree: Tree) -> dict[Any, Tree]:
    cases = _mapping(tree, "cases") or {None: {}}
    for case, changes in cases.items():
        if changes is not None and not _is_section(changes):
            raise ConfigError(
                f"cases.{case}: expected dotted keys with values, found {changes!r}; write "
                "{federated.num_rounds: 10}, or {} for no change"
            )
    return {case: changes or {} for case, changes in cases.items()}


def _axes(tree: Tree) -> list[Tree]:
    """Return what is swept, a mapping for each axis of the product, as it stands in the file."""
    sweep = _mapping(tree, "sweep")
    groups = sweep.get("zip", [])
    if not isinstance(groups, list) or not all(map(_is_section, groups)):
        raise ConfigError(
            f"sweep.zip: expected a list of groups, found {groups!r}; write "
            "[{a.b: [1, 2], c.d: [3, 4]}]"
        )
    return [
        *({key: values} for key, values in sweep.items() if key not in ("zip", "exclude")),
        *groups,
    ]


def _choices(tree: Tree, fixed: Tree, faults: list[FedsimError]) -> list[list[Tree]]:
    """Return for each axis of the product its choices, as dotted keys and values."""
    axes, choices = list[Tree](), []
    with noted(faults):
        axes = _axes(tree)
    for axis in axes:
        with noted(faults):
            choices.append(_rows(axis, fixed))
    return [rows for rows in choices if rows]


def _rows(axis: Tree, fixed: Tree) -> list[Tree]:
    listed = {
        key: _values(f"sweep.{key}", values)
        for key, values in axis.items()
        if not any(f"{key}.".startswith(f"{override}.") for override in fixed)
    }
    sizes = {key: len(values) for key, values in listed.items()}
    if len(set(sizes.values())) > 1:
        raise ConfigError(
            f"sweep.zip: expected lists of one length in a group, found {sizes}; make them "
            "equally long"
        )
    return [dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True)]


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


def _rules(tree: Tree) -> list[Tree]:
    """Return the combinations that are left out."""
    rules = _mapping(tree, "sweep").get("exclude", [])
    if not isinstance(rules, list) or not all(rule and _is_section(rule) for rule in rules):
        raise ConfigError(
            f"sweep.exclude: expected a list of combinations, found {rules!r}; write "
            "[{case: a, federated.local.epochs: 2}]"
        )
    try:
        varying = {key for axis in (*_axes(tree), *_cases(tree).values()) for key in axis}
    except ConfigError:  # which is told by itself
        return rules
    known = sorted({"case", "seed", *varying})
    for key in [key for rule in rules for key in rule if key not in known]:
        raise ConfigError(
            f"sweep.exclude: expected keys that vary ({', '.join(known)}), found {key!r}; "
            f"{hint(key, known, 'name what is swept')}"
        )
    return rules


class _Excluded:
    """Rules that leave runs out, and which of them had work."""

    def __init__(self, rules: list[Tree]) -> None:
        self._rules, self._used = rules, set[int]()

    def takes(self, settings: Tree) -> bool:
        matching = [n for n, rule in enumerate(self._rules) if _matches(settings, rule)]
        self._used.update(matching)
        return bool(matching)

    def check(self) -> None:
        idle = [rule for number, rule in enumerate(self._rules) if number not in self._used]
        if idle:
            raise ConfigError(
                f"sweep.exclude: expected rules that leave out a run, found {idle[0]}, which fits "
                "none; correct or drop it"
            )


def _matches(settings: Tree, rule: Tree) -> bool:
    return all(_get(settings, key) == value for key, value in rule.items())


def _get(tree: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _mapping(tree: Tree, key: str) -> dict[Any, Any]:
    value = tree.get(key) or {}
    if not _is_section(value):
        raise ConfigError(
            f"{key}: expected names with what they stand for, found {value!r}; see docs/sweeps.md"
        )
    return value


def _is_section(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)
