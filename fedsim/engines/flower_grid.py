"""Flower's own runtime as an engine: users train on its nodes, scoring stays on the server."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsim.data.dataset import UserTable
from fedsim.engines.exchange import UNREACHABLE, Exchange, Lost, user_of
from fedsim.engines.message_grid import MessageGrid
from fedsim.engines.nodes import Nodes, Tell
from fedsim.engines.pack import pack
from fedsim.engines.user_grid import UserGrid
from fedsim.errors import EngineError
from fedsim.replies import Delivery, Replies
from fedsim.update_sum import FOLD, ROUND

TASK = "task"
"""Key of the record that says how a node is to train."""

UNRECEIVED, ROUNDS = "unreceived", "rounds"
"""Keys of the record, and of what it holds, that tells of a user which answers were lost."""

_BYTES_PER_MESSAGE = 256 * 2**20  # of the arrays that come back in one


@dataclass(frozen=True)
class Remote:
    """How a run uses Flower's runtime.

    Attributes:
        grid: Flower's.
        nodes: Who trains whom.
        users: Of the train split, with their numbers of images.
        task: What a node must know besides the messages.
        seconds: How long a node may take for one message.
        may_lose: Whether a round goes on without the users whose answers are lost.
        tell: Told whose are.
    """

    grid: Grid
    nodes: Nodes
    users: UserTable
    task: ConfigRecord
    seconds: float
    may_lose: bool
    tell: Tell


class FlowerGrid(MessageGrid):
    """A Grid whose users train on Flower's nodes; all other messages are answered here.

    A node can't fold, since the users of a block may be on several: each user's arrays come back,
    in the order of the messages, and the strategy clips and folds them as workers do, with the same
    bits.

    Args:
        remote: How users are reached.
        local: Answers what is not training.
        num_bytes: Size of the arrays that one user sends back.
        unreceived: By user, the rounds since the last answer that came whose answers did not. A
            user forgets what it kept in them, and is as if it had dropped out.
    """

    def __init__(
        self, remote: Remote, local: UserGrid, num_bytes: int, unreceived: dict[str, list[int]]
    ) -> None:
        self._remote, self._local = remote, local
        self._unreceived = dict(unreceived)
        self._per_message = max(1, _BYTES_PER_MESSAGE // max(1, num_bytes))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Replies:
        """Return the replies, in the order of the messages, without those that are lost."""
        coming = iter(messages)
        first = next(coming, None)
        if first is None or first.metadata.message_type != MessageType.TRAIN:
            return self._local.send_and_receive([] if first is None else chain([first], coming))
        delivery = Delivery()
        return Replies(self._trained([first, *coming], delivery), delivery)

    def _trained(self, messages: Sequence[Message], delivery: Delivery) -> Iterator[Message]:
        remote = self._remote
        exchange = Exchange(
            remote.grid,
            remote.nodes,
            remote.users,
            messages,
            self._wrap,
            self._per_message,
            remote.seconds,
        )
        lost = []
        for answer in exchange.run():
            if isinstance(answer, Lost):
                lost.append(answer)
            else:
                yield answer
        self._remember(messages, {one.user for one in lost})
        delivery.unreceived = dict(self._unreceived)
        delivery.num_resent = exchange.num_resent
        delivery.notes = remote.nodes.news()
        for text in delivery.notes:
            remote.tell(text)
        delivery.lost = [one.user for one in lost]
        self._check_lost(lost, len(messages))

    def _remember(self, messages: Sequence[Message], lost: set[str]) -> None:
        for message in messages:
            user = user_of(message)
            before = self._unreceived.pop(user, [])
            if user in lost:
                self._unreceived[user] = [*before, _round_of(message)]

    def _check_lost(self, lost: list[Lost], num_asked: int) -> None:
        if not lost:
            return
        names = ", ".join(one.user for one in lost)
        reasons = "; ".join(sorted({one.reason for one in lost}))
        if not self._remote.may_lose or (
            len(lost) == num_asked and not self._others_are_there(lost)
        ):
            raise EngineError(
                f"expected answers of {num_asked} users, found none of {names} ({reasons}); start "
                "the nodes that are missing and run again, which goes on from the last checkpoint"
            )
        self._remote.tell(f"{len(lost)} of {num_asked} users dropped out: {names} ({reasons})")

    def _others_are_there(self, lost: list[Lost]) -> bool:
        """Whether a cohort without an answer was just on nodes that are gone, while others stay."""
        gone = all(one.reason == UNREACHABLE for one in lost)
        return gone and bool(list(self._remote.grid.get_node_ids()))

    def _wrap(self, messages: Sequence[Message], node: int, seconds: float) -> Message:
        content = pack([self._content(message) for message in messages])
        content[TASK] = self._remote.task
        return Message(
            content,
            dst_node_id=node,
            message_type=MessageType.TRAIN,
            ttl=math.ceil(seconds) + 1.0,
        )

    def _content(self, message: Message) -> RecordDict:
        content = {key: record for key, record in message.content.items() if key != FOLD}
        rounds = self._unreceived.get(user_of(message))
        if rounds:
            content[UNRECEIVED] = ConfigRecord({ROUNDS: rounds})
        return RecordDict(content)

    def get_node_ids(self) -> Iterable[int]:
        """Return all users' nodes, as every engine does; they are not Flower's."""
        return self._local.get_node_ids()

    @property
    def run(self) -> Any:
        """Flower's run."""
        return self._remote.grid.run

    def close(self) -> None:
        """End what scores here."""
        self._local.close()


def _round_of(message: Message) -> int:
    """Return the round that a message belongs to: it stands beside the user."""
    return next(
        int(str(config[ROUND]))
        for config in message.content.config_records.values()
        if ROUND in config
    )
