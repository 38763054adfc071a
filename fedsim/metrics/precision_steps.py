"""Average precision as a sum of steps over groups of equal score, and its mean over classes."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.metrics.inputs import EmptyClass


def step_average_precision(
    positives: npt.NDArray[Any], selected: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return average precision from counts of groups in ascending order of score.

    Group g holds the pairs (score, label) that are told apart from no other of the group: equal
    scores, or scores in one bucket. With p_g positives in group g, P = sum_g p_g positives in all
    and n_g pairs in g or any higher group,

        AP = sum_g (p_g / P) * (sum_{h >= g} p_h) / n_g,

    the area under the precision-recall steps without interpolation. A group without positives adds
    nothing and may be left out. Counts may be weighted.

    Args:
        positives: p_g >= 0, groups along the last axis.
        selected: n_g of the same shape, at least the sum of p_h over h >= g. Where it is 0, so is
            p_g, and the term counts as 0.

    Returns:
        float64, shape of the leading axes; NaN where P is 0.

    Examples:
        >>> step_average_precision(np.array([1, 1]), np.array([3, 1])).item()
        0.8333333333333333
    """
    hits = np.cumsum(positives[..., ::-1], axis=-1)[..., ::-1]
    precision = np.divide(hits, selected, out=np.zeros(hits.shape), where=selected > 0)
    total = np.asarray(positives.sum(axis=-1))
    area = (positives * precision).sum(axis=-1)
    result: npt.NDArray[np.float64] = np.divide(
        area, total, out=np.full(total.shape, np.nan), where=total > 0
    )
    return result


def fill_empty(
    per_class: npt.NDArray[np.float64], empty_class: EmptyClass
) -> npt.NDArray[np.float64]:
    """Return the values with NaN, the mark of a class without positives, as the rule has it.

    Args:
        per_class: Average precision of each class.
        empty_class: "exclude" keeps NaN, "zero" puts 0 in its place.

    Examples:
        >>> fill_empty(np.array([0.5, np.nan]), "zero").tolist()
        [0.5, 0.0]
    """
    return np.where(np.isnan(per_class), 0.0, per_class) if empty_class == "zero" else per_class


def mean_of_scored(per_class: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean over the classes that are not NaN; NaN where there is none.

    Args:
        per_class: Average precision, classes along the last axis.

    Examples:
        >>> mean_of_scored(np.array([[0.5, np.nan, 1.0], [np.nan, np.nan, np.nan]]))
        array([0.75,  nan])
    """
    scored = ~np.isnan(per_class)
    total = np.where(scored, per_class, 0.0).sum(axis=-1)
    count = np.asarray(scored.sum(axis=-1))
    result: npt.NDArray[np.float64] = np.divide(
        total, count, out=np.full(count.shape, np.nan), where=count > 0
    )
    return result
