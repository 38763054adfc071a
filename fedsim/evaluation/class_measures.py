"""Measures of one class against the rest, from shares of a confusion matrix.

A measure whose denominator is 0 is undefined: NaN. No term is made by a subtraction of sums, so a
denominator that should be 0 is exactly 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassShares:
    """What share of the examples is true or false, positive or negative, for each class.

    Attributes:
        tp: Of the class and predicted so, shape (classes,) like the others.
        fp: Of another class, predicted as this one.
        fn: Of the class, predicted as another one.
        tn: Of another class and predicted as another one.
        recall: tp / (tp + fn). It stands on its own because it is known, from the examples of the
            class, even where the class has no share.
    """

    tp: Floats
    fp: Floats
    fn: Floats
    tn: Floats
    recall: Floats

    def pooled(self) -> "ClassShares":
        """Return the sums over classes, as one class: what "micro" means."""
        tp, fp, fn, tn = (np.array([part.sum()]) for part in (self.tp, self.fp, self.fn, self.tn))
        return ClassShares(tp, fp, fn, tn, quotient(tp, tp + fn))


def quotient(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotient; NaN where the denominator is 0 or a part is NaN.

    Examples:
        >>> quotient(np.array([1.0, 0.0]), np.array([4.0, 0.0]))
        array([0.25,  nan])
    """
    shape = np.broadcast_shapes(np.shape(numerator), np.shape(denominator))
    result: Floats = np.divide(
        numerator, denominator, out=np.full(shape, np.nan), where=np.asarray(denominator) != 0
    )
    return result


def _precision(s: ClassShares) -> Floats:
    return quotient(s.tp, s.tp + s.fp)


def _specificity(s: ClassShares) -> Floats:
    return quotient(s.tn, s.tn + s.fp)


def _negative_predictive_value(s: ClassShares) -> Floats:
    return quotient(s.tn, s.tn + s.fn)


def _f_beta(beta: float) -> Callable[[ClassShares], Floats]:
    squared = beta * beta

    def measure(s: ClassShares) -> Floats:
        hits = (1 + squared) * s.tp
        return quotient(hits, hits + squared * s.fn + s.fp)

    return measure


def _matthews(s: ClassShares) -> Floats:
    factors = (s.tp + s.fp, s.tp + s.fn, s.tn + s.fp, s.tn + s.fn)
    scale: Any = 1.0
    for factor in factors:
        scale = scale * np.sqrt(factor)
    return quotient(s.tp * s.tn - s.fp * s.fn, scale)


def _kappa(s: ClassShares) -> Floats:
    by_chance = (s.tp + s.fp) * (s.fp + s.tn) + (s.tp + s.fn) * (s.fn + s.tn)
    return quotient(2 * (s.tp * s.tn - s.fn * s.fp), by_chance)


def _complement(measure: Callable[[ClassShares], Floats]) -> Callable[[ClassShares], Floats]:
    return lambda s: 1 - measure(s)


# One class against the rest. Accuracy here counts true negatives; the accuracy of all classes is
# UnderPrior.accuracy.
MEASURES: dict[str, Callable[[ClassShares], Floats]] = {
    "recall": lambda s: s.recall,
    "precision": _precision,
    "f1": _f_beta(1.0),
    "specificity": _specificity,
    "balanced_accuracy": lambda s: (s.recall + _specificity(s)) / 2,
    "mcc": _matthews,
    "kappa": _kappa,
    "f0.5": _f_beta(0.5),
    "f2": _f_beta(2.0),
    "jaccard": lambda s: quotient(s.tp, s.tp + s.fp + s.fn),
    "geometric_mean": lambda s: np.sqrt(s.recall * _specificity(s)),
    "fowlkes_mallows": lambda s: np.sqrt(_precision(s) * s.recall),
    "informedness": lambda s: s.recall + _specificity(s) - 1,
    "markedness": lambda s: _precision(s) + _negative_predictive_value(s) - 1,
    "negative_predictive_value": _negative_predictive_value,
    "false_positive_rate": _complement(_specificity),
    "false_negative_rate": lambda s: 1 - s.recall,
    "false_discovery_rate": _complement(_precision),
    "false_omission_rate": _complement(_negative_predictive_value),
    "accuracy": lambda s: quotient(s.tp + s.tn, s.tp + s.fp + s.fn + s.tn),
}
