"""Replies of one round, computed as they are read."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, RecordDict

from fedsim.flower_seam import to_arrays, to_record


@dataclass
class Delivery:
    """What became of messages that travel over a network; complete once the replies are read.

    Attributes:
        lost: Users without an answer.
        num_resent: Users' messages that were sent again.
        notes: What else the record has to say of the round.
        unreceived: By user, the rounds since the last answer that came whose answers did not.
    """

    lost: list[str] = field(default_factory=list)
    num_resent: int = 0
    notes: list[str] = field(default_factory=list)
    unreceived: dict[str, list[int]] = field(default_factory=dict)


class Replies(Iterable[Message]):
    """The replies to one round's messages, in the order of the messages.

    ``drain`` streams: each reply's arrays may be overwritten once the next one is asked for.
    Iterating keeps a private copy of every reply and may be repeated, which is what Flower's own
    strategies rely on; they hold the whole cohort in memory.

    Args:
        stream: The replies.
        delivery: What became of the messages, from an engine where some may be lost.
    """

    def __init__(self, stream: Iterator[Message], delivery: Delivery | None = None) -> None:
        self._stream, self.delivery = stream, delivery
        self._kept: list[Message] | None = None

    def drain(self) -> Iterator[Message]:
        """Yield each reply once; the caller is done with one before it asks for the next."""
        return iter(self._kept) if self._kept is not None else self._stream

    def __iter__(self) -> Iterator[Message]:
        if self._kept is None:
            self._kept = [_private_copy(reply) for reply in self._stream]
        return iter(self._kept)


def drain(replies: Iterable[Message]) -> Iterator[Message]:
    """Stream our own replies; iterate over anybody else's."""
    return replies.drain() if isinstance(replies, Replies) else iter(replies)


@dataclass(frozen=True)
class Senders:
    """Whom a round's replies come from: a reply itself knows only its node.

    Attributes:
        round_num: From 1.
        users: The ids of the users at the nodes.
    """

    round_num: int
    users: Mapping[int, str]

    def place_of(self, reply: Message) -> str:
        """Return round and user, for an error."""
        node = reply.metadata.src_node_id
        who = f"user {self.users[node]!r}" if node in self.users else f"node {node}"
        return f"round {self.round_num}, {who}"


def _private_copy(reply: Message) -> Message:
    if not reply.has_content():
        return reply
    content = RecordDict()
    for key, record in reply.content.items():
        content[key] = (
            to_record({name: tensor.clone() for name, tensor in to_arrays(record).items()})
            if isinstance(record, ArrayRecord)
            else record
        )
    private = copy.copy(reply)
    private.content = content
    return private
