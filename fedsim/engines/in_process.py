"""The default engine: a Grid whose nodes are the users, trained here or by workers here."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsim.arrays import Arrays, zeros_like
from fedsim.engines.client_app import LocalClientApp, MakeClientApp
from fedsim.engines.unit import Unit, execute, split_into_units
from fedsim.engines.workers import WorkerPool, keep_freed_memory
from fedsim.flower_seam import ensure_task_identity
from fedsim.replies import Replies


class Executor(Protocol):
    """Answers units in order; each answer's arrays live until the next is asked for."""

    def run(self, units: Iterable[Unit]) -> Iterator[Message]:
        """Yield one reply per unit."""
        ...

    def close(self) -> None:
        """Stop whatever is still running."""
        ...


class InProcessGrid(Grid):
    """A Grid on this machine. The results do not depend on the number of workers, bit for bit.

    Args:
        make_client_app: Builds the ClientApp in the process that runs it.
        like: Arrays with the names, shapes and dtypes that travel.
        num_users: Users of the train split; each is a node, numbered from 1.
        num_workers: 1 runs clients in this process; more start as many processes.
    """

    def __init__(
        self, make_client_app: MakeClientApp, like: Arrays, *, num_users: int, num_workers: int = 1
    ) -> None:
        ensure_task_identity()
        self._num_users = num_users
        self._executor: Executor = (
            _Inline(make_client_app, like)
            if num_workers == 1
            else WorkerPool(make_client_app, like, num_workers)
        )

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Replies:
        """Return the replies, in the order of the messages, computed as they are read."""
        return Replies(self._executor.run(split_into_units(messages)))

    def get_node_ids(self) -> Iterable[int]:
        """Return all users' nodes."""
        return range(1, self._num_users + 1)

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

    @property
    def run(self) -> Any:
        """Not kept: a run's settings are in its folder."""
        raise NotImplementedError("an in-process Grid holds no Flower run; see config.yaml")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Not offered: replies are computed when they are read."""
        raise NotImplementedError("use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Not offered: replies are computed when they are read."""
        raise NotImplementedError("use send_and_receive")

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        self._executor.close()

    def __enter__(self) -> "InProcessGrid":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Inline:
    """Runs units in the calling process."""

    def __init__(self, make_client_app: MakeClientApp, like: Arrays) -> None:
        keep_freed_memory()
        self._app = make_client_app()
        self._total = zeros_like(like)

    def run(self, units: Iterable[Unit]) -> Iterator[Message]:
        coming = iter(units)
        unit = next(coming, None)
        while unit is not None:
            following = next(coming, None)
            message = None if following is None else following.messages[0]
            yield execute(self._app, unit, self._total, message)
            unit = following

    def close(self) -> None:
        if isinstance(self._app, LocalClientApp):
            self._app.stop()
