"""Measures under a prior, beside scikit-learn's with weights, aggmetrics's, and plain copies."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.class_measures import MEASURES
from fedsim.evaluation.class_prior import (
    UnderPrior,
    count_confusion,
    geometric_prior,
    reweighted,
    under_prior,
)

CASES = Path(__file__).parent / "cases" / "digits_lt"
STORED = np.load(CASES / "predictions.npz")
Labels = npt.NDArray[np.int64]


@st.composite
def labelled(draw: st.DrawFn) -> tuple[Labels, Labels, npt.NDArray[np.float64]]:
    """Targets with examples of every class, predictions, and a prior that may hold zeros."""
    num_classes = draw(st.integers(2, 5))
    more = draw(st.lists(st.integers(0, num_classes - 1), max_size=20))
    targets = np.array([*range(num_classes), *more])
    size = len(targets)
    guessed = draw(st.lists(st.integers(0, num_classes - 1), min_size=size, max_size=size))
    weights = st.one_of(st.just(0.0), st.floats(0.01, 100))
    prior = draw(st.lists(weights, min_size=num_classes, max_size=num_classes).filter(any))
    return targets, np.array(guessed), np.array(prior)


def shifted(case: tuple[Labels, Labels, npt.NDArray[np.float64]]) -> UnderPrior:
    targets, predictions, prior = case
    return under_prior(targets, predictions, prior, num_classes=len(prior))


@given(labelled())
def test_recall_never_moves_and_accuracy_is_its_weighted_mean(case: Any) -> None:
    targets, predictions, prior = case
    by_hand = np.array([(predictions[targets == k] == k).mean() for k in range(len(prior))])
    found = shifted(case)
    assert found.per_class("recall").tolist() == by_hand.tolist()
    assert found.average("recall", "macro") == pytest.approx(by_hand.mean(), abs=1e-15)
    assert found.accuracy == pytest.approx(prior @ by_hand / prior.sum(), abs=1e-12)
    assert found.average("recall", "weighted") == pytest.approx(found.accuracy, abs=1e-12)
    for measure in ("recall", "precision", "f1"):  # one label an image: all pools are accuracy
        assert found.average(measure, "micro") == pytest.approx(found.accuracy, abs=1e-12)
    assert found.joint.sum() == pytest.approx(1, abs=1e-12)


@settings(max_examples=40)
@given(labelled())
def test_agrees_with_scikit_learn_under_weights(case: Any) -> None:
    targets, predictions, prior = case
    classes = list(range(len(prior)))
    shares = prior / prior.sum()
    weights = (shares / np.bincount(targets))[targets]
    found = shifted(case)
    true, guessed = found.joint.sum(axis=1), found.joint.sum(axis=0)
    assert found.accuracy == pytest.approx(
        sk.accuracy_score(targets, predictions, sample_weight=weights), abs=1e-12
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for average in ("micro", "macro", "weighted"):
            precision, _, f1, _ = sk.precision_recall_fscore_support(
                targets,
                predictions,
                labels=classes,
                sample_weight=weights,
                average=average,
                zero_division=0,
            )
            ours = [
                found.average(name, average, undefined="zero")  # type: ignore[arg-type]
                for name in ("precision", "f1")
            ]
            assert ours == pytest.approx([precision, f1], abs=1e-9)
            assert found.average("jaccard", average, undefined="zero") == pytest.approx(  # type: ignore[arg-type]
                sk.jaccard_score(
                    targets,
                    predictions,
                    labels=classes,
                    sample_weight=weights,
                    average=average,
                    zero_division=0,
                ),
                abs=1e-9,
            )
        # Constant on one side: scikit-learn has 0 here, or NaN.
        if (true > 0).sum() > 1 and (guessed > 0).sum() > 1:
            theirs = sk.matthews_corrcoef(targets, predictions, sample_weight=weights)
            assert found.mcc == pytest.approx(theirs, abs=1e-6)
        else:
            assert math.isnan(found.mcc)
        theirs = sk.cohen_kappa_score(targets, predictions, labels=classes, sample_weight=weights)
        assert found.kappa == pytest.approx(theirs, abs=1e-9, nan_ok=True)
        for k in classes:
            one = targets == k, predictions == k
            if all(0 < side[weights > 0].mean() < 1 for side in one):
                assert found.per_class("mcc")[k] == pytest.approx(
                    sk.matthews_corrcoef(*one, sample_weight=weights), abs=1e-6
                )
                assert found.per_class("balanced_accuracy")[k] == pytest.approx(
                    sk.balanced_accuracy_score(*one, sample_weight=weights), abs=1e-9
                )
                assert found.per_class("kappa")[k] == pytest.approx(
                    sk.cohen_kappa_score(*one, sample_weight=weights), abs=1e-9
                )


@given(labelled(), st.data())
def test_is_the_direct_computation_on_repeated_images(case: Any, data: st.DataObject) -> None:
    targets, predictions, some = case
    num_classes = len(some)
    copies = np.array(
        data.draw(st.lists(st.integers(1, 5), min_size=num_classes, max_size=num_classes))
    )
    prior = copies * np.bincount(targets)
    confusion = np.zeros((num_classes, num_classes))
    np.add.at(confusion, (targets, predictions), copies[targets])
    found = under_prior(targets, predictions, prior, num_classes=num_classes)
    np.testing.assert_allclose(found.joint, confusion / confusion.sum(), atol=1e-15)


def test_uniform_prior_on_a_balanced_set_is_the_direct_computation() -> None:
    targets, predictions = STORED["y_test"], STORED["pred_test"][0]
    found = under_prior(targets, predictions, np.ones(10), num_classes=10)
    assert found.accuracy == pytest.approx((targets == predictions).mean(), abs=1e-15)
    precision = [(targets[predictions == k] == k).mean() for k in range(10)]
    np.testing.assert_allclose(found.per_class("precision"), precision, atol=1e-15)
    specificity = [(predictions[targets != k] != k).mean() for k in range(10)]
    np.testing.assert_allclose(found.per_class("specificity"), specificity, atol=1e-15)


def test_every_measure_agrees_with_aggmetrics() -> None:
    stored = json.loads((CASES / "aggmetrics.json").read_text())
    targets, predictions = STORED["y_test"], STORED["pred_test"][5]
    never = np.where(predictions == 9, 0, predictions)
    falling = 10 - np.arange(10)
    for name, guessed, prior in (
        ("as_it_is", predictions, np.ones(10)),
        ("class_k_repeated_10_minus_k_times", predictions, falling),
        ("nine_predicted_as_zero_and_repeated", never, falling),
    ):
        expected = stored[name]
        found = under_prior(targets, guessed, prior, num_classes=10)
        assert found.accuracy == pytest.approx(expected["overall_accuracy"], abs=1e-12)
        assert set(expected) == {"overall_accuracy", *MEASURES}
        for measure in MEASURES:
            for average, value in expected[measure].items():
                ours = found.average(measure, average)
                assert ours == pytest.approx(value, abs=1e-12), (name, measure, average)


def test_zero_over_zero() -> None:
    # Class 2 is never predicted, class 1 always right.
    targets, predictions = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 0])
    found = under_prior(targets, predictions, [1, 1, 1], num_classes=3)
    precision = found.per_class("precision")
    assert np.isnan(precision).tolist() == [False, False, True]
    assert found.average("precision") == pytest.approx(precision[:2].mean())
    assert found.average("precision", undefined="zero") == pytest.approx(precision[:2].sum() / 3)
    weighted = under_prior(targets, predictions, [1, 2, 5], num_classes=3)
    shares = weighted.per_class("precision")
    assert weighted.average("precision", "weighted") == pytest.approx(
        (shares[0] + 2 * shares[1]) / 3
    )
    assert weighted.average("precision", "weighted", undefined="zero") == pytest.approx(
        (shares[0] + 2 * shares[1]) / 8
    )
    # All weight on one class: nothing else to tell it from.
    alone = under_prior(targets, predictions, [0, 1, 0], num_classes=3)
    assert alone.accuracy == 1.0
    assert np.isnan(alone.per_class("specificity")).tolist() == [False, True, False]
    assert math.isnan(alone.mcc)
    assert math.isnan(alone.kappa)
    assert alone.average("recall") == pytest.approx(0.5)
    assert alone.average("precision", "weighted") == 1.0
    # A class that is never predicted alone has weight: no precision has any.
    hidden = under_prior(np.array([0, 1]), np.array([1, 1]), [1, 0], num_classes=2)
    assert math.isnan(hidden.average("precision", "weighted"))


def test_a_class_without_examples_may_have_no_weight() -> None:
    targets, predictions = np.array([0, 0, 1]), np.array([0, 2, 1])
    found = under_prior(targets, predictions, [1, 1, 0], num_classes=3)
    assert found.accuracy == pytest.approx(0.75)
    np.testing.assert_array_equal(found.per_class("recall"), [0.5, 1.0, np.nan])
    assert found.average("recall") == 0.75
    assert found.per_class("precision").tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(DataError, match="none of class 2; give it weight 0"):
        under_prior(targets, predictions, [1, 1, 1], num_classes=3)


@given(st.integers(2, 300), st.floats(1, 1e6))
def test_geometric_prior(num_classes: int, ratio: float) -> None:
    prior = geometric_prior(num_classes, ratio)
    assert prior.sum() == pytest.approx(1)
    assert prior[0] / prior[-1] == pytest.approx(ratio)
    np.testing.assert_allclose(prior[1:] / prior[:-1], ratio ** (-1 / (num_classes - 1)))


def test_a_prior_is_normalized_whatever_its_scale() -> None:
    targets, predictions = np.array([0, 1, 1]), np.array([0, 0, 1])
    plain = under_prior(targets, predictions, [0.75, 0.25], num_classes=2)
    for scale in (1e-300, 3.0, 1.7e308):
        other = under_prior(targets, predictions, [scale, scale / 3], num_classes=2)
        np.testing.assert_allclose(other.prior, plain.prior, rtol=1e-12)


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        ([0.5, -0.5], r"found -0\.5 for class 1"),
        ([0.5, math.nan], "found nan for class 1"),
        ([math.inf, 1], "found inf for class 0"),
        ([0, 0], "found only 0"),
        ([1, 1, 1], r"expected 2 numbers, found shape \(3,\)"),
        (1.0, r"expected 2 numbers, found shape \(\)"),
    ],
)
def test_faulty_priors(prior: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        under_prior(np.array([0, 1]), np.array([0, 1]), prior, num_classes=2)


@pytest.mark.parametrize(
    ("targets", "predictions", "words"),
    [
        # Counted from 1: other packages give numbers for it that mean nothing.
        ([1, 2], [1, 2], r"targets \[1\]: expected a class from 0 to 1, found 2"),
        ([0, 1], [0, -1], r"predictions \[1\]: expected a class from 0 to 1, found -1"),
        ([0, 1], [0], "one for each of 2 targets, found 1"),
        ([], [], r"targets: expected a list of whole class numbers, found shape \(0,\)"),
        ([0.0, 1.0], [0, 1], "targets: .* of float64"),
        ([True, False], [0, 1], "targets: .* of bool"),
        ([[0, 1]], [[0, 1]], r"targets: .* shape \(1, 2\)"),
        ([1, 1], [1, 1], "none of class 0; give it weight 0, or number the classes from 0"),
    ],
)
def test_faulty_labels(targets: Any, predictions: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        under_prior(np.array(targets), np.array(predictions), [1, 1], num_classes=2)


def test_faulty_names_and_ratios() -> None:
    found = reweighted(count_confusion(np.array([0, 1]), np.array([0, 1]), num_classes=2), [1, 1])
    assert found.score("macro_f1") == found.average("f1")
    assert found.score("weighted_f0.5") == found.average("f0.5", "weighted")
    for name, words in (
        ("f1", "found 'f1'"),
        ("macro_f3", "expected one of recall, .* found 'f3'"),
        ("max_recall", "found 'max_recall'"),
    ):
        with pytest.raises(ConfigError, match=words):
            found.score(name)
    with pytest.raises(ConfigError, match="average"):
        found.average("f1", "samples")  # type: ignore[arg-type]
    for ratio in (0.5, math.nan, math.inf):
        with pytest.raises(ConfigError, match=f"at least 1, found {ratio}"):
            geometric_prior(3, ratio)
    with pytest.raises(ConfigError, match="at least 2, found 1"):
        geometric_prior(1, 2.0)
