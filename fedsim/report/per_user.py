"""How scores are spread over the test users."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.kept_scores import KeptScores, load_kept_scores
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
    return UserScores(by_entry, ap_by_user(first, constant), without)


def ap_by_user(kept: KeptScores, scores: npt.NDArray[np.floating]) -> Floats:
    """Return micro AP of each user's own pairs of image and label.

    Of the pairs of one user, as of all pairs in micro AP: tied scores are one group, and
    AP = sum_g (p_g / P) * (sum_{h <= g} p_h) / n_g from the largest score down, where group g holds
    p_g of the user's P positive pairs and n_g pairs have its score or a larger one.

    Args:
        kept: Whose images and labels.
        scores: Array of shape (images, labels).

    Returns:
        Shape (users,), in (0, 1]; NaN for users without a positive pair or without a negative one.
    """
    num_users, num_labels = len(kept.user_ids), len(kept.label_names)
    owner = np.repeat(kept.owner, num_labels)
    values, positive = scores.ravel(), kept.targets.ravel()
    order = np.lexsort((-values, owner))
    owner, values, positive = owner[order], values[order], positive[order]
    starts = np.searchsorted(owner, np.arange(num_users + 1))
    rank = np.arange(1, len(owner) + 1) - starts[owner]
    hits = np.cumsum(positive, dtype=np.int64)
    before = np.concatenate([[0], hits])[starts]
    hits = hits - before[owner]
    last = np.ones(len(owner), dtype=np.bool_)  # of a group of ties
    last[:-1] = (values[1:] != values[:-1]) | (owner[1:] != owner[:-1])
    end = np.flatnonzero(last)[np.cumsum(last) - last]  # where each pair's group ends
    precision = hits[end] / rank[end]
    sums = np.bincount(owner, weights=positive * precision, minlength=num_users)
    totals = np.bincount(owner, weights=positive, minlength=num_users)
    defined = (totals > 0) & (totals < np.diff(starts))
    result: Floats = np.divide(sums, totals, out=np.full(num_users, np.nan), where=defined)
    return result


def _of_entry(entry: Entry, first: KeptScores | None) -> tuple[Floats, KeptScores]:
    scores: list[Floats] = []
    for run in entry.runs:
        kept = load_kept_scores(run.folder)
        first = first if first is not None else kept
        first.check_comparable(kept, str(run.folder))
        scores.append(ap_by_user(kept, kept.logits))
    mean: Floats = np.mean(scores, axis=0)
    return mean, first or kept
