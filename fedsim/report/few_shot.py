"""What each setting's models are worth for classes of which they get a few images."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.chart import Chart
from fedsim.evaluation.few_shot import RunScore, recorded_scores, worst
from fedsim.few_shot_figure import accuracies
from fedsim.report.charts import MOST_ROWS
from fedsim.report.gather import Entry, Group
from fedsim.tables import Cell, Column, Table

_TITLE = "Few-shot accuracy on test users"


@dataclass(frozen=True)
class FewShotScores:
    """A setting's few-shot scores: every run of every seed that has them.

    Attributes:
        setting: Its name.
        task: What an episode is.
        chance: Accuracy of the constant predictor.
        best: The runs of each learner over the best round's models.
        initial: Likewise over the models that training began with.
    """

    setting: str
    task: str
    chance: float
    best: Mapping[str, Sequence[RunScore]]
    initial: Mapping[str, Sequence[RunScore]]


def few_shot_scores(group: Group) -> list[FewShotScores]:
    """Return the scores of the settings that have them, in the group's order."""
    return [scores for entry in group.entries if (scores := _of_entry(entry)) is not None]


def few_shot_table(scores: Sequence[FewShotScores], suffix: str) -> Table:
    """Return a row for each setting and learner."""
    rows: list[tuple[Cell, ...]] = []
    for of in scores:
        for learner, runs in of.best.items():
            low = worst(runs)
            noise = None if low.half_width is None else 100 * low.half_width
            mean = statistics.fmean(run.accuracy for run in runs)
            before = worst(of.initial[learner]).accuracy
            cells = (low.accuracy, mean, before, of.chance)
            accuracy, *others = (100 * value for value in cells)
            rows.append((of.setting, learner, of.task, len(runs), accuracy, noise, *others))
    columns = (
        *(Column("setting"), Column("learner"), Column("episodes"), Column("runs")),
        *(Column("accuracy, %", digits=1), Column("±", digits=1)),
        *(Column("mean of the runs, %", digits=1), Column("untrained, %", digits=1)),
        Column("chance, %", digits=1),
    )
    note = (
        "Accuracy is that of the worst run over all seeds, with its 95 % interval over episodes; "
        "the interval says nothing of other images, users or trainings. Untrained: the worst run "
        "over the models that training began with. Under DP these scores are diagnostics: test "
        "users' images are outside the guarantee."
    )
    return Table(f"few_shot{suffix}", _TITLE, columns, tuple(rows), note)


def few_shot_charts(scores: Sequence[FewShotScores], suffix: str) -> Iterator[Chart]:
    """Draw each setting's accuracies with their intervals, a chart for each kind of episodes."""
    for number, task in enumerate(dict.fromkeys(of.task for of in scores), start=1):
        settings = [of for of in scores if of.task == task]
        title = f"Few-shot: {task}"
        caption = (
            "Filled: each learner's worst run over all seeds, with its 95 % interval over "
            f"episodes. Hollow: its other runs. By chance: {100 * settings[0].chance:.1f} %."
        )
        if len(settings) > MOST_ROWS:
            caption += f" The first {MOST_ROWS} of {len(settings)} settings."
        figure = accuracies(title, {of.setting: of.best for of in settings[:MOST_ROWS]})
        name = f"few_shot{suffix}" + (f"_{number}" if number > 1 else "")
        yield Chart(name, title, caption, figure)


def _of_entry(entry: Entry) -> FewShotScores | None:
    scored = [run.summary for run in entry.runs if run.summary.get("few_shot")]
    if not scored:
        return None
    recorded = [summary["few_shot"] for summary in scored]
    settings = scored[0]["config"]["evaluation"]["few_shot"]
    task = f"{settings['num_ways']} ways, {settings['num_shots']} shots, {recorded[0]['labels']}"
    return FewShotScores(
        entry.name,
        f"{task} labels",
        recorded[0]["chance"],
        _pooled(recorded, "best"),
        _pooled(recorded, "initial"),
    )


def _pooled(recorded: Sequence[Mapping[str, Any]], backbone: str) -> dict[str, list[RunScore]]:
    pooled: dict[str, list[RunScore]] = {}
    for of in recorded:
        for learner, runs in recorded_scores(of, backbone).items():
            pooled.setdefault(learner, []).extend(runs)
    return pooled
