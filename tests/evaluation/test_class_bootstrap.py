"""Intervals by class: the printed ones, an exact distribution, and one large draw."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedsim.errors import ConfigError, DataError
from fedsim.evaluation import class_bootstrap
from fedsim.evaluation.class_bootstrap import bootstrap_by_class

CASES = Path(__file__).parent / "cases"
PRINTED = json.loads((CASES / "cifar10lt_seed" / "seed_printed.json").read_text())["bootstrap"]


def test_the_printed_intervals() -> None:
    right = PRINTED["order_reproducing_the_printed_table"]
    targets = np.concatenate([np.full(len(values), int(k)) for k, values in right.items()])
    rows = bootstrap_by_class(
        targets,
        np.concatenate(list(right.values())),
        [7, 8, 9],
        generator=np.random.default_rng(0),
        num_resamples=2000,
    )
    for row in rows:
        found = [row.num_images, round(row.mean, 3), round(row.low, 3), round(row.high, 3)]
        assert found == PRINTED["printed"][str(row.label)]


def test_all_intervals_of_the_digits() -> None:
    stored = np.load(CASES / "digits_lt" / "predictions.npz")
    expected = json.loads((CASES / "digits_lt" / "expected.json").read_text())
    generator = np.random.default_rng(0)
    validation = stored["y_val"][0]
    rows = bootstrap_by_class(
        validation, stored["pred_val"][0] == validation, [7, 8, 9], generator=generator
    )
    found = [[row.label, row.num_images, row.mean, row.low, row.high] for row in rows]
    np.testing.assert_allclose(found, expected["bootstrap_val_789"], atol=1e-12)
    right = [(stored["pred_test"][run] == stored["y_test"]).astype(float) for run in (0, 5)]
    rows = bootstrap_by_class(stored["y_test"], right[1] - right[0], range(10), generator=generator)
    found = [[row.label, row.mean, row.low, row.high] for row in rows]
    np.testing.assert_allclose(found, expected["bootstrap_diff"], atol=1e-12)
    assert [row.label for row in rows if row.differs] == [1, 3, 8, 9]


def test_a_recall_has_the_binomial_interval() -> None:
    targets = np.zeros(400, dtype=int)
    right = np.arange(400) < 300
    (row,) = bootstrap_by_class(
        targets, right, [0], generator=np.random.default_rng(1), num_resamples=20_000
    )
    exact = stats.binom(400, 0.75).ppf([0.025, 0.975]) / 400
    np.testing.assert_allclose([row.low, row.high], exact, atol=2 / 400)
    (narrow,) = bootstrap_by_class(
        targets,
        right,
        [0],
        generator=np.random.default_rng(1),
        num_resamples=20_000,
        confidence=0.5,
    )
    exact = stats.binom(400, 0.75).ppf([0.25, 0.75]) / 400
    np.testing.assert_allclose([narrow.low, narrow.high], exact, atol=2 / 400)


def test_a_paired_interval_knows_that_the_images_are_the_same() -> None:
    # One model, wrong on half of the images, against itself.
    targets, right = np.zeros(100, dtype=int), np.arange(100) % 2
    (row,) = bootstrap_by_class(
        targets, right - right, [0], generator=np.random.default_rng(0), num_resamples=50
    )
    assert (row.mean, row.low, row.high, row.differs) == (0.0, 0.0, 0.0, False)


@pytest.mark.parametrize("block", [1, 7 * 3, 7 * 1999 + 3])
def test_blocks_draw_what_one_call_would(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    values = np.random.default_rng(5).random(7)
    generator = np.random.default_rng(0)
    whole = [
        values[generator.integers(0, 7, (2001, 7))].mean(axis=1),
        generator.integers(0, 2**40),
    ]
    monkeypatch.setattr(class_bootstrap, "_BLOCK_DRAWS", block)
    generator = np.random.default_rng(0)
    (row,) = bootstrap_by_class(
        np.zeros(7, dtype=int), values, [0], generator=generator, num_resamples=2001
    )
    expected = np.quantile(whole[0], [0.025, 0.975])
    np.testing.assert_allclose([row.low, row.high], expected, rtol=1e-12)
    assert generator.integers(0, 2**40) == whole[1]


def test_faults() -> None:
    targets, right, generator = np.array([0, 1]), np.array([1, 0]), np.random.default_rng(0)
    with pytest.raises(DataError, match="images of class 2, found none"):
        bootstrap_by_class(targets, right, [2], generator=generator)
    with pytest.raises(DataError, match=r"found shapes \(2,\) and \(1,\)"):
        bootstrap_by_class(targets, right[:1], [0], generator=generator)
    with pytest.raises(ConfigError, match="num_resamples: expected at least 1, found 0"):
        bootstrap_by_class(targets, right, [0], generator=generator, num_resamples=0)
    with pytest.raises(ConfigError, match="confidence"):
        bootstrap_by_class(targets, right, [0], generator=generator, confidence=1.0)
