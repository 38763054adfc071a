"""What does any strategy do with replies that come in another order, are odd, or are missing?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from flwr.app import ConfigRecord, Error, Message
from flwr.serverapp.strategy import Strategy

from fedsim.arrays import Arrays, one_thread
from fedsim.audit.findings import Finding, collected, figure, judged
from fedsim.audit.rounds import Answer, Answers, directed, nothing, stand_in
from fedsim.audit.strategy_rounds import MadeUpClients
from fedsim.cohort import CohortSampler
from fedsim.errors import FedsimError, first_line
from fedsim.flower_seam import to_arrays, to_record
from fedsim.strategy import SumStrategy
from fedsim.strategy_checks import check_aggregate, named_faults
from fedsim.streams import numpy_stream

Change = Callable[[list[Message]], list[Message]]
"""What happens to a round's replies before the strategy sees them."""

_HUGE = 1e20
_ROUNDS = 2  # the second one meets a strategy with a state
_SLACK = 1e-3  # of how far the rounds moved the model: what another order of float32 sums may do
_FAILED = Error(code=1, reason="made up by the audit")


@dataclass(frozen=True)
class StrategyUnderTest:
    """A strategy without privacy, and the users that it is tried on.

    Attributes:
        make: Returns a new one, composed with the sampler.
        cohort: The sampler.
        seed: Of the updates that the audit makes up.
    """

    make: Callable[[], Strategy]
    cohort: CohortSampler
    seed: int = 0

    def run(self, answers: Answers, change: Change = list) -> Arrays:
        """Return the model after some rounds, from the stand-in on.

        Raises:
            FedsimError: The strategy, or fedsim around it, refuses a round.
        """
        arrays, strategy = stand_in(self.seed), self.make()
        name, clients = type(strategy).__name__, MadeUpClients(arrays, len(self.cohort.users))
        for round_num in range(1, _ROUNDS + 1):
            record = to_record(arrays)
            # What overflows here was made to, and is judged by what comes of it.
            with named_faults(name, round_num), np.errstate(all="ignore"):
                asked = strategy.configure_train(round_num, record, ConfigRecord(), clients.grid)
                replies = list(clients.replies(list(asked), answers, folded=False))
                result, _ = strategy.aggregate_train(round_num, change(replies))
                trained = to_arrays(result or {})
                check_aggregate(trained, arrays, name, round_num)
            arrays = trained
        return arrays

    def trained(self, user: str) -> Answer:
        """Reply an update of norm 1 and a number of examples, both the user's own."""
        index = self.cohort.users.ids.index(user)
        update = directed(stand_in(self.seed), 1.0, self.seed, index)
        return Answer(update, int(self.cohort.users.num_images[index]))


@one_thread()
def audit_conduct(tested: StrategyUnderTest) -> list[Finding]:
    """Try a strategy on replies in another order, and on zero, huge, NaN and missing updates."""
    checks = (check_order, check_zero, check_huge, check_nan, check_missing)
    names = ("order of replies", "zero updates", "huge updates", "NaN updates", "missing replies")
    return collected(
        (name, partial(check, tested)) for name, check in zip(names, checks, strict=True)
    )


def check_order(tested: StrategyUnderTest) -> list[Finding]:
    """Shuffle the replies."""

    def shuffled(replies: list[Message]) -> list[Message]:
        order = numpy_stream(tested.seed, "audit order").permutation(len(replies))
        return [replies[int(index)] for index in order]

    start = stand_in(tested.seed)
    given, other = tested.run(tested.trained), tested.run(tested.trained, shuffled)
    moved = max(_largest_difference(given, start), _largest_difference(other, start), 1e-9)
    apart = _largest_difference(given, other) / moved
    return [
        judged(
            "order of replies",
            "the same result in any order",
            f"apart by {apart:.1g} of the way moved",
            apart <= _SLACK,
            "the result depends on the order of replies, which no strategy controls",
        )
    ]


def check_zero(tested: StrategyUnderTest) -> list[Finding]:
    """Let all users reply what they received."""
    outcome = _outcome(partial(tested.run, nothing))
    return [
        judged(
            "zero updates",
            "a finite model",
            outcome.told,
            outcome.error is None,
            "a cohort that has learned nothing stops the run",
        )
    ]


def check_huge(tested: StrategyUnderTest) -> list[Finding]:
    """Let one user reply with an update of 1e20 in every number."""
    outcome = _outcome(partial(tested.run, _one_user(tested, _HUGE)))
    return [
        judged(
            "huge updates (1e20)",
            "a finite model, or an error that names strategy or user",
            outcome.told,
            outcome.error is None or _names_somebody(outcome.error),
            "the error names neither the strategy nor the user",
        )
    ]


def check_nan(tested: StrategyUnderTest) -> list[Finding]:
    """Let one user reply with a NaN.

    A strategy that is not a sum may leave the user out: a median does. A sum can't.
    """
    outcome = _outcome(partial(tested.run, _one_user(tested, float("nan"))))
    sums = isinstance(tested.make(), SumStrategy)
    return [
        judged(
            "NaN updates",
            "refused" if sums else "refused, or left out of a finite model",
            outcome.told,
            outcome.error is not None or not sums,
            "a NaN disappears in the sum instead of being refused, and what takes its place is "
            "nobody's update",
        )
    ]


def check_missing(tested: StrategyUnderTest) -> list[Finding]:
    """Let one reply be an error, then let half of them and then all be missing."""
    changes: dict[str, Change] = {
        "one is an error": lambda replies: [_failed(replies[0]), *replies[1:]],
        "half": lambda replies: replies[: len(replies) // 2],
        "all": lambda replies: [],
    }
    findings = []
    for what, change in changes.items():
        outcome = _outcome(partial(tested.run, tested.trained, change))
        findings.append(
            judged(
                f"missing replies: {what}",
                "a finite model, or an error of fedsim's",
                outcome.told,
                not outcome.crashed,
                "the strategy breaks instead of going on or saying what is missing",
            )
        )
    return findings


@dataclass(frozen=True)
class _Outcome:
    error: FedsimError | None
    told: str

    @property
    def crashed(self) -> bool:
        """Whether the strategy itself broke, and the error only passes that on."""
        cause = self.error.__cause__ if self.error else None
        return cause is not None and not isinstance(cause, FedsimError)


def _outcome(run: Callable[[], Arrays]) -> _Outcome:
    try:
        arrays = run()
    except FedsimError as error:
        told = f"{type(error).__name__}: {first_line(error)}"
        return _Outcome(error, told if len(told) <= 120 else f"{told[:117]}...")
    largest = max(float(tensor.abs().max()) for tensor in arrays.values())
    return _Outcome(None, f"a finite model, largest number {figure(largest)}")


def _one_user(tested: StrategyUnderTest, value: float) -> Answers:
    """Let the first user of a round reply with a value everywhere, and the others be trained."""
    cohort = tested.cohort
    odd = {cohort.users.ids[int(i)] for r in range(1, _ROUNDS + 1) for i in cohort.draw(r)[:1]}
    update = {name: torch.full_like(a, value) for name, a in stand_in(tested.seed).items()}
    return lambda user: Answer(update) if user in odd else tested.trained(user)


def _names_somebody(error: FedsimError) -> bool:
    return any(word in str(error) for word in ("strategy", "user", "node"))


def _failed(reply: Message) -> Message:
    # A reply answers a message; to its sender, it is a message of the other direction.
    return Message(_FAILED, reply_to=reply)


def _largest_difference(a: Arrays, b: Arrays) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)
