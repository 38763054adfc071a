"""How much can one user change the released sum?"""

from itertools import islice

import torch

from fedsim.arrays import Arrays
from fedsim.audit.claims import Subject
from fedsim.audit.findings import Finding, figure, judged
from fedsim.audit.rounds import (
    Answer,
    Answers,
    directed,
    few_of,
    nothing,
    rounds_with,
    stand_in,
)

_HUGE = 1000.0  # times S
_SLACK = 1e-5  # of float32 sums and of the norm
_EXACT = 1e-9  # of float64 ones


def check_clipping(subject: Subject) -> list[Finding]:
    """Without noise, let one user reply with 1000 S, then with S/2; all others reply with zero.

    Both where the engine folds the replies and where the strategy has to.
    """
    norm = subject.claims.clipping_norm
    bounded, kept = 0.0, 0.0
    round_num, users = next(rounds_with(subject.cohort))
    sent = subject.rounds().sent
    huge = directed(sent, _HUGE * norm, subject.seed)
    small = directed(sent, norm / 2, subject.seed)
    present = few_of(users, sent)
    for folded in (True, False):
        for update in (huge, small):
            answers = _one(users[0], Answer(update))
            rounds = subject.rounds(subject.noiseless())
            total = rounds.play(round_num, answers, present=present, folded=folded).flat
            if update is huge:
                bounded = max(bounded, float(total.norm()))
            else:
                kept = max(kept, float((total - _as_sent(sent, small)).norm()))
    return [
        judged(
            "clipping: an update of 1000 S",
            f"at most {figure(norm)}",
            figure(bounded),
            bounded <= norm * (1 + _SLACK),
            f"one user enters the sum with norm {figure(bounded)}, {figure(bounded / norm)} times "
            "what the noise is made for",
        ),
        judged(
            "clipping: an update of S/2",
            "unchanged",
            f"off by {kept / norm:.1g} S",
            kept <= _SLACK * norm,
            "an update below the clipping norm is changed on its way into the sum",
        ),
    ]


def check_sensitivity(subject: Subject) -> list[Finding]:
    """Play a round twice with the same noise, once of two neighbouring populations each.

    In float64, where the noise cancels to the last digits.
    """
    subject = subject.on({name: a.double() for name, a in subject.arrays.items()})
    claims, largest = subject.claims, 0.0
    round_num, users = next(rounds_with(subject.cohort))
    sent = subject.rounds().sent
    for number, size in enumerate((1.0, _HUGE)):
        update = directed(sent, size * claims.clipping_norm, subject.seed, number)
        others = directed(sent, claims.clipping_norm / 3, subject.seed, 10 + number)
        sums = []
        for neighbour in (False, True):
            present = few_of(users, sent)[int(neighbour and not claims.replaces) :]
            answers = _neighbour(users[0], update, others, -1 if neighbour else 1)
            sums.append(subject.rounds().play(round_num, answers, present=present).flat)
        largest = max(largest, float((sums[0] - sums[1]).norm()))
    bound = claims.sensitivity(claims.clipping_norm)
    how = "replaced" if claims.replaces else "added or removed"
    return [
        judged(
            f"sensitivity: a user {how}",
            f"at most {figure(bound)}",
            figure(largest),
            largest <= bound * (1 + _SLACK),
            f"with the same noise, one user moves the released sum by {figure(largest)}, "
            f"{figure(largest / bound)} times what the noise is made for",
        )
    ]


def check_denominator(subject: Subject) -> list[Finding]:
    """Let cohorts of different sizes reply with one and the same update, without noise.

    Whoever is missing adds zero, so the mean tells what the sum was divided by.
    """
    subject = subject.on(stand_in(subject.seed))
    claims = subject.claims
    rounds = subject.rounds(subject.noiseless())
    update = directed(rounds.sent, claims.clipping_norm / 2, subject.seed)
    sent = _as_sent(rounds.sent, update)
    implied, sizes = [], []
    for number, (round_num, users) in enumerate(islice(rounds_with(subject.cohort), 4)):
        present = users[: max(1, len(users) // (1 + number % 2))]
        rounds.restart(subject.noiseless())  # the norm may have adapted
        total = rounds.play(round_num, lambda user: Answer(update), present=present).flat
        along = float(total @ sent / (sent @ sent))
        # ``total`` is the mean times C, so n updates over d have been multiplied by C n / d.
        implied.append(claims.cohort_size * len(present) / along if along else float("inf"))
        sizes.append(len(present))
    worst = max(implied, key=lambda found: abs(found - claims.cohort_size))
    return [
        judged(
            "denominator",
            f"{claims.cohort_size} for {' '.join(map(str, sizes))} replies",
            " ".join(map(figure, implied)),
            abs(worst - claims.cohort_size) <= 1e-4 * claims.cohort_size,
            "the sum is not divided by the public cohort size, so the mean tells how many took "
            "part and its noise is not the noise that is claimed",
        )
    ]


def check_weights(subject: Subject) -> list[Finding]:
    """Let one user say 1 example, then 1,000."""
    subject = subject.on(stand_in(subject.seed))
    sent = subject.rounds().sent
    update = directed(sent, subject.claims.clipping_norm / 2, subject.seed)
    round_num, users = next(rounds_with(subject.cohort))
    moved = 1.0
    for folded in (True, False):
        sums = []
        for num_examples in (1, 1000):
            answers = _one(users[-1], Answer(update, num_examples))
            rounds = subject.rounds(subject.noiseless())
            sums.append(rounds.play(round_num, answers, folded=folded).flat)
        moved = max(moved, float(sums[1].norm() / sums[0].norm()), key=lambda ratio: abs(ratio - 1))
    return [
        judged(
            "weights: 1,000 examples for 1",
            "counts 1 time as much",
            f"counts {figure(moved)} times as much",
            abs(moved - 1) <= _SLACK,
            "users are weighted by what they hold, so one user's influence is not bounded by the "
            "clipping norm",
        )
    ]


def _one(user: str, answer: Answer) -> Answers:
    return lambda asked: answer if asked == user else nothing(asked)


def _neighbour(user: str, update: Arrays, others: Arrays, sign: int) -> Answers:
    """Return replies in which one user's update may be the opposite."""
    own = Answer({name: sign * tensor for name, tensor in update.items()}, num_examples=1000)
    return lambda asked: own if asked == user else Answer(others)


def _as_sent(arrays: Arrays, update: Arrays) -> torch.Tensor:
    """Return an update as it reaches the sum: added to the model and subtracted again."""
    return torch.cat([((a + update[name]) - a).double().reshape(-1) for name, a in arrays.items()])
