"""The constant predictor: what scores cost without looking at an image."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.metrics.inputs import check_targets


def constant_scores(train_labels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return each label's train frequency, the score that this predictor gives to every image.

    Its AP of a class is the class's prevalence in the scored split; its macro AP is chance level,
    and its micro AP is often far above, since it ranks frequent labels first. Score it with
    ``np.broadcast_to(constant_scores(train_labels), targets.shape)``.

    Args:
        train_labels: 0/1 labels of shape (examples, classes), at least one example.

    Returns:
        float64 array of shape (classes,), entries in [0, 1].

    Raises:
        DataError: No example, or labels that are not two-dimensional 0/1.

    Examples:
        >>> constant_scores(np.array([[1, 0], [1, 1]])).tolist()
        [1.0, 0.5]
    """
    labels = check_targets(train_labels, "train_labels")
    if not len(labels):
        raise DataError(
            "train_labels: expected at least one example, found none; pass the train split's labels"
        )
    frequencies: npt.NDArray[np.float64] = labels.mean(axis=0, dtype=np.float64)
    return frequencies
