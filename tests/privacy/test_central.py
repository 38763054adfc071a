"""The central mechanism: adaptive clipping, the shared budget, and what a round reports."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedsim.errors import PrivacyError
from fedsim.privacy.accounting import GaussianRounds, epsilon
from fedsim.privacy.central import AdaptiveClipping, CentralGaussian
from fedsim.secret import Secret


def adaptive(noise_multiplier: float = 0.0, **changes) -> CentralGaussian:
    given = {
        "clipping_norm": 1.0,
        "noise_multiplier": noise_multiplier,
        "cohort_size": 10,
        "noise_cohort_size": 10,
        "seed": 3,
        "adaptive": AdaptiveClipping(quantile=0.5),
    }
    return CentralGaussian(**(given | changes))


def zeros() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(4)}


def test_the_norm_falls_when_nobody_is_clipped_and_grows_when_everybody_is() -> None:
    """Andrew et al. 2021 with eta = 0.2 and gamma = 0.5; the other sign runs away."""
    mechanism = adaptive()
    mechanism.release(zeros(), [0.5] * 10, 1)
    assert mechanism.clipping_norm == pytest.approx(0.904837, abs=1e-6)
    mechanism = adaptive()
    mechanism.release(zeros(), [2.0] * 10, 1)
    assert mechanism.clipping_norm == pytest.approx(1.105171, abs=1e-6)


def test_the_norm_finds_the_quantile() -> None:
    norms = np.random.default_rng(0).lognormal(0.0, 1.0, (400, 10))
    mechanism = adaptive(clipping_norm=50.0, adaptive=AdaptiveClipping(quantile=0.8))
    for round_num, row in enumerate(norms, start=1):
        mechanism.release(zeros(), row.tolist(), round_num)
    assert mechanism.clipping_norm == pytest.approx(np.quantile(norms, 0.8), rel=0.25)


def test_an_unclipped_user_is_one_whose_norm_is_at_most_the_bound() -> None:
    mechanism = adaptive()
    figures = mechanism.release(zeros(), [1.0, 1.0, 1.0, math.nextafter(1.0, 2.0)], 1)
    assert figures["diagnostic-clipped-share"] == 0.25
    # Over the public cohort size, users counted as plus or minus a half: (3 - 1) / 2 / 10 + 1/2.
    assert figures["unclipped-share-noised"] == pytest.approx(0.6)


def test_the_budget_is_split_at_the_deployment_s_scale() -> None:
    """The anchor: count noise of 5,000 / 20 turns 17.36 into 17.3705 for the sum."""
    mechanism = adaptive(17.36, clipping_norm=0.1, cohort_size=200, noise_cohort_size=5000)
    assert mechanism.sum_noise_multiplier == pytest.approx(17.3705, abs=5e-5)
    assert mechanism.noise_stddev_sum == pytest.approx(17.3705 * 0.1 * 200 / 5000, rel=1e-5)
    assert mechanism.count_noise_stddev == 10.0  # 250, scaled by 200 / 5,000


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_sum_and_count_together_spend_what_is_claimed(relation) -> None:
    """Two Gaussians of multipliers a and b are one of (a^-2 + b^-2)^(-1/2): as an epsilon."""
    mechanism = adaptive(0.4, relation=relation)
    count_sensitivity = 0.5 if relation == "add_or_remove_one" else 1.0
    a = mechanism.noise_stddev_sum / mechanism.sensitivity
    b = mechanism.count_noise_stddev / count_sensitivity
    both = (a**-2 + b**-2) ** -0.5
    spent = [epsilon(GaussianRounds(s, 7, 10, 10), 1e-5) for s in (both, 0.4)]
    assert spent[0] == pytest.approx(spent[1], rel=1e-9)
    assert a > 0.4


def test_a_count_that_would_spend_everything_is_refused() -> None:
    with pytest.raises(PrivacyError, match="expected a noise multiplier below 1 "):
        adaptive(1.0)
    adaptive(0.99)


def test_the_noise_on_the_count_has_the_claimed_spread() -> None:
    shares = []
    for seed in range(2000):
        mechanism = adaptive(0.5, seed=seed)
        shares.append(mechanism.release(zeros(), [0.5] * 10, 1)["unclipped-share-noised"])
    assert np.mean(shares) == pytest.approx(1.0, abs=4 * 0.05 / math.sqrt(2000))
    assert np.std(shares) == pytest.approx(0.05, rel=0.06)  # 1 / 20


def test_the_noise_of_a_round_uses_the_norm_that_clipped_it() -> None:
    mechanism = adaptive(0.5, clipping_norm=8.0)
    first = {"w": torch.zeros(40_000)}
    mechanism.release(first, [1.0] * 10, 1)
    assert mechanism.clipping_norm < 8.0
    assert float(first["w"].std()) == pytest.approx(mechanism.sum_noise_multiplier * 8.0, rel=0.02)


def test_a_resumed_mechanism_goes_on_with_its_norm() -> None:
    one, two = adaptive(0.5), adaptive(0.5)
    one.release(zeros(), [2.0] * 10, 1)
    two.load_state_dict(one.state_dict())
    assert two.release(zeros(), [2.0] * 10, 2) == one.release(zeros(), [2.0] * 10, 2)


def test_signal_to_noise_and_cosine_are_those_of_the_released_sum() -> None:
    clean = {
        "a": torch.randn(300, 100, generator=torch.Generator().manual_seed(0)),
        "b": torch.ones(7),
    }
    total = {name: tensor.clone() for name, tensor in clean.items()}
    figures = CentralGaussian(2.0, 0.7, 10, 20, 0).release(total, [1.0, 3.0], 1)
    flat = torch.cat([tensor.flatten() for tensor in clean.values()]).double()
    noised = torch.cat([tensor.flatten() for tensor in total.values()]).double()
    cosine = torch.nn.functional.cosine_similarity(flat, noised, dim=0)
    assert figures["diagnostic-cosine-to-clean"] == pytest.approx(float(cosine), abs=1e-6)
    expected_noise = 0.7 * 2.0 * 10 / 20 * math.sqrt(30_007)
    assert figures["diagnostic-signal-to-noise-ratio"] == pytest.approx(
        float(flat.norm()) / expected_noise, rel=1e-6
    )
    assert float((noised - flat).norm()) == pytest.approx(expected_noise, rel=0.02)
    assert figures["diagnostic-clipped-share"] == 0.5


def test_without_noise_nothing_is_drawn_and_the_sum_stays() -> None:
    total = {"w": torch.arange(5.0)}
    figures = CentralGaussian(1.0, 0.0, 10, 10, 0).release(total, [], 1)
    assert torch.equal(total["w"], torch.arange(5.0))
    assert figures["diagnostic-cosine-to-clean"] == 1.0
    assert math.isinf(figures["diagnostic-signal-to-noise-ratio"])
    assert math.isnan(figures["diagnostic-clipped-share"])


def noise_of(mechanism: CentralGaussian, round_num: int) -> dict[str, torch.Tensor]:
    total = {"a": torch.zeros(200, 100), "b": torch.zeros(20_001), "c": torch.zeros(())}
    mechanism.release(total, [1.0], round_num)
    return total


def test_noise_of_a_secret_is_as_large_as_claimed_and_fresh_in_every_array_and_round() -> None:
    mechanism = CentralGaussian(2.0, 0.7, 10, 20, 0, secret=Secret(bytes(32)))
    first, second = noise_of(mechanism, 1), noise_of(mechanism, 2)
    apart = [first["a"].flatten(), first["b"][:20_000], second["a"].flatten()]
    for drawn in apart:
        ratio = (drawn.double() / mechanism.noise_stddev_sum).numpy()
        assert stats.kstest(ratio, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(torch.stack(apart).numpy())[np.triu_indices(3, 1)]).max() < 0.03
    assert all(bool((noise != 0).all()) for noise in first.values())


def test_noise_of_a_secret_is_a_function_of_it_and_not_of_the_seed() -> None:
    secret = Secret(bytes(range(32)))
    one, two, three, four = (
        adaptive(0.5, seed=seed, secret=key)
        for seed, key in ((1, secret), (2, secret), (1, Secret(bytes(32))), (1, None))
    )
    drawn = [noise_of(mechanism, 3) for mechanism in (one, two, three, four)]
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    assert not any(torch.equal(drawn[0][n], other[n]) for other in drawn[2:] for n in drawn[0])
    norms = [mechanism.clipping_norm for mechanism in (one, two, three, four)]
    assert norms[0] == norms[1]  # the noise on the count, too
    assert len(set(norms)) == 3


def test_the_noise_of_a_secret_on_the_count_has_the_claimed_spread() -> None:
    shares = []
    for number in range(2000):
        mechanism = adaptive(0.5, secret=Secret(number.to_bytes(32)))
        shares.append(mechanism.release(zeros(), [0.5] * 10, 1)["unclipped-share-noised"])
    assert np.mean(shares) == pytest.approx(1.0, abs=4 * 0.05 / math.sqrt(2000))
    assert np.std(shares) == pytest.approx(0.05, rel=0.06)  # 1 / 20
