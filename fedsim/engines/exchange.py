"""One round's conversation with Flower's runtime: every message answered or known to be lost."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedsim.data.dataset import UserTable
from fedsim.engines.answers import checked_answer
from fedsim.engines.holdings import REASON
from fedsim.engines.nodes import Nodes
from fedsim.engines.pack import unpack
from fedsim.engines.unit import place_of
from fedsim.errors import EngineError
from fedsim.update_sum import USER

MAX_RESENDS = 3
UNREACHABLE = "no node that holds them is connected"

_FIRST_PAUSE = 0.5  # seconds before a message is sent again; doubled each time
_SECONDS_BETWEEN_PULLS = 0.1
_LOST = {
    ErrorCode.UNKNOWN,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}
"""What the runtime says of its own failures; any other error is the client's."""


@dataclass(frozen=True)
class Lost:
    """There is no answer for a user, after all resends.

    Attributes:
        user: The user's id.
        reason: Why, as far as the runtime tells.
    """

    user: str
    reason: str


@dataclass
class _Sent:
    node: int
    positions: list[int]


@dataclass
class Exchange:
    """Sends a round's messages to the nodes and puts the answers back in order.

    Attributes:
        grid: Flower's.
        nodes: Who trains whom.
        users: All of them; a message's node is a user's place in this table, counted from 1.
        messages: One per user.
        wrap: Makes the message that goes to a node, of several users' messages; told the seconds
            after which it has no worth.
        per_message: Users in one message, at most.
        seconds: How long a node may take for one. It works on one after another.
        num_resent: Users' messages that were sent again.
    """

    grid: Grid
    nodes: Nodes
    users: UserTable
    messages: Sequence[Message]
    wrap: Callable[[Sequence[Message], int, float], Message]
    per_message: int
    seconds: float
    num_resent: int = 0
    _answers: dict[int, Message | Lost] = field(default_factory=dict)
    _sent: dict[str, _Sent] = field(default_factory=dict)
    _heard: dict[int, float] = field(default_factory=dict)  # when a node began with what is next
    _tries: dict[int, int] = field(default_factory=dict)
    _again: list[tuple[float, list[int]]] = field(default_factory=list)

    def run(self) -> Iterator[Message | Lost]:
        """Yield what became of each message, in their order."""
        self._send(list(range(len(self.messages))))
        for position in range(len(self.messages)):
            while position not in self._answers:
                self._step()
            yield self._answers.pop(position)

    def _step(self) -> None:
        now = time.monotonic()
        due = [positions for at, positions in self._again if at <= now]
        self._again = [(at, positions) for at, positions in self._again if at > now]
        for positions in due:
            self._send(positions)
        came = list(self.grid.pull_messages(list(self._sent))) if self._sent else []
        for reply in came:
            sent = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if sent is not None:
                self._heard[sent.node] = time.monotonic()
                self._take(reply, sent.positions)
        late = now - self.seconds
        for number in [n for n, sent in self._sent.items() if self._heard[sent.node] < late]:
            # Not sent again: a node that is slow would only get more to do.
            self._give_up(self._sent.pop(number).positions, f"no answer in {self.seconds:g} s")
        if not came and not due:
            time.sleep(_SECONDS_BETWEEN_PULLS)

    def _send(self, positions: list[int]) -> None:
        users = [user_of(self.messages[position]) for position in positions]
        by_node: dict[int, list[int]] = {}
        for position, node in zip(positions, self.nodes.holding(users), strict=True):
            if node is None:
                self._give_up([position], UNREACHABLE)
            else:
                by_node.setdefault(node, []).append(position)
        for node, held in by_node.items():
            # Blocks are dealt by the whole cohort's sizes: their order would tell of others' users.
            held.sort(key=lambda position: user_of(self.messages[position]))
            for start in range(0, len(held), self.per_message):
                self._push(node, held[start : start + self.per_message])

    def _push(self, node: int, positions: list[int]) -> None:
        waiting = sum(sent.node == node for sent in self._sent.values())
        own = [self.messages[position] for position in positions]
        message = self.wrap(own, node, self.seconds * (waiting + 1))
        number = next(iter(self.grid.push_messages([message])), None)
        if number is None:  # one Grid leaves refused messages out, another puts None
            self._resend(positions, "the SuperLink did not take the message")
        else:
            if not waiting:
                self._heard[node] = time.monotonic()
            self._sent[number] = _Sent(node, positions)

    def _take(self, reply: Message, positions: list[int]) -> None:
        if reply.has_error() and reply.error.code in _LOST:
            self._resend(positions, str(reply.error.reason))
            return
        if reply.has_error():
            for position in positions:
                self._answers[position] = _failed(self.messages[position], str(reply.error.reason))
            return
        contents = unpack(reply.content)
        if len(contents) != len(positions):
            raise EngineError(
                f"node {reply.metadata.src_node_id}: expected answers of {len(positions)} users, "
                f"found {len(contents)}; use the same release of fedsim on every machine"
            )
        for position, content in zip(positions, contents, strict=True):
            self._answers[position] = self._reply_of(
                self.messages[position], content, reply.metadata.src_node_id
            )

    def _reply_of(self, message: Message, content: RecordDict, node: int) -> Message:
        for record in content.config_records.values():
            if REASON in record:
                return _failed(message, str(record[REASON]))
        num_images = int(self.users.num_images[message.metadata.dst_node_id - 1])
        where = f"{place_of(message)} of SuperNode {node}"
        return Message(checked_answer(content, num_images, where), reply_to=message)

    def _resend(self, positions: list[int], reason: str) -> None:
        tried = self._tries.get(positions[0], 0)  # those of a message have been together before
        if tried == MAX_RESENDS:
            self._give_up(positions, reason)
            return
        self._tries.update(dict.fromkeys(positions, tried + 1))
        self.num_resent += len(positions)
        self._again.append((time.monotonic() + _FIRST_PAUSE * 2**tried, positions))

    def _give_up(self, positions: list[int], reason: str) -> None:
        for position in positions:
            self._answers[position] = Lost(user_of(self.messages[position]), reason)


def _failed(message: Message, reason: str) -> Message:
    error = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason)
    return Message(error, reply_to=message)


def user_of(message: Message) -> str:
    """Return the user whom a message is for."""
    users = [c[USER] for c in message.content.config_records.values() if USER in c]
    return str(users[0]) if users else f"of node {message.metadata.dst_node_id}"
