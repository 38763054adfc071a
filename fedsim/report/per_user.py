"""How scores are spread over the test users."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.kept_scores import KeptScores, load_kept_scores
from fedsim.metrics.per_user import average_precision_by_user
from fedsim.report.gather import Entry, Group

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UserScores:
    """A score of every test user who has one.

    Attributes:
        by_entry: For each setting's name, float64 array (users,): micro AP of the user's own
            images, mean over seeds; NaN without one. Every array has the same users.
        constant: Likewise of the constant predictor.
        without: Names of settings whose runs kept no scores, each with the reason.
    """

    by_entry: dict[str, Floats]
    constant: Floats
    without: dict[str, str]


def user_scores(group: Group) -> UserScores | None:
    """Return how every setting does on each test user; None if no run kept its scores."""
    by_entry: dict[str, Floats] = {}
    without: dict[str, str] = {}
    first: KeptScores | None = None
    for entry in group.entries:
        try:
            found, first = _of_entry(entry, first)
        except DataError as error:
            without[entry.name] = str(error)
        else:
            by_entry[entry.name] = found
    if first is None:
        return None
    rows = group.reference.runs[0].summary["test"]["per_class"]
    frequencies = np.array([row["train_positives"] for row in rows], dtype=np.float64)
    constant = np.broadcast_to(frequencies, first.targets.shape)
    return UserScores(by_entry, _by_user(first, constant), without)


def _by_user(kept: KeptScores, scores: npt.NDArray[np.floating]) -> Floats:
    num_images = np.bincount(kept.owner, minlength=len(kept.user_ids))
    return average_precision_by_user(kept.targets, scores, num_images)


def _of_entry(entry: Entry, first: KeptScores | None) -> tuple[Floats, KeptScores]:
    scores: list[Floats] = []
    for run in entry.runs:
        kept = load_kept_scores(run.folder)
        first = first if first is not None else kept
        first.check_comparable(kept, str(run.folder))
        scores.append(_by_user(kept, kept.logits))
    mean: Floats = np.mean(scores, axis=0)
    return mean, first or kept
