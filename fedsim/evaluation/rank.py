"""Ranks of submissions over several data sets, by the worst run of each.

References:
    El Baz et al., Lessons learned from the NeurIPS 2021 MetaDL challenge, arXiv:2206.08138, 2022:
    the worst of three runs, average rank, ties to the earlier submission.
    Triantafillou et al., Meta-Dataset, ICLR 2020: statistical ties.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedsim.errors import ConfigError, DataError

Ties = Literal["average", "min", "dense", "statistical"]
TIES: tuple[str, ...] = get_args(Ties)


@dataclass(frozen=True)
class Result:
    """What one run came to on a data set.

    Attributes:
        score: The larger the better; None for a run that failed.
        half_width: Of the score's interval; None if it is not known.
    """

    score: float | None
    half_width: float | None = None


Results = Mapping[str, Mapping[str, Sequence[Result]]]
"""Results of each submission, earlier ones first, by data set; a data set may be missing."""


@dataclass(frozen=True)
class Standing:
    """A submission's place.

    Attributes:
        place: From 1; every place is taken once.
        submission: Its name.
        average_rank: Mean of ``ranks``; 1 is the best.
        ranks: By data set.
        worst: The worst run, by data set; a score of None where one is missing or failed.
    """

    place: int
    submission: str
    average_rank: float
    ranks: dict[str, float]
    worst: dict[str, Result]


def rank_scores(scores: Sequence[float | None], ties: Ties = "average") -> list[float]:
    """Rank scores, the largest first.

    Args:
        scores: None is a missing one: it has the worst rank, the number of scores, whatever else
            there is.
        ties: Equal scores all have the mean of the ranks that they take up (``average``), the
            smallest of these (``min``), or that and no rank is left out after them (``dense``).

    Raises:
        ConfigError: ``ties`` is none of these.

    Examples:
        >>> scores = [0.8, 0.9, 0.8, None, 0.7]
        >>> rank_scores(scores), rank_scores(scores, "min"), rank_scores(scores, "dense")
        ([2.5, 1.0, 2.5, 5.0, 4.0], [2.0, 1.0, 2.0, 5.0, 4.0], [2.0, 1.0, 2.0, 5.0, 3.0])
    """
    if ties not in ("average", "min", "dense"):
        raise ConfigError(
            f"ties: expected average, min or dense, found {ties!r}; choose one of them"
        )
    known = [score for score in scores if score is not None]
    distinct = len(set(known))
    ranks: list[float] = []
    for score in scores:
        if score is None:
            ranks.append(float(len(scores)))
        elif ties == "dense":
            ranks.append(float(distinct - len({s for s in known if s <= score}) + 1))
        else:
            before, equal = sum(s > score for s in known), known.count(score)
            ranks.append(1.0 + before + ((equal - 1) / 2 if ties == "average" else 0.0))
    return ranks


def rank_statistically(results: Sequence[Result]) -> list[float]:
    """Rank scores, those that noise may explain sharing a rank.

    The best of those left is taken with all that are tied with it, and they share the mean of the
    next ranks; then the best of the rest, and so on. Two are tied if their difference is at most
    ``sqrt(h1**2 + h2**2)`` of their intervals' half widths. A missing score has the worst rank.

    Args:
        results: Each with a half width, unless its score is missing.

    Raises:
        DataError: A half width is missing.

    Examples:
        >>> tied = [Result(0.9, 0.03), Result(0.86, 0.03), Result(0.83, 0.03), Result(None)]
        >>> rank_statistically(tied)
        [1.5, 1.5, 3.0, 4.0]
    """
    ranks = [float(len(results))] * len(results)
    known: dict[int, tuple[float, float]] = {}
    for position, result in enumerate(results):
        if result.score is not None:
            if result.half_width is None:
                raise DataError(
                    "ties statistical: expected a half width for every score, found none for "
                    f"{result.score:g}; add the column half_width, or use other ties"
                )
            known[position] = (result.score, result.half_width)
    taken = 0
    while known:
        best, noise = max(known.values(), key=lambda pair: pair[0])
        tied = [p for p, (s, h) in known.items() if best - s <= math.hypot(noise, h)]
        for position in tied:
            ranks[position] = 1 + taken + (len(tied) - 1) / 2
            del known[position]
        taken += len(tied)
    return ranks


def worst_run(runs: Sequence[Result]) -> Result:
    """Return the run with the lowest score, the first of these; one that failed is the worst.

    Examples:
        >>> worst_run([Result(0.75), Result(0.5)]), worst_run([Result(0.75), Result(None)])
        (Result(score=0.5, half_width=None), Result(score=None, half_width=None))
    """
    return min(runs, key=lambda run: -math.inf if run.score is None else run.score)


def rank_submissions(results: Results, ties: Ties = "average") -> list[Standing]:
    """Order submissions by the average over data sets of the rank of their worst run.

    Args:
        results: At least one submission with one result.
        ties: As for ``rank_scores``, or ``statistical`` for ``rank_statistically``. In the table
            itself, equal average ranks go by submission, the earlier first.

    Raises:
        ConfigError: ``ties`` is none of these.
        DataError: There is no result, submissions have other numbers of runs, or statistical ties
            lack a half width.

    Examples:
        >>> results = {"a": {"x": [Result(0.5)]}, "b": {"x": [Result(0.7)], "y": [Result(0.1)]}}
        >>> [(s.place, s.submission, s.average_rank) for s in rank_submissions(results)]
        [(1, 'b', 1.0), (2, 'a', 2.0)]
    """
    data_sets = list(dict.fromkeys(name for of in results.values() for name in of))
    if not data_sets:
        raise DataError("results: expected at least one, found none; add a submission's score")
    _check_runs(results)
    worst = {
        name: {data: worst_run(of.get(data, [Result(None)])) for data in data_sets}
        for name, of in results.items()
    }
    by_data: dict[str, list[float]] = {}
    for data in data_sets:
        column = [of[data] for of in worst.values()]
        by_data[data] = (
            rank_statistically(column)
            if ties == "statistical"
            else rank_scores([result.score for result in column], ties)
        )
    ranks = {
        name: {data: column[number] for data, column in by_data.items()}
        for number, name in enumerate(results)
    }
    averages = {name: statistics.fmean(of.values()) for name, of in ranks.items()}
    order = sorted(averages, key=lambda name: averages[name])  # stable: earlier ones stay first
    return [
        Standing(place, name, averages[name], ranks[name], worst[name])
        for place, name in enumerate(order, 1)
    ]


def _check_runs(results: Results) -> None:
    """Refuse unequal numbers of runs: the worst of fewer is easily better."""
    counts = {(name, data): len(runs) for name, of in results.items() for data, runs in of.items()}
    most = max(counts.values())
    for (name, data), number in counts.items():
        if number != most:
            raise DataError(
                f"{name}, {data}: expected {most} runs, as others have, found {number}; add the "
                "missing runs, without a score if they failed"
            )
