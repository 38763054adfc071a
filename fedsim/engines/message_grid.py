"""What fedsim's Grids have in common: messages are sent and their replies received, no more."""

from abc import abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class MessageGrid(Grid):
    """A Grid of one run, in which a node is a user; closed at the end of a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """End whatever is still running."""

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message, as Flower's own Grids do."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run per Grid."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Not offered: replies are computed when they are read, and a message is to a user."""
        raise NotImplementedError("use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Not offered, as ``push_messages``."""
        raise NotImplementedError("use send_and_receive")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
