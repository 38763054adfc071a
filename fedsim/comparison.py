"""Settings compared over seeds and over test users.

Two questions are asked of a difference: would other seeds show it (Student's interval over
seeds), and would other test users show it (bootstrap by user of the difference, seeds held)?
It is called larger or smaller only if both say so. All scores are fractions.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.rank import rank_scores
from fedsim.kept_scores import SCORES_FILE
from fedsim.over_seeds import Interval, OverSeeds, SeedDifference, difference_over_seeds, over_seeds
from fedsim.over_users import UserResamples

Summary = dict[str, Any]
Verdict = Literal[
    "larger",
    "smaller",
    "within the seeds' noise",
    "within the users' noise",
    "one seed: noise unknown",
    "users' noise unknown",
]

SCORES = ("macro_ap", "micro_ap", "macro_ap_binned200", "micro_ap_binned200")
COMPARED = ("macro_ap", "micro_ap")


@dataclass(frozen=True)
class Setting:
    """The runs that differ in their seed alone.

    Attributes:
        experiment: Its name, ``name`` in the YAML.
        kind: "federated" or "centralized".
        name: The run id without the seed.
        runs: For each seed, the run's position in the list that was given.
        by_seed: For each of ``SCORES``, its value by seed; without seeds that have none.
        scores: For each of ``SCORES``, over seeds; None where a seed has none.
        constant_predictor: macro and micro AP of the constant predictor, mean over seeds.
        epsilon_as_run: Largest over seeds, math.inf included; None without central DP.
        epsilon_at_noise_cohort: Likewise.
        example_epsilon_max: Largest example-level epsilon over users and seeds; None without.
    """

    experiment: str
    kind: str
    name: str
    runs: dict[int, int]
    by_seed: dict[str, dict[int, float]]
    scores: dict[str, OverSeeds | None]
    constant_predictor: dict[str, float | None]
    epsilon_as_run: float | None
    epsilon_at_noise_cohort: float | None
    example_epsilon_max: float | None


@dataclass(frozen=True)
class Difference:
    """A setting's score minus the reference's.

    Attributes:
        over_seeds: Difference of the means, and its interval over seeds.
        over_users: 95 % interval over test users, seeds averaged in each resample; None if the
            runs' scores were not kept.
        over_users_reason: Why there is none.
    """

    over_seeds: SeedDifference
    over_users: Interval | None
    over_users_reason: str | None

    @property
    def verdict(self) -> Verdict:
        """Return "larger" or "smaller" if both intervals leave out 0, else what is against it."""
        seeds, users = self.over_seeds.interval, self.over_users
        if seeds is None:
            return "one seed: noise unknown"
        if seeds[0] <= 0 <= seeds[1]:
            return "within the seeds' noise"
        if users is None:
            return "users' noise unknown"
        if seeds[0] > 0 and users[0] > 0:
            return "larger"
        if seeds[1] < 0 and users[1] < 0:
            return "smaller"
        return "within the users' noise"


@dataclass(frozen=True)
class Ranked:
    """A setting and how it differs from the reference.

    Attributes:
        setting: The setting.
        differences: For each of ``COMPARED``; None where one of the two has no score, empty for
            the reference itself.
    """

    setting: Setting
    differences: dict[str, Difference | None]


def group_by_setting(summaries: Sequence[Summary]) -> list[Setting]:
    """Group runs by setting, in the order of each setting's first run.

    Args:
        summaries: Contents of ``summary.json``, at least one.

    Raises:
        ConfigError: No run, or two runs of one setting and seed.
        DataError: Runs of one setting on different test splits.
    """
    if not summaries:
        raise ConfigError("runs: expected at least one finished run, found none; run it first")
    groups: dict[tuple[str, str, str], dict[int, int]] = {}
    for position, summary in enumerate(summaries):
        key = (summary["name"], summary["kind"], summary["setting"])
        runs = groups.setdefault(key, {})
        if summary["seed"] in runs:
            raise ConfigError(
                f"{summary['name']}/{summary['run_id']}: expected one run of each setting and "
                f"seed, found two of seed {summary['seed']}; leave one of their folders out"
            )
        runs[summary["seed"]] = position
    return [_setting(key, runs, summaries) for key, runs in groups.items()]


def rank_settings(
    summaries: Sequence[Summary],
    folders: Sequence[Path] | None = None,
    *,
    reference: str | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> list[Ranked]:
    """Sort settings by mean macro AP, the largest first, and compare each with a reference.

    Many settings are compared: of twenty that are truly equal to the reference, expect one to
    differ from it by the seeds' noise alone.

    Args:
        summaries: Contents of ``summary.json``, all of one test split.
        folders: The runs' folders, in the same order; None for no intervals over users.
        reference: Name of a setting; by default that of the first run.
        num_resamples: Of the test users, at least 1.
        seed: Of the resamples.

    Raises:
        ConfigError: As for ``group_by_setting``, or no one setting is called ``reference``.
        DataError: The test splits differ, or kept scores can't be read.
    """
    settings = group_by_setting(summaries)
    check_one_test_split(summaries)
    chosen = _find(settings, reference)
    users = UserResamples(num_resamples, seed)
    ranked = [
        Ranked(
            setting,
            {}
            if setting is chosen
            else {metric: _compare(setting, chosen, metric, folders, users) for metric in COMPARED},
        )
        for setting in settings
    ]
    means = [macro.mean if (macro := s.scores["macro_ap"]) else None for s in settings]
    ranks = rank_scores(means, "min")
    order = sorted(range(len(ranked)), key=lambda position: ranks[position])
    return [ranked[position] for position in order]


def check_one_test_split(summaries: Sequence[Summary]) -> None:
    """Refuse runs on different test images or labels, as far as summaries tell.

    Raises:
        DataError: Numbers of test images, labels, or positives of a label differ.
    """
    first = summaries[0]
    for other in summaries[1:]:
        if split_tested_on(other) != split_tested_on(first):
            raise DataError(
                f"{other['name']}/{other['run_id']}: expected the test images and labels of "
                f"{first['name']}/{first['run_id']}, found others; compare runs of one data set, "
                "label set and split"
            )


def split_tested_on(summary: Summary) -> tuple[Any, ...]:
    """Return what runs on the same test images and labels share, as far as summaries tell."""
    rows = summary["test"]["per_class"]
    counts = tuple((row["label"], row["positives"]) for row in rows)
    return summary["test"]["scores"]["num_examples"], counts


def _setting(
    key: tuple[str, str, str], runs: dict[int, int], summaries: Sequence[Summary]
) -> Setting:
    members = {seed: summaries[position] for seed, position in runs.items()}
    check_one_test_split(list(members.values()))
    by_seed: dict[str, dict[int, float]] = {}
    for name in SCORES:
        values = {seed: run["test"]["scores"][name] for seed, run in members.items()}
        by_seed[name] = {seed: value for seed, value in values.items() if value is not None}
    constants = [run["constant_predictor"]["test"] for run in members.values()]
    cards = [run["privacy"] for run in members.values()]
    return Setting(
        *key,
        runs=runs,
        by_seed=by_seed,
        scores={n: over_seeds(v) if len(v) == len(runs) else None for n, v in by_seed.items()},
        constant_predictor={
            name: _mean([constant[name] for constant in constants]) for name in COMPARED
        },
        epsilon_as_run=_largest(cards, "central", "epsilon_as_run"),
        epsilon_at_noise_cohort=_largest(cards, "central", "epsilon_at_noise_cohort"),
        example_epsilon_max=_largest(cards, "example_level", "epsilon_max"),
    )


def _mean(values: list[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return statistics.fmean(defined) if len(defined) == len(values) else None


def _largest(cards: list[dict[str, Any]], level: str, name: str) -> float | None:
    """Return the largest epsilon; "infinity", as JSON has it, is one."""
    values = [(card.get(level) or {}).get(name) for card in cards]
    return max((float(value) for value in values if value is not None), default=None)


def _find(settings: list[Setting], name: str | None) -> Setting:
    if name is None:
        return settings[0]
    found = [setting for setting in settings if setting.name == name]
    if len(found) != 1:
        known = ", ".join(dict.fromkeys(setting.name for setting in settings))
        raise ConfigError(
            f"reference: expected the name of one setting, found {len(found)} called {name!r}; "
            f"choose one of {known}, in one experiment"
        )
    return found[0]


def _compare(
    ours: Setting,
    theirs: Setting,
    metric: str,
    folders: Sequence[Path] | None,
    users: UserResamples,
) -> Difference | None:
    if ours.scores[metric] is None or theirs.scores[metric] is None:
        return None
    over = difference_over_seeds(ours.by_seed[metric], theirs.by_seed[metric])
    if folders is None:
        return Difference(over, None, "no folders were given")
    one, other = ([folders[p] for p in setting.runs.values()] for setting in (ours, theirs))
    lacking = [folder for folder in (*one, *other) if not (folder / SCORES_FILE).exists()]
    if lacking:
        return Difference(over, None, f"{lacking[0].name} has no {SCORES_FILE}")
    return Difference(over, users.difference(one, other, metric), None)
