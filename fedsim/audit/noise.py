"""Is the noise as large as claimed, on every number, and new in every round?"""

import math
from dataclasses import dataclass, field, replace
from itertools import combinations, islice, pairwise

import torch

from fedsim.arrays import Arrays
from fedsim.audit.claims import Subject
from fedsim.audit.findings import (
    SIGMAS,
    Finding,
    chi_square_bounds,
    figure,
    judged,
    within_sigmas,
)
from fedsim.audit.rounds import few_of, flattened, rounds_with

_DRAWS = 100_000  # the standard deviation is then known to 0.22 %
_FEWEST_ROUNDS, _MOST_ROUNDS = 4, 100
_COMPARED = 1_000_000  # numbers of a round that are compared with other rounds'
_ROUNDS_COMPARED = 4
_PREFIX = 100  # arrays that share fewer numbers are not compared with one another


@dataclass
class NoiseDraws:
    """Noise of some rounds, over its claimed standard deviation in each of them.

    Attributes:
        names: The arrays.
        sizes: How many numbers each holds.
        squares: Per array the sum of squares over all rounds.
        total: Sum of all draws.
        num_rounds: How many rounds there were.
        untouched: Numbers that no round has noised.
        rounds: The draws of the first rounds, up to a million numbers each.
    """

    names: list[str]
    sizes: list[int]
    squares: list[float]
    total: float = 0.0
    num_rounds: int = 0
    untouched: torch.Tensor = field(default_factory=lambda: torch.ones(()))
    rounds: list[torch.Tensor] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of draws."""
        return self.num_rounds * sum(self.sizes)

    def add(self, noise: Arrays, stddev: float) -> None:
        """Take one round's noise."""
        scaled = {name: tensor.double() / stddev for name, tensor in noise.items()}
        flat = flattened(scaled)
        for index, tensor in enumerate(scaled.values()):
            self.squares[index] += float(tensor.square().sum())
        self.total += float(flat.sum())
        self.untouched = self.untouched * (flat == 0)
        self.num_rounds += 1
        if len(self.rounds) < _ROUNDS_COMPARED:
            self.rounds.append(_thinned(flat))


def check_noise(subject: Subject) -> list[Finding]:
    """Measure the noise in rounds whose users all reply with zero, or in the first not at all."""
    claims = subject.claims
    claimed = claims.noise_stddev_sum(claims.clipping_norm)
    findings = [_printed(subject, claimed)]
    if claimed == 0:
        return [*findings, _no_noise(subject)]
    draws = _drawn(subject)
    return [*findings, _size(draws, claimed), _every_array(draws), *_fresh(subject, draws)]


def _drawn(subject: Subject) -> NoiseDraws:
    rounds = subject.rounds()
    sizes = [tensor.numel() for tensor in rounds.sent.values()]
    draws = NoiseDraws(list(rounds.sent), sizes, [0.0] * len(sizes))
    num_rounds = min(max(math.ceil(_DRAWS / sum(sizes)), _FEWEST_ROUNDS), _MOST_ROUNDS)
    for round_num, users in islice(rounds_with(subject.cohort), num_rounds):
        present = few_of(users, rounds.sent) if draws.num_rounds else []
        released = rounds.play(round_num, present=present)
        draws.add(released.total, subject.claims.noise_stddev_sum(released.clipping_norm))
    return draws


def _printed(subject: Subject, claimed: float) -> Finding:
    printed = subject.make_mechanism().noise_stddev_sum
    return judged(
        "noise: printed std on the sum",
        figure(claimed),
        figure(printed),
        math.isclose(printed, claimed, rel_tol=1e-9, abs_tol=0.0),
        "the privacy card prints another standard deviation than sigma, Delta, C and C~ give",
    )


def _no_noise(subject: Subject) -> Finding:
    round_num, users = next(rounds_with(subject.cohort))
    rounds = subject.rounds()
    released = rounds.play(round_num, present=few_of(users, rounds.sent))
    largest = float(released.flat.abs().max())
    return judged(
        "noise: std on the sum", "0", figure(largest), largest == 0, "there is noise without sigma"
    )


def _size(draws: NoiseDraws, claimed: float) -> Finding:
    squares, mean = sum(draws.squares), draws.total / draws.size
    low, high = chi_square_bounds(draws.size)
    centred = within_sigmas(mean, 0.0, 1 / math.sqrt(draws.size))
    stddev = math.sqrt(squares / draws.size)
    error = SIGMAS * claimed / math.sqrt(2 * draws.size)
    return judged(
        "noise: std on the sum, mean 0",
        f"{figure(claimed)}, 0",
        f"{figure(stddev * claimed)} +- {error:.1g}, {mean * claimed:.1g}",
        low <= squares <= high and centred,
        f"over {draws.size:,} draws the noise is {stddev:.4f} times as large as claimed, with "
        f"mean {mean:.1g} of its standard deviation: epsilon is that of other noise",
    )


def _every_array(draws: NoiseDraws) -> Finding:
    """Compare each array's noise with the claim; pooled, a small array would be lost."""
    off = []
    for name, size, squares in zip(draws.names, draws.sizes, draws.squares, strict=True):
        degrees = size * draws.num_rounds
        low, high = chi_square_bounds(degrees, len(draws.names))
        if not low <= squares <= high:
            off.append(f"{name} ({math.sqrt(squares / degrees):.3f} times)")
    untouched = int(draws.untouched.sum())
    return judged(
        "noise: on every array",
        f"{len(draws.names)} arrays, no number without noise",
        f"{len(draws.names) - len(off)} arrays as claimed, {untouched} numbers without noise",
        not off and untouched == 0,
        f"{untouched} numbers are never noised, and the noise is not as large as claimed on "
        f"{', '.join(off[:3]) or 'none of the arrays as a whole'}",
    )


def _fresh(subject: Subject, draws: NoiseDraws) -> list[Finding]:
    """Compare rounds with rounds, with the same round under another seed, arrays with arrays."""
    first = next(rounds_with(subject.cohort))[0]
    mechanism = subject.make_mechanism()
    other = replace(mechanism, seed=mechanism.seed + 1)
    again = subject.rounds(other).play(first, present=[])
    sets = [*draws.rounds, _thinned(again.flat)]
    between = [_correlation(a, b) for a, b in combinations(sets, 2)]
    parts = torch.split(again.flat, draws.sizes)
    large = [part[:_COMPARED] for part in parts if part.numel() >= _PREFIX]
    within = [_correlation(a, b) for a, b in pairwise(large)]
    return [
        _uncorrelated("noise: fresh in every round and seed", between),
        *([_uncorrelated("noise: fresh in every array", within)] if within else []),
    ]


def _uncorrelated(name: str, correlations: list[tuple[float, int]]) -> Finding:
    worst, size = max(correlations, key=lambda pair: abs(pair[0]) * math.sqrt(pair[1]))
    bound = SIGMAS / math.sqrt(size)
    return judged(
        name,
        f"correlation within +-{figure(bound)}",
        figure(worst),
        abs(worst) <= bound,
        "noise is used again: the difference of two releases tells what the noise should hide",
    )


def _correlation(a: torch.Tensor, b: torch.Tensor) -> tuple[float, int]:
    """Return the correlation of two draws over the numbers that both have, and their number.

    Of the draws as they are, not less their means: these are zero, or another check fails.
    """
    size = min(len(a), len(b))
    a, b = a[:size], b[:size]
    product = float(a.norm() * b.norm())
    # Without any noise there is nothing that repeats.
    return (float(a @ b) / product if product else 0.0), size


def _thinned(flat: torch.Tensor) -> torch.Tensor:
    return flat[:: math.ceil(len(flat) / _COMPARED)].clone()
