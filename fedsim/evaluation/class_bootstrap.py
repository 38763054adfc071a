"""How sure the recall of a class is, or the difference of two models' recalls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError, DataError
from fedsim.metrics.bootstrap import Resampled, percentile_interval

_BLOCK_DRAWS = 2**22


@dataclass(frozen=True)
class ClassInterval:
    """A mean over the images of one class.

    Attributes:
        label: The class.
        num_images: Images of the class.
        mean: Over these images.
        low: Low end of its interval.
        high: High end.
    """

    label: int
    num_images: int
    mean: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def bootstrap_by_class(
    targets: npt.NDArray[Any],
    values: npt.NDArray[Any],
    classes: Sequence[int],
    *,
    generator: np.random.Generator,
    num_resamples: int = 2000,
    confidence: float = 0.95,
) -> list[ClassInterval]:
    """Return percentile intervals of each class's mean value, resampling images of the class.

    With ``values`` 1 where a model is right, else 0, the mean is the class's recall. With the
    difference of two models' such values it is the difference of their recalls, and the bootstrap
    is paired: both models meet the same images. The classes take their draws from one generator,
    in their order, (resamples, images of the class) integers each; so the intervals depend on what
    was drawn before.

    Args:
        targets: Class of each image, shape (images,).
        values: A number for each image, of the same shape.
        classes: Which classes, in the order of the draws.
        generator: Source of the draws; the call moves it on.
        num_resamples: At least 1.
        confidence: In (0, 1).

    Raises:
        ConfigError: ``num_resamples`` or ``confidence`` is out of range.
        DataError: Not one value for each image, or a class without images.

    Examples:
        >>> targets, right = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 0.0, 1.0])
        >>> for row in bootstrap_by_class(
        ...     targets, right, [0, 1], generator=np.random.default_rng(0), num_resamples=200
        ... ):
        ...     print(row.label, row.num_images, round(row.mean, 3), row.low, row.high)
        0 3 0.667 0.0 1.0
        1 1 1.0 1.0 1.0

    References:
        Efron and Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13.
    """
    if num_resamples < 1:
        raise ConfigError(
            f"num_resamples: expected at least 1, found {num_resamples}; 2000 is customary"
        )
    true, numbers = np.asarray(targets), np.asarray(values, dtype=float)
    if true.ndim != 1 or true.shape != numbers.shape:
        raise DataError(
            f"values: expected one for each target, found shapes {true.shape} and "
            f"{numbers.shape}; give one number for each image"
        )
    rows = []
    for label in classes:
        own = numbers[true == label]
        if not own.size:
            raise DataError(
                f"targets: expected images of class {label}, found none; leave the class out"
            )
        resampled = Resampled(float(own.mean()), _resampled_means(own, generator, num_resamples))
        low, high = percentile_interval(resampled, confidence)
        rows.append(ClassInterval(int(label), len(own), resampled.value, low, high))
    return rows


def _resampled_means(
    values: npt.NDArray[np.float64], generator: np.random.Generator, num_resamples: int
) -> npt.NDArray[np.float64]:
    """Return means of resamples; in blocks, which draw the same integers as one large call."""
    means = np.empty(num_resamples)
    rows = max(1, _BLOCK_DRAWS // len(values))
    for start in range(0, num_resamples, rows):
        block = means[start : start + rows]
        drawn = generator.integers(0, len(values), (len(block), len(values)))
        block[:] = values[drawn].mean(axis=1)
    return means
