"""The default engine: users are trained in this process, or by worker processes on this machine."""

from collections.abc import Iterable, Iterator

from flwr.app import Message

from fedsim.arrays import Arrays, zeros_like
from fedsim.engines.client_app import LocalClientApp, MakeClientApp
from fedsim.engines.unit import Unit, execute
from fedsim.engines.user_grid import Executor, UserGrid
from fedsim.engines.workers import WorkerPool, keep_freed_memory


class InProcessGrid(UserGrid):
    """A Grid on this machine.

    Args:
        make_client_app: Builds the ClientApp in the process that runs it.
        like: Arrays with the names, shapes and dtypes that travel.
        num_users: Users of the train split; each is a node, numbered from 1.
        num_workers: 1 runs clients in this process; more start as many processes.
    """

    def __init__(
        self, make_client_app: MakeClientApp, like: Arrays, *, num_users: int, num_workers: int = 1
    ) -> None:
        executor: Executor = (
            _Inline(make_client_app, like)
            if num_workers == 1
            else WorkerPool(make_client_app, like, num_workers)
        )
        super().__init__(executor, num_users)


class _Inline:
    """Runs units in the calling process."""

    num_replaced = 0

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
