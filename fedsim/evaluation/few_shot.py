"""Few-shot accuracy: new classes, a handful of images of each, and queries to be told apart.

A learner sees the support of an episode and names the classes of the queries.

References:
    El Baz et al., Lessons learned from the NeurIPS 2021 MetaDL challenge, arXiv:2206.08138, 2022:
    5 ways, 5 shots, 600 episodes, the worst of three runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fedsim.arrays import one_thread
from fedsim.errors import ConfigError, FedsimError
from fedsim.evaluation.episodes import Episode, Episodes, Inputs

Learner = Callable[[Episode], Inputs]
"""From an episode to the class of each query, 0 to ``num_ways - 1``, in the queries' order."""


@dataclass(frozen=True)
class RunScore:
    """A learner's accuracy in one run.

    Attributes:
        accuracy: Mean over episodes, in [0, 1].
        half_width: Of its 95 % interval over episodes, Student's t with n - 1 in the standard
            deviation; None for one episode.
        num_correct: Queries of all episodes that were named rightly.
        num_queries: Queries of all episodes.
    """

    accuracy: float
    half_width: float | None
    num_correct: int
    num_queries: int


@one_thread()  # the matrices are small: more threads wait for each other
def score_run(
    learner: Learner, inputs: Inputs, episodes: Episodes, *, seed: int = 0, name: str = "learner"
) -> RunScore:
    """Let a learner answer all queries of a run.

    Args:
        learner: Any callable; it never sees the queries' classes.
        inputs: Of all images, by row: features, or whatever the learner takes.
        episodes: Which rows.
        seed: Of the run.
        name: The learner's, for errors.

    Raises:
        ConfigError: The learner fails, or its answers are not one class of the episode a query.

    Examples:
        >>> from fedsim.evaluation.episodes import EpisodeShape, draw_episodes
        >>> labels = np.arange(60) % 3
        >>> drawn = draw_episodes(labels, EpisodeShape(2, 1, 4), 10, seed=0)
        >>> score_run(lambda e: np.zeros(len(e.queries), int), labels, drawn)
        RunScore(accuracy=0.5, half_width=0.0, num_correct=40, num_queries=80)
    """
    truth = np.repeat(np.arange(episodes.num_ways), episodes.num_queries)
    correct = np.empty(len(episodes), dtype=np.int64)
    for number in range(len(episodes)):
        answers = _answers(learner, episodes.episode(number, inputs, seed), name)
        correct[number] = np.count_nonzero(answers == truth)
    # In whole numbers, so that equal episodes have an interval of exactly 0.
    half_width = None
    if len(correct) > 1:
        error = float(correct.std(ddof=1)) / len(truth) / math.sqrt(len(correct))
        half_width = float(stdtrit(len(correct) - 1, 0.975)) * error
    total = len(truth) * len(correct)
    return RunScore(int(correct.sum()) / total, half_width, int(correct.sum()), total)


def score_runs(
    learner: Learner,
    inputs: Inputs,
    runs: Sequence[Episodes],
    *,
    seed: int = 0,
    name: str = "learner",
) -> list[RunScore]:
    """Score a learner in every run; run r has the seed ``seed + r``."""
    return [
        score_run(learner, inputs, episodes, seed=seed + run, name=name)
        for run, episodes in enumerate(runs)
    ]


def worst(runs: Sequence[RunScore]) -> RunScore:
    """Return the run of the lowest accuracy, the first of these: it is the data set's score."""
    return min(runs, key=lambda run: run.accuracy)


def recorded_scores(recorded: Mapping[str, Any], backbone: str) -> dict[str, list[RunScore]]:
    """Return every learner's runs over a backbone, as a trained model's run recorded them.

    Args:
        recorded: ``few_shot`` of its ``summary.json``.
        backbone: ``best`` or ``initial``.
    """
    return {
        learner: [RunScore(**run) for run in of[backbone]["runs"]]
        for learner, of in recorded["learners"].items()
    }


def _answers(learner: Learner, episode: Episode, name: str) -> Inputs:
    try:
        answers = np.asarray(learner(episode))
    except FedsimError:
        raise
    except Exception as error:
        raise ConfigError(
            f"learner {name}: expected it to take an Episode, found that it fails with "
            f"{type(error).__name__}: {error}; mend it"
        ) from error
    expected = len(episode.queries)
    if answers.shape != (expected,) or not np.issubdtype(answers.dtype, np.integer):
        raise ConfigError(
            f"learner {name}: expected {expected} whole numbers, one a query, found shape "
            f"{answers.shape} of {answers.dtype}; return the position of a class for each"
        )
    if answers.min() < 0 or answers.max() >= episode.num_ways:
        raise ConfigError(
            f"learner {name}: expected classes from 0 to {episode.num_ways - 1}, found "
            f"{answers.min()} to {answers.max()}; return positions, not labels"
        )
    return answers
