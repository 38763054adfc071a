"""Scores at a prevalence, beside weights, repeated images, closed forms and a large resample."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_score

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.prevalence import (
    average_precision_at_prevalence,
    precision_at_prevalence,
)
from fedsim.metrics import average_precision, precision_recall_f1

Column = tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]


@st.composite
def columns(draw: st.DrawFn) -> Column:
    """One label that some images have and some lack, and scores of which many are equal."""
    labels = [True, False, *draw(st.lists(st.booleans(), max_size=25))]
    scores = st.lists(st.integers(0, 8), min_size=len(labels), max_size=len(labels))
    return np.array(labels)[:, None], np.array(draw(scores))[:, None] / 8


SHARES = st.floats(0.01, 0.99)


@settings(max_examples=50)
@given(columns(), SHARES)
def test_is_that_of_weighted_images(column: Column, share: float) -> None:
    targets, scores = column
    weights = np.where(targets[:, 0], share / targets.mean(), (1 - share) / (1 - targets.mean()))
    expected = average_precision_score(targets[:, 0], scores[:, 0], sample_weight=weights)
    assert average_precision_at_prevalence(targets, scores, share) == pytest.approx(
        expected, abs=1e-12
    )
    expected = precision_score(
        targets[:, 0], scores[:, 0] > 0.5, sample_weight=weights, zero_division=0
    )
    assert precision_at_prevalence(targets, scores, share) == pytest.approx(expected, abs=1e-12)


@given(columns(), st.integers(1, 6), st.integers(1, 6))
def test_is_that_of_repeated_images(column: Column, positive: int, negative: int) -> None:
    targets, scores = column
    copies = np.where(targets[:, 0], positive, negative)
    repeated = np.repeat(targets, copies, axis=0), np.repeat(scores, copies, axis=0)
    share = float(repeated[0].mean())
    assert average_precision_at_prevalence(targets, scores, share) == pytest.approx(
        average_precision(*repeated), abs=1e-12
    )
    assert precision_at_prevalence(targets, scores, share) == pytest.approx(
        precision_recall_f1(*repeated)[0], abs=1e-12
    )


def test_is_the_limit_of_resamples() -> None:
    rng = np.random.default_rng(0)
    targets = rng.random((300, 1)) < 0.4
    scores = rng.normal(targets, 1.0)
    positives, negatives = np.flatnonzero(targets), np.flatnonzero(~targets[:, 0])
    errors = []
    for size in (2_000, 2_000_000):
        drawn = np.concatenate(
            [rng.choice(positives, size // 20), rng.choice(negatives, size - size // 20)]
        )
        errors.append(
            abs(
                average_precision(targets[drawn], scores[drawn])
                - average_precision_at_prevalence(targets, scores, 0.05)
            )
        )
    assert errors[1] < min(0.005, errors[0] / 3)
    assert (
        average_precision(targets, scores) - average_precision_at_prevalence(targets, scores, 0.05)
        > 0.3
    )


def test_closed_forms() -> None:
    targets = np.array([[1], [0], [0], [1]])
    for share in (0.001, 0.3, 0.9):
        equal, perfect = np.ones((4, 1)), targets.astype(float)
        assert average_precision_at_prevalence(targets, equal, share) == pytest.approx(share)
        assert average_precision_at_prevalence(targets, perfect, share) == 1.0
        # All negatives first, then each positive as a step of its own: R is 1/2, then 1, F is 1.
        last = np.array([[0.2], [0.9], [0.8], [0.1]])
        first_step = share / 2 / (share / 2 + 1 - share)
        assert average_precision_at_prevalence(targets, last, share) == pytest.approx(
            first_step / 2 + share / 2
        )
        assert precision_at_prevalence(targets, equal, share) == pytest.approx(share)
        assert precision_at_prevalence(targets, last, share) == 0.0
        assert precision_at_prevalence(targets, np.zeros((4, 1)), share) == 0.0


def test_a_perfectly_calibrated_line() -> None:
    """Positives' scores of density 2s on [0, 1], negatives' of 1: R = 1 - s^2, F = 1 - s.

    Precision at share p is p (1 + s) / (p (1 + s) + 1 - p), and AP the integral of it over 2s ds.
    """
    n = 4000
    even = (np.arange(n) + 0.5) / n
    targets = np.repeat([[True], [False]], n, axis=0)
    scores = np.concatenate([np.sqrt(even), even])[:, None]
    for p in (0.05, 0.5):
        s = (np.arange(100_000) + 0.5) / 100_000
        area = np.mean(2 * s * p * (1 + s) / (p * (1 + s) + 1 - p))
        assert average_precision_at_prevalence(targets, scores, p) == pytest.approx(area, abs=1e-3)


def test_each_label_has_its_own_share_and_some_have_no_value() -> None:
    targets = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [1, 0, 1, 1], [0, 0, 1, 0]])
    scores = np.array(
        [[0.9, 0.1, 0.1, 0.9], [0.8, 0.2, 0.3, 0.8], [0.7, 0.2, 0.6, 0.7], [0.1, 0.4, 0.2, 0.1]],
        dtype=np.float32,
    )
    shares = [0.5, 0.5, 0.5, 0.1]
    values = average_precision_at_prevalence(targets, scores, shares, average=None)
    np.testing.assert_allclose(values, [5 / 6, np.nan, np.nan, (1 + 0.1 / 0.55) / 2])
    # At the last: R = 1, F = 1/2, so precision is 0.1 / (0.1 + 0.45).
    assert average_precision_at_prevalence(targets, scores, shares) == pytest.approx(
        values[[0, 3]].mean()
    )
    precision = precision_at_prevalence(targets, scores, shares, average=None)
    np.testing.assert_allclose(precision, [2 / 3, np.nan, np.nan, 0.1 / 0.55])
    own = average_precision_at_prevalence(targets, scores, 0.5, average=None)
    np.testing.assert_allclose(own[0], average_precision(targets, scores, average=None)[0])
    none = np.zeros((2, 1))
    assert np.isnan(average_precision_at_prevalence(none, none, 0.5))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, np.nan, [0.5], [[0.5, 0.5]]])
def test_faulty_shares(share: Any) -> None:
    targets, scores = np.array([[1, 0], [0, 1]]), np.array([[0.1, 0.2], [0.3, 0.4]])
    for function in (average_precision_at_prevalence, precision_at_prevalence):
        with pytest.raises(ConfigError, match=r"prevalence: expected .* of 2 classes, found"):
            function(targets, scores, share)


def test_other_faults() -> None:
    targets, scores = np.array([[1], [0]]), np.array([[0.1], [np.nan]])
    with pytest.raises(DataError, match="row 1, class 0"):
        average_precision_at_prevalence(targets, scores, 0.5)
    with pytest.raises(ConfigError, match="average"):
        precision_at_prevalence(targets, np.ones((2, 1)), 0.5, average="micro")  # type: ignore[call-overload]
