"""Flower's Grid without its processes: its nodes run the ClientApp here, and may lose messages."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedsim.flower_app.client_app import app
from fedsim.flower_seam import ensure_task_identity

Fate = Callable[[Message], str]
"""What becomes of a message: "answered", "refused", "silence", or a key of ``_ERRORS``."""

_ERRORS = {
    "unavailable": ErrorCode.NODE_UNAVAILABLE,
    "crashed": ErrorCode.CLIENT_APP_CRASHED,
    "raised": ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    "forgotten": ErrorCode.REPLY_MESSAGE_UNAVAILABLE,  # once the work is done
}


class FakeFlower(Grid):
    """Answers last what was asked first, as a network may.

    Args:
        nodes: The configs of the nodes, by id.
        fate: What becomes of each message.
    """

    def __init__(self, nodes: dict[int, dict[str, Any]], fate: Fate = lambda m: "answered") -> None:
        ensure_task_identity()  # Flower gives one to each of its processes
        self.nodes, self.fate = nodes, fate
        self._waiting: dict[str, Message] = {}
        self.asked: list[tuple[int, str]] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            self.asked.append((message.metadata.dst_node_id, message.metadata.message_type))
            number = str(len(self.asked))
            message.metadata.__dict__["_message_id"] = number
            fate = self.fate(message)
            if fate == "refused":
                continue
            if fate != "silence":
                self._waiting[number] = self._reply(message, fate)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        came = [number for number in message_ids if number in self._waiting][-1:]
        return [self._waiting.pop(number) for number in came]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        numbers = list(self.push_messages(messages))
        return [reply for number in numbers for reply in self.pull_messages([number])]

    def _reply(self, message: Message, fate: str) -> Message:
        failed = Error(code=_ERRORS[fate], reason=f"it {fate}") if fate in _ERRORS else None
        if failed is not None and fate != "forgotten":
            return Message(failed, reply_to=message)
        node = message.metadata.dst_node_id
        context = Context(
            run_id=1,
            node_id=node,
            node_config=self.nodes[node],
            state=RecordDict(),
            run_config={},
        )
        arrived = Message(
            pickle.loads(pickle.dumps(message.content)),  # nothing is shared with a node
            dst_node_id=node,
            message_type=message.metadata.message_type,
        )
        content = pickle.loads(pickle.dumps(app(arrived, context).content))
        return Message(failed or content, reply_to=message)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError
