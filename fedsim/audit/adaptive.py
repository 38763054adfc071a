"""Does the clipping norm follow the updates, in the right direction and with the noise claimed?"""

import math

from fedsim.audit.claims import Subject
from fedsim.audit.findings import Finding, chi_square_bounds, figure, judged, not_applicable
from fedsim.audit.rounds import Answer, directed, rounds_with, stand_in
from fedsim.privacy.central import AdaptiveClipping

_RULE = "adaptive clipping: all updates "
_COUNT = "adaptive clipping: std of the count's noise"
_COUNT_ROUNDS = 1000


def check_adaptive_clipping(subject: Subject) -> list[Finding]:
    """Let all users, then none, stay below the norm; then measure the count's noise."""
    adaptive = subject.claims.adaptive
    if adaptive is None:
        return [not_applicable("adaptive clipping", "the clipping norm is fixed")]
    subject = subject.on(stand_in(subject.seed))
    return [
        _step(subject, adaptive, "unclipped", 0.5, -(1 - adaptive.quantile)),
        _step(subject, adaptive, "clipped", 2.0, adaptive.quantile),
        _count_noise(subject, adaptive),
    ]


def _step(
    subject: Subject, adaptive: AdaptiveClipping, what: str, size: float, direction: float
) -> Finding:
    """Let exactly C users reply with updates of one size, without noise."""
    claims = subject.claims
    round_num, users = next(rounds_with(subject.cohort, claims.cohort_size))
    rounds = subject.rounds(subject.noiseless())
    update = directed(rounds.sent, size * claims.clipping_norm, subject.seed)
    present = users[: claims.cohort_size]
    released = rounds.play(round_num, lambda user: Answer(update), present=present)
    claimed = math.exp(adaptive.learning_rate * direction)
    measured = released.next_norm / released.clipping_norm
    return judged(
        _RULE + what,
        f"S times {claimed:.6f}",
        f"S times {measured:.6f}",
        math.isclose(measured, claimed, rel_tol=1e-6),
        "the norm does not follow the quantile: it should fall when updates are unclipped and "
        "grow when they are clipped, or it runs away",
    )


def _count_noise(subject: Subject, adaptive: AdaptiveClipping) -> Finding:
    """Play rounds without replies and read the count off the norm, S exp(-eta (b - gamma))."""
    claims = subject.claims
    if claims.noise_multiplier == 0:
        return not_applicable(_COUNT, "no noise is claimed")
    rounds, squares = subject.rounds(), 0.0
    claimed = claims.cohort_size / 20
    rounds.play(1, present=[])
    for round_num in range(1, _COUNT_ROUNDS + 1):
        rounds.restart(subject.make_mechanism())
        # Whom a round asks does not matter when nobody replies.
        released = rounds.release(round_num, {})
        moved = math.log(released.next_norm / released.clipping_norm)
        share = adaptive.quantile - moved / adaptive.learning_rate
        squares += ((share - 0.5) * claims.cohort_size / claimed) ** 2
    low, high = chi_square_bounds(_COUNT_ROUNDS)
    return judged(
        _COUNT,
        f"C / 20 = {figure(claimed)}",
        f"{figure(claimed * math.sqrt(squares / _COUNT_ROUNDS))} in {_COUNT_ROUNDS:,} rounds",
        low <= squares <= high,
        "the number of unclipped users is released with other noise than the budget was split for",
    )
