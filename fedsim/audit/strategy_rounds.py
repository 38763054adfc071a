"""Rounds of a real strategy and the real engine, with clients that make their updates up."""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays
from fedsim.audit.rounds import Answer, Answers, Released, nothing
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import node_id
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import PrivacyError
from fedsim.flower_seam import to_arrays, to_record
from fedsim.privacy.central import CentralGaussian
from fedsim.strategy import SumStrategy
from fedsim.update_sum import ARRAYS, FOLD, METRICS, USER

MakeStrategy = Callable[[CohortSampler, CentralGaussian], SumStrategy]
"""Returns a new strategy, composed with a sampler and a mechanism."""


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
            received = to_arrays(next(iter(message.content.array_records.values())))
            return _reply(self._answers(user_of(message)), received, message)

        return app


class StrategyRounds:
    """Plays rounds of one strategy with one mechanism (``fedsim.audit.rounds.Rounds``).

    The strategy's server step is replaced by one that keeps what it is given: a step need not be
    linear, and what privacy rests on is what the step gets to see.

    Args:
        make_strategy: Makes what is audited.
        cohort: The sampler.
        arrays: The model's.
        mechanism: One for these rounds alone, since it may adapt.

    Attributes:
        sent: What travels to users: the model, and what the strategy sends beside it.
    """

    def __init__(
        self,
        make_strategy: MakeStrategy,
        cohort: CohortSampler,
        arrays: Arrays,
        mechanism: CentralGaussian,
    ) -> None:
        self._cohort, self._mechanism = cohort, mechanism
        self._strategy = make_strategy(cohort, mechanism)
        self._kept = keep_released(self._strategy)
        self.sent = {**arrays, **self._strategy.checked_sent_along(arrays, 1)}
        self._clients = MadeUpClients(self.sent, len(cohort.users))
        self._record = to_record(arrays)

    def play(
        self,
        round_num: int,
        answers: Answers = nothing,
        *,
        present: Collection[str] | None = None,
        folded: bool = True,
    ) -> Released:
        """Play a round; what is not folded by the engine is by the strategy."""
        messages = self._strategy.configure_train(
            round_num, self._record, ConfigRecord(), self._clients.grid
        )
        replies = self._clients.replies(messages, answers, present=present, folded=folded)
        return self._released(round_num, replies, [user_of(message) for message in messages])

    def release(self, round_num: int, replies: Mapping[str, Answer]) -> Released:
        """Play a round from its replies on."""
        return self._released(round_num, [self._unasked(*reply) for reply in replies.items()])

    def restart(self, mechanism: CentralGaussian) -> None:
        """Go on with a mechanism in the state of the first round."""
        self._mechanism = mechanism
        self._strategy.compose(self._cohort, mechanism)

    def _released(
        self, round_num: int, replies: Iterable[Message], asked: Sequence[str] = ()
    ) -> Released:
        norm = self._mechanism.clipping_norm
        self._strategy.aggregate_train(round_num, replies)
        mean = self._kept.pop()
        total = {name: tensor * self._cohort.cohort_size for name, tensor in mean.items()}
        return Released(total, list(asked), norm, self._mechanism.clipping_norm)

    def _unasked(self, user: str, answer: Answer) -> Message:
        node = node_id(self._cohort.users.ids.index(user))
        asked = Message(RecordDict(), node, MessageType.TRAIN, group_id="one block")
        return _reply(answer, self.sent, asked)


def keep_released(strategy: SumStrategy) -> list[Arrays]:
    """Make a strategy keep what its server step is given, in the list that is returned."""
    kept: list[Arrays] = []

    def keep(round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        kept.append({name: tensor.clone() for name, tensor in update.items()})
        return arrays

    strategy.server_step = keep  # type: ignore[method-assign]
    return kept


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


def _reply(answer: Answer, received: Arrays, asked: Message) -> Message:
    update = answer.update
    trained = {  # what an update does not have comes back as it was
        name: a + update[name] if update is not None and name in update else a.clone()
        for name, a in received.items()
    }
    metrics = MetricRecord({"num-examples": answer.num_examples, "train_loss": 0.0})
    content = RecordDict({ARRAYS: to_record(trained), METRICS: metrics})
    return Message(content, reply_to=asked)
