"""A lower bound on epsilon from a game: which of two neighbouring populations was it?

Many short runs of the real sampler, fold, clipping and noise are played in two worlds that differ
in one user, the canary, and an adversary who knows everything but the world guesses it from what
was released. Differential privacy limits how well anybody can guess: for every test, FPR and FNR
obey ``1 - FNR <= exp(epsilon) FPR + delta`` and the same with the two exchanged (Kairouz, Oh and
Viswanath 2015). Errors that were measured therefore refute every smaller epsilon (Jagielski et al.
2020, Auditing differentially private machine learning).
"""

import functools
import math

import numpy as np
import numpy.typing as npt
import torch

from fedsim.audit.claims import Claims, Subject
from fedsim.audit.findings import Finding, figure, judged, not_applicable
from fedsim.audit.rounds import Answer, directed, flattened
from fedsim.privacy.accounting import epsilon
from fedsim.streams import torch_stream

Floats = npt.NDArray[np.float64]

GAME_ROUNDS = 3
"""Rounds of one trial."""

GAME_TRIALS = 2000
"""Trials in each world; a threshold is chosen on half of them and judged on the other half."""

CONFIDENCE = 0.999
"""Of the bound on epsilon."""

_NAME = "epsilon: a distinguishing game"
_NUMBERS = 16  # of the stand-in model
_OVER_CLIP = 1000.0  # the canary replies with this many S, so its norm in the sum is S if clipped
_ENDS = np.linspace(0, 0.01, 11)
_QUANTILES = np.concatenate([_ENDS, np.linspace(0.02, 0.98, 97), 1 - _ENDS])
# Two error rates in two directions are bounded together.
_FAULT_SHARE = (1 - CONFIDENCE) / 4


def check_epsilon(subject: Subject) -> list[Finding]:
    """Play the game, and compare its bound with the accountant's epsilon for as many rounds."""
    claims = subject.claims
    if claims.noise_multiplier == 0:
        return [not_applicable(_NAME, "no noise is claimed, so epsilon is infinite")]
    rounds = claims.rounds_as_run(GAME_ROUNDS)
    printed = epsilon(rounds, claims.delta, claims.accountant)
    without, with_canary = (_play(subject, world) for world in (False, True))
    measured = epsilon_lower_bound(without, with_canary, claims.delta)
    return [
        judged(
            _NAME,
            f"at most {figure(printed)} ({claims.accountant}, {GAME_ROUNDS} rounds)",
            f"at least {figure(measured)} ({100 * CONFIDENCE:g} % confidence)",
            measured <= printed,
            f"{GAME_TRIALS:,} trials tell a user's presence better than epsilon {figure(printed)} "
            "allows: the guarantee that is printed does not hold",
        )
    ]


def epsilon_lower_bound(world_0: Floats, world_1: Floats, delta: float) -> float:
    """Return an epsilon that is too small with a chance of 0.1 % at most, 0 or above.

    Args:
        world_0: A score per trial, shape (trials,); the game is fair for any score.
        world_1: The other world's, where scores should be larger.
        delta: Of differential privacy.
    """
    chosen, judging = (world_0[::2], world_1[::2]), (world_0[1::2], world_1[1::2])
    candidates = np.unique(np.quantile(np.concatenate(chosen), _QUANTILES))
    bounds = [_bounds(*chosen, float(threshold), delta) for threshold in candidates]
    best, way = np.unravel_index(np.argmax(bounds), (len(candidates), 2))
    return max(0.0, _bounds(*judging, float(candidates[best]), delta)[way])


def largest_chance(events: int, trials: int, fault: float) -> float:
    """Return Clopper and Pearson's upper bound on a probability.

    It is the p at which as few events or fewer have the chance ``fault``.

    Args:
        events: How often it happened, 0 to ``trials``.
        trials: Out of how many.
        fault: Chance, above 0 and below 1, that the probability is larger than the bound.

    Examples:
        >>> round(largest_chance(0, 1000, 0.001), 6)
        0.006884
    """
    if events == trials:
        return 1.0
    binomials, k = _log_binomials(trials)[: events + 1], np.arange(events + 1)
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        p = (low + high) / 2
        tail = np.exp(binomials + k * math.log(p) + (trials - k) * math.log1p(-p)).sum()
        low, high = (p, high) if tail > fault else (low, p)
    return high


@functools.cache
def _log_binomials(trials: int) -> Floats:
    """Return the logs of the binomial coefficients of ``trials`` over 0, 1, ..."""
    logs = [math.lgamma(k + 1) for k in range(trials + 1)]
    return np.array([logs[trials] - logs[k] - logs[trials - k] for k in range(trials + 1)])


def _bounds(world_0: Floats, world_1: Floats, threshold: float, delta: float) -> list[float]:
    """Return the bounds of a test for world 1, and of the same test for world 0."""
    wrong_0 = largest_chance(int((world_0 > threshold).sum()), len(world_0), _FAULT_SHARE)
    wrong_1 = largest_chance(int((world_1 <= threshold).sum()), len(world_1), _FAULT_SHARE)
    return [
        math.log(max(1 - delta - missed, 1e-300) / false)
        for missed, false in ((wrong_1, wrong_0), (wrong_0, wrong_1))
    ]


def _play(subject: Subject, with_canary: bool) -> Floats:
    """Play all trials of a world and score each by its log-likelihood ratio.

    Every trial has rounds of its own, since cohort and noise are functions of the round. Everybody
    else's update is zero and therefore left out. Under replace-one the canary's place is taken by
    a user with the opposite update.
    """
    claims, seed = subject.claims, subject.seed
    stream = torch_stream(seed, "audit game")
    subject = subject.on({"numbers": torch.randn(_NUMBERS, generator=stream)})
    rounds, scores = subject.rounds(), np.zeros(GAME_TRIALS)
    update = directed(rounds.sent, _OVER_CLIP * claims.clipping_norm, seed)
    direction = flattened(update) / flattened(update).norm()
    position = len(subject.cohort.users) // 2
    canary = subject.cohort.users.ids[position]
    rounds.play(1, present=[])
    sign = 1 if with_canary else (-1 if claims.replaces else 0)
    answer = Answer({name: sign * change for name, change in update.items()})
    round_num = GAME_TRIALS * GAME_ROUNDS if with_canary else 0
    for trial in range(GAME_TRIALS):
        rounds.restart(subject.make_mechanism())
        for _ in range(GAME_ROUNDS):
            round_num += 1
            drawn = sign != 0 and position in subject.cohort.draw(round_num)
            released = rounds.release(round_num, {canary: answer} if drawn else {})
            along = float(released.flat @ direction)
            scores[trial] += _log_likelihood_ratio(claims, along, released.clipping_norm)
    return scores


def _log_likelihood_ratio(claims: Claims, along: float, norm: float) -> float:
    """Return the log of how much likelier a round's projection is with the canary than without."""
    stddev = claims.noise_stddev_sum(norm)
    present = _log_mixture(claims.sampling_rate, along, norm, stddev)
    absent = _log_mixture(claims.sampling_rate, along, -norm, stddev) if claims.replaces else 0.0
    return present - absent


def _log_mixture(rate: float, along: float, shift: float, stddev: float) -> float:
    """Return log((1 - q) + q N(x; shift) / N(x; 0))."""
    drawn = math.log(rate) + shift * (along - shift / 2) / stddev**2
    return float(np.logaddexp(math.log1p(-rate), drawn)) if rate < 1 else drawn
