"""Reads finished runs and compares those that share a test split."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsim.comparison import Difference, Ranked, Setting, rank_settings, split_tested_on
from fedsim.errors import CheckpointError, DataError
from fedsim.loading import find_runs
from fedsim.record import Line, RunFolder

_MANY_RUNS = 200
_NEEDED = ("setting", "kind", "seed", "test", "constant_predictor", "privacy", "config", "versions")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes:
        folder: Where it was recorded.
        summary: Its ``summary.json``.
        lines: Its ``metrics.jsonl``.
    """

    folder: Path
    summary: dict[str, Any]
    lines: Sequence[Line]


@dataclass(frozen=True, eq=False)
class Entry:
    """A setting, its runs, and how it differs from the reference.

    Attributes:
        name: Unique in its group.
        runs: One for each seed.
        setting: Its scores.
        differences: Of macro and micro AP; empty for the reference.
    """

    name: str
    runs: tuple[Run, ...]
    setting: Setting
    differences: dict[str, Difference | None]

    @property
    def is_centralized(self) -> bool:
        """Whether it was trained on all images in one place."""
        return self.setting.kind == "centralized"

    @property
    def is_private(self) -> bool:
        """Whether a finite epsilon holds for users or for examples."""
        epsilons = (
            self.setting.epsilon_as_run,
            self.setting.epsilon_at_noise_cohort,
            self.setting.example_epsilon_max,
        )
        return any(value is not None and math.isfinite(value) for value in epsilons)

    @property
    def epsilon(self) -> float:
        """What orders settings by privacy: at the noise cohort, else of examples, else infinite."""
        central, example = self.setting.epsilon_at_noise_cohort, self.setting.example_epsilon_max
        known = [value for value in (central, example) if value is not None]
        return known[0] if known else math.inf

    @property
    def noise_multiplier(self) -> float | None:
        """That of central DP, mean over seeds."""
        values = [(run.summary["privacy"].get("central") or {}) for run in self.runs]
        known = [card["noise_multiplier"] for card in values if card.get("noise_multiplier")]
        return statistics.fmean(known) if known else None

    @property
    def config(self) -> dict[str, Any]:
        """The settings of its first run."""
        config: dict[str, Any] = self.runs[0].summary["config"]
        return config

    def mean(self, key: str) -> float:
        """Return the mean over seeds of a number in the summaries."""
        return statistics.fmean(run.summary[key] for run in self.runs)


@dataclass(frozen=True, eq=False)
class Group:
    """Settings that were tested on one split.

    Attributes:
        title: Which split.
        entries: The reference, then what is not private, then private settings from the largest
            epsilon to the smallest, then centralized ones; those that are alike as in the file.
        users_reason: Why no differences were resampled over users; None if they were.
        num_resamples: Of the users.
    """

    title: str
    entries: tuple[Entry, ...]
    users_reason: str | None
    num_resamples: int

    @property
    def reference(self) -> Entry:
        """What the others are compared with."""
        return self.entries[0]

    @cached_property
    def others(self) -> tuple[Entry, ...]:
        """All settings but the reference."""
        return self.entries[1:]

    @property
    def private(self) -> tuple[Entry, ...]:
        """The private settings but the reference, from the most private."""
        private = (entry for entry in self.others if entry.is_private)
        return tuple(sorted(private, key=lambda entry: (entry.is_centralized, entry.epsilon)))

    @property
    def constant(self) -> dict[str, float | None]:
        """The constant predictor's macro and micro AP on test."""
        return self.reference.setting.constant_predictor


@dataclass(frozen=True)
class Skipped:
    """A run that is not reported.

    Attributes:
        folder: Where it was recorded.
        reason: Why.
    """

    folder: Path
    reason: str


@dataclass(frozen=True, eq=False)
class Gathered:
    """What there is to report.

    Attributes:
        groups: Runs by their test split.
        skipped: Runs that have not finished.
    """

    groups: tuple[Group, ...]
    skipped: tuple[Skipped, ...]


def gather(paths: Iterable[Path]) -> Gathered:
    """Read all runs below some folders and compare those that share a test split.

    Raises:
        CheckpointError: There is no finished run, or a record can't be read.
        ConfigError: Two runs are of one setting and seed.
        DataError: Runs of one setting have different test splits.
    """
    paths = list(paths)
    folders = list({folder.path.resolve(): folder for folder in find_runs(paths)}.values())
    skipped = [_skipped(folder) for folder in folders if not folder.finished]
    runs = [_read(folder) for folder in folders if folder.finished]
    if not runs:
        where = ", ".join(map(str, paths))
        raise CheckpointError(
            f"{where}: expected a finished run, found {len(skipped)} that are not; run them first"
        )
    by_split: dict[Any, list[Run]] = {}
    for run in runs:
        by_split.setdefault(split_tested_on(run.summary), []).append(run)
    return Gathered(tuple(map(_group, by_split.values())), tuple(skipped))


def _skipped(folder: RunFolder) -> Skipped:
    failure = folder.failure()
    if failure is not None:
        return Skipped(folder.path, f"failed: {failure.get('message', 'no message')}")
    rounds = max((line["round"] for line in folder.lines()), default=0)
    return Skipped(folder.path, f"unfinished, after {rounds} rounds")


def _read(folder: RunFolder) -> Run:
    summary = folder.read_json("summary.json")
    lacking = [key for key in _NEEDED if key not in summary]
    if lacking:
        raise CheckpointError(
            f"{folder.path}: expected {lacking[0]!r} in summary.json, found none, as of another "
            "fedsim; run it again or leave it out"
        )
    return Run(folder.path, summary, folder.lines())


def _group(runs: list[Run]) -> Group:
    first = min(runs, key=_is_no_reference)  # the first of those that may be one
    ordered = [first, *(run for run in runs if run is not first)]
    num_resamples = 1000 if len(runs) <= _MANY_RUNS else 400
    ranked, reason = _ranked(ordered, num_resamples)
    several = len({run.summary["name"] for run in runs}) > 1
    ranked.sort(key=lambda one: min(one.setting.runs.values()))  # as in the file
    entries = [_entry(one, ordered, several) for one in ranked]
    entries.sort(key=_reading_order)
    data = first.summary["config"]["data"]
    scores = first.summary["test"]["scores"]
    title = f"{Path(data['source']).name}, {data['labels']} labels, {scores['num_examples']:,} test"
    return Group(f"{title} images", tuple(entries), reason, num_resamples)


def _ranked(runs: list[Run], num_resamples: int) -> tuple[list[Ranked], str | None]:
    summaries = [run.summary for run in runs]
    folders = [run.folder for run in runs]
    try:
        return rank_settings(summaries, folders, num_resamples=num_resamples), None
    except DataError as error:  # kept scores that can't be read, or are of other users
        return rank_settings(summaries), str(error)


def _is_no_reference(run: Run) -> tuple[bool, bool]:
    summary = run.summary
    return (summary["kind"] == "centralized", not _no_noise(summary["privacy"]))


def _no_noise(card: dict[str, Any]) -> bool:
    return not (card.get("central") or card.get("example_level"))


def _entry(ranked: Ranked, runs: list[Run], several: bool) -> Entry:
    setting = ranked.setting
    name = setting.name
    if several and name != setting.experiment:
        name = f"{setting.experiment}/{name}"
    members = tuple(runs[place] for _, place in sorted(setting.runs.items()))
    return Entry(name, members, setting, ranked.differences)


def _reading_order(entry: Entry) -> tuple[bool, bool, bool, float]:
    is_reference = not entry.differences
    return (
        not is_reference,
        entry.is_centralized,
        entry.is_private,
        -entry.epsilon if entry.is_private else 0.0,
    )
