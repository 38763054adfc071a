import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import average_precision_score
from worked_cases import CASES, EXPECTED, expected_values, federated

from fedsim.errors import ConfigError, DataError
from fedsim.metrics import average_precision, binned, exact
from fedsim.streams import numpy_stream

DTYPES = [np.float16, np.float32, np.float64, np.longdouble]


def by_definition(targets, scores, thresholds, above):
    """AP of one class, threshold by threshold, straight from precision and recall."""
    previous_recall, total = 0.0, 0.0
    for threshold in sorted(thresholds, reverse=True):
        selected = scores > threshold if above else scores >= threshold
        hits = float((targets & selected).sum())
        recall = hits / targets.sum() if targets.any() else 0.0
        if selected.any():
            total += (recall - previous_recall) * hits / selected.sum()
        previous_recall = recall
    return total


def columns(targets, scores):
    return zip(targets.T, scores.T, strict=True)


def apple_thresholds(count, dtype):
    """The grid, each number rounded to the dtype that it is compared in."""
    inner = [dtype(i / (count - 1)) for i in range(1, count - 1)]
    return [dtype(-1e-7), *inner, dtype(1 + 1e-7)]


@st.composite
def labelled(draw, values, max_rows=12, max_columns=4):
    shape = draw(st.tuples(st.integers(1, max_rows), st.integers(1, max_columns)))
    targets = draw(hnp.arrays(np.bool_, shape))
    return targets, draw(hnp.arrays(np.float64, shape, elements=values))


TIED = st.sampled_from([-3.5, -1.0, -0.0, 0.0, 0.25, 1.0, 7.0])
EVERY_FLOAT = st.floats(-1e4, 1e4)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("method", "num_thresholds", "tools"),
    [
        ("exact", 200, ["sklearn exact ", "torchmetrics thr=None"]),
        ("binned", 200, ["torchmetrics thr=200", "pfl-research T=200"]),
        ("binned", 100, ["torchmetrics thr=100"]),
    ],
)
def test_worked_cases(case, method, num_thresholds, tools):
    for tool in tools:
        for average, name in [(None, "per class"), ("macro", "macro"), ("micro", "micro")]:
            value = average_precision(
                *CASES[case],
                average=average,
                method=method,
                num_thresholds=num_thresholds,
                empty_class="zero",
            )
            assert value == pytest.approx(expected_values(case)[f"{tool} {name}"], abs=5e-7)


@pytest.mark.parametrize("case", CASES)
def test_worked_cases_under_the_names_of_other_tools(case):
    targets, scores = CASES[case]
    zero = {"empty_class": "zero"}
    exact_classes = average_precision(targets, scores, average=None, **zero)
    binned = {"method": "binned", **zero}
    values = {
        "torcheval exact per class": exact_classes,
        "torcheval exact macro": exact_classes.mean(),
        "torcheval exact micro(ravel)": average_precision(targets, scores, average="micro", **zero),
        "torcheval binned100 per class": average_precision(
            targets, scores, average=None, num_thresholds=100, **binned
        ),
        "torcheval binned100 macro": average_precision(
            targets, scores, num_thresholds=100, **binned
        ),
        "torcheval binned200 macro": average_precision(targets, scores, **binned),
        "ml-flair (keras AUC vars) per class": average_precision(
            targets, scores, average=None, **binned
        ),
        "ml-flair macro": average_precision(targets, scores, **binned),
        "ml-flair micro": average_precision(targets, scores, average="micro", **binned),
        "sklearn samples": average_precision(targets.T, scores.T, **zero),
        "sklearn weighted": (exact_classes * targets.sum(0)).sum() / max(1, targets.sum()),
    }
    for name, value in values.items():
        assert value == pytest.approx(expected_values(case)[name], abs=5e-7), name


def test_federated_case():
    targets, scores, users = federated()
    expected = EXPECTED["fed"]
    values = {
        "sk_macro": average_precision(targets, scores),
        "sk_micro": average_precision(targets, scores, average="micro"),
        "pooled_bin200_macro": average_precision(targets, scores, method="binned"),
        "bin200_micro": average_precision(targets, scores, average="micro", method="binned"),
        # What averaging over users gives instead of pooling: another, much lower number.
        "weighted_mean_of_user_macro": sum(
            (users == user).mean()
            * average_precision(
                targets[users == user],
                scores[users == user],
                method="binned",
                empty_class="zero",
            )
            for user in np.unique(users)
        ),
    }
    for name, value in values.items():
        assert value == pytest.approx(expected[name], abs=1e-12), name


@given(st.one_of(labelled(TIED), labelled(EVERY_FLOAT)), st.sampled_from(DTYPES))
@settings(max_examples=100, deadline=None)
def test_exact_is_the_definition_and_scikit_learn(case, dtype):
    targets, scores = case[0], case[1].astype(dtype)
    values = average_precision(targets, scores, average=None, empty_class="zero")
    slow = [by_definition(t, s, np.unique(s), above=False) for t, s in columns(targets, scores)]
    np.testing.assert_allclose(values, slow, atol=1e-14)
    pooled = average_precision(targets, scores, average="micro", empty_class="zero")
    flat_targets, flat = targets.ravel(), scores.ravel()
    assert pooled == pytest.approx(
        by_definition(flat_targets, flat, np.unique(flat), above=False), abs=1e-14
    )
    if dtype is not np.longdouble:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a class without positives
            theirs = [average_precision_score(t, s) for t, s in columns(targets, scores)]
            assert pooled == pytest.approx(average_precision_score(flat_targets, flat), abs=1e-14)
        np.testing.assert_allclose(values, theirs, atol=1e-14)
    assert average_precision(targets, scores, empty_class="zero") == pytest.approx(np.mean(slow))


@st.composite
def near_thresholds(draw):
    """Probabilities on thresholds and one step of their dtype beside them."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    count = draw(st.sampled_from([2, 3, 7, 50, 200]))
    step = st.sampled_from([-1, 0, 1])

    def near(k, direction):
        value = dtype(k / (count - 1))
        return np.clip(np.nextafter(value, dtype(direction)) if direction else value, 0, 1)

    value = st.builds(near, st.integers(0, count - 1), step)
    value = st.one_of(value, st.floats(0, 1, width=32).map(dtype))
    targets = draw(hnp.arrays(np.bool_, st.tuples(st.integers(1, 8), st.integers(1, 2))))
    scores = np.array([draw(value) for _ in range(targets.size)], dtype=dtype)
    return targets, scores.reshape(targets.shape), count


@given(near_thresholds())
@settings(max_examples=100, deadline=None)
def test_binned_is_the_definition(case):
    targets, scores, count = case
    thresholds = apple_thresholds(count, scores.dtype.type)
    settings_ = {"method": "binned", "num_thresholds": count, "empty_class": "zero"}
    slow = [by_definition(t, s, thresholds, above=True) for t, s in columns(targets, scores)]
    values = average_precision(targets, scores, average=None, **settings_)
    np.testing.assert_allclose(values, slow, atol=1e-14)
    pooled = average_precision(targets, scores, average="micro", **settings_)
    slow_pooled = by_definition(targets.ravel(), scores.ravel(), thresholds, above=True)
    assert pooled == pytest.approx(slow_pooled, abs=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("count", [2, 3, 50, 200, 1000, 1001, 4096, 9973, 100_000])
def test_every_threshold_and_its_neighbours_fall_into_the_right_bucket(dtype, count):
    grid = binned.threshold_grid(count, dtype)
    on = grid[1:-1]
    beside = [np.nextafter(on, dtype(0)), on, np.nextafter(on, dtype(1)), np.array([0, 1], dtype)]
    scores = np.concatenate(beside)
    found = binned._buckets(scores, grid)
    np.testing.assert_array_equal(found, np.searchsorted(on, scores, side="left"))


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble])
def test_binned_of_other_dtypes(dtype):
    rng = numpy_stream(0, "test")
    targets, scores = rng.random((300, 2)) < 0.3, rng.random((300, 2)).astype(dtype)
    scores[:3] = [[0, 1], [1, 0], [0.5, 0.5]]
    wide = scores.astype(np.float32) if dtype is np.float16 else scores
    thresholds = apple_thresholds(200, wide.dtype.type)
    slow = [by_definition(t, s, thresholds, above=True) for t, s in columns(targets, wide)]
    values = average_precision(targets, scores, average=None, method="binned")
    np.testing.assert_allclose(values, slow, atol=1e-14)


def test_published_bins_differ_from_exact_where_scores_are_small():
    targets = np.array([[True], [False], [False], [False]])
    scores = np.array([[0.004], [0.003], [0.002], [0.001]])
    assert average_precision(targets, scores) == 1
    assert average_precision(targets, scores, method="binned") == 0.25


@pytest.fixture
def many():
    """Scores with ties, classes with no, few and many positives."""
    rng = numpy_stream(0, "test")
    frequency = np.array([0, 0.002, 0.01, 0.1, 0.3, 0.5, 0.001] * 10)
    targets = rng.random((2000, len(frequency))) < frequency
    scores = rng.standard_normal(targets.shape).astype(np.float32) + targets
    return targets, np.round(scores, 3)


@pytest.mark.parametrize(
    ("block_scores", "block_classes", "few_cuts"),
    [(1, 1, 0), (999, 3, 5), (2**14, 7, 10**6), (2**30, 1000, 0)],
)
def test_bits_do_not_depend_on_blocks(many, monkeypatch, block_scores, block_classes, few_cuts):
    before = average_precision(*many, average=None), average_precision(*many, average="micro")
    monkeypatch.setattr(exact, "BLOCK_SCORES", block_scores)
    monkeypatch.setattr(exact, "BLOCK_CLASSES", block_classes)
    monkeypatch.setattr(exact, "FEW_CUTS", few_cuts)
    np.testing.assert_array_equal(average_precision(*many, average=None), before[0])
    assert average_precision(*many, average="micro") == before[1]


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_a_radix_sort_counts_the_same(many, monkeypatch, average):
    targets, scores = many[0], np.concatenate([np.tile([-0.0, 0.0], 500), many[1][1000:, 0]])
    scores = np.stack([scores, many[1][:, 1], np.float32(1e37) * many[1][:, 2]], axis=1)
    targets, scores = targets[:, 3:6].copy(), scores.astype(np.float32)
    targets[:1000:2, 0] = False  # of equal zeros only positive ones are searched for
    sorted_as_floats = average_precision(targets, scores.astype(np.float64), average=average)
    monkeypatch.setattr(exact, "RADIX_FROM", 0)
    monkeypatch.setattr(exact, "FEW_CUTS", 0)
    monkeypatch.setattr(exact, "radix_is_faster", lambda: True)
    assert average_precision(targets, scores, average=average) == sorted_as_floats


@pytest.mark.parametrize("method", ["exact", "binned"])
@pytest.mark.parametrize("average", ["macro", "micro"])
def test_bits_depend_only_on_the_multiset_of_pairs(many, method, average):
    targets, scores = many[0], 1 / (1 + np.exp(-many[1]))
    whole = average_precision(targets, scores, average=average, method=method)
    order = numpy_stream(1, "test").permutation(len(targets))
    batches = np.array_split(order, 7)[::-1]
    rejoined = [np.concatenate([array[b] for b in batches]) for array in (targets, scores)]
    assert average_precision(*rejoined, average=average, method=method) == whole


def test_logits_and_memory_orders_and_label_types(many):
    targets, scores = many
    macro = average_precision(targets, scores)
    micro = average_precision(targets, scores, average="micro")
    variants = [
        (targets, scores * 4),  # exact in floats: the same order
        (np.asfortranarray(targets), np.asfortranarray(scores)),
        (targets.astype(np.int64), scores.astype(np.float64)),
        (targets.astype(np.uint8), scores),
        (targets.astype(np.float32), scores),
        (np.repeat(targets, 2, axis=1)[:, ::2], np.repeat(scores, 2, axis=1)[:, ::2]),
    ]
    for variant in variants:
        assert average_precision(*variant) == macro
        assert average_precision(*variant, average="micro") == micro


@pytest.mark.parametrize("shape", [(50, 1), (1, 50), (50, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_inputs_are_left_alone(shape, order):
    rng = numpy_stream(2, "test")
    targets = np.asarray(rng.random(shape) < 0.5, order=order)
    scores = np.asarray(rng.random(shape), order=order)
    copies = targets.copy(), scores.copy()
    for average in ("macro", "micro", None):
        for method in ("exact", "binned"):
            average_precision(targets, scores, average=average, method=method)
    np.testing.assert_array_equal(targets, copies[0])
    np.testing.assert_array_equal(scores, copies[1])


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(exact, "BLOCK_SCORES", 2**15)
    rng = numpy_stream(3, "test")
    scores = rng.random((2000, 1000), dtype=np.float32)  # 8 MB
    targets = (rng.random(scores.shape, dtype=np.float32) < 0.001).view(np.uint8)
    for average in ("macro", "micro"):
        tracemalloc.start()
        average_precision(targets, scores, average=average)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1e6


def test_undefined_values():
    targets, scores = np.zeros((3, 2), dtype=bool), np.ones((3, 2))
    for method in ("exact", "binned"):
        for average in ("macro", "micro"):
            kept = average_precision(targets, scores, average=average, method=method)
            assert np.isnan(kept)
            zero = average_precision(
                targets, scores, average=average, method=method, empty_class="zero"
            )
            assert zero == 0
        assert np.isnan(average_precision(targets, scores, average=None, method=method)).all()
        assert np.isnan(average_precision(targets[:, :0], scores[:, :0], method=method))
        assert np.isnan(average_precision(targets[:0], scores[:0], average="micro", method=method))


def bad(value, row=2, column=1, dtype=np.float64):
    array = np.full((4, 2), 0.5, dtype=dtype)
    array[row, column] = value
    return array


GOOD_TARGETS, GOOD_SCORES = np.ones((4, 2), dtype=bool), np.full((4, 2), 0.5)


@pytest.mark.parametrize(
    ("targets", "scores", "message"),
    [
        (
            GOOD_TARGETS,
            bad(np.nan),
            r"scores \[row 2, class 1\]: expected a finite .* found nan",
        ),
        (GOOD_TARGETS, bad(np.inf), r"\[row 2, class 1\]: .* found inf"),
        (GOOD_TARGETS, bad(-np.inf, 0, 1, np.float16), r"\[row 0, class 1\]: .* found -inf"),
        (GOOD_TARGETS, GOOD_SCORES[:3], r"expected the targets' shape \(4, 2\), found \(3, 2\)"),
        (GOOD_TARGETS[:, 0], GOOD_SCORES[:, 0], r"targets: expected two dimensions .* \(4,\)"),
        (GOOD_TARGETS, GOOD_SCORES[:, 0], r"scores: expected two dimensions"),
        (GOOD_TARGETS, np.ones((4, 2), dtype=int), "scores: expected floats, found dtype int64"),
        (
            bad(2, dtype=np.uint8),
            GOOD_SCORES,
            r"targets \[row 2, class 1\]: .* found 2",
        ),
        (bad(-1, dtype=np.int8), GOOD_SCORES, r"found -1"),
        (bad(0.5), GOOD_SCORES, r"targets \[row 0, class 0\]: expected 0 or 1, found 0.5"),
        (GOOD_TARGETS.astype(str), GOOD_SCORES, "targets: expected entries 0 or 1, found dtype"),
    ],
)
@pytest.mark.parametrize("method", ["exact", "binned"])
def test_refuses_unusable_arrays(targets, scores, message, method):
    with pytest.raises(DataError, match=message):
        average_precision(targets, scores, method=method)


@pytest.mark.parametrize("value", [-0.001, 1.001])
def test_binned_needs_probabilities(value):
    average_precision(GOOD_TARGETS, bad(value))
    with pytest.raises(DataError, match=r"scores \[row 2, class 1\]: .* number in \[0, 1\]"):
        average_precision(GOOD_TARGETS, bad(value), method="binned")


@pytest.mark.parametrize(
    "setting",
    [
        {"average": "weighted"},
        {"method": "trapezoid"},
        {"empty_class": "one"},
        {"method": "binned", "num_thresholds": 1},
    ],
)
def test_refuses_unknown_settings(setting):
    with pytest.raises(ConfigError, match=f"{list(setting)[-1]}: expected"):
        average_precision(GOOD_TARGETS, GOOD_SCORES, **setting)
