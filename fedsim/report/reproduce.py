"""What it takes to get the same numbers again."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from fedsim.loading import dotted
from fedsim.page.render import Details
from fedsim.record import RunFolder
from fedsim.report.gather import Entry, Group, Run
from fedsim.tables import Cell, Column, Table

_MOST_SETTINGS = 60  # whose settings are on the page


def command_of(run: Run) -> str:
    """Return the command that makes a run again."""
    parts = ["fedsim", "run", str(run.folder / "config.yaml"), "--out", "again"]
    if run.summary["kind"] != "centralized" and run.summary["config"].get("centralized"):
        parts.insert(3, "centralized=null")
    return shlex.join(parts)


def commands_of(run: Run) -> list[str]:
    """Return the commands that made a run, the first one first; none of a run of an old fedsim."""
    commands = RunFolder(run.folder).origin()["commands"]
    return [command for command in commands if isinstance(command, str)]


def differing_table(group: Group, suffix: str) -> Table | None:
    """Return the settings in which compared settings differ; None if they don't."""
    flat = [texts_of(entry.config) for entry in group.entries]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    sections = {key for key in keys if any(other.startswith(f"{key}.") for other in keys)}
    for settings in flat:  # a section that others lack
        settings |= dict.fromkeys(sections - settings.keys(), "given")
    differing = [
        key for key in keys if len({settings[key] for settings in flat if key in settings}) > 1
    ]
    if not differing:
        return None
    rows: list[tuple[Cell, ...]] = [
        (entry.name, *(settings.get(key, "") for key in differing))
        for entry, settings in zip(group.entries, flat, strict=True)
    ]
    columns = tuple(map(Column, ("setting", *differing)))
    note = "Of a centralized run, only data, model, evaluation and its own settings matter."
    title = "Where the settings differ"
    return Table(f"differing{suffix}", title, columns, tuple(rows), note)


def versions_table(group: Group, suffix: str) -> Table:
    """Return the versions that runs were made with: a column for each set of versions."""
    sets: dict[str, list[Run]] = {}
    for entry in group.entries:
        for run in entry.runs:
            sets.setdefault(json.dumps(run.summary["versions"], sort_keys=True), []).append(run)
    versions = [json.loads(text) for text in sets]
    names = list(dict.fromkeys(name for found in versions for name in found))
    heads = [f"{len(runs):,} run{'s' * (len(runs) != 1)}" for runs in sets.values()]
    if len(heads) > 1:
        heads = [
            f"{head} ({runs[0].summary['run_id']} …)"
            for head, runs in zip(heads, sets.values(), strict=True)
        ]
    rows = tuple((name, *(str(found.get(name, "")) for found in versions)) for name in names)
    columns = tuple(map(Column, ("package", *heads)))
    return Table(f"versions{suffix}", "Versions", columns, rows)


def setting_details(group: Group) -> Iterator[Details]:
    """Yield each setting's commands and its whole configuration."""
    for entry in group.entries[:_MOST_SETTINGS]:
        commands = tuple(fact for run in entry.runs for fact in _commands(run))
        yield Details(f"{entry.name}: commands and all settings", commands, _config_text(entry))


def _commands(run: Run) -> Iterator[tuple[str, str]]:
    made, seed = commands_of(run), run.summary["seed"]
    if made:
        yield f"seed {seed} was made by", "; then ".join(made)
    yield f"seed {seed} again", command_of(run)


def reproduce_text(group: Group) -> str:
    """Return how to read commands and settings."""
    text = (
        "A run's config.yaml holds every setting, defaults included, so that its command makes it "
        "again, with the same bits under the same versions on a machine of the same kind. The run "
        "then is named after its seed alone. A centralized run's command also makes the federated "
        "run that it belongs to."
    )
    if len(group.entries) > _MOST_SETTINGS:
        text += (
            f" The settings of {_MOST_SETTINGS} of {len(group.entries)} are below; runs.csv has "
            "the command of every run."
        )
    return text


def texts_of(settings: dict[str, Any]) -> dict[str, str]:
    """Return every setting under its dotted key, without name, case and seed, as text.

    Examples:
        >>> texts_of({"seed": 1, "federated": {"cohort_size": 20, "x": None}})
        {'federated.cohort_size': '20', 'federated.x': 'null'}
    """
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in dotted(settings).items()
    }


def _config_text(entry: Entry) -> str:
    path = entry.runs[0].folder / "config.yaml"
    return f"# {path}\n{path.read_text(encoding='utf-8', errors='replace').strip()}"
