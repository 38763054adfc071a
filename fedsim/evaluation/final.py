"""The end of a run: the best validation round's arrays, scored on test in full."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.dataset import FederatedDataset, label_counts, num_examples
from fedsim.evaluation.scoring import score_logits, with_reasons
from fedsim.metrics import average_precision, bootstrap_by_user

_NO_POSITIVE = "no example of this split has the label"


def score_test(
    targets: npt.NDArray[np.bool_],
    logits: npt.NDArray[np.float32],
    dataset: FederatedDataset,
    *,
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Score the whole test split.

    Args:
        targets: Labels of all test images, shape (images, labels).
        logits: The model's outputs, of the same shape.
        dataset: For users and label names.
        resamples: Of the bootstrap by user; 0, or a single test user, for no intervals.
        seed: The run's seed.

    Returns:
        ``scores`` (the record's keys), ``intervals`` (95 %, by user, or None) and ``per_class``
        (label, AP, positives on test and on train).
    """
    intervals = None
    users = dataset.users("test").num_images
    if resamples and len(users) > 1:  # one user, resampled, is always the same
        owner = np.repeat(np.arange(len(users)), users)
        found = bootstrap_by_user(targets, logits, owner, num_resamples=resamples, seed=seed)
        intervals = {name: None if np.isnan(ends).any() else ends for name, ends in found.items()}
    return {
        "scores": score_logits(targets, logits),
        "intervals": intervals,
        "per_class": _per_class(targets, logits, dataset),
    }


def score_constant(dataset: FederatedDataset, split: str) -> dict[str, Any]:
    """Score the predictor that gives every image the train frequency of each label."""
    targets = dataset.labels(split, np.arange(num_examples(dataset, split)))
    frequencies = label_counts(dataset, "train") / num_examples(dataset, "train")
    scores = np.broadcast_to(frequencies, targets.shape).copy()
    return with_reasons(
        {
            "micro_ap": average_precision(targets, scores, average="micro"),
            "macro_ap": average_precision(targets, scores, average="macro"),
            "num_classes_scored": int(targets.any(axis=0).sum()),
            "num_examples": len(targets),
        },
        "no example of this split has a label",
    )


def _per_class(
    targets: npt.NDArray[np.bool_], logits: npt.NDArray[np.float32], dataset: FederatedDataset
) -> list[dict[str, Any]]:
    scores = average_precision(targets, logits, average=None)
    trained_on = label_counts(dataset, "train")
    return [
        with_reasons(
            {
                "label": label,
                "ap": float(scores[column]),
                "positives": int(targets[:, column].sum()),
                "train_positives": int(trained_on[column]),
            },
            _NO_POSITIVE,
        )
        for column, label in enumerate(dataset.label_names)
    ]
