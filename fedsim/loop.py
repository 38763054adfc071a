"""The training loop."""

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedsim.attendance import DROPPED_OUT, Attendance
from fedsim.bookkeeping import Bookkeeper
from fedsim.clients_file import ClientsFile
from fedsim.engines.user_grid import UserGrid
from fedsim.replies import Delivery, Replies
from fedsim.state import RunState


class ResumableStrategy(Protocol):
    """A Flower strategy whose state can be stored."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the round's cohort."""
        ...

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Combine the replies."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        ...


class Privacy(Protocol):
    """Counts what is spent."""

    def observe(self, cohort: list[int]) -> None:
        """Take note of a round's users, as positions in the train split's table."""
        ...

    def spent(self, round_num: int) -> dict[str, Any]:
        """Return the epsilons after a round, by the names that they have in the record."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        ...


@dataclass(frozen=True)
class Federation:
    """The parts of a federated run: whom to train and how to combine, where, at what price.

    Attributes:
        strategy: Asks a cohort, and combines the replies.
        grid: Where the users train.
        privacy: Counts what is spent.
        book: Scores and records.
        num_rounds: The last one.
        attendance: Who of those asked answers; None for everybody.
        clients: Where every user's report is written to, or None.
    """

    strategy: ResumableStrategy
    grid: Grid
    privacy: Privacy
    book: Bookkeeper
    num_rounds: int
    attendance: Attendance | None = None
    clients: ClientsFile | None = None


def train(run: Federation, state: RunState) -> RunState:
    """Train from ``state`` to the last round and return the state after it.

    Round 0 scores the initial model.
    """
    if state.round_num < 0:
        state = run.book.close_round(state.start(), training=None, spent=run.privacy.spent(0))
    for round_num in range(state.round_num + 1, run.num_rounds + 1):
        started = time.perf_counter()
        asked = list(
            run.strategy.configure_train(round_num, state.arrays, ConfigRecord(), run.grid)
        )
        run.privacy.observe(cohort_of(asked))
        run.book.begin_round(state, run.privacy.state_dict())
        messages, missing = _attending(run.attendance, round_num, asked)
        replies: Iterable[Message] = run.grid.send_and_receive(messages)
        delivery = replies.delivery if isinstance(replies, Replies) else None
        if run.clients is not None:
            replies = run.clients.watch(round_num, messages, replies)
        arrays, metrics = run.strategy.aggregate_train(round_num, replies)
        if run.clients is not None:
            run.clients.write()
        state = state.advance(
            round_num, arrays, run.strategy.state_dict(), run.privacy.state_dict()
        )
        missing |= _undelivered(delivery, missing)
        if delivery is not None:
            state = dataclasses.replace(state, unreceived=delivery.unreceived)
            for text in delivery.notes:
                run.book.note(text)
        replaced = run.grid.figures() if isinstance(run.grid, UserGrid) else {}
        training = {**metrics, **missing, **replaced, "seconds": time.perf_counter() - started}
        state = run.book.close_round(state, training, run.privacy.spent(round_num))
    return state


def _attending(
    attendance: Attendance | None, round_num: int, asked: list[Message]
) -> tuple[list[Message], dict[str, int]]:
    """Return the messages that are answered, and figures about the others."""
    if attendance is None:
        return asked, {}
    absent = attendance.absent(round_num, cohort_of(asked))
    answered = [m for m, answers in zip(asked, absent.answers, strict=True) if answers]
    return answered, absent.figures()


def _undelivered(delivery: Delivery | None, missing: dict[str, int]) -> dict[str, int]:
    """Return figures about messages that were lost on the way; these users have dropped out."""
    if delivery is None:
        return {}
    return {
        DROPPED_OUT: missing.get(DROPPED_OUT, 0) + len(delivery.lost),
        "diagnostic-num-resent": delivery.num_resent,
    }


def cohort_of(messages: list[Message]) -> list[int]:
    """Return the users that messages go to, as positions in the train split's table."""
    return [message.metadata.dst_node_id - 1 for message in messages]
