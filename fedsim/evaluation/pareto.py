"""Whether one classifier is at least as good as another under every prior and every cost."""

from typing import Literal

import numpy as np

from fedsim.errors import DataError
from fedsim.evaluation.class_prior import Counts

Order = Literal["dominates", "is dominated", "equivalent", "incomparable"]


def pareto_order(first: Counts, second: Counts) -> Order:
    """Compare two confusion matrices, class by class.

    The first dominates where no class is predicted right less often than by the second, no class
    is mistaken for any other more often, and one of these rates differs. All rates are shares of
    the true class's examples. A class without examples in both matrices has no part in it.

    Args:
        first: Counts by true (row) and predicted class, shape (classes, classes).
        second: Of the other classifier; the numbers of examples may differ.

    Returns:
        "dominates", "is dominated", "equivalent" (the same rates) or "incomparable".

    Raises:
        DataError: Other classes, or a class that only one of them has examples of.

    Examples:
        >>> pareto_order(np.array([[9, 1], [1, 9]]), np.array([[8, 2], [1, 9]]))
        'dominates'
        >>> pareto_order(np.array([[9, 1], [2, 8]]), np.array([[8, 2], [1, 9]]))
        'incomparable'
    """
    seen = first.sum(axis=1) > 0
    if first.shape != second.shape or (seen != (second.sum(axis=1) > 0)).any():
        raise DataError(
            f"confusion matrices: expected examples of the same classes, found shapes "
            f"{first.shape} and {second.shape}; compare models on the same test set"
        )
    # Equal fractions give equal floats, whatever the class sizes: division rounds correctly.
    gain = first[seen] / first[seen].sum(axis=1, keepdims=True)
    gain = gain - second[seen] / second[seen].sum(axis=1, keepdims=True)
    hits = np.eye(len(first), dtype=bool)[seen]
    gain[~hits] *= -1
    if not gain.any():
        return "equivalent"
    if (gain >= 0).all():
        return "dominates"
    return "is dominated" if (gain <= 0).all() else "incomparable"
