import math
import pickle
from dataclasses import fields
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worked_cases import EXPECTED, federated

from fedsim.errors import DataError
from fedsim.metrics import ScoreStatistics, average_precision, precision_recall_f1
from fedsim.streams import numpy_stream


def batch(seed, size, num_classes=3):
    rng = numpy_stream(seed, "batch")
    targets = rng.random((size, num_classes)) < 0.3
    probabilities = rng.random((size, num_classes), dtype=np.float32).round(2)
    return targets, probabilities, rng.exponential(size=size) * 10.0 ** rng.integers(-9, 9, size)


def statistics(*batches, num_classes=3):
    return reduce(lambda s, b: s.update(*b), batches, ScoreStatistics.empty(num_classes))


def assert_same(one, other):
    for field in fields(one):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


def test_federated_case_merged_over_users_is_the_pooled_value():
    targets, scores, users = federated()
    parts = [
        ScoreStatistics.empty(17).update(
            targets[users == user], scores[users == user], np.zeros((users == user).sum())
        )
        for user in np.unique(users)
    ]
    merged = reduce(ScoreStatistics.merge, parts)
    expected = EXPECTED["fed"]
    assert merged.average_precision("macro") == pytest.approx(
        expected["merged_bin200_macro"], abs=1e-12
    )
    assert merged.average_precision("micro") == pytest.approx(expected["bin200_micro"], abs=1e-12)
    assert merged.num_classes_scored == 17
    assert merged.num_examples == 298


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_merge_is_exact_associative_and_commutative(sizes, random):
    batches = [batch(i, size) for i, size in enumerate(sizes)]
    whole = statistics(tuple(np.concatenate(parts) for parts in zip(*batches, strict=True)))
    parts = [statistics(b) for b in batches]
    random.shuffle(parts)
    while len(parts) > 1:  # any tree
        i = random.randrange(len(parts) - 1)
        parts[i : i + 2] = [parts[i].merge(parts[i + 1])]
    assert_same(parts[0], whole)
    assert_same(statistics(*batches), whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_are_those_of_the_functions_on_all_scores(dtype):
    batches = [batch(i, 100) for i in range(3)]
    batches = [(t, p.astype(dtype), losses) for t, p, losses in batches]
    found = statistics(*batches)
    targets, probabilities, losses = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    for average in ("macro", "micro"):
        for empty_class in ("exclude", "zero"):
            assert found.average_precision(average, empty_class) == average_precision(
                targets, probabilities, average=average, method="binned", empty_class=empty_class
            )
        assert found.precision_recall_f1(average) == precision_recall_f1(
            targets, probabilities, average=average
        )
    assert found.num_examples == 300
    assert found.loss_sum == sum(map(Fraction, losses.tolist()))
    assert found.mean_loss == pytest.approx(math.fsum(losses) / 300, rel=1e-15)


def test_losses_of_very_different_size_do_not_depend_on_order():
    row = np.array([[True]]), np.array([[0.5]])
    losses = [1e300, 5e-324, 1.0, -1e300, 1e16]
    forward = statistics(*[(*row, np.array([x])) for x in losses], num_classes=1)
    backward = statistics(*[(*row, np.array([x])) for x in losses[::-1]], num_classes=1)
    assert forward.loss_sum == backward.loss_sum == Fraction(5e-324) + 1 + 10**16


def test_empty_statistics_are_neutral_and_undefined():
    empty, some = ScoreStatistics.empty(3), statistics(batch(0, 5))
    assert_same(empty.merge(some), some)
    assert_same(some.merge(empty), some)
    assert np.isnan([empty.average_precision("macro"), empty.average_precision("micro")]).all()
    assert np.isnan(empty.mean_loss)
    assert empty.average_precision("micro", "zero") == 0
    assert empty.precision_recall_f1("macro") == (0, 0, 0)
    assert empty.num_classes_scored == 0


def test_statistics_travel_between_processes():
    some = statistics(batch(0, 5))
    assert_same(pickle.loads(pickle.dumps(some)), some)


def test_refusals():
    targets, probabilities, losses = batch(0, 5)
    empty = ScoreStatistics.empty(3)
    with pytest.raises(DataError, match=r"losses: expected one for each of 5 .* shape \(1,\)"):
        empty.update(targets, probabilities, losses[:1])
    with pytest.raises(DataError, match=r"losses \[row 1\]: .* found nan"):
        empty.update(targets, probabilities, np.array([0, np.nan, 0, 0, 0]))
    with pytest.raises(DataError, match=r"expected a number in \[0, 1\]"):
        empty.update(targets, probabilities * 9, losses)
    with pytest.raises(DataError, match="expected 4 classes, found 3"):
        ScoreStatistics.empty(4).merge(empty)
