"""Are cohorts drawn as the accountant supposes?"""

import math

import numpy as np
import numpy.typing as npt

from fedsim.audit.claims import Claims, Subject
from fedsim.audit.findings import Finding, chi_square_bounds, figure, judged, within_sigmas
from fedsim.audit.rounds import rounds_with, stand_in

_FEWEST_ROUNDS, _MOST_ROUNDS = 1000, 4000
_TIMES_DRAWN = 30  # how often a user is drawn on average, if the rounds allow


def check_cohorts(subject: Subject) -> list[Finding]:
    """Draw many rounds' cohorts; ask one round's users."""
    claims, cohort = subject.claims, subject.cohort
    wanted = math.ceil(_TIMES_DRAWN / claims.sampling_rate)
    num_rounds = min(max(wanted, _FEWEST_ROUNDS), _MOST_ROUNDS)
    counts = np.zeros(len(cohort.users), dtype=np.int64)
    sizes, repeated = [], 0
    for round_num in range(1, num_rounds + 1):
        drawn = cohort.draw(round_num)
        distinct = np.unique(drawn)
        repeated += len(distinct) < len(drawn)
        counts[distinct] += 1
        sizes.append(len(drawn))
    return [
        _once(repeated, num_rounds),
        _sizes(np.array(sizes, dtype=np.float64), claims, len(cohort.users)),
        _frequencies(counts, num_rounds, claims),
        _asked(subject),
    ]


def _once(repeated: int, num_rounds: int) -> Finding:
    return judged(
        "cohorts: no user twice",
        "0 rounds",
        f"{repeated} of {num_rounds:,} rounds",
        repeated == 0,
        "a user who is in a cohort twice is clipped twice, and counts with norm 2 S",
    )


def _sizes(sizes: npt.NDArray[np.float64], claims: Claims, num_users: int) -> Finding:
    """Compare sizes with the binomial of (N, C / N), or with C."""
    population, size, rate = claims.population_size, claims.cohort_size, claims.sampling_rate
    variance = population * rate * (1 - rate) if claims.sampling == "poisson" else 0.0
    mean, spread = float(sizes.mean()), float(sizes.var())
    # The fourth moment of a binomial: its excess kurtosis is (1 - 6 q (1 - q)) / variance.
    excess = (1 - 6 * rate * (1 - rate)) / variance if variance else 0.0
    spread_error = variance * math.sqrt(max(2 + excess, 0.0) / len(sizes))
    fits = within_sigmas(mean, size, math.sqrt(variance / len(sizes)))
    fits &= within_sigmas(spread, variance, spread_error) and num_users == population
    return judged(
        "cohorts: sizes",
        f"mean {size}, variance {figure(variance)} of {population} users",
        f"mean {figure(mean)}, variance {figure(spread)} of {num_users} users",
        fits,
        f"the sizes of {len(sizes):,} cohorts do not fit {claims.sampling} sampling of {size} out "
        f"of {population}, which epsilon supposes",
    )


def _frequencies(counts: npt.NDArray[np.int64], num_rounds: int, claims: Claims) -> Finding:
    """Compare every user's count with the binomial of (rounds, C / N), as one chi-square."""
    rate = claims.sampling_rate
    expected, variance = num_rounds * rate, num_rounds * rate * (1 - rate)
    claimed = f"q = {figure(rate)} for every user"
    least, most = counts.min() / num_rounds, counts.max() / num_rounds
    if variance == 0:
        fits = bool((counts == num_rounds).all())
    else:
        squares = float(((counts - expected) ** 2).sum() / variance)
        # Squares of binomials vary by more than those of normal draws where counts are small.
        excess = max(0.0, (1 - 6 * rate * (1 - rate)) / variance)
        low, high = chi_square_bounds(len(counts) / (1 + excess / 2))
        fits = low <= squares / (1 + excess / 2) <= high
    return judged(
        "cohorts: every user as often",
        claimed,
        f"{figure(float(least))} to {figure(float(most))} in {num_rounds:,} rounds",
        fits,
        "how often users are drawn does not fit the sampling rate: some are less private than "
        "epsilon says",
    )


def _asked(subject: Subject) -> Finding:
    """Compare who is asked with who was drawn."""
    subject = subject.on(stand_in(subject.seed))
    round_num, drawn = next(rounds_with(subject.cohort))
    asked = subject.rounds().play(round_num).asked
    return judged(
        "cohorts: the users drawn are those asked",
        f"{len(drawn)} users",
        f"{len(set(asked) & set(drawn))} of them, {len(set(asked) - set(drawn))} others",
        sorted(asked) == sorted(drawn),
        f"round {round_num} trains other users than the sampler draws",
    )
