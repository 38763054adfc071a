from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.errors import ConfigError, DataError
from fedsim.metrics import average_precision, bootstrap_by_user
from fedsim.metrics import bootstrap as module
from fedsim.metrics.bootstrap import (
    Resampled,
    basic_interval,
    percentile_interval,
    resample_users,
)
from fedsim.streams import numpy_stream


def scored(num_examples=60, num_classes=4, num_users=12, decimals=1):
    rng = numpy_stream(0, "test")
    users = rng.integers(0, num_users, num_examples)
    targets = rng.random((num_examples, num_classes)) < [0.4, 0.2, 0.05, 0.0]
    scores = (rng.standard_normal(targets.shape) + targets).round(decimals)  # with ties
    return targets, scores, np.array([f"user{u:02}" for u in users])


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12))
@settings(max_examples=60, deadline=None)
def test_weights_are_repetitions(multiplicities):
    targets, scores, users = scored()
    numbers = np.unique(users, return_inverse=True)[1]
    weights = np.array(multiplicities)[numbers]
    found = module._average_precisions(targets, scores, numbers, np.array([multiplicities]))
    repeated = np.repeat(targets, weights, axis=0), np.repeat(scores, weights, axis=0)
    for average in ("micro", "macro"):
        expected = average_precision(*repeated, average=average)
        np.testing.assert_allclose(found[f"{average}_ap"], [expected], rtol=1e-13)


def test_values_are_those_of_resampled_users_one_by_one():
    targets, scores, users = scored()
    rows_of = [np.flatnonzero(users == user) for user in np.unique(users)]
    counts = numpy_stream(7, "bootstrap").multinomial(12, [1 / 12] * 12, size=50)
    found = resample_users(targets, scores, users, num_resamples=50, seed=7)
    assert list(found) == ["micro_ap", "macro_ap"]
    for average in ("micro", "macro"):
        expected = []
        for draw in counts:
            rows = np.concatenate([np.tile(rows_of[u], n) for u, n in enumerate(draw)])
            expected.append(average_precision(targets[rows], scores[rows], average=average))
        resampled = found[f"{average}_ap"]
        np.testing.assert_allclose(resampled.resamples, expected, rtol=1e-12)
        value = average_precision(targets, scores, average=average)
        assert resampled.value == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "method", "interval"),
    [("micro_ap", "percentile", percentile_interval), ("macro_ap", "basic", basic_interval)],
)
def test_intervals_are_scipy_s(name, method, interval):
    targets, scores, users = scored()
    rows_of = [np.flatnonzero(users == user) for user in np.unique(users)]

    def of_users(drawn):
        rows = np.concatenate([rows_of[int(u)] for u in drawn])
        return average_precision(targets[rows], scores[rows], average=name.removesuffix("_ap"))

    drawn = resample_users(targets, scores, users, num_resamples=60, seed=7)[name].resamples
    expected = scipy.stats.bootstrap(
        (np.arange(12),),
        of_users,
        n_resamples=0,
        bootstrap_result=SimpleNamespace(bootstrap_distribution=drawn),
        vectorized=False,
        confidence_level=0.9,
        method=method,
    ).confidence_interval
    found = bootstrap_by_user(targets, scores, users, num_resamples=60, seed=7, confidence=0.9)
    assert found[name] == pytest.approx(tuple(expected), rel=1e-12)
    alone = resample_users(targets, scores, users, num_resamples=60, seed=7)[name]
    assert interval(alone, 0.9) == found[name]


def test_basic_intervals_stay_between_0_and_1():
    assert basic_interval(Resampled(0.9, np.full(9, 0.5))) == (1.0, 1.0)
    assert basic_interval(Resampled(0.1, np.full(9, 0.5))) == (0.0, 0.0)


FREQUENCIES = [0.008, 0.01, 0.02, 0.02, 0.05, 0.1, 0.3]


def drawn_users(rng, num_users):
    """Users of one to many images, each with tastes of their own; rare and frequent classes."""
    sizes = np.minimum(1 + rng.lognormal(0.5, 1.1, num_users).astype(int), 60)
    users = np.repeat(np.arange(num_users), sizes)
    taste = rng.gamma(0.3, 1 / 0.3, (num_users, len(FREQUENCIES)))
    targets = rng.random((len(users), len(FREQUENCIES))) < (FREQUENCIES * taste)[users]
    of_user = 0.7 * rng.standard_normal(taste.shape)
    return targets, rng.standard_normal(targets.shape) + of_user[users] + targets, users


def test_macro_intervals_hold_the_value_of_many_users_more_often_than_percentiles():
    rng = numpy_stream(0, "coverage")
    targets, scores, _ = drawn_users(rng, 20_000)
    truth = average_precision(targets, scores)
    held = {percentile_interval: 0, basic_interval: 0}
    for _ in range(100):
        found = resample_users(*drawn_users(rng, 91), num_resamples=200, seed=0)["macro_ap"]
        for interval in held:
            low, high = interval(found)
            held[interval] += low <= truth <= high
    assert held[basic_interval] >= 80
    assert held[percentile_interval] <= held[basic_interval] - 20


def test_resamples_are_of_users_not_of_examples():
    # All users alike: whoever is drawn, the value is the same, which it is not over examples.
    targets, scores = np.array([[1], [0], [1]] * 5), np.array([[0.9], [0.5], [0.1]] * 5)
    users = np.repeat(np.arange(5), 3)
    value = average_precision(targets, scores)
    found = bootstrap_by_user(targets, scores, users, num_resamples=30, seed=0)["macro_ap"]
    assert found == pytest.approx((value, value), rel=1e-12)
    low, high = bootstrap_by_user(targets, scores, np.arange(15), num_resamples=30, seed=0)[
        "macro_ap"
    ]
    assert high - low > 0.1


def test_seeded_and_free_of_example_order_blocks_and_global_state(monkeypatch):
    targets, scores, users = scored(decimals=6)
    first = bootstrap_by_user(targets, scores, users, num_resamples=40, seed=1)
    order = numpy_stream(0, "order").permutation(len(users))
    again = bootstrap_by_user(targets[order], scores[order], users[order], num_resamples=40, seed=1)
    assert again == first
    monkeypatch.setattr(module, "_IN_CACHE", 7)
    monkeypatch.setattr(module, "_IN_MEMORY", 7)
    assert bootstrap_by_user(targets, scores, users, num_resamples=40, seed=1) == first
    assert bootstrap_by_user(targets, scores, users, num_resamples=40, seed=2) != first


def test_a_single_user_is_always_the_same():
    targets, scores, users = scored(num_users=1)
    found = bootstrap_by_user(targets, scores, users, num_resamples=9, seed=0)
    for average in ("micro", "macro"):
        value = average_precision(targets, scores, average=average)
        assert found[f"{average}_ap"] == pytest.approx((value, value), rel=1e-12)


def test_no_positive_is_undefined():
    targets, scores, users = scored()
    found = bootstrap_by_user(targets & False, scores, users, num_resamples=5, seed=0)
    assert np.isnan(list(found.values())).all()


def test_resamples_without_positives_are_left_out():
    targets, scores = np.array([[1], [0]]), np.array([[0.1], [0.9]])
    found = bootstrap_by_user(targets, scores, np.array([0, 1]), num_resamples=50, seed=0)
    assert found["micro_ap"] == (0.5, 1.0)  # both drawn once; the positive's user drawn twice
    assert found["macro_ap"] == (0.0, 0.5)  # the same, reflected at 0.5


@pytest.mark.parametrize(
    ("error", "change", "message"),
    [
        (ConfigError, {"num_resamples": 0}, "num_resamples: expected at least 1, found 0"),
        (ConfigError, {"confidence": 1.0}, "confidence: expected a number between 0 and 1"),
        (DataError, {"user_of_example": np.arange(3)}, r"for each of 60 examples.*shape \(3,\)"),
    ],
)
def test_refusals(error, change, message):
    targets, scores, users = scored()
    arguments = {"user_of_example": users, "num_resamples": 5, "seed": 0} | change
    with pytest.raises(error, match=message):
        bootstrap_by_user(targets, scores, **arguments)


def test_refuses_no_examples():
    targets, scores, users = scored()
    with pytest.raises(DataError, match="at least one"):
        bootstrap_by_user(targets[:0], scores[:0], users[:0], num_resamples=5, seed=0)
