"""What ``fedsim evaluate few-shot`` shows: accuracies of learners on data sets."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.chart import Chart
from fedsim.errors import DataError
from fedsim.evaluation.episode_files import (
    LabelledFeatures,
    check_fit,
    load_episodes,
    read_features,
    store_episodes,
)
from fedsim.evaluation.episodes import (
    Episodes,
    EpisodeSeed,
    EpisodeShape,
    class_sizes,
    episodes_of_runs,
)
from fedsim.evaluation.few_shot import (
    Learner,
    RunScore,
    recorded_scores,
    score_runs,
    worst,
)
from fedsim.evaluation.learners import find_learner
from fedsim.few_shot_figure import accuracies
from fedsim.protocols.output import Findings
from fedsim.record import RunFolder
from fedsim.tables import Column, Table

SHOWN = ("nearest_centroid", "nearest_centroid_cosine", "nearest_neighbor", "logistic_head")
"""The learners of the command, unless others are named; ``constant`` always stands beside them."""

CONSTANT = "constant"
_HEADS = ("submission", "data_set", "score", "half_width", "mean_of_runs", "num_runs")


@dataclass(frozen=True)
class Draw:
    """Where episodes come from.

    Attributes:
        shape: Ways, shots and queries.
        num_episodes: Of a run.
        num_runs: How many.
        episode_seed: Whether runs share their episodes.
        seed: Of the episodes, and of what learners draw.
        replay: A file of stored episodes to use instead.
        store: A file to store them in.
    """

    shape: EpisodeShape
    num_episodes: int = 600
    num_runs: int = 3
    episode_seed: EpisodeSeed = "fixed"
    seed: int = 0
    replay: Path | None = None
    store: Path | None = None

    def runs(self, labels: LabelledFeatures) -> list[Episodes]:
        """Return the episodes of a data set; stored ones are checked against it."""
        if self.replay is not None:
            runs = load_episodes(self.replay, self.shape.num_shots)
            check_fit(self.replay, runs, labels.labels)
            return runs
        return episodes_of_runs(
            labels.labels,
            self.shape,
            self.num_episodes,
            num_runs=self.num_runs,
            episode_seed=self.episode_seed,
            seed=self.seed,
        )


@dataclass(frozen=True)
class DataSetScores:
    """What learners came to on a data set.

    Attributes:
        name: The data set's.
        facts: What was drawn from.
        runs: Every learner's runs.
    """

    name: str
    facts: Mapping[str, Any]
    runs: Mapping[str, Sequence[RunScore]]


def score_files(paths: Sequence[Path], draw: Draw, learners: Sequence[str]) -> list[DataSetScores]:
    """Score learners on files of features; a run's folder holds its scores already.

    Args:
        paths: Each a data set, named after its file.
        draw: Where the episodes come from.
        learners: Names, as ``find_learner`` takes them.

    Raises:
        FedsimError: What is wrong with a file, the episodes or a learner.
    """
    chosen = {name: find_learner(name, "--learner") for name in (*learners, CONSTANT)}
    names = [path.name if path.is_dir() else path.stem for path in paths]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(
            f"expected data sets of different names, found {twice[0]} twice; rename a file"
        )
    if draw.store is not None and len(paths) > 1:
        raise DataError(
            f"{draw.store}: expected the episodes of one file, found {len(paths)} files; store "
            "those of one, and replay them on the others"
        )
    return [_of_run(path) if path.is_dir() else _of_features(path, draw, chosen) for path in paths]


def few_shot_findings(scores: Sequence[DataSetScores]) -> Findings:
    """Return the table, the JSON and the figure of some data sets.

    The table is one that ``fedsim evaluate rank`` reads.
    """
    rows = [
        (
            learner,
            of.name,
            worst(runs).accuracy,
            worst(runs).half_width,
            statistics.fmean(run.accuracy for run in runs),
            len(runs),
        )
        for of in scores
        for learner, runs in of.runs.items()
    ]
    digits = (0, 0, 4, 4, 4, 0)
    table = Table(
        "few_shot",
        "Few-shot accuracy",
        tuple(Column(head, digits=number) for head, number in zip(_HEADS, digits, strict=True)),
        tuple(rows),
        "score: the worst run's mean over episodes; half_width: of its 95 % t interval.",
    )
    facts = {
        of.name: {
            **of.facts,
            "learners": {
                learner: {
                    "score": worst(runs).accuracy,
                    "runs": [dataclasses.asdict(run) for run in runs],
                }
                for learner, runs in of.runs.items()
            },
        }
        for of in scores
    }
    chance = sorted({f"{100 * of.facts['chance']:g} %" for of in scores})
    caption = (
        "Filled: each learner's worst run with its 95 % interval over episodes. Hollow: its other "
        f"runs. The constant predictor, {' or '.join(chance)}, is not drawn."
    )

    def charts() -> list[Chart]:
        shown = {
            of.name: {name: runs for name, runs in of.runs.items() if name != CONSTANT}
            for of in scores
        }
        figure = accuracies("Few-shot accuracy", shown)
        return [Chart("few_shot", "Few-shot accuracy", caption, figure)]

    return Findings("few_shot", {"data_sets": facts}, (table,), (), charts)


def _of_features(path: Path, draw: Draw, learners: Mapping[str, Learner]) -> DataSetScores:
    data = read_features(path)
    runs = draw.runs(data)
    if draw.store is not None:
        try:
            store_episodes(draw.store, runs)
        except OSError as error:
            raise DataError(
                f"{draw.store}: expected a file to write to, found {error.strerror}; choose another"
            ) from error
    facts = {
        "num_images": len(data.labels),
        "num_classes": len(class_sizes(data.labels)),
        "num_ways": runs[0].num_ways,
        "num_shots": runs[0].num_shots,
        "num_queries": runs[0].num_queries,
        "num_episodes": len(runs[0]),
        "chance": 1 / runs[0].num_ways,
    }
    return DataSetScores(
        path.stem,
        facts,
        {
            name: score_runs(learner, data.features, runs, seed=draw.seed, name=name)
            for name, learner in learners.items()
        },
    )


def _of_run(path: Path) -> DataSetScores:
    """Return what a run recorded; its initial model's scores beside those of its best."""
    folder = RunFolder(path)
    if not folder.finished:
        raise DataError(f"{path}: expected a finished run, found none; name the folder of one run")
    found = folder.read_json("summary.json").get("few_shot")
    if found is None:
        raise DataError(
            f"{path}: expected a run with few-shot scores, found one without; set "
            "evaluation.few_shot and run it again"
        )
    runs = recorded_scores(found, "best") | {
        f"{learner}, untrained": untrained
        for learner, untrained in recorded_scores(found, "initial").items()
    }
    return DataSetScores(path.name, {k: v for k, v in found.items() if k != "learners"}, runs)
