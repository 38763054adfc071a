"""Crossings of accuracies, beside the roots of a polynomial and by construction."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.class_prior import count_confusion, geometric_prior
from fedsim.evaluation.prior_sweep import accuracy_crossings, crossings, sweep_ratios

CASES = Path(__file__).parent / "cases"
PRINTED = json.loads((CASES / "cifar10lt_seed" / "seed_printed.json").read_text())
HITS = {
    model: np.array(hits) for model, hits in PRINTED["test_true_positives_of_1000_seed0"].items()
}

Floats = npt.NDArray[np.float64]


def confusion(hits: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Class k is right hits[k] times out of size, and taken for class k + 1 otherwise."""
    classes = np.arange(len(hits))
    matrix = np.diag(hits)
    matrix[classes, (classes + 1) % len(hits)] = size - hits
    return matrix


def by_roots(first: Floats, second: Floats, max_ratio: float) -> Floats:
    """Sum over k of x^k (first - second)[k] = 0 with x = ratio^(-1 / (classes - 1))."""
    roots = np.roots((first - second)[::-1])
    real = roots.real[(abs(roots.imag) < 1e-9) & (roots.real > 0)]
    ratios: Floats = np.sort(real ** -(len(first) - 1.0))
    return ratios[(ratios > 1 + 1e-9) & (ratios < max_ratio)]


def test_the_printed_accuracies_of_seed_0() -> None:
    for model, hits in HITS.items():
        expected = PRINTED["derived_exact"]["accuracy_seed0_geometric_prior"]
        ratios = [float(ratio) for ratio in expected]
        sweep = sweep_ratios({model: [confusion(hits, 1000)]}, ratios)
        printed = [values[model] for values in expected.values()]
        assert sweep.mean(model).tolist() == pytest.approx(printed, abs=1e-12)
        recall = sweep_ratios({model: [confusion(hits, 1000)]}, ratios, "macro_recall")
        assert recall.mean(model) == pytest.approx([hits.sum() / 10_000] * len(ratios), abs=1e-12)


def test_seed_0_has_no_crossing() -> None:
    ratios = np.geomspace(1, 100, 25)
    sweep = sweep_ratios({m: [confusion(hits, 1000)] for m, hits in HITS.items()}, ratios)
    assert crossings(ratios, sweep.mean("ce"), sweep.mean("logit_adj")) == []
    assert accuracy_crossings(HITS["ce"] / 1000, HITS["logit_adj"] / 1000, 100.0) == []


def test_crossing_of_the_digits() -> None:
    stored = np.load(CASES / "digits_lt" / "predictions.npz")
    expected = json.loads((CASES / "digits_lt" / "expected.json").read_text())
    confusions = {
        model: [
            count_confusion(stored["y_test"], predictions, num_classes=10)
            for predictions in stored["pred_test"][stored["loss"] == model]
        ]
        for model in ("ce", "logit_adj")
    }
    ratios = np.geomspace(1, 100, 25)
    for score in ("accuracy", "macro_recall", "macro_precision", "macro_specificity"):
        sweep = sweep_ratios(confusions, ratios, score)
        for model in confusions:
            assert sweep.values[model].shape == (5, 25)
            for place, ends in ((0, ("balanced", "_rho1")), (-1, ("rho100", "_rho100"))):
                head = ends[0] if score == "accuracy" else score + ends[1]
                head = score if score == "macro_recall" else head
                found = sweep.mean(model)[place]
                assert found == pytest.approx(expected[model][head], abs=1e-12), (score, place)
    sweep = sweep_ratios(confusions, ratios)
    (found,) = crossings(ratios, sweep.mean("ce"), sweep.mean("logit_adj"))
    assert found == pytest.approx(expected["rho_star"], abs=1e-9)
    assert round(found, 6) == 9.940154
    recalls = [
        np.mean([np.diag(matrix) / matrix.sum(axis=1) for matrix in confusions[model]], axis=0)
        for model in ("ce", "logit_adj")
    ]
    (exact,) = accuracy_crossings(recalls[0], recalls[1], 100.0)
    assert exact == pytest.approx(by_roots(recalls[0], recalls[1], 100.0).item(), rel=1e-9)
    # On a fine grid the straight lines come to the same.
    fine = np.geomspace(1, 100, 1001)
    sweep = sweep_ratios(confusions, fine)
    assert crossings(fine, sweep.mean("ce"), sweep.mean("logit_adj")) == pytest.approx(
        [exact], rel=1e-5
    )


@settings(max_examples=30)
@given(st.lists(st.floats(1.2, 80), max_size=4))
def test_as_many_crossings_as_were_put_there(wanted: list[float]) -> None:
    wanted = sorted(wanted)
    if any(later < 1.1 * earlier for earlier, later in pairwise(wanted)):
        return
    num_classes = 6
    # A polynomial with these roots, and no other sign change, as recalls' differences.
    difference = np.array([1.0])
    for ratio in wanted:
        difference = np.convolve(difference, [-(ratio ** (-1 / (num_classes - 1))), 1.0])
    difference = np.pad(difference, (0, num_classes - len(difference)))
    difference *= 0.4 / abs(difference).max()
    found = accuracy_crossings(0.5 + difference, np.full(num_classes, 0.5), 100.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_equal_points_and_touches() -> None:
    ratios = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    zero = np.zeros(5)

    def of(*difference: float) -> list[float]:
        return [round(ratio, 9) for ratio in crossings(ratios, np.array(difference), zero)]

    assert of(1, 1, 1, 1, 1) == []
    assert of(0, 0, 0, 0, 0) == []
    assert of(1, 0, 1, 1, 1) == []  # touches
    assert of(0, 1, 1, 1, 0) == []  # starts and ends equal
    assert of(3, 0, -1, -1, -1) == [2.0]
    assert of(1, 0, 0, -1, -1) == [round(8**0.5, 9)]
    assert of(1, -1, 1, -1, -3) == [round(2**0.5, 9), round(8**0.5, 9), round(32**0.5, 9)]
    assert of(1e-17, -1, -1, -1, -1) == []  # rounding is no lead
    assert of(3, -1, -1, -1, -1) == [round(2**0.75, 9)]


def test_models_that_are_equal_on_balanced_classes_do_not_cross_there() -> None:
    first, second = np.array([0.1, 0.2, 0.3]), np.array([0.3, 0.2, 0.1])
    assert geometric_prior(3, 1.0) @ (first - second) == pytest.approx(0, abs=1e-15)
    assert accuracy_crossings(first, second, 50.0) == []
    assert accuracy_crossings(first, first, 50.0) == []


def test_faults() -> None:
    matrix = np.array([[1, 0], [0, 1]])
    with pytest.raises(ConfigError, match=r"at least 1, found 0\.5"):
        sweep_ratios({"a": [matrix]}, [0.5])
    with pytest.raises(DataError, match="none of class 1"):
        sweep_ratios({"a": [np.array([[1, 0], [0, 0]])]}, [2])
    with pytest.raises(ConfigError, match=r"max_ratio: expected a number above 1, found 1\.0"):
        accuracy_crossings(np.array([1.0, 0]), np.array([0.0, 1]), 1.0)
