"""The Pareto order, beside its definition in fractions."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.errors import DataError
from fedsim.evaluation.class_prior import under_prior
from fedsim.evaluation.pareto import pareto_order

Counts = npt.NDArray[np.int64]

MATRICES = st.lists(
    st.lists(st.integers(0, 3), min_size=3, max_size=3).filter(any), min_size=3, max_size=3
).map(np.array)


def by_definition(first: Counts, second: Counts) -> str:
    gains = []
    for j in range(len(first)):
        for k in range(len(first)):
            one = Fraction(int(first[j, k]), int(first[j].sum()))
            other = Fraction(int(second[j, k]), int(second[j].sum()))
            gains.append(one - other if j == k else other - one)
    if all(gain == 0 for gain in gains):
        return "equivalent"
    if all(gain >= 0 for gain in gains):
        return "dominates"
    return "is dominated" if all(gain <= 0 for gain in gains) else "incomparable"


@given(MATRICES, MATRICES)
def test_is_the_definition(first: Counts, second: Counts) -> None:
    assert pareto_order(first, second) == by_definition(first, second)


@given(MATRICES, st.integers(0, 2), st.integers(0, 2), st.integers(1, 7))
def test_moving_errors_to_hits_dominates(
    matrix: Counts, true: int, guessed: int, copies: int
) -> None:
    better = matrix.copy()
    better[true, true] += better[true, guessed] if true != guessed else 0
    better[true, guessed] = 0 if true != guessed else better[true, true]
    changed = (better != matrix).any()
    # Class sizes do not matter.
    assert pareto_order(copies * better, matrix) == ("dominates" if changed else "equivalent")
    assert pareto_order(matrix, copies * better) == ("is dominated" if changed else "equivalent")


def test_only_the_dominated_can_be_behind_under_some_prior() -> None:
    targets = np.repeat([0, 1, 2], 4)
    worse = np.array([0, 0, 1, 2, 1, 1, 0, 2, 2, 2, 1, 0])
    better = np.array([0, 0, 0, 2, 1, 1, 1, 2, 2, 2, 1, 2])
    matrices = []
    for predictions in (better, worse):
        matrix = np.zeros((3, 3), dtype=int)
        np.add.at(matrix, (targets, predictions), 1)
        matrices.append(matrix)
    assert pareto_order(*matrices) == "dominates"
    for prior in np.random.default_rng(0).dirichlet(np.ones(3), 50):
        scores = [
            under_prior(targets, predictions, prior, num_classes=3)
            for predictions in (better, worse)
        ]
        for name in ("accuracy", "macro_recall", "macro_specificity"):
            assert scores[0].score(name) >= scores[1].score(name)


def test_classes_without_examples() -> None:
    first, second = np.array([[3, 1], [0, 0]]), np.array([[2, 2], [0, 0]])
    assert pareto_order(first, second) == "dominates"
    with pytest.raises(DataError, match="examples of the same classes"):
        pareto_order(first, np.array([[2, 2], [1, 0]]))
    with pytest.raises(DataError, match=r"shapes \(2, 2\) and \(3, 3\)"):
        pareto_order(first, np.eye(3, dtype=int))
