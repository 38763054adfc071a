"""The Grid whose nodes are the users; an executor says where their messages are answered."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from flwr.app import Message

from fedsim.engines.message_grid import MessageGrid
from fedsim.engines.unit import Unit, split_into_units
from fedsim.flower_seam import ensure_task_identity
from fedsim.replies import Replies


class Executor(Protocol):
    """Answers units in order; each answer's arrays live until the next is asked for."""

    @property
    def num_replaced(self) -> int:
        """Workers that died and were replaced."""
        ...

    def run(self, units: Iterable[Unit]) -> Iterator[Message]:
        """Yield one reply per unit."""
        ...

    def close(self) -> None:
        """Stop whatever is still running."""
        ...


class UserGrid(MessageGrid):
    """A Grid with a node per user. The results do not depend on the executor, bit for bit.

    Args:
        executor: Where messages are answered.
        num_users: Users of the train split; each is a node, numbered from 1.
    """

    def __init__(self, executor: Executor, num_users: int) -> None:
        ensure_task_identity()
        self._executor, self._num_users = executor, num_users
        self._num_told = 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Replies:
        """Return the replies, in the order of the messages, computed as they are read."""
        return Replies(self._executor.run(split_into_units(messages)))

    @property
    def num_workers_replaced(self) -> int:
        """Workers that died so far; what they were at was done again by others."""
        return self._executor.num_replaced

    def figures(self) -> dict[str, int]:
        """Return what the record of a round should tell about the time since it was last asked."""
        new, self._num_told = self.num_workers_replaced - self._num_told, self.num_workers_replaced
        return {"num_workers_replaced": new} if new else {}

    def get_node_ids(self) -> Iterable[int]:
        """Return all users' nodes."""
        return range(1, self._num_users + 1)

    @property
    def run(self) -> Any:
        """Not kept: a run's settings are in its folder."""
        raise NotImplementedError("fedsim's Grids hold no Flower run; see config.yaml")

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        self._executor.close()
