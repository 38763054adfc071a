"""The same numbers as CSV: scores and differences are fractions, nothing is rounded."""

from collections.abc import Iterator, Sequence
from typing import Any

from fedsim.comparison import COMPARED, SCORES, Difference
from fedsim.evaluation.few_shot import recorded_scores
from fedsim.report.classes import class_scores
from fedsim.report.gather import Entry, Group
from fedsim.report.reproduce import command_of, commands_of
from fedsim.tables import Cell, Column, Table

_CENTRAL = ("noise_multiplier", "epsilon_as_run", "epsilon_at_noise_cohort")
_ROUND = (
    *("loss", "macro_ap", "micro_ap", "num_examples", "seconds"),
    *("epsilon_as_run", "epsilon_at_noise_cohort"),
)
_EPSILONS = ("epsilon_as_run", "epsilon_at_noise_cohort", "example_epsilon_max")


def csv_tables(groups: Sequence[Group]) -> tuple[Table, ...]:
    """Return what is written beside the page: runs, settings, classes, rounds, few-shot scores."""
    few_shot = _few_shot(groups)
    always = (_runs(groups), _settings(groups), _classes(groups), _rounds(groups))
    return (*always, few_shot) if few_shot.rows else always


def _runs(groups: Sequence[Group]) -> Table:
    names = (
        *("test_split", "setting", "kind", "seed", "path", "num_rounds", "best_round"),
        *SCORES,
        *(f"{metric}_{end}" for metric in COMPARED for end in ("users_low", "users_high")),
        *_CENTRAL,
        *("example_epsilon_max", "seconds", "peak_memory_mb", "made_by", "command"),
    )
    rows = []
    for group, entry in _entries(groups):
        for run in entry.runs:
            summary = run.summary
            central = summary["privacy"].get("central") or {}
            example = summary["privacy"].get("example_level") or {}
            intervals = summary["test"].get("intervals") or {}
            bounds = [b for metric in COMPARED for b in (intervals.get(metric) or (None, None))]
            rows.append(
                (
                    *(group.title, entry.name, summary["kind"], summary["seed"], str(run.folder)),
                    *(summary["num_rounds"], summary["best_round"]),
                    *(summary["test"]["scores"][name] for name in SCORES),
                    *bounds,
                    *(_number(central.get(name)) for name in _CENTRAL),
                    _number(example.get("epsilon_max")),
                    *(summary["seconds"], summary.get("peak_memory_mb")),
                    *("; then ".join(commands_of(run)), command_of(run)),
                )
            )
    return _table("runs", names, rows)


def _settings(groups: Sequence[Group]) -> Table:
    differences = ("difference", "seeds_low", "seeds_high", "users_low", "users_high", "verdict")
    names = (
        *("test_split", "setting", "kind", "seeds", "reference"),
        *(f"{m}_{what}" for m in COMPARED for what in ("mean", "sd", "low", "high")),
        *(f"{m}_{what}" for m in COMPARED for what in differences),
        *_EPSILONS,
        *("noise_multiplier", "best_round", "seconds"),
    )
    rows: list[tuple[Cell, ...]] = []
    for group, entry in _entries(groups):
        setting = entry.setting
        cells: list[Cell] = [group.title, entry.name, setting.kind, len(entry.runs)]
        cells.append(group.reference.name)
        for metric in COMPARED:
            over = setting.scores[metric]
            low, high = (over.interval if over and over.interval else None) or (None, None)
            cells += [over.mean, over.deviation, low, high] if over else [None] * 4
        for metric in COMPARED:
            cells += _difference(entry.differences.get(metric))
        cells += [setting.epsilon_as_run, setting.epsilon_at_noise_cohort]
        cells += [setting.example_epsilon_max, entry.noise_multiplier]
        cells += [entry.mean("best_round"), entry.mean("seconds")]
        rows.append(tuple(cells))
    for group in groups:
        means = [c for m in COMPARED for c in (group.constant[m], None, None, None)]
        head = (group.title, "constant predictor", "constant", None, group.reference.name)
        rows.append((*head, *means, *[None] * (len(names) - len(head) - len(means))))
    return _table("settings", names, rows)


def _classes(groups: Sequence[Group]) -> Table:
    names = (
        *("test_split", "setting", "class", "train_positives", "test_positives", "ap"),
        *("difference", "seeds_low", "seeds_high", "beyond_seeds"),
    )
    rows: list[tuple[Cell, ...]] = []
    for group, entry in _entries(groups):
        for score in class_scores(entry, group):
            change = score.change
            low, high = (change.interval if change else None) or (None, None)
            rows.append(
                (
                    *(group.title, entry.name, score.label),
                    *(score.train_positives, score.positives, score.ap),
                    *(change.value if change else None, low, high),
                    None if change is None else str(score.is_beyond_seeds).lower(),
                )
            )
    return _table("classes", names, rows)


def _rounds(groups: Sequence[Group]) -> Table:
    names = ("test_split", "setting", "seed", "round", "split", *_ROUND)
    rows = [
        (
            *(group.title, entry.name, run.summary["seed"], line["round"], line["split"]),
            *(_number(line.get(name)) for name in _ROUND),
        )
        for group, entry in _entries(groups)
        for run in entry.runs
        for line in run.lines
    ]
    return _table("rounds", names, rows)


def _few_shot(groups: Sequence[Group]) -> Table:
    names = ("test_split", "setting", "seed", "learner", "backbone", "run", "accuracy")
    rows = [
        (
            *(group.title, entry.name, run.summary["seed"], learner, backbone, number),
            *(score.accuracy, score.half_width),
        )
        for group, entry in _entries(groups)
        for run in entry.runs
        if run.summary.get("few_shot")
        for backbone in ("best", "initial")
        for learner, scores in recorded_scores(run.summary["few_shot"], backbone).items()
        for number, score in enumerate(scores)
    ]
    return _table("few_shot", (*names, "half_width"), rows)


def _entries(groups: Sequence[Group]) -> Iterator[tuple[Group, Entry]]:
    for group in groups:
        for entry in group.entries:
            yield group, entry


def _difference(difference: Difference | None) -> list[Cell]:
    if difference is None:
        return [None] * 6
    seeds = difference.over_seeds.interval or (None, None)
    users = difference.over_users or (None, None)
    return [difference.over_seeds.value, *seeds, *users, difference.verdict]


def _number(value: Any) -> Any:
    return float("inf") if value == "infinity" else value


def _table(name: str, columns: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    return Table(name, name, tuple(map(Column, columns)), tuple(rows))
