"""FLAIR's protocol: average precision, precision, recall and F1 of multi-label scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError
from fedsim.evaluation.flair_files import FlairPredictions
from fedsim.metrics import (
    apple_macro_f1,
    average_precision,
    bootstrap_by_user,
    card_f1,
    precision_recall_f1,
)
from fedsim.metrics.inputs import Average

THRESHOLD = 0.5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AveragedScores:
    """Scores pooled over all labels (micro), or averaged over them (macro).

    Attributes:
        ap: Exact average precision; NaN without any positive label. A label without positives is
            left out of the macro mean.
        ap_binned200: On 200 thresholds, as FLAIR's are published: such a label counts as 0.
        precision: At 0.5; 0/0 counts as 0.
        recall: Likewise.
        f1: Likewise; macro is the mean of the labels' F1.
        card_f1: What the evaluation card's recipe returns and calls average precision.
        interval: Of ``ap``, 95 %, by resampling users; None if there are none to resample.
    """

    ap: float
    ap_binned200: float
    precision: float
    recall: float
    f1: float
    card_f1: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class LabelScores:
    """Scores of each label; arrays have the shape (labels,).

    Attributes:
        names: The labels.
        positives: Images that have the label.
        ap: Exact; NaN without positives.
        ap_binned200: On 200 thresholds; NaN without positives.
        precision: At 0.5; 0/0 counts as 0.
        recall: Likewise.
        f1: Likewise.
    """

    names: tuple[str, ...]
    positives: npt.NDArray[np.int64]
    ap: Floats
    ap_binned200: Floats
    precision: Floats
    recall: Floats
    f1: Floats


@dataclass(frozen=True, eq=False)
class FlairScores:
    """All that the protocol says of a model.

    Attributes:
        micro: Pooled over labels.
        macro: Averaged over labels.
        apple_macro_f1: F1 of macro precision and macro recall, published as FLAIR's macro F1.
        per_label: Of each label.
        num_images: Scored images.
        num_users: Whose they are; None if unknown.
    """

    micro: AveragedScores
    macro: AveragedScores
    apple_macro_f1: float
    per_label: LabelScores
    num_images: int
    num_users: int | None


def score_flair(
    predictions: FlairPredictions, *, num_resamples: int = 1000, seed: int = 0
) -> FlairScores:
    """Score a model by FLAIR's protocol.

    Args:
        predictions: Scores and truth.
        num_resamples: Of users, for the intervals; 0 for none. There are none for a single user.
        seed: Of the resamples.

    Raises:
        ConfigError: ``num_resamples`` is negative.

    Examples:
        >>> targets, scores = np.array([[1, 0], [0, 1]]), np.array([[0.9, 0.2], [0.6, 0.3]])
        >>> found = score_flair(FlairPredictions.of(targets, scores))
        >>> round(found.micro.ap, 4), found.macro.ap, found.micro.f1, found.num_users
        (0.8333, 1.0, 0.5, None)

    References:
        Song, Granqvist and Talwar: FLAIR: Federated Learning Annotated Image Repository, 2022,
        arXiv:2207.08869.
    """
    if num_resamples < 0:
        raise ConfigError(
            f"num_resamples: expected 0 or more, found {num_resamples}; 1000 is customary"
        )
    targets, users = predictions.targets, predictions.users
    num_users = None if users is None else len(np.unique(users))
    intervals: dict[str, tuple[float, float]] = {}
    if users is not None and num_users != 1 and num_resamples:
        found = bootstrap_by_user(
            targets, predictions.scores, users, num_resamples=num_resamples, seed=seed
        )
        intervals = {name: ends for name, ends in found.items() if not np.isnan(ends).any()}
    return FlairScores(
        _averaged(predictions, "micro", intervals),
        _averaged(predictions, "macro", intervals),
        apple_macro_f1(targets, predictions.probabilities, threshold=THRESHOLD),
        _per_label(predictions),
        len(targets),
        num_users,
    )


def why_not_ap(scores: FlairScores) -> str:
    """Say why the evaluation card's number is not average precision, with both numbers."""
    card = f"{scores.micro.card_f1:.4f} micro and {scores.macro.card_f1:.4f} macro"
    ap = " and ".join(
        f"{value:.4f} {name}" if np.isfinite(value) else f"undefined ({name})"
        for name, value in (("micro", scores.micro.ap), ("macro", scores.macro.ap))
    )
    return (
        f"What the evaluation card calls averaged precision ({card}) is F1, 2PR/(P + R), of the "
        f"labels predicted above {THRESHOLD}: one point of the curve of precision and recall. "
        f"Average precision ({ap}) is the area under the whole curve and depends on the ranking "
        "alone, so the one must not be compared with the other."
    )


def _averaged(
    predictions: FlairPredictions, average: Average, intervals: dict[str, Any]
) -> AveragedScores:
    targets, probabilities = predictions.targets, predictions.probabilities
    precision, recall, f1 = precision_recall_f1(
        targets, probabilities, threshold=THRESHOLD, average=average
    )
    return AveragedScores(
        ap=average_precision(targets, predictions.scores, average=average),
        ap_binned200=average_precision(
            targets, probabilities, average=average, method="binned", empty_class="zero"
        ),
        precision=precision,
        recall=recall,
        f1=f1,
        card_f1=card_f1(targets, probabilities > THRESHOLD, average),
        interval=intervals.get(f"{average}_ap"),
    )


def _per_label(predictions: FlairPredictions) -> LabelScores:
    targets, probabilities = predictions.targets, predictions.probabilities
    precision, recall, f1 = precision_recall_f1(
        targets, probabilities, threshold=THRESHOLD, average=None
    )
    return LabelScores(
        predictions.label_names,
        np.count_nonzero(targets, axis=0).astype(np.int64),
        average_precision(targets, predictions.scores, average=None),
        average_precision(targets, probabilities, average=None, method="binned"),
        precision,
        recall,
        f1,
    )
