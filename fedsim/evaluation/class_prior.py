"""The same predictions under another distribution of the classes.

The rates of a class, how often its examples are predicted as each class, stay; only the class's
share of the examples changes. That is what is called label shift.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.class_measures import MEASURES, ClassShares, quotient
from fedsim.metrics.inputs import EmptyClass, check_choice

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
ClassAverage = Literal["micro", "macro", "weighted"]


@dataclass(frozen=True, eq=False)
class UnderPrior:
    """What a classifier's confusion matrix is when the classes have given shares.

    Attributes:
        rates: How the examples of each class (rows) are predicted, shape (classes, classes); rows
            sum to 1, and are NaN for a class without examples, whose share is 0.
        prior: Share of each class, shape (classes,), sums to 1.
    """

    rates: Floats
    prior: Floats

    @cached_property
    def joint(self) -> Floats:
        """Share of all examples with each true (row) and predicted class; sums to 1."""
        return self.prior[:, None] * np.nan_to_num(self.rates)

    @cached_property
    def shares(self) -> ClassShares:
        """True and false positives and negatives of each class against the rest."""
        hit, rates = np.diag(self.rates), np.nan_to_num(self.rates)
        others = ~np.eye(len(self.prior), dtype=bool)
        weights = self.prior[:, None] * others
        return ClassShares(
            tp=self.prior * np.diag(rates),
            fp=(weights * rates).sum(axis=0),
            fn=self.prior * (1 - np.diag(rates)),
            tn=(weights * (1 - rates)).sum(axis=0),
            recall=hit,
        )

    @property
    def accuracy(self) -> float:
        """Share of the examples that are right: the mean of the recalls, weighted by the prior."""
        return float(self.shares.tp.sum())

    @property
    def mcc(self) -> float:
        """Correlation of true and predicted class (Gorodkin's R_K); NaN if either is constant."""
        true, guessed = self.joint.sum(axis=1), self.joint.sum(axis=0)
        scale = np.sqrt(_apart(true, true)) * np.sqrt(_apart(guessed, guessed))
        return quotient(np.array([self.accuracy - true @ guessed]), np.array([scale])).item()

    @property
    def kappa(self) -> float:
        """Cohen's kappa; NaN if all examples are of one class and predicted so."""
        true, guessed = self.joint.sum(axis=1), self.joint.sum(axis=0)
        numerator = np.array([self.accuracy - true @ guessed])
        return quotient(numerator, np.array([_apart(true, guessed)])).item()

    def per_class(self, measure: str) -> Floats:
        """Return a measure of each class against the rest, shape (classes,); NaN where it is 0/0.

        Args:
            measure: A name of ``class_measures.MEASURES``.

        Raises:
            ConfigError: An unknown measure.
        """
        return _formula(measure)(self.shares)

    def average(
        self, measure: str, average: ClassAverage = "macro", *, undefined: EmptyClass = "exclude"
    ) -> float:
        """Return a measure over all classes.

        Args:
            measure: A name of ``class_measures.MEASURES``.
            average: "micro" adds up the shares of all classes first, "macro" is the plain mean of
                the classes' values, "weighted" their mean with the prior as weights.
            undefined: What becomes of a class whose value is 0/0, such as the precision of a class
                that is never predicted: "exclude" leaves it out of the mean, "zero" counts 0.

        Returns:
            NaN where no class has a value, or none that has weight.

        Raises:
            ConfigError: An unknown name.
        """
        check_choice("average", average, ClassAverage)
        check_choice("undefined", undefined, EmptyClass)
        shares = self.shares.pooled() if average == "micro" else self.shares
        values = _formula(measure)(shares)
        weights = self.prior if average == "weighted" else np.ones(len(values))
        if undefined == "zero":
            values = np.nan_to_num(values)
        known = ~np.isnan(values)
        total = np.array([(weights[known] * values[known]).sum()])
        return quotient(total, np.array([weights[known].sum()])).item()

    def score(self, name: str) -> float:
        """Return "accuracy", "mcc" or "kappa" of all classes, or an average like "macro_f1".

        Raises:
            ConfigError: An unknown name.
        """
        if name in ("accuracy", "mcc", "kappa"):
            return float(getattr(self, name))
        average, _, measure = name.partition("_")
        if average not in ("micro", "macro", "weighted"):
            raise ConfigError(
                f"score: expected accuracy, mcc, kappa, or a measure after micro_, macro_ or "
                f"weighted_, found {name!r}; macro_recall is one"
            )
        return self.average(measure, average)  # type: ignore[arg-type]


def under_prior(
    targets: npt.NDArray[Any],
    predictions: npt.NDArray[Any],
    prior: npt.ArrayLike,
    *,
    num_classes: int,
) -> UnderPrior:
    """Return what the predictions are worth when class k has the share prior[k].

    The confusion matrix's rows are divided by their sums, then multiplied by the prior. So the
    recall of each class and macro recall are the same under every prior; accuracy is the sum of
    prior times recall; precision, specificity and the rest are those of the new matrix. Under the
    classes' own shares everything is as if computed directly.

    Args:
        targets: Class of each example, integers from 0 to ``num_classes`` - 1, shape (examples,).
        predictions: Predicted class of each, of the same shape and range.
        prior: ``num_classes`` numbers of at least 0 that sum to more than 0; they are divided by
            their sum.
        num_classes: Number of classes, at least 1.

    Raises:
        ConfigError: A prior of another length, with a negative number, NaN or infinity, or all 0.
        DataError: Labels that are not integers, out of range, or not one for each example; a class
            that has weight, but no example.

    Examples:
        >>> targets, predictions = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
        >>> shifted = under_prior(targets, predictions, [9, 1], num_classes=2)
        >>> round(shifted.accuracy, 6), shifted.average("recall")
        (0.95, 0.75)
        >>> shifted.per_class("precision").round(6).tolist()
        [0.947368, 1.0]
    """
    return reweighted(count_confusion(targets, predictions, num_classes=num_classes), prior)


def count_confusion(
    targets: npt.NDArray[Any], predictions: npt.NDArray[Any], *, num_classes: int
) -> Counts:
    """Count examples by true (row) and predicted class; arguments as for ``under_prior``.

    Raises:
        DataError: Labels that are not integers, out of range, or not one for each example.

    Examples:
        >>> count_confusion(np.array([0, 1, 1]), np.array([1, 1, 1]), num_classes=2).tolist()
        [[0, 1], [0, 2]]
    """
    true = check_labels(targets, num_classes, "targets")
    guessed = check_labels(predictions, num_classes, "predictions")
    if true.shape != guessed.shape:
        raise DataError(
            f"predictions: expected one for each of {len(true):,} targets, found "
            f"{len(guessed):,}; predict every example once"
        )
    pairs = np.bincount(true * num_classes + guessed, minlength=num_classes**2)
    return pairs.reshape(num_classes, num_classes).astype(np.int64)


def reweighted(confusion: Counts, prior: npt.ArrayLike) -> UnderPrior:
    """Return counts of a confusion matrix under a prior; see ``under_prior``."""
    shares = check_prior(prior, len(confusion))
    sizes = confusion.sum(axis=1)
    missing = np.flatnonzero((sizes == 0) & (shares > 0))
    if missing.size:
        raise DataError(
            f"targets: expected examples of every class that has weight in the prior, found none "
            f"of class {missing[0]}; give it weight 0, or number the classes from 0"
        )
    return UnderPrior(quotient(confusion.astype(float), sizes[:, None].astype(float)), shares)


def geometric_prior(num_classes: int, ratio: float) -> Floats:
    """Return shares that fall geometrically: class 0 has ``ratio`` times the last one's.

    prior[k] is proportional to ratio^(-k / (num_classes - 1)), as in the long-tailed CIFAR sets.

    Args:
        num_classes: At least 2.
        ratio: At least 1, which gives equal shares.

    Returns:
        Shape (num_classes,), sums to 1.

    Raises:
        ConfigError: A number out of range.

    Examples:
        >>> geometric_prior(3, 4.0).round(6).tolist()
        [0.571429, 0.285714, 0.142857]

    References:
        Cao et al.: Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, 2019.
    """
    if num_classes < 2:
        raise ConfigError(f"num_classes: expected at least 2, found {num_classes}; name them all")
    if not (np.isfinite(ratio) and ratio >= 1):
        raise ConfigError(
            f"ratio: expected a number of at least 1, found {ratio}; it is the largest class's "
            "share over the smallest one's"
        )
    weights = float(ratio) ** (-np.arange(num_classes) / (num_classes - 1))
    prior: Floats = weights / weights.sum()
    return prior


def check_prior(prior: npt.ArrayLike, num_classes: int) -> Floats:
    """Return the prior, divided by its sum.

    Raises:
        ConfigError: Another length, a negative number, NaN or infinity, or only 0.
    """
    shares = np.asarray(prior, dtype=float)
    if shares.shape != (num_classes,):
        raise ConfigError(
            f"prior: expected {num_classes} numbers, found shape {shares.shape}; give each class "
            "its share"
        )
    wrong = np.flatnonzero(~(np.isfinite(shares) & (shares >= 0)))
    if wrong.size or not shares.any():
        found = f"{shares[wrong[0]]} for class {wrong[0]}" if wrong.size else "only 0"
        raise ConfigError(
            f"prior: expected numbers of at least 0, one above it, found {found}; give each class "
            "its share"
        )
    shares = shares / shares.max()  # so that no sum overflows
    result: Floats = shares / shares.sum()
    return result


def check_labels(labels: npt.NDArray[Any], num_classes: int, name: str) -> Counts:
    """Return class numbers as int64.

    Raises:
        DataError: Not a list of integers from 0 to ``num_classes`` - 1, or an empty one.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise DataError(
            f"{name}: expected a list of whole class numbers, found shape {array.shape} of "
            f"{array.dtype}; give one class number for each example"
        )
    outside = (array < 0) | (array >= num_classes)
    if outside.any():
        place = int(outside.argmax())
        raise DataError(
            f"{name} [{place}]: expected a class from 0 to {num_classes - 1}, found "
            f"{array[place]}; number the classes from 0"
        )
    return array.astype(np.int64)


def _formula(measure: str) -> Callable[[ClassShares], Floats]:
    if measure not in MEASURES:
        raise ConfigError(
            f"measure: expected one of {', '.join(MEASURES)}, found {measure!r}; use one of them"
        )
    return MEASURES[measure]


def _apart(first: Floats, second: Floats) -> float:
    """Return how often two independent draws differ: exactly 0 if both are always one class."""
    product = np.outer(first, second)
    np.fill_diagonal(product, 0.0)
    return float(product.sum())
