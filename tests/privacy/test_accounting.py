"""Epsilon and noise multipliers against closed forms, exact single rounds and dp_accounting."""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedsim.errors import PrivacyError
from fedsim.privacy.accounting import (
    Accountant,
    EpsilonPerRound,
    GaussianRounds,
    Sampling,
    calibrate_noise_multiplier,
    epsilon,
)
from fedsim.privacy.loss_distribution import PoissonLoss, loss_grid

FLAIR = {"num_rounds": 5000, "cohort_size": 5000, "population_size": 41131}
DELTA = 41131**-1.1
ACCOUNTANTS: list[Accountant] = ["pld", "rdp"]


def flair(sigma: float, sampling: Sampling = "poisson") -> GaussianRounds:
    return GaussianRounds(sigma, sampling=sampling, **FLAIR)


def sampled(sigma: float, rate: float, num_rounds: int) -> GaussianRounds:
    return GaussianRounds(sigma, num_rounds, rate * 10_000, 10_000)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Balle and Wang 2018, theorem 8, solved for epsilon."""

    def excess(eps: float) -> float:
        upper = log_ndtr(1 / (2 * sigma) - eps * sigma)
        lower = eps + log_ndtr(-1 / (2 * sigma) - eps * sigma)
        return float(np.exp(upper) - np.exp(lower)) - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0, 1e6, xtol=1e-12))


def hockey_stick(
    first: Callable[[np.ndarray], np.ndarray],
    second: Callable[[np.ndarray], np.ndarray],
    points: np.ndarray,
    delta: float,
) -> float:
    """The exact epsilon of one release with two given output densities, both ways round."""
    step = points[1] - points[0]
    p, q = first(points), second(points)

    def excess(eps: float) -> float:
        ways = (np.maximum(a - np.exp(eps) * b, 0).sum() for a, b in ((p, q), (q, p)))
        return float(max(ways)) * step - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0, 50))


def normal(mean: float, sigma: float, points: np.ndarray) -> np.ndarray:
    density: np.ndarray = np.exp(-(((points - mean) / sigma) ** 2) / 2) / (
        sigma * math.sqrt(2 * math.pi)
    )
    return density


# The anchors of the project's design.


def test_anchor_small_cohort_for_a_large_one() -> None:
    assert pytest.approx(8.4026e-6, rel=1e-4) == DELTA
    by_pld = calibrate_noise_multiplier(2.0, DELTA, accountant="pld", **FLAIR)
    by_rdp = calibrate_noise_multiplier(2.0, DELTA, accountant="rdp", **FLAIR)
    assert by_pld == pytest.approx(17.36, rel=0.01)
    assert by_rdp == pytest.approx(18.67, rel=0.01)
    assert by_pld * 0.1 / 5000 == pytest.approx(3.472e-4, rel=0.01)
    small = {"num_rounds": 5000, "cohort_size": 200, "population_size": 41131}
    as_run = GaussianRounds(17.36 * 200 / 5000, **small)
    assert epsilon(as_run, DELTA, "pld") == pytest.approx(4.69, rel=0.02)
    assert epsilon(as_run, DELTA, "rdp") == pytest.approx(5.39, rel=0.02)


def test_anchor_dp_sgd_of_the_usual_example() -> None:
    rounds = GaussianRounds(1.1, num_rounds=14062, cohort_size=256, population_size=60000)
    assert epsilon(rounds, 1e-5, "rdp") == pytest.approx(2.597, rel=0.02)
    assert epsilon(rounds, 1e-5, "pld") == pytest.approx(2.391, rel=0.02)


@pytest.mark.parametrize(
    ("accountant", "after_1", "after_100"), [("rdp", 0.9555, 1.2141), ("pld", 0.1995, 0.7181)]
)
def test_anchor_after_1_and_100_rounds(
    accountant: Accountant, after_1: float, after_100: float
) -> None:
    spent = EpsilonPerRound(sampled(1.0, 0.01, 100), 1e-5, accountant)
    assert spent.after(1) == pytest.approx(after_1, rel=0.02)
    assert spent.after(100) == pytest.approx(after_100, rel=0.02)


def test_anchor_fixed_size_cohorts() -> None:
    sigma = calibrate_noise_multiplier(2.0, DELTA, sampling="fixed_size", accountant="rdp", **FLAIR)
    assert sigma == pytest.approx(37.56, rel=0.01)
    assert sigma * flair(sigma, "fixed_size").sensitivity(1.0) == pytest.approx(75.1, rel=0.01)
    # A release at std 5 S is one of sigma 2.5 when a member is replaced, not of sigma 5.
    one = GaussianRounds(2.5, 1, 10, 10, "fixed_size")
    assert gaussian_epsilon(2.5, 1e-5) == pytest.approx(1.555, rel=0.001)
    assert 1.555 <= epsilon(one, 1e-5, "rdp") <= 1.1 * 1.555
    wrong = GaussianRounds(5.0, 1, 10, 10, "fixed_size")
    assert epsilon(wrong, 1e-5, "rdp") == pytest.approx(0.79, rel=0.02)


CALIBRATED = {
    0.01: (2139, 2165),
    0.05: (504, 510),
    0.5: None,
    1: None,
    2: (17.31, 17.37),
    8: None,
    50: (1.44, 1.44),
    1000: (0.41, 0.41),
}


@pytest.mark.parametrize("target", CALIBRATED)
def test_anchor_noise_multipliers_at_flair_scale(target: float) -> None:
    sigmas = {
        a: calibrate_noise_multiplier(target, DELTA, accountant=a, **FLAIR) for a in ACCOUNTANTS
    }
    if (interval := CALIBRATED[target]) is not None:
        assert 0.99 * interval[0] <= sigmas["pld"] <= 1.01 * interval[1]
    assert sigmas["pld"] <= sigmas["rdp"]
    for accountant, sigma in sigmas.items():
        assert 0.9998 * target <= epsilon(flair(sigma), DELTA, accountant) <= target


@pytest.mark.parametrize(
    "target",
    [pytest.param(t, marks=pytest.mark.slow) if t in (0.5, 1, 8, 50) else t for t in CALIBRATED],
)
def test_a_grid_of_half_the_step_needs_hardly_less_noise(target: float) -> None:
    sigma = calibrate_noise_multiplier(target, DELTA, accountant="pld", **FLAIR)
    rate = flair(sigma).sampling_rate
    half = loss_grid(target, sigma, rate, 5000) / 2
    # With 1 % less noise the finer grid sees more than the target: so it asks for more than that.
    assert PoissonLoss(0.99 * sigma, rate, half).epsilon(5000, DELTA) > target


# Calibration.


@pytest.mark.parametrize("target", [0.01, 0.3, 8, 1000])
def test_calibration_of_fixed_size_cohorts(target: float) -> None:
    sigma = calibrate_noise_multiplier(
        target, DELTA, sampling="fixed_size", accountant="rdp", **FLAIR
    )
    assert 0.9998 * target <= epsilon(flair(sigma, "fixed_size"), DELTA, "rdp") <= target


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("sampling", ["poisson", "fixed_size"])
@settings(max_examples=8, deadline=None)
@given(
    target=st.floats(0.01, 1000),
    num_rounds=st.sampled_from([1, 3, 80, 1000]),
    sizes=st.sampled_from([(1, 1), (10, 10), (3, 10), (30, 285), (285, 285), (200, 41131)]),
    delta=st.sampled_from([1e-9, 1e-6, 1e-3]),
)
def test_calibration_never_fails_and_is_on_the_safe_side(
    accountant: Accountant,
    sampling: Sampling,
    target: float,
    num_rounds: int,
    sizes: tuple[int, int],
    delta: float,
) -> None:
    if accountant == "pld" and sampling == "fixed_size":
        return
    run = dict(zip(("cohort_size", "population_size"), sizes, strict=True))
    sigma = calibrate_noise_multiplier(
        target, delta, num_rounds=num_rounds, sampling=sampling, accountant=accountant, **run
    )
    rounds = GaussianRounds(sigma, num_rounds, *sizes, sampling)
    spent = epsilon(rounds, delta, accountant)
    # RDP counts an epsilon of 0 where delta covers everything: a jump.
    assert spent <= target
    assert spent >= 0.95 * target or spent == 0 or sigma == pytest.approx(0.01)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("target", [0.1, 2.0, 100.0])
def test_calibration_at_flair_scale_takes_seconds_at_most(
    accountant: Accountant, target: float
) -> None:
    start = time.thread_time()
    calibrate_noise_multiplier(target, DELTA, accountant=accountant, **FLAIR)
    assert time.thread_time() - start < 5


# Independent truths.


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("num_rounds", [1, 7, 5000])
def test_unsampled_rounds_are_one_release_of_less_noise(
    accountant: Accountant, sigma: float, num_rounds: int
) -> None:
    exact = gaussian_epsilon(sigma / math.sqrt(num_rounds), 1e-5)
    found = epsilon(GaussianRounds(sigma, num_rounds, 50, 50), 1e-5, accountant)
    slack = 1e-6 if accountant == "pld" else 0.4 if exact < 0.1 else 0.15
    assert exact <= found <= exact * (1 + slack)


@pytest.mark.parametrize("rate", [1 - 1e-9, 1 - 1e-6])
@pytest.mark.parametrize("num_rounds", [1, 50, 5000])
def test_almost_everybody_is_almost_the_closed_form(rate: float, num_rounds: int) -> None:
    # The closed form serves q = 1 alone; next to it there is the grid.
    sigma = 2 * math.sqrt(num_rounds)
    exact = gaussian_epsilon(2.0, 1e-5)
    found = epsilon(sampled(sigma, rate, num_rounds), 1e-5, "pld")
    assert exact * (1 - 1e-5) <= found <= exact * 1.01


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.2, 0.7), (0.5, 3.0), (0.9, 1.0)])
def test_one_sampled_round_is_at_least_and_nearly_exact(rate: float, sigma: float) -> None:
    points = np.linspace(-12 * sigma, 1 + 12 * sigma, 400_001)
    exact = hockey_stick(
        lambda z: (1 - rate) * normal(0, sigma, z) + rate * normal(1, sigma, z),
        lambda z: normal(0, sigma, z),
        points,
        1e-5,
    )
    by_pld = epsilon(sampled(sigma, rate, 1), 1e-5, "pld")
    by_rdp = epsilon(sampled(sigma, rate, 1), 1e-5, "rdp")
    assert exact * (1 - 1e-6) <= by_pld <= exact * 1.01
    assert by_pld <= by_rdp


@pytest.mark.parametrize(("cohort", "sigma"), [(100, 0.8), (2000, 3.0), (9000, 1.0)])
def test_fixed_size_is_at_least_what_a_replaced_member_shows(cohort: int, sigma: float) -> None:
    # Everybody else is 0 and one member is replaced, -1/2 by 1/2: a difference of 1 sensitivity.
    rate = cohort / 10_000
    points = np.linspace(-1 - 12 * sigma, 1 + 12 * sigma, 400_001)
    exact = hockey_stick(
        lambda z: (1 - rate) * normal(0, sigma, z) + rate * normal(0.5, sigma, z),
        lambda z: (1 - rate) * normal(0, sigma, z) + rate * normal(-0.5, sigma, z),
        points,
        1e-5,
    )
    rounds = GaussianRounds(sigma, 1, cohort, 10_000, "fixed_size")
    assert epsilon(rounds, 1e-5, "rdp") >= exact > 0


@pytest.mark.parametrize(
    ("sigma", "rate", "num_rounds"),
    [(17.4, 0.1216, 5000), (0.7, 0.005, 300), (1.0, 0.01, 1), (2.0, 0.5, 10), (3.0, 0.01, 50_000)],
)
def test_composition_equals_dp_accounting(sigma: float, rate: float, num_rounds: int) -> None:
    step = loss_grid(2.0, sigma, rate, num_rounds)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=step, sampling_prob=rate
    ).self_compose(num_rounds)
    for delta in (1e-3, 1e-6, 1e-9):
        expected = theirs.get_epsilon_for_delta(delta)
        found = PoissonLoss(sigma, rate, step).epsilon(num_rounds, delta)
        assert found == pytest.approx(expected, rel=2e-3 if delta == 1e-9 else 1e-5)


@pytest.mark.parametrize("num_rounds", [1, 100, 5000])
def test_epsilon_is_above_an_optimistic_grid_and_near_it(num_rounds: int) -> None:
    sigma, rate = 0.25 * math.sqrt(num_rounds) + 0.6, 0.1
    found = epsilon(sampled(sigma, rate, num_rounds), 1e-6, "pld")
    step = loss_grid(found, sigma, rate, num_rounds) / 8
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        value_discretization_interval=step,
        sampling_prob=rate,
        pessimistic_estimate=False,
        use_connect_dots=False,
    ).self_compose(num_rounds)
    assert optimistic.get_epsilon_for_delta(1e-6) <= found
    fine = PoissonLoss(sigma, rate, step).epsilon(num_rounds, 1e-6)
    assert found == pytest.approx(fine, rel=0.01)


def test_huge_epsilons_do_not_underflow() -> None:
    # The masses with a loss near 990 are e^-990 under the neighbour, below any double.
    loss = PoissonLoss(0.41, 5000 / 41131, 0.01)
    found = loss.epsilon(5000, DELTA)
    for direction in loss._directions:
        losses, probs = direction._composed(5000)
        over = losses > found
        assert float(probs[over] @ -np.expm1(found - losses[over])) <= DELTA
    nearer = found - 0.01
    assert any(
        float(probs[losses > nearer] @ -np.expm1(nearer - losses[losses > nearer])) > DELTA
        for losses, probs in (d._composed(5000) for d in loss._directions)
    )


# Every round.


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("num_rounds", [80, 5000])
def test_every_round_is_cheap_and_grows_to_the_whole(
    accountant: Accountant, num_rounds: int
) -> None:
    rounds = GaussianRounds(2.0, num_rounds, 200, 41131)
    start = time.thread_time()
    spent = EpsilonPerRound(rounds, DELTA, accountant)
    which = range(0, num_rounds + 1, num_rounds // 40)
    epsilons = [spent.after(round_num) for round_num in which]
    assert (time.thread_time() - start) / len(which) < 0.02  # with the start, on a slow machine
    assert epsilons[0] == 0
    assert epsilons[-1] == epsilon(rounds, DELTA, accountant)
    assert (np.diff(epsilons) > 0).all()
    for round_num, found in list(zip(which, epsilons, strict=True))[1::13]:
        alone = epsilon(GaussianRounds(2.0, round_num, 200, 41131), DELTA, accountant)
        assert found == pytest.approx(alone, rel=0.01)
    with pytest.raises(PrivacyError, match=f"from 0 to {num_rounds}"):
        spent.after(num_rounds + 1)


# Limits and faults.


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_limits(accountant: Accountant) -> None:
    def spent(*values: float) -> float:
        return epsilon(GaussianRounds(*values), 1e-5, accountant)  # type: ignore[arg-type]

    assert spent(0.0, 10, 5, 10) == math.inf
    assert spent(1.0, 0, 5, 10) == 0
    assert spent(0.0, 0, 5, 10) == 0
    assert spent(1.0, 10, 0, 10) == 0
    assert spent(1e-4, 10, 5, 10) > 1e8
    assert math.isfinite(spent(0.02, 100_000, 1, 10))
    assert spent(1e6, 10, 5, 10) < 1e-3
    run = {"num_rounds": 10, "cohort_size": 0, "population_size": 10, "accountant": accountant}
    assert calibrate_noise_multiplier(1.0, 1e-5, **run) == 0  # type: ignore[arg-type]


def test_one_member_moves_the_sum_by_the_bound_and_a_replaced_one_by_twice_that() -> None:
    joins, replaced = (GaussianRounds(1.0, 1, 1, 2, s) for s in ("poisson", "fixed_size"))
    assert (joins.relation, joins.sensitivity(0.3)) == ("add_or_remove_one", 0.3)
    assert (replaced.relation, replaced.sensitivity(0.3)) == ("replace_one", 0.6)


def test_more_noise_fewer_rounds_and_smaller_cohorts_spend_less() -> None:
    for accountant in ACCOUNTANTS:
        base = epsilon(GaussianRounds(1.0, 100, 20, 1000), 1e-5, accountant)
        for less in ((1.1, 100, 20, 1000), (1.0, 90, 20, 1000), (1.0, 100, 18, 1000)):
            assert epsilon(GaussianRounds(*less), 1e-5, accountant) < base
        assert epsilon(GaussianRounds(1.0, 100, 20, 1000), 1e-6, accountant) > base


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier: expected a finite number of at least 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"num_rounds": -1}, "num_rounds: expected a whole number"),
        ({"num_rounds": 1.5}, "num_rounds"),
        ({"population_size": 0}, "population_size: expected a whole number of at least 1"),
        ({"cohort_size": 11}, "number from 0 to the population size 10, found 11"),
        ({"cohort_size": 2.5, "sampling": "fixed_size"}, "a whole number from 0"),
        ({"sampling": "shuffled"}, "poisson, fixed_size, found 'shuffled'"),
    ],
)
def test_impossible_rounds_are_refused(change: dict[str, object], message: str) -> None:
    values = {"noise_multiplier": 1.0, "num_rounds": 1, "cohort_size": 5, "population_size": 10}
    with pytest.raises(PrivacyError, match=message):
        GaussianRounds(**(values | change))  # type: ignore[arg-type]


def test_what_an_accountant_has_no_bound_for_is_refused() -> None:
    fixed = GaussianRounds(1.0, 1, 5, 10, "fixed_size")
    with pytest.raises(PrivacyError, match="set the accountant to rdp, or sampling to poisson"):
        epsilon(fixed, 1e-5, "pld")
    with pytest.raises(PrivacyError, match="set the accountant to rdp, or sampling to poisson"):
        calibrate_noise_multiplier(1.0, 1e-5, sampling="fixed_size", accountant="pld", **FLAIR)
    with pytest.raises(PrivacyError, match="expected at least 1e-10 with the accountant pld"):
        epsilon(sampled(1.0, 0.1, 1), 1e-11, "pld")
    assert epsilon(sampled(1.0, 0.1, 1), 1e-11, "rdp") > 0
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(PrivacyError, match="delta: expected a number above 0"):
            epsilon(sampled(1.0, 0.1, 1), delta, "rdp")
    with pytest.raises(PrivacyError, match="expected pld or rdp, found 'prv'"):
        epsilon(sampled(1.0, 0.1, 1), 1e-5, "prv")  # type: ignore[arg-type]
    for target in (0.0, 0.009, 1001.0, math.nan):
        with pytest.raises(PrivacyError, match=r"from 0\.01 to 1000"):
            calibrate_noise_multiplier(target, 1e-5, **FLAIR)
    with pytest.raises(PrivacyError, match="can reach at delta 1e-300"):
        calibrate_noise_multiplier(0.01, 1e-300, sampling="fixed_size", accountant="rdp", **FLAIR)
