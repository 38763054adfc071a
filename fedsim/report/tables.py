"""The tables of the page; scores are in percent, differences in points."""

import math
import statistics

import numpy as np

from fedsim.comparison import COMPARED, Difference
from fedsim.display import epsilon
from fedsim.over_seeds import OverSeeds
from fedsim.report.classes import ClassScore, class_scores
from fedsim.report.gather import Entry, Group
from fedsim.report.per_user import UserScores
from fedsim.report.rounds import seconds_of, share_of_scoring
from fedsim.report.words import interval
from fedsim.tables import Cell, Column, Table

_MOST_COLUMNS = 40
CONSTANT = "constant predictor"


def comparison_table(group: Group, suffix: str) -> Table:
    """Return a row for each setting and the constant predictor, the largest macro AP first."""
    rows = [_comparison_row(entry, entry is group.reference) for entry in group.entries]
    scores = [None if v is None else 100 * v for v in map(group.constant.get, COMPARED)]
    rest = len(rows[0]) - 8
    rows.append((CONSTANT, None, scores[0], None, "", scores[1], None, "", *[None] * rest))
    rows = [tuple("" if _is_text(rows, k) and c is None else c for k, c in enumerate(row))
            for row in rows]  # fmt: skip
    rows.sort(key=lambda row: row[2] if isinstance(row[2], float) else -math.inf, reverse=True)
    columns = [Column("setting"), Column("seeds")]
    for words in ("macro AP, %", "micro AP, %"):
        columns += [Column(words, digits=2), Column("sd", digits=2), Column("95 %")]
    for words in ("macro AP", "micro AP"):
        columns += [
            Column(f"{words} against reference", digits=2),
            Column("95 % over seeds"),
            Column("95 % over users"),
            Column("verdict"),
        ]
    columns += [
        Column("epsilon as run", digits=2),
        Column("epsilon at noise cohort", digits=2),
        Column("largest example-level epsilon", digits=2),
        Column("noise multiplier", digits=3),
        Column("best round", digits=1),
        Column("seconds", digits=0),
    ]
    note = (
        "Means over seeds on test, at each run's best round on validation; sd is of one seed, 95 % "
        "of the mean over all seeds that there could be. Epsilons are rounded up; seconds are of "
        "a whole run."
    )
    return Table(f"comparison{suffix}", "All settings", tuple(columns), tuple(rows), note)


def class_tables(group: Group, suffix: str) -> tuple[Table, ...]:
    """Return each class's AP under every setting, and how it differs from the reference."""
    entries = (group.reference, *group.private, *(e for e in group.others if not e.is_private))
    left_out = len(entries) - _MOST_COLUMNS
    entries = entries[:_MOST_COLUMNS]
    scores = [class_scores(entry, group) for entry in entries]
    first = scores[0]
    heads = (Column("class"), Column("in train"), Column("in test"))
    base: list[tuple[Cell, ...]] = [(s.label, s.train_positives, s.positives) for s in first]
    aps = [(*row, *(_percent(of[place].ap) for of in scores)) for place, row in enumerate(base)]
    aps.sort(key=lambda row: -int(row[1] or 0))
    title = "AP of each class, %"
    names = tuple(Column(entry.name, digits=1) for entry in entries)
    note = "Means over seeds on test. In train and in test: images that have the class."
    if left_out > 0:
        note += f" The first {_MOST_COLUMNS} settings; classes.csv has {left_out} more."
    every = Table(f"class_ap{suffix}", title, (*heads, *names), tuple(aps), note)
    if len(entries) == 1:
        return (every,)
    changes = [
        (*row, _percent(first[place].ap), *(_change(of[place]) for of in scores[1:]))
        for place, row in enumerate(base)
    ]
    changes.sort(key=lambda row: row[4] if isinstance(row[4], float) else math.inf)
    beyond = [f"{entry.name}: {_beyond(entry, group)}" for entry in entries[1:5]]
    note = (
        f"Points of AP against {group.reference.name}, most lost under {entries[1].name} first. "
        f"Classes that change beyond the seeds' noise (95 % interval without 0): "
        f"{'; '.join(beyond)}. Of twenty classes that do not change, one would seem to."
    )
    table = Table(
        f"class_change{suffix}",
        "Which classes it costs most",
        (*heads, Column(f"{group.reference.name}, %", digits=1), *names[1:]),
        tuple(changes),
        note,
    )
    return (table, every)


def user_table(scores: UserScores, group: Group, suffix: str) -> Table:
    """Return quantiles over test users of each setting."""
    reference = scores.by_entry.get(group.reference.name)
    rows: list[tuple[Cell, ...]] = []
    for name, values in {**scores.by_entry, CONSTANT: scores.constant}.items():
        known = np.sort(values[~np.isnan(values)])
        if not len(known):
            continue
        worst = known[: max(1, len(known) // 10)]
        low, first, middle, third, high = np.quantile(known, (0.1, 0.25, 0.5, 0.75, 0.9)).tolist()
        worse = None
        if reference is not None and name != group.reference.name:
            both = ~np.isnan(values) & ~np.isnan(reference)
            worse = 100 * float((values[both] < reference[both]).mean())
        cells = (float(known.mean()), float(worst.mean()), low, first, middle, third, high)
        rows.append((name, len(known), *(100 * value for value in cells), worse))
    words = ("mean", "mean of the worst tenth", "10 %", "25 %", "median", "75 %", "90 %")
    columns = (
        *(Column("setting"), Column("users")),
        *(Column(word, digits=1) for word in words),
        Column("% of users worse off than under the reference", digits=1),
    )
    note = (
        "Users without any label that the test has, or with all of them on every image, have no "
        "score. A user of one image with one label has 100 % if that label is ranked first."
    )
    title = "Micro AP of each test user's own images, %"
    return Table(f"users{suffix}", title, columns, tuple(rows), note)


def time_table(group: Group, suffix: str) -> Table:
    """Return how long rounds and runs took, and how much memory they needed."""
    rows: list[tuple[Cell, ...]] = []
    for entry in group.entries:
        peaks = [run.summary.get("peak_memory_mb") for run in entry.runs]
        known = [peak for peak in peaks if peak is not None]
        rounds = entry.mean("num_rounds")
        share = share_of_scoring(entry)
        times = (
            *(seconds_of(entry, "train"), seconds_of(entry, "val")),
            *(None if share is None else 100 * share, entry.mean("seconds")),
        )
        rows.append((entry.name, rounds, *times, max(known, default=None)))
    columns = (
        Column("setting"),
        Column("rounds or epochs", digits=0),
        Column("seconds of training, each", digits=2),
        Column("seconds of scoring, each", digits=2),
        Column("share of scoring, %", digits=0),
        Column("seconds of a run", digits=0),
        Column("peak memory, MB", digits=0),
    )
    note = (
        "Means over seeds, but the largest memory: that of the run's process at its peak, plus "
        "that of its largest worker where it had some."
    )
    return Table(f"time{suffix}", "Time and memory", columns, tuple(rows), note)


def _comparison_row(entry: Entry, is_reference: bool) -> tuple[Cell, ...]:
    setting = entry.setting
    cells: list[Cell] = [entry.name, len(entry.runs)]
    for metric in COMPARED:
        cells += _over_seeds(setting.scores[metric])
    for metric in COMPARED:
        if is_reference:
            cells += [None, "", "", "the reference"]
        else:
            cells += _difference(entry.differences.get(metric))
    for value in (
        setting.epsilon_as_run,
        setting.epsilon_at_noise_cohort,
        setting.example_epsilon_max,
    ):
        cells.append(None if value is None else float(epsilon(value)))
    best = statistics.fmean(run.summary["best_round"] for run in entry.runs)
    return (*cells, entry.noise_multiplier, best, entry.mean("seconds"))


def _over_seeds(over: OverSeeds | None) -> list[Cell]:
    if over is None:
        return [None, None, ""]
    bounds = over.interval
    text = "" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"
    text = text.replace("-", "−")
    return [100 * over.mean, None if over.deviation is None else 100 * over.deviation, text]


def _difference(difference: Difference | None) -> list[Cell]:
    if difference is None:
        return [None, "", "", "undefined"]
    over = difference.over_seeds
    return [
        100 * over.value,
        interval(over.interval),
        interval(difference.over_users),
        difference.verdict,
    ]


def _is_text(rows: list[tuple[Cell, ...]], column: int) -> bool:
    return any(isinstance(row[column], str) for row in rows)


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _change(score: ClassScore) -> float | None:
    """Return a change in points, rounded so that none is shown as minus nothing."""
    return None if score.change is None else round(100 * score.change.value, 1) + 0.0


def _beyond(entry: Entry, group: Group) -> str:
    scores = class_scores(entry, group)
    beyond = [score for score in scores if score.is_beyond_seeds]
    if not any(score.change and score.change.interval for score in scores):
        return "unknown with one seed"
    return f"{len(beyond)} of {len(scores)}"
