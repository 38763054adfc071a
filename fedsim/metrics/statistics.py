"""What binned average precision, F1 and loss need from scores, as counts that can be added up."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.metrics.binned import Counts, binned_values, count_buckets
from fedsim.metrics.inputs import Average, EmptyClass, check_choice, check_probabilities
from fedsim.metrics.precision_steps import fill_empty, mean_of_scored
from fedsim.metrics.threshold import average_rates, count_predictions

NUM_THRESHOLDS = 200
F1_THRESHOLD = 0.5
_LOSS_UNIT = 2**1074  # every float64 is an integer divided by this


@dataclass(frozen=True, eq=False)
class ScoreStatistics:
    """Counts of labels and probabilities, and an exact sum of losses, of some examples.

    ``update`` and ``merge`` return new statistics. All fields are sums of integers (the losses are
    rational numbers), so merging is exact, associative and commutative: the values do not depend
    on batches, on the order of examples or on who counted them. Exact average precision has no
    such summary; it is a function of the multiset of pairs (score, label), so scores of batches
    may be collected in any order.

    Attributes:
        positives: int64 array (classes, 199), positives between neighbouring thresholds of the 200.
        totals: int64 array (classes, 199), all examples between them.
        hits: int64 array (classes,), positives with a probability above 0.5.
        selected: int64 array (classes,), all examples with a probability above 0.5.
        num_examples: Examples counted.
        loss_sum: Exact sum of their losses.

    Examples:
        >>> one = ScoreStatistics.empty(2).update(
        ...     np.array([[1, 0]]), np.array([[0.9, 0.2]]), np.array([0.5]))
        >>> two = ScoreStatistics.empty(2).update(
        ...     np.array([[0, 1]]), np.array([[0.95, 0.1]]), np.array([1.5]))
        >>> both = one.merge(two)
        >>> both.average_precision("macro"), both.precision_recall_f1("micro"), both.mean_loss
        (0.5, (0.5, 0.5, 0.5), 1.0)
    """

    positives: Counts
    totals: Counts
    hits: Counts
    selected: Counts
    num_examples: int
    loss_sum: Fraction

    @classmethod
    def empty(cls, num_classes: int) -> Self:
        """Return the statistics of no example, the neutral element of ``merge``."""
        buckets = np.zeros((num_classes, NUM_THRESHOLDS - 1), dtype=np.int64)
        classes = np.zeros(num_classes, dtype=np.int64)
        return cls(buckets, buckets, classes, classes, 0, Fraction(0))

    def update(
        self,
        targets: npt.NDArray[Any],
        probabilities: npt.NDArray[Any],
        losses: npt.NDArray[Any],
    ) -> Self:
        """Return the statistics with a batch of examples added.

        Args:
            targets: 0/1 labels of shape (examples, classes).
            probabilities: Floats in [0, 1] of the same shape.
            losses: Loss of each example, shape (examples,), finite.

        Raises:
            DataError: Unusable labels, probabilities or losses, or another number of classes.
        """
        labels, checked = check_probabilities(targets, probabilities)
        losses = _check_losses(losses, len(labels))
        hits, selected, _ = count_predictions(labels, checked > F1_THRESHOLD)
        positives, totals = count_buckets(labels, checked, NUM_THRESHOLDS)
        batch = type(self)(positives, totals, hits, selected, len(labels), _exact_sum(losses))
        return self.merge(batch)

    def merge(self, other: Self) -> Self:
        """Return the statistics of the examples of both.

        Raises:
            DataError: The two have different numbers of classes.
        """
        if self.totals.shape != other.totals.shape:
            raise DataError(
                f"score statistics: expected {len(self.totals)} classes, found "
                f"{len(other.totals)}; merge scores of one label set only"
            )
        return type(self)(
            self.positives + other.positives,
            self.totals + other.totals,
            self.hits + other.hits,
            self.selected + other.selected,
            self.num_examples + other.num_examples,
            self.loss_sum + other.loss_sum,
        )

    @property
    def num_classes_scored(self) -> int:
        """Number of classes with at least one positive."""
        return int(np.count_nonzero(self.positives.sum(axis=1)))

    @property
    def mean_loss(self) -> float:
        """Mean loss of the examples, correctly rounded; NaN if there is none."""
        return float(self.loss_sum / self.num_examples) if self.num_examples else float("nan")

    def average_precision(self, average: Average, empty_class: EmptyClass = "exclude") -> float:
        """Return binned average precision; see ``fedsim.metrics.average_precision``.

        Args:
            average: "macro" or "micro".
            empty_class: "exclude" or "zero".
        """
        check_choice("average", average, Average)
        check_choice("empty_class", empty_class, EmptyClass)
        values = binned_values(self.positives, self.totals, average)
        return float(mean_of_scored(fill_empty(values, empty_class)))

    def precision_recall_f1(self, average: Average) -> tuple[float, float, float]:
        """Return precision, recall and F1 at 0.5; see ``fedsim.metrics.precision_recall_f1``.

        Args:
            average: "macro" or "micro".
        """
        check_choice("average", average, Average)
        return average_rates(self.hits, self.selected, self.positives.sum(axis=1), average)


def _check_losses(losses: npt.NDArray[Any], num_examples: int) -> npt.NDArray[np.float64]:
    """Return the losses as float64, in which the dtypes that models compute in are exact."""
    losses = np.asarray(losses, dtype=np.float64)
    if losses.shape != (num_examples,):
        raise DataError(
            f"losses: expected one for each of {num_examples} examples, found shape "
            f"{losses.shape}; average the loss over classes, not over examples"
        )
    if not np.isfinite(losses).all():
        row = int(np.argmin(np.isfinite(losses)))
        raise DataError(
            f"losses [row {row}]: expected a finite number, found {losses[row]}; "
            "mend the model that gave it, or leave the example out"
        )
    return losses


def _exact_sum(values: npt.NDArray[np.float64]) -> Fraction:
    """Return the sum without rounding, so that the order of the additions is not seen."""
    ratios = map(float.as_integer_ratio, values.tolist())
    return Fraction(sum(n * (_LOSS_UNIT // d) for n, d in ratios), _LOSS_UNIT)
