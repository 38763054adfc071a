from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.cohort import CohortSampler, deal
from fedsim.data.dataset import UserTable
from fedsim.errors import ConfigError
from fedsim.secret import Secret

SECRET = Secret(bytes(range(32)))


def table(num_users: int) -> UserTable:
    sizes = np.random.default_rng(1).integers(1, 50, num_users)
    return UserTable(tuple(f"u{i:06d}" for i in range(num_users)), sizes)


@pytest.mark.parametrize("num_users", [400, 20_000])  # two algorithms inside NumPy's choice
@pytest.mark.parametrize("sampling", ["fixed_size", "poisson"])
@pytest.mark.parametrize("secret", [None, SECRET])
def test_every_user_is_as_likely_as_any_other(
    num_users: int, sampling: str, secret: Secret | None
) -> None:
    cohort_size, rounds = 100, 400
    sampler = CohortSampler(table(num_users), cohort_size, sampling, 0, secret=secret)
    counts, sizes = Counter(), []
    for round_num in range(1, rounds + 1):
        drawn = sampler.draw(round_num)
        assert len(set(drawn.tolist())) == len(drawn), "a user twice in one cohort"
        counts.update(drawn.tolist())
        sizes.append(len(drawn))
    expected = rounds * cohort_size / num_users
    deviations = np.array([counts[i] - expected for i in range(num_users)])
    # A sum of squares of binomials: its mean is N * variance, its spread a chi-square's.
    variance = expected * (1 - cohort_size / num_users)
    assert (deviations**2).mean() == pytest.approx(variance, rel=3 * (2 / num_users) ** 0.5)
    if sampling == "fixed_size":
        assert set(sizes) == {cohort_size}
    else:
        q = cohort_size / num_users
        assert np.mean(sizes) == pytest.approx(cohort_size, rel=0.05)
        assert np.var(sizes) == pytest.approx(num_users * q * (1 - q), rel=0.25)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_pairs_are_independent_under_poisson(secret: Secret | None) -> None:
    """The share of rounds that hold both of two users is q^2: cohorts of fixed size have less."""
    sampler = CohortSampler(table(10), 5, "poisson", 0, secret=secret)
    both = [{0, 1} <= set(sampler.draw(r).tolist()) for r in range(4000)]
    assert np.mean(both) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("sampling", ["fixed_size", "poisson"])
def test_with_a_secret_cohorts_are_a_function_of_it_and_not_of_the_seed(sampling: str) -> None:
    users = table(500)
    drawn = CohortSampler(users, 60, sampling, 4, secret=SECRET).draw(7)
    keys = [(-users.num_images[i], users.ids[i]) for i in drawn]
    assert keys == sorted(keys)
    assert (drawn == CohortSampler(users, 60, sampling, 5, secret=SECRET).draw(7)).all()
    for other in (
        CohortSampler(users, 60, sampling, 4).draw(7),
        CohortSampler(users, 60, sampling, 4, secret=SECRET).draw(8),
        CohortSampler(users, 60, sampling, 4, secret=Secret(bytes(32))).draw(7),
    ):
        assert len(set(drawn.tolist()) & set(other.tolist())) < 20  # 7.2 on average


def test_order_and_purity() -> None:
    users = table(500)
    sampler = CohortSampler(users, 60, "fixed_size", seed=4)
    drawn = sampler.draw(7)
    keys = [(-users.num_images[i], users.ids[i]) for i in drawn]
    assert keys == sorted(keys)
    assert (drawn == CohortSampler(users, 60, "fixed_size", seed=4).draw(7)).all()
    assert set(drawn.tolist()) != set(sampler.draw(8).tolist())
    assert set(drawn.tolist()) != set(
        CohortSampler(users, 60, "fixed_size", seed=5).draw(7).tolist()
    )


def test_a_poisson_cohort_may_be_empty() -> None:
    sampler = CohortSampler(table(3), 1, "poisson", seed=0)
    assert {len(sampler.draw(r)) for r in range(60)} >= {0, 1, 2}


@pytest.mark.parametrize("cohort_size", [0, 41])
def test_impossible_cohorts_are_refused(cohort_size: int) -> None:
    with pytest.raises(ConfigError, match=r"federated\.cohort_size: expected 1 to 40"):
        CohortSampler(table(40), cohort_size, "poisson", seed=0)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=80), st.integers(1, 32))
def test_blocks_hold_everybody_once_and_evenly(sizes: list[int], num_blocks: int) -> None:
    sizes = sorted(sizes, reverse=True)
    blocks = deal(np.array(sizes), num_blocks)
    assert sorted(p for block in blocks for p in block) == list(range(len(sizes)))
    assert len(blocks) == min(num_blocks, len(sizes))
    assert all(block and block == sorted(block) for block in blocks)
    loads = [sum(sizes[p] for p in block) for block in blocks]
    # Longest-processing-time scheduling (Graham 1969): at most 4/3 of the optimum.
    optimum = max(sizes[0], sum(sizes) / len(blocks))
    assert max(loads) <= 4 / 3 * optimum + sizes[0]
    assert max(loads) - min(loads) <= sizes[0]
