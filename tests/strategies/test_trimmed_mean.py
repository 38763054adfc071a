import numpy as np
import pytest
from flwr.serverapp import strategy as flower
from made_up_updates import SHAPES, assert_same, flowers, honest, ours
from scipy.stats import trim_mean

from fedsim.errors import ConfigError
from fedsim_strategies.trimmed_mean import TrimmedMean


@pytest.mark.parametrize(("num_users", "trim"), [(1, 0.4), (5, 0.2), (8, 0.3), (11, 0.0)])
def test_it_is_flowers_fedtrimmedavg(num_users: int, trim: float) -> None:
    updates, examples = honest(num_users), list(range(1, num_users + 1))
    found = ours(TrimmedMean(trim=trim), updates, examples)
    assert_same(found, flowers(flower.FedTrimmedAvg(beta=trim), updates, examples))


def test_it_is_scipys_trimmed_mean() -> None:
    updates = honest(9)
    found = ours(TrimmedMean(trim=0.25), updates, [1] * 9)
    for name in SHAPES:
        stacked = np.stack([update[name].double().numpy() for update in updates])
        np.testing.assert_allclose(found[name].numpy(), trim_mean(stacked, 0.25), rtol=1e-6)


def test_a_share_that_is_a_whole_number_of_users_is_that_number() -> None:
    """0.29 of 100 is 28.999999999999996 in floating point, and 28 in Flower and scipy."""
    updates = honest(100)
    found = ours(TrimmedMean(trim=0.29), updates, [1] * 100)
    assert_same(found, ours(TrimmedMean(trim=0.295), updates, [1] * 100), tolerance=0)
    flowers_28 = flowers(flower.FedTrimmedAvg(beta=0.29), updates, [1] * 100)
    assert any((found[name] - flowers_28[name]).abs().max() > 1e-4 for name in SHAPES)


@pytest.mark.parametrize("trim", [-0.1, 0.5])
def test_half_of_the_users_can_not_be_left_out_at_each_end(trim: float) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.trim: .* at least 0 and below 0\.5"):
        TrimmedMean(trim=trim)
