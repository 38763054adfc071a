"""Epsilon of rounds of Gaussian noise, and the noise multiplier that a given epsilon needs.

The mechanism is a value, ``GaussianRounds``; epsilon is computed from it, never kept beside it. All
numbers here are upper bounds on the true epsilon (up to rounding that is accounted for).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from fedsim.errors import PrivacyError

Sampling = Literal["poisson", "fixed_size"]
Accountant = Literal["pld", "rdp"]
Relation = Literal["add_or_remove_one", "replace_one"]

_RELATIONS: dict[Sampling, Relation] = {
    "poisson": "add_or_remove_one",
    "fixed_size": "replace_one",
}
_CALIBRATED_EPSILONS = (0.01, 1000.0)
# Below this noise the accountants treat the cohort as everybody, which is an upper bound: the
# numbers are astronomical either way, and the sampled ones would need very fine grids.
_SMALLEST_SAMPLED_NOISE = 0.01
_GAUSSIAN_ROUNDING = 1 + 1e-9  # the closed form is solved to 1e-12


@dataclass(frozen=True)
class GaussianRounds:
    """Rounds in each of which a random cohort's clipped sum is released with Gaussian noise.

    The members are users under central DP and examples of one user under example-level DP-SGD.

    Attributes:
        noise_multiplier: σ, the noise's standard deviation on the sum over the sensitivity, at
            least 0. The sensitivity is S, the clipping norm, for Poisson cohorts and 2S for
            fixed-size ones: see ``sensitivity``.
        num_rounds: T, at least 0.
        cohort_size: C: the expected size of a Poisson cohort, or the exact (whole) size of a
            fixed-size one, from 0 to N.
        population_size: N, at least 1. The sampling rate is q = C / N.
        sampling: "poisson": every member joins with probability q, neighbours add or remove one
            member. "fixed_size": C of N without replacement, neighbours replace one member.

    Raises:
        PrivacyError: If a value is out of its range.

    Examples:
        >>> rounds = GaussianRounds(17.4, num_rounds=5000, cohort_size=5000, population_size=41131)
        >>> round(rounds.sampling_rate, 4), rounds.relation, rounds.sensitivity(0.1)
        (0.1216, 'add_or_remove_one', 0.1)
    """

    noise_multiplier: float
    num_rounds: int
    cohort_size: float
    population_size: int
    sampling: Sampling = "poisson"

    def __post_init__(self) -> None:
        if self.sampling not in _RELATIONS:
            raise PrivacyError(
                f"sampling: expected one of {', '.join(_RELATIONS)}, found {self.sampling!r}; "
                "choose how cohorts are drawn"
            )
        _check("noise_multiplier", self.noise_multiplier, "a finite number of at least 0", low=0)
        _check("num_rounds", self.num_rounds, "a whole number of at least 0", low=0, whole=True)
        _check(
            "population_size", self.population_size, "a whole number of at least 1", 1, whole=True
        )
        _check(
            "cohort_size",
            self.cohort_size,
            f"a {'whole ' if self.sampling == 'fixed_size' else ''}number from 0 to the population "
            f"size {self.population_size}",
            low=0,
            high=self.population_size,
            whole=self.sampling == "fixed_size",
        )

    @property
    def sampling_rate(self) -> float:
        """The sampling rate q = C / N, from 0 to 1."""
        return self.cohort_size / self.population_size

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours: epsilon bounds what can be told between two of them."""
        return _RELATIONS[self.sampling]

    def sensitivity(self, clipping_norm: float) -> float:
        """Return Δ, how far neighbours move the sum: S if one joins or leaves, 2S if replaced."""
        return clipping_norm if self.relation == "add_or_remove_one" else 2 * clipping_norm


class EpsilonPerRound:
    """Epsilon after every round of a run, composed from the first round on.

    After the last round it is ``epsilon(rounds, ...)`` to the bit. It needs no state but the round
    number, so a resumed run prints what an uninterrupted one does. Building it takes up to 0.3 s;
    a round then costs about a millisecond.

    Args:
        rounds: The whole run.
        delta: δ, above 0 and below 1; at least 1e-10 for "pld".
        accountant: "pld" (privacy loss distributions, tight) or "rdp" (Rényi, looser).

    Raises:
        PrivacyError: If ``delta`` is out of range, or for fixed-size cohorts with "pld".

    Examples:
        >>> rounds = GaussianRounds(1.0, num_rounds=100, cohort_size=1, population_size=100)
        >>> spent = EpsilonPerRound(rounds, delta=1e-5, accountant="pld")
        >>> [round(spent.after(round_num), 2) for round_num in (0, 1, 100)]
        [0.0, 0.2, 0.72]
    """

    def __init__(
        self, rounds: GaussianRounds, delta: float, accountant: Accountant = "pld"
    ) -> None:
        _check_accountant(rounds.sampling, delta, accountant)
        self._num_rounds = rounds.num_rounds
        self._curve = _curve(rounds, delta, accountant)

    def after(self, round_num: int) -> float:
        """Return epsilon after ``round_num`` rounds, 0 to the run's number of rounds.

        Raises:
            PrivacyError: If the run has fewer rounds.
        """
        if not 0 <= round_num <= self._num_rounds:
            raise PrivacyError(
                f"epsilon after round {round_num}: expected a round from 0 to {self._num_rounds}, "
                "the number of rounds that the noise was calibrated for; raise num_rounds instead "
                "of training on"
            )
        return self._curve(round_num) if round_num else 0.0


def epsilon(rounds: GaussianRounds, delta: float, accountant: Accountant = "pld") -> float:
    """Return the epsilon at which all rounds together are (ε, δ)-differentially private.

    It is 0 without rounds or when nobody is ever sampled, otherwise infinite without noise.

    Args:
        rounds: What is composed.
        delta: δ, above 0 and below 1; at least 1e-10 for "pld", whose transforms lose smaller
            masses to rounding.
        accountant: "pld" or "rdp"; fixed-size cohorts are "rdp" only.

    Raises:
        PrivacyError: If ``delta`` is out of range, or for fixed-size cohorts with "pld".

    Examples:
        >>> rounds = GaussianRounds(1.1, num_rounds=14062, cohort_size=256, population_size=60000)
        >>> round(epsilon(rounds, delta=1e-5, accountant="rdp"), 2)
        2.6
    """
    return EpsilonPerRound(rounds, delta, accountant).after(rounds.num_rounds)


def calibrate_noise_multiplier(
    target_epsilon: float,
    delta: float,
    *,
    num_rounds: int,
    cohort_size: float,
    population_size: int,
    sampling: Sampling = "poisson",
    accountant: Accountant = "pld",
) -> float:
    """Return a noise multiplier σ with 0.9998 · target ≤ ``epsilon(...)`` ≤ target.

    Where no σ gives an epsilon that close to the target, because δ covers the chance of ever being
    sampled or nothing is released, the smallest useful σ is returned: 0.01, or 0.

    Args:
        target_epsilon: ε that the whole run may spend, from 0.01 to 1000.
        delta: δ, as for ``epsilon``.
        num_rounds: T.
        cohort_size: C.
        population_size: N.
        sampling: As in ``GaussianRounds``; it also says what σ is relative to.
        accountant: The accountant that will print the epsilon.

    Raises:
        PrivacyError: If a value is out of its range, or for fixed-size cohorts with "pld".

    Examples:
        >>> run = dict(num_rounds=5000, cohort_size=5000, population_size=41131)
        >>> round(calibrate_noise_multiplier(2.0, 8.4026e-6, accountant="rdp", **run), 1)
        18.7
    """
    low, high = _CALIBRATED_EPSILONS
    if not low <= target_epsilon <= high:
        raise PrivacyError(
            f"target_epsilon: expected a number from {low:g} to {high:g}, found {target_epsilon}; "
            "choose another budget, or give the noise multiplier itself"
        )
    rounds = GaussianRounds(0.0, num_rounds, cohort_size, population_size, sampling)
    _check_accountant(sampling, delta, accountant)
    if num_rounds == 0 or rounds.sampling_rate == 0:
        return 0.0
    sigma = _smallest_within(
        target_epsilon,
        lambda sigma: epsilon(replace(rounds, noise_multiplier=sigma), delta, accountant),
        guess=_central_limit_noise(target_epsilon, delta, rounds),
    )
    if math.isinf(sigma):
        raise PrivacyError(
            f"target_epsilon: expected a budget that {accountant} can reach at delta {delta}, "
            f"found {target_epsilon}; raise delta or epsilon"
        )
    return sigma


def _curve(rounds: GaussianRounds, delta: float, accountant: Accountant) -> Callable[[int], float]:
    """Return epsilon as a function of the number of rounds, at least 1."""
    sigma, rate = rounds.noise_multiplier, rounds.sampling_rate
    if rate == 0 or rounds.num_rounds == 0:
        return lambda num_rounds: 0.0
    if sigma == 0:
        return lambda num_rounds: math.inf
    everybody = rate == 1 or sigma < _SMALLEST_SAMPLED_NOISE
    if accountant == "pld" and everybody:
        return lambda num_rounds: _gaussian_epsilon(sigma / math.sqrt(num_rounds), delta)
    renyi_curve = _renyi_curve(rounds, delta, everybody)
    if accountant == "rdp":
        return renyi_curve
    from fedsim.privacy.loss_distribution import PoissonLoss, loss_grid

    step = loss_grid(renyi_curve(rounds.num_rounds), sigma, rate, rounds.num_rounds)
    loss = PoissonLoss(sigma, rate, step)
    # Both are bounds. Rényi's is the smaller one only where rounding swamps the grid: for deltas
    # near 1e-10 together with epsilons near 0.01.
    return lambda num_rounds: min(loss.epsilon(num_rounds, delta), renyi_curve(num_rounds))


def _renyi_curve(rounds: GaussianRounds, delta: float, everybody: bool) -> Callable[[int], float]:
    """Return epsilon by Rényi divergences, which add up over rounds."""
    from dp_accounting.rdp import compute_epsilon

    from fedsim.privacy import renyi

    if everybody:
        one_round = renyi.gaussian_divergences(rounds.noise_multiplier)
    elif rounds.sampling == "poisson":
        one_round = renyi.poisson_divergences(rounds.noise_multiplier, rounds.sampling_rate)
    else:
        one_round = renyi.fixed_size_divergences(rounds.noise_multiplier, rounds.sampling_rate)
    return lambda num_rounds: float(compute_epsilon(renyi.ORDERS, num_rounds * one_round, delta)[0])


def _gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return the exact epsilon of one Gaussian release to everybody (Balle and Wang 2018).

    T releases are as private as one with σ / √T, so this needs no grid.
    """
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise_multiplier, delta)) * _GAUSSIAN_ROUNDING


def _central_limit_noise(target: float, delta: float, rounds: GaussianRounds) -> float:
    """Return the σ at which the run looks to the central limit theorem like one release at ε.

    One release with noise multiplier 1 / μ has the target epsilon, and T rounds tend to
    μ = q √(T (exp(1 / σ²) - 1)) (Bu, Dong, Long, Su 2020, Deep learning with Gaussian DP).
    """
    from dp_accounting import get_sigma_gaussian

    mu = 1 / float(get_sigma_gaussian(target, delta))
    if rounds.sampling_rate == 1:
        return math.sqrt(rounds.num_rounds) / mu
    return 1 / math.sqrt(math.log1p((mu / rounds.sampling_rate) ** 2 / rounds.num_rounds))


def _smallest_within(target: float, spent: Callable[[float], float], guess: float) -> float:
    """Return a σ with spent(σ) ≤ target, by secant steps in logarithms kept inside a bracket.

    ``spent`` falls with σ, roughly like 1 / σ, but may have small jumps. Only a σ at which it was
    evaluated is returned, and infinity if none was found. The search ends just under the target, or
    at a jump.
    """
    lowest, highest = math.log(_SMALLEST_SAMPLED_NOISE), math.log(1e9)
    low, high = lowest, highest
    x, slope = min(max(math.log(guess), low), high), -1.0
    x_before, excess_before = math.nan, math.nan
    enough = math.inf
    for evaluation in range(1, 60):  # from the tenth on the bracket is halved
        excess = math.log(max(spent(math.exp(x)), 1e-9) / target)
        if excess <= 0:
            high, enough = x, math.exp(x)
        else:
            low = x
        if -2e-4 <= excess <= 0 or high - low < 1e-6 or high == lowest:
            break
        if evaluation > 1:
            slope = min((excess - excess_before) / (x - x_before), -0.1)
        x_before, excess_before = x, excess
        x = min(max(x - (excess + 1e-4) / slope, lowest), highest)
        if evaluation >= 10 or (not low < x < high and x != lowest):
            x = (low + high) / 2
    return enough


def _check_accountant(sampling: Sampling, delta: float, accountant: Accountant) -> None:
    if accountant not in ("pld", "rdp"):
        raise PrivacyError(
            f"accountant: expected pld or rdp, found {accountant!r}; pld is the tighter one"
        )
    if not 0 < delta < 1:
        raise PrivacyError(
            f"delta: expected a number above 0 and below 1, found {delta}; a customary value is "
            "population_size ** -1.1"
        )
    if accountant == "rdp":
        return
    from fedsim.privacy.loss_distribution import SMALLEST_DELTA

    if sampling == "fixed_size":
        raise PrivacyError(
            "accountant: expected rdp for fixed-size cohorts, found pld, which has no bound for "
            "sampling without replacement; set the accountant to rdp, or sampling to poisson"
        )
    if delta < SMALLEST_DELTA:
        raise PrivacyError(
            f"delta: expected at least {SMALLEST_DELTA:g} with the accountant pld, found {delta}, "
            "which rounding would swamp; set the accountant to rdp"
        )


def _check(
    name: str,
    value: float,
    expected: str,
    low: float,
    high: float = math.inf,
    *,
    whole: bool = False,
) -> None:
    finite = math.isfinite(value) and low <= value <= high
    if not finite or (whole and value != int(value)):
        raise PrivacyError(f"{name}: expected {expected}, found {value}; correct the setting")
