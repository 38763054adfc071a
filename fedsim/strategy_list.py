"""Which strategies there are, where they come from, and what they take."""

import inspect
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fedsim import build
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import CohortStrategy
from fedsim.config import RunConfig
from fedsim.data.dataset import UserTable
from fedsim.errors import FedsimError, first_line
from fedsim.plugins import registered, resolve
from fedsim.privacy.central import CentralGaussian
from fedsim.strategy import SumStrategy

REQUIRED = "(required)"
_GROUP = "fedsim.strategies"


@dataclass(frozen=True)
class Listed:
    """What is known of a strategy without a run; what is not known is None.

    Attributes:
        name: What ``strategy.name`` calls it.
        target: Module and class, or the file and class.
        source: The distribution that registered it, or the file that it stands in.
        summary: The first line of its documentation.
        parameters: Their defaults, or ``(required)``.
        central_dp: ``yes``, ``no``, or the parameter with which it is yes.
        example_level_dp: Whether it leaves a user's images to the steps' gradients.
        state_copies: How many times the size of the model a user keeps between rounds.
        fault: Why the name can't be used; empty if it can.
    """

    name: str
    target: str
    source: str
    summary: str = ""
    parameters: dict[str, Any] | None = None
    central_dp: str | None = None
    example_level_dp: bool | None = None
    state_copies: float | None = None
    fault: str = ""


def list_strategies(names: list[str] | None = None) -> list[Listed]:
    """Return the named strategies, or all that are installed; a broken one breaks no other."""
    return [_listed(name) for name in names or sorted(registered(_GROUP))]


def _listed(name: str) -> Listed:
    known = registered(_GROUP)
    target = known.get(name, name)
    try:
        factory = resolve(name, known, "strategy.name")
        parameters = _parameters_of(factory)
        complete = REQUIRED not in parameters.values()
        part = _part_of(name, factory, complete)
        return Listed(
            name,
            target,
            _source_of(name, factory),
            summary=(inspect.getdoc(factory) or "").partition("\n")[0],
            parameters=parameters,
            central_dp=_central_dp_of(name, factory, parameters),
            example_level_dp=part and part[0],
            state_copies=part and part[1],
        )
    except FedsimError as error:
        return Listed(name, target, _source_of(name, None), fault=first_line(error))


def _parameters_of(factory: Any) -> dict[str, Any]:
    return {
        p.name: REQUIRED if p.default is p.empty else p.default
        for p in inspect.signature(factory).parameters.values()
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    }


def _source_of(name: str, factory: Any) -> str:
    for point in entry_points(group=_GROUP):
        if point.name == name and point.dist is not None:
            return f"{point.dist.name} {point.dist.version}"
    if factory is None:
        return name.rpartition(":")[0]
    return inspect.getsourcefile(factory) or factory.__module__


def _config_of(name: str, **parameters: Any) -> RunConfig:
    settings = {"name": "list", "strategy": {"name": name, **parameters}}
    return RunConfig.model_validate(settings)


def _central_dp_of(name: str, factory: Any, parameters: dict[str, Any]) -> str | None:
    """Tell whether the strategy lets itself be composed with a mechanism."""
    if isinstance(factory, type) and not issubclass(factory, SumStrategy):
        return "no"
    if REQUIRED in parameters.values():
        return None
    cohort = CohortSampler(UserTable(("anybody",), np.array([1])), 1, "poisson", 0)
    mechanism = CentralGaussian(1.0, 1.0, cohort_size=1, noise_cohort_size=1, seed=0)
    tries: list[tuple[str, dict[str, Any]]] = [("yes", {})]
    if "weighting" in parameters:
        tries.append(("weighting: uniform", {"weighting": "uniform"}))
    for answer, given in tries:
        try:
            build.build_strategy(_config_of(name, **given), cohort, mechanism)
        except FedsimError:
            continue
        return answer
    return "no"


def _part_of(name: str, factory: Any, complete: bool) -> tuple[bool, float] | None:
    """Return whether example-level DP-SGD holds on the user's side, and what a user keeps."""
    foreign = isinstance(factory, type) and not issubclass(factory, CohortStrategy)
    if foreign or getattr(factory, "client_part", None) is CohortStrategy.client_part:
        return True, 0.0
    if not complete:
        return None
    part = build.build_part(_config_of(name))
    return (part.keeps_example_level, part.state_copies) if part else (True, 0.0)


def strategies_table(strategies: list[Listed]) -> Table:
    """Make the table of what is installed."""
    table = Table(title=f"{len(strategies)} strategies", title_justify="left", show_lines=True)
    for column in ("name", "what it does", "parameters", "central DP", "example-level DP"):
        table.add_column(column, overflow="fold")
    table.add_column("users keep", justify="right")
    table.add_column("from", overflow="fold")
    for listed in strategies:
        parameters = "\n".join(f"{k}: {v}" for k, v in (listed.parameters or {}).items())
        example = {True: "yes", False: "no", None: "?"}[listed.example_level_dp]
        keeps = "?" if listed.state_copies is None else f"{listed.state_copies:g} models"
        cells = (
            (listed.name, listed.fault, "", "", "", "", listed.source)
            if listed.fault
            else (
                listed.name, listed.summary, parameters, listed.central_dp or "?", example,
                "" if listed.state_copies == 0 else keeps, listed.source,
            )
        )  # fmt: skip
        table.add_row(*(Text(cell) for cell in cells))
    return table
