"""What was recorded round by round, over the seeds of a setting."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.record import Line
from fedsim.report.gather import Entry, Run

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OverRounds:
    """A number of a setting's runs, for the rounds at which every seed has it.

    Attributes:
        rounds: Shape (rounds,).
        values: Shape (seeds, rounds).
    """

    rounds: Floats
    values: Floats

    @property
    def mean(self) -> Floats:
        """Mean over seeds."""
        mean: Floats = self.values.mean(axis=0)
        return mean


def over_rounds(entry: Entry, split: str, key: str) -> OverRounds:
    """Return what runs recorded under ``key`` for a split; null is taken for not recorded."""
    by_seed = [_by_round(run, split, key) for run in entry.runs]
    rounds = sorted(set.intersection(*(set(values) for values in by_seed)))
    values = np.array([[seed[r] for r in rounds] for seed in by_seed], dtype=np.float64)
    return OverRounds(np.array(rounds, dtype=np.float64), values.reshape(len(by_seed), len(rounds)))


def at_best_round(entry: Entry, key: str) -> float | None:
    """Return a validation score at the round that was tested, mean over seeds."""
    values = [_by_round(run, "val", key).get(run.summary["best_round"]) for run in entry.runs]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def seconds_of(entry: Entry, split: str) -> float | None:
    """Return the mean seconds of a round's training or scoring, round 0 left out."""
    timed = _seconds(entry, split, from_round=1)
    return float(np.mean(timed)) if timed else None


def share_of_scoring(entry: Entry) -> float | None:
    """Return how much of scoring and training together the former takes, round 0 too."""
    scoring = sum(_seconds(entry, "val", from_round=0))
    together = scoring + sum(_seconds(entry, "train", from_round=0))
    return scoring / together if together else None


def _seconds(entry: Entry, split: str, from_round: int) -> list[float]:
    return [
        float(line["seconds"])
        for run in entry.runs
        for line in run.lines
        if line["split"] == split
        and line["round"] >= from_round
        and line.get("seconds") is not None
    ]


def _by_round(run: Run, split: str, key: str) -> dict[int, float]:
    return {line["round"]: float(line[key]) for line in run.lines if _has(line, split, key)}


def _has(line: Line, split: str, key: str) -> bool:
    return line["split"] == split and line.get(key) is not None
