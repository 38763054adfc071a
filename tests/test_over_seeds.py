import numpy as np
import pytest
import scipy.stats

from fedsim.over_seeds import difference_over_seeds, over_seeds
from fedsim.streams import numpy_stream


def drawn(num_seeds, first=0, purpose="a"):
    values = numpy_stream(num_seeds, "over seeds", purpose).normal(0.3, 0.05, num_seeds)
    return {first + i: float(value) for i, value in enumerate(values)}


def test_a_closed_form():
    found = over_seeds({3: 0.1, 4: 0.3})
    assert (found.mean, found.deviation) == pytest.approx((0.2, np.sqrt(0.02)))
    # With one degree of freedom Student's law is Cauchy's: its quantile is a tangent.
    half = np.tan(np.pi * 0.475) * 0.1
    assert found.interval == pytest.approx((0.2 - half, 0.2 + half))


@pytest.mark.parametrize("num_seeds", [2, 3, 10])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_intervals_are_scipy_s(num_seeds, confidence):
    ours, theirs = drawn(num_seeds), drawn(num_seeds, purpose="b")
    a, b = np.array(list(ours.values())), np.array(list(theirs.values()))
    expected = scipy.stats.ttest_1samp(a, 0).confidence_interval(confidence)
    assert over_seeds(ours, confidence).interval == pytest.approx(tuple(expected), rel=1e-9)
    paired = difference_over_seeds(ours, dict(reversed(theirs.items())), confidence)
    expected = scipy.stats.ttest_rel(a, b).confidence_interval(confidence)
    assert paired.method == "paired by seed"
    assert paired.value == pytest.approx((a - b).mean())
    assert paired.interval == pytest.approx(tuple(expected), rel=1e-9)
    more = drawn(num_seeds + 2, purpose="b")
    welch = difference_over_seeds(ours, more, confidence)
    test = scipy.stats.ttest_ind(a, list(more.values()), equal_var=False)
    expected = test.confidence_interval(confidence)
    assert welch.method == "Welch"
    assert welch.interval == pytest.approx(tuple(expected), rel=1e-9)


def test_one_seed_leaves_the_noise_unknown():
    assert over_seeds({0: 0.5}).interval is None
    same, other = (
        difference_over_seeds({0: 0.5}, {0: 0.25}),
        difference_over_seeds({0: 0.5}, {1: 0.25, 2: 0.25}),
    )
    assert (same.value, same.interval, same.method) == (0.25, None, "paired by seed")
    assert (other.value, other.interval, other.method) == (0.25, None, "Welch")


def test_seeds_without_spread_have_intervals_without_width():
    found = difference_over_seeds({0: 0.5, 1: 0.5}, {2: 0.25, 3: 0.25, 4: 0.25})
    assert found.interval == (0.25, 0.25)
    assert over_seeds({0: 0.5, 1: 0.5}).interval == (0.5, 0.5)


@pytest.mark.parametrize("shared", [0.0, 0.9])
@pytest.mark.parametrize("first", [0, 100])  # 100: other seeds, so that nothing is shared
def test_equal_settings_are_called_so_nineteen_times_in_twenty(shared, first):
    rng = numpy_stream(0, "equal settings")
    of_seed = np.sqrt(shared) if first == 0 else 0.0
    held = 0
    for _ in range(1000):
        luck = of_seed * rng.standard_normal(4)
        one, other = luck + np.sqrt(1 - of_seed**2) * rng.standard_normal((2, 4))
        interval = difference_over_seeds(
            dict(enumerate(one.tolist())), dict(enumerate(other.tolist(), start=first))
        ).interval
        held += interval[0] <= 0 <= interval[1]
    assert 930 <= held <= 970
