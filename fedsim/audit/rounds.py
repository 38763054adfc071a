"""What a round of what is audited looks like: who answers what, and what is released."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from fedsim.arrays import Arrays
from fedsim.cohort import CohortSampler
from fedsim.errors import PrivacyError
from fedsim.privacy.central import CentralGaussian
from fedsim.streams import torch_stream

_FEWEST_REPLIES, _MOST_NUMBERS = 8, 20_000_000  # of one round's replies together
_ROUNDS_TRIED = 10_000


@dataclass(frozen=True)
class Answer:
    """What a made-up user replies.

    Attributes:
        update: What enters the sum, once clipped; None for zero.
        num_examples: How many examples it says it has seen.
    """

    update: Arrays | None = None
    num_examples: int = 1


Answers = Callable[[str], Answer]
"""From a user's id to the reply."""


def nothing(user: str) -> Answer:
    """Reply what was received: a zero update."""
    return Answer()


@dataclass(frozen=True)
class Released:
    """What came of a round.

    Attributes:
        total: What the strategy's, or the optimizer's, step is given, times C: the released sum.
        asked: Users who were asked, in order.
        clipping_norm: S in this round.
        next_norm: S in the next one.
    """

    total: Arrays
    asked: list[str]
    clipping_norm: float
    next_norm: float

    @property
    def flat(self) -> torch.Tensor:
        """The sum as one float64 vector."""
        return flattened(self.total)


class Rounds(Protocol):
    """Rounds of the real parts on a model that stays as it is; the users' answers are made up.

    Attributes:
        sent: What an update's arrays are like: the model's, and what a strategy sends beside it.
    """

    sent: Arrays

    def play(
        self,
        round_num: int,
        answers: Answers = nothing,
        *,
        present: Collection[str] | None = None,
        folded: bool = True,
    ) -> Released:
        """Play a round.

        Args:
            round_num: From 1.
            answers: Who replies what.
            present: Users whose replies arrive, of those who are asked; None for all.
            folded: Whether what trains folds the replies, where that is done in two places.
        """
        ...

    def release(self, round_num: int, replies: Mapping[str, Answer]) -> Released:
        """Play a round in which these users reply, whoever was drawn, once another was played."""
        ...

    def restart(self, mechanism: CentralGaussian) -> None:
        """Go on with a mechanism in the state of the first round."""
        ...


def rounds_with(cohort: CohortSampler, at_least: int = 1) -> Iterator[tuple[int, list[str]]]:
    """Yield rounds whose cohort has some number of users or more, with the users.

    Raises:
        PrivacyError: In 10,000 rounds there are no more of them.
    """
    for round_num in range(1, _ROUNDS_TRIED + 1):
        drawn = cohort.draw(round_num)
        if len(drawn) >= at_least:
            yield round_num, [cohort.users.ids[int(index)] for index in drawn]
    raise PrivacyError(
        f"cohorts: expected one of {at_least} users or more among {_ROUNDS_TRIED} rounds, found "
        "none; check the cohort sampler"
    )


def few_of(users: list[str], arrays: Arrays) -> list[str]:
    """Return the first users of a cohort: all on a small model, 8 on one of 11 million numbers.

    Every reply costs passes through memory, and a user who does not reply counts as zero.
    """
    size = sum(tensor.numel() for tensor in arrays.values())
    return users[: max(_FEWEST_REPLIES, _MOST_NUMBERS // size)]


def stand_in(seed: int) -> Arrays:
    """Return a small model, for checks in which shapes do not matter: 2,051 numbers."""
    stream = torch_stream(seed, "audit stand-in")
    shapes: dict[str, tuple[int, ...]] = {"matrix": (40, 50), "vector": (50,), "scalar": ()}
    return {name: torch.randn(shape, generator=stream) for name, shape in shapes.items()}


def directed(like: Arrays, norm: float, seed: int, *keys: int) -> Arrays:
    """Return an update of random direction and of some L2 norm.

    Args:
        like: Its names, shapes and dtypes.
        norm: Its L2 norm over all arrays together.
        seed: Of the direction.
        *keys: Tell this direction from others.
    """
    stream = torch_stream(seed, "audit direction", *keys)
    drawn = {
        name: torch.randn(a.shape, generator=stream, dtype=torch.float64)
        for name, a in like.items()
    }
    scale = norm / float(flattened(drawn).norm())
    return {name: (tensor * scale).to(like[name].dtype) for name, tensor in drawn.items()}


def flattened(arrays: Arrays) -> torch.Tensor:
    """Return all numbers as one float64 vector."""
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in arrays.values()])
