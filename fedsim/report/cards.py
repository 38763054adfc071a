"""Privacy cards in plain words."""

import math
from collections.abc import Iterator
from typing import Any

from fedsim.display import epsilon
from fedsim.page.render import Details
from fedsim.report.gather import Entry, Group
from fedsim.report.words import rounded_up
from fedsim.tables import Cell, Column, Table

_MOST_CARDS = 60  # on the page; privacy.json of every run has its own
_SAMPLING = {
    "poisson": "each {unit} joins each {step} with the same probability, independently: {rate:.4g}",
    "fixed_size": "each {step} has the same number of {unit}s, drawn without replacement",
}
_NEIGHBORS = {
    "add_or_remove_one": "two collections of which one has one {unit} more",
    "replace_one": "two collections that differ in one {unit}",
}
_ACCOUNTANTS = {
    "pld": "PLD: privacy loss distributions",
    "rdp": "RDP: Rényi differential privacy",
}


def privacy_table(group: Group, suffix: str) -> Table | None:
    """Return the numbers of all settings under central DP; None if there is none."""
    rows = [row for entry in group.entries if (row := _central_row(entry)) is not None]
    words = (
        "setting", "epsilon at noise cohort", "its delta", "users, as assumed",
        "noise cohort", "epsilon as run", "delta as run", "users", "cohort", "releases",
        "clipping norm", "noise multiplier", "noise sd on the mean",
    )  # fmt: skip
    digits = {"epsilon at noise cohort": 2, "epsilon as run": 2, "clipping norm": 4,
              "noise multiplier": 3}  # fmt: skip
    columns = tuple(Column(word, digits=digits.get(word, 0)) for word in words)
    note = (
        "Epsilon at the noise cohort is that of the deployment that the run predicts, and a "
        "promise to nobody in this simulation; epsilon as run is what its users got. Largest over "
        "seeds, rounded up. A clipping norm that adapts is the last one."
    )
    return Table(f"privacy{suffix}", "Central DP", columns, tuple(rows), note) if rows else None


def privacy_details(group: Group) -> Iterator[Details]:
    """Yield the card of each private setting, and of others that carry no guarantee."""
    bare, told = [], 0
    for entry in group.entries:
        card = entry.runs[0].summary["privacy"]
        facts: list[tuple[str, str]] = []
        if card.get("central"):
            facts += _facts(card["central"], "user", _central_promise(entry))
        if card.get("example_level"):
            promise = f"epsilon {rounded_up(entry.setting.example_epsilon_max)} at most"
            facts += _facts(card["example_level"], "image", promise)
        if facts:
            told += 1
            if told <= _MOST_CARDS:
                yield Details(f"{entry.name}: what is promised to whom", tuple(facts))
        else:
            bare.append(entry.name)
    if bare:
        yield Details("No guarantee", (("settings", ", ".join(bare)), ("why", "no noise is added")))


def _central_row(entry: Entry) -> tuple[Cell, ...] | None:
    card = entry.runs[0].summary["privacy"].get("central")
    if not card:
        return None
    deployment = card.get("deployment") or {}
    setting = entry.setting
    return (
        entry.name,
        _up(setting.epsilon_at_noise_cohort),
        _small(card.get("delta_at_noise_cohort")),
        deployment.get("population_size"),
        card.get("noise_cohort_size"),
        _up(setting.epsilon_as_run),
        _small(card.get("delta_as_run")),
        card.get("population_size"),
        card.get("cohort_size"),
        card.get("num_releases"),
        card.get("clipping_norm"),
        card.get("noise_multiplier"),
        _small(card.get("noise_stddev_mean")),
    )


def _central_promise(entry: Entry) -> str:
    card = entry.runs[0].summary["privacy"]["central"]
    run = (
        f"epsilon {rounded_up(entry.setting.epsilon_as_run)} at delta "
        f"{_small(card.get('delta_as_run'))} to this run's {_count(card.get('population_size'))} "
        "users"
    )
    deployment = card.get("deployment") or {}
    predicted = (
        f"epsilon {rounded_up(entry.setting.epsilon_at_noise_cohort)} at delta "
        f"{_small(card.get('delta_at_noise_cohort'))} to the "
        f"{_count(deployment.get('population_size'))} users of a deployment with cohorts of "
        f"{_count(deployment.get('cohort_size'))}"
    )
    return f"{predicted}; {run}" if predicted.split(" to ")[0] != run.split(" to ")[0] else run


def _facts(card: dict[str, Any], unit: str, promise: str) -> Iterator[tuple[str, str]]:
    whole = "all images of a user together" if unit == "user" else "each single image"
    yield "protected", whole
    yield "promise", promise
    yield "how", str(card.get("mechanism", "Gaussian noise"))
    if "noise" in card:  # not in cards of before
        yield "noise", str(card["noise"])
    yield "released", str(card.get("released", ""))
    words = {"unit": unit, "step": "round" if unit == "user" else "step"}
    rate = card.get("sampling_rate")
    sampling = str(card.get("sampling", ""))
    known = _SAMPLING.get(sampling) if rate is not None or sampling != "poisson" else None
    yield "sampling", known.format(**words, rate=rate) if known else sampling
    neighbors = str(card.get("neighboring", ""))
    yield "told apart", _NEIGHBORS.get(neighbors, neighbors).format(**words)
    accountant = str(card.get("accountant", ""))
    yield "accountant", _ACCOUNTANTS.get(accountant, accountant)
    for assumption in card.get("assumptions", []):
        yield "it rests on", str(assumption)


def _up(value: float | None) -> float | None:
    return None if value is None else float(epsilon(value))


def _small(value: Any) -> str:
    if value is None:
        return ""
    number = float(value)
    return f"{number:.2g}" if math.isfinite(number) else "infinite"


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "unknown"
