"""Models over a range of imbalance ratios, and the ratios at which two change places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from fedsim.errors import ConfigError
from fedsim.evaluation.class_prior import Counts, geometric_prior, reweighted

Floats = npt.NDArray[np.float64]

EQUAL = 1e-12  # a smaller difference of two scores is rounding
_GRID = 2001


@dataclass(frozen=True, eq=False)
class RatioSweep:
    """A score of models under geometric priors.

    Attributes:
        ratios: Largest class's share over the smallest one's, shape (ratios,).
        values: Of each model, shape (seeds, ratios).
    """

    ratios: Floats
    values: Mapping[str, Floats]

    def mean(self, model: str) -> Floats:
        """Return a model's mean over its seeds, shape (ratios,)."""
        result: Floats = self.values[model].mean(axis=0)
        return result


def sweep_ratios(
    confusions: Mapping[str, Sequence[Counts]], ratios: npt.ArrayLike, score: str = "accuracy"
) -> RatioSweep:
    """Score models under the geometric prior of each ratio.

    Args:
        confusions: Confusion matrices of each model, one a seed (``count_confusion``).
        ratios: At least 1 each.
        score: What ``UnderPrior.score`` takes.

    Raises:
        ConfigError: A ratio below 1, or an unknown score.
        DataError: A class without examples.

    Examples:
        >>> confusions = {"a": [np.array([[10, 0], [5, 5]])], "b": [np.array([[8, 2], [2, 8]])]}
        >>> sweep = sweep_ratios(confusions, [1, 4])
        >>> sweep.mean("a").round(6).tolist(), sweep.mean("b").round(6).tolist()
        ([0.75, 0.9], [0.8, 0.8])
    """
    wanted = np.atleast_1d(np.asarray(ratios, dtype=float))
    values = {
        model: np.array(
            [
                [
                    reweighted(matrix, geometric_prior(len(matrix), ratio)).score(score)
                    for ratio in wanted
                ]
                for matrix in matrices
            ]
        )
        for model, matrices in confusions.items()
    }
    return RatioSweep(wanted, values)


def crossings(ratios: Floats, first: Floats, second: Floats) -> list[float]:
    """Return where two curves change places, by straight lines between points over log ratio.

    Points where the curves are equal (within 1e-12) between two different signs make one crossing,
    in their geometric middle. Curves that only touch, or start or end equal, do not cross.

    Args:
        ratios: Rising, above 0, shape (ratios,).
        first: One curve at these ratios.
        second: The other one.

    Returns:
        Rising ratios: none, one or several.

    Examples:
        >>> crossings(np.array([1.0, 4.0]), np.array([1.0, 0.0]), np.array([0.0, 1.0]))
        [2.0]
    """
    difference, places = first - second, np.log(ratios)
    found = []
    for left, right in _sign_changes(difference):
        if right > left + 1:
            middle = (places[left + 1] + places[right - 1]) / 2
        else:
            part = difference[left] / (difference[left] - difference[right])
            middle = places[left] + (places[right] - places[left]) * part
        found.append(float(np.exp(middle)))
    return found


def accuracy_crossings(first: Floats, second: Floats, max_ratio: float) -> list[float]:
    """Return the ratios from 1 to ``max_ratio`` at which two models' accuracies cross, exactly.

    The accuracy at a ratio is a weighted mean of the recalls, so its difference is a smooth
    function of the ratio, and its sign changes are searched for between 2,001 ratios and then
    narrowed down. Two crossings between neighbours of these are not seen.

    Args:
        first: Recall of each class, shape (classes,); of several seeds, their mean.
        second: Of the other model.
        max_ratio: Above 1.

    Raises:
        ConfigError: ``max_ratio`` is out of range.

    Examples:
        >>> found = accuracy_crossings(np.array([1.0, 0.5]), np.array([0.8, 0.8]), 100.0)
        >>> [round(ratio, 9) for ratio in found]
        [1.5]
    """
    if not (np.isfinite(max_ratio) and max_ratio > 1):
        raise ConfigError(f"max_ratio: expected a number above 1, found {max_ratio}; 100 is common")
    gain = first - second

    def difference(ratio: float) -> float:
        return float(geometric_prior(len(gain), ratio) @ gain)

    ratios, priors = _grid(len(gain), max_ratio)
    found = []
    for left, right in _sign_changes(priors @ gain):
        if right > left + 1:
            found.append(float(np.sqrt(ratios[left + 1] * ratios[right - 1])))
        else:
            found.append(float(brentq(difference, ratios[left], ratios[right], rtol=1e-12)))
    return found


@lru_cache(maxsize=1)
def _grid(num_classes: int, max_ratio: float) -> tuple[Floats, Floats]:
    """Return ratios and their priors, shape (ratios, classes), for all pairs of some models."""
    ratios = np.geomspace(1, max_ratio, _GRID)
    return ratios, np.array([geometric_prior(num_classes, ratio) for ratio in ratios])


def _sign_changes(difference: Floats) -> list[tuple[int, int]]:
    """Return the neighbours, among the points that differ, whose signs are not the same."""
    differing = np.flatnonzero(np.abs(difference) > EQUAL)
    signs = np.sign(difference[differing])
    changed = np.flatnonzero(signs[1:] != signs[:-1])
    return [(int(differing[i]), int(differing[i + 1])) for i in changed]
