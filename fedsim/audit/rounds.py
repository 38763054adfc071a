"""Rounds of the real strategy and engine, with clients that make their updates up."""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays
from fedsim.audit.claims import Subject
from fedsim.cohort import CohortSampler
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import PrivacyError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.privacy.central import CentralGaussian
from fedsim.strategy import SumStrategy
from fedsim.streams import torch_stream
from fedsim.update_sum import ARRAYS, FOLD, METRICS, USER

_FEWEST_REPLIES, _MOST_NUMBERS = 8, 20_000_000  # of one round's replies together
_ROUNDS_TRIED = 10_000


@dataclass(frozen=True)
class Answer:
    """What a made-up client replies.

    Attributes:
        update: Trained minus received arrays; None for zero.
        num_examples: How many examples it says it has seen.
    """

    update: Arrays | None = None
    num_examples: int = 1


Answers = Callable[[str], Answer]
"""From a user's id to the reply."""


def nothing(user: str) -> Answer:
    """Reply what was received: a zero update."""
    return Answer()


class MadeUpClients:
    """The engine of this machine, in which nobody trains.

    Args:
        arrays: Arrays with the names, shapes and dtypes that travel.
        num_users: Users of the population.
    """

    def __init__(self, arrays: Arrays, num_users: int) -> None:
        self._answers: Answers = nothing
        self.grid = InProcessGrid(self._client_app, arrays, num_users=num_users)

    def replies(
        self,
        messages: list[Message],
        answers: Answers,
        *,
        present: Collection[str] | None = None,
        folded: bool = True,
    ) -> Any:
        """Return the replies to a round's messages.

        Args:
            messages: From ``configure_train``.
            answers: Who replies what.
            present: Users whose replies arrive; None for all.
            folded: Whether the engine folds a block's replies by the rule that came with the
                messages; otherwise the strategy has to.
        """
        self._answers = answers
        if present is not None:
            messages = [message for message in messages if user_of(message) in present]
        if not folded:
            messages = [_without_fold(message) for message in messages]
        return self.grid.send_and_receive(messages)

    def _client_app(self) -> ClientApp:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            answer = self._answers(user_of(message))
            received = to_arrays(next(iter(message.content.array_records.values())))
            update = answer.update
            trained = {  # what travels beside the model comes back as it was
                name: a + update[name] if update is not None and name in update else a.clone()
                for name, a in received.items()
            }
            metrics = MetricRecord({"num-examples": answer.num_examples, "train_loss": 0.0})
            return Message(
                RecordDict({ARRAYS: to_record(trained), METRICS: metrics}), reply_to=message
            )

        return app


@dataclass(frozen=True)
class Released:
    """What came of a round.

    Attributes:
        total: What the strategy was given for its server step, times C: the released sum.
        asked: Users to whom messages went, in order.
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


class Rounds:
    """Plays rounds of one strategy with one mechanism on a model that stays as it is.

    The strategy's server step is replaced by one that keeps what it is given of the model: a step
    need not be linear, and what privacy rests on is what the step gets to see.

    Args:
        subject: What is audited.
        mechanism: One for these rounds alone, since it may adapt; by default a new one.

    Attributes:
        sent: What travels to users: the model, and what the strategy sends beside it.
    """

    def __init__(self, subject: Subject, mechanism: CentralGaussian | None = None) -> None:
        self.mechanism = mechanism or subject.make_mechanism()
        self.strategy = subject.make_strategy(subject.cohort, self.mechanism)
        self._kept = keep_released(self.strategy)
        beside = self.strategy.checked_sent_along(subject.arrays, 1)
        self.sent = {**subject.arrays, **beside}
        self._clients = MadeUpClients(self.sent, len(subject.cohort.users))
        self._record = to_record(subject.arrays)
        self._cohort, self._denominator = subject.cohort, subject.claims.cohort_size

    def play(
        self,
        round_num: int,
        answers: Answers = nothing,
        *,
        present: Collection[str] | None = None,
        folded: bool = True,
    ) -> Released:
        """Play a round; the arguments are those of ``MadeUpClients.replies``."""
        messages = self.strategy.configure_train(
            round_num, self._record, ConfigRecord(), self._clients.grid
        )
        replies = self._clients.replies(messages, answers, present=present, folded=folded)
        return self.aggregate(round_num, replies, [user_of(message) for message in messages])

    def aggregate(
        self, round_num: int, replies: Iterable[Message], asked: Sequence[str] = ()
    ) -> Released:
        """Play a round from its replies on, once another one has been played."""
        norm = self.mechanism.clipping_norm
        self.strategy.aggregate_train(round_num, replies)
        mean = self._kept.pop()
        total = {name: tensor * self._denominator for name, tensor in mean.items()}
        return Released(total, list(asked), norm, self.mechanism.clipping_norm)

    def restart(self, mechanism: CentralGaussian) -> None:
        """Go on with a mechanism in the state of the first round."""
        self.mechanism = mechanism
        self.strategy.compose(self._cohort, mechanism)


def keep_released(strategy: SumStrategy) -> list[Arrays]:
    """Make a strategy keep what its server step is given, in the list that is returned."""
    kept: list[Arrays] = []

    def keep(round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        kept.append({name: update[name].clone() for name in arrays})
        return arrays

    strategy.server_step = keep  # type: ignore[method-assign]
    return kept


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


def user_of(message: Message) -> str:
    """Return the user whom a message addresses."""
    for config in message.content.config_records.values():
        if USER in config:
            return str(config[USER])
    raise PrivacyError(
        "messages: expected the user's id in each, found one without; derive the strategy from "
        "fedsim.strategy.SumStrategy"
    )


def _without_fold(message: Message) -> Message:
    plain = copy.copy(message)
    plain.content = RecordDict({k: v for k, v in message.content.items() if k != FOLD})
    return plain
