"""Worker processes that train units, with arrays in shared memory.

The global arrays are published once a round in one shared buffer. Each unit in flight has a slot,
a buffer of the same layout, into which its worker writes the block's sum (or a single reply's
arrays); what crosses the pipe is a few numbers.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Event

import torch
from flwr.app import ArrayRecord, Message
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays
from fedsim.engines.client_app import MakeClientApp
from fedsim.engines.stripped import StrippedUnit, first_arrays
from fedsim.engines.unit import Unit, execute
from fedsim.errors import EngineError
from fedsim.flower_seam import ensure_task_identity, to_arrays, to_record

_ALIGNMENT = 64
_MAX_RESTARTS = 3
_UNITS_PER_WORKER = 2


@dataclass(frozen=True)
class Layout:
    """Where each array lies in a shared buffer.

    Attributes:
        shapes: By name.
        dtype: Of all of them.
    """

    shapes: dict[str, torch.Size]
    dtype: torch.dtype

    @classmethod
    def of(cls, arrays: Arrays) -> "Layout":
        """Return the layout of some arrays."""
        return cls({name: a.shape for name, a in arrays.items()}, next(iter(arrays.values())).dtype)

    @property
    def num_bytes(self) -> int:
        """Size of a buffer."""
        return sum(self._padded(shape) for shape in self.shapes.values())

    def views(self, buffer: torch.Tensor) -> Arrays:
        """Return the arrays that lie in a buffer."""
        views, offset = {}, 0
        for name, shape in self.shapes.items():
            size = shape.numel() * self.dtype.itemsize
            views[name] = buffer[offset : offset + size].view(self.dtype).view(shape)
            offset += self._padded(shape)
        return views

    def fits(self, arrays: Arrays) -> bool:
        """Tell whether arrays have these names, shapes and dtype."""
        return arrays.keys() == self.shapes.keys() and self.holds(arrays)

    def holds(self, arrays: Arrays) -> bool:
        """Tell whether arrays have some of these names, with their shapes and dtype."""
        return arrays.keys() <= self.shapes.keys() and all(
            a.shape == self.shapes[name] and a.dtype == self.dtype for name, a in arrays.items()
        )

    def _padded(self, shape: torch.Size) -> int:
        return -(-shape.numel() * self.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True)
class _Task:
    """A unit on its way to a worker.

    Attributes:
        stripped: The unit without the arrays that are already there.
        slot: Where the reply's arrays go.
    """

    stripped: StrippedUnit
    slot: int


@dataclass(frozen=True)
class _Answer:
    """A reply on its way back.

    Attributes:
        reply: Without the record that lies in the slot.
        key: That record's key, or None.
    """

    reply: Message
    key: str | None


class WorkerPool:
    """Runs units in worker processes; yields their replies in order.

    A worker that dies takes the pool with it: the pool is rebuilt and the unfinished units are done
    again, with the same bits. Workers end when the parent does, however it ends.

    Args:
        make_client_app: Builds the ClientApp in a worker; must be picklable.
        like: Arrays with the names, shapes and dtypes that travel.
        num_workers: At least 2.
    """

    def __init__(self, make_client_app: MakeClientApp, like: Arrays, num_workers: int) -> None:
        self._make_client_app, self._num_workers = make_client_app, num_workers
        self._layout = Layout.of(like)
        self._window = _UNITS_PER_WORKER * num_workers
        _check_shared_memory(self._layout.num_bytes * (1 + self._window))
        self._global = _shared_buffer(self._layout)
        self._slots = [_shared_buffer(self._layout) for _ in range(self._window)]
        self._published: ArrayRecord | None = None
        self._in_flight: deque[tuple[_Task, Future[_Answer]]] = deque()
        self._has_started: Event | None = None  # set by the first worker that runs
        self.num_replaced = 0
        self._pool = self._start()

    def run(self, units: Iterable[Unit]) -> Iterator[Message]:
        """Yield one reply per unit; its arrays live until the next reply is asked for."""
        self._finish_abandoned()
        self._published = None
        free = deque(range(self._window))
        for unit in units:
            task = self._prepare(unit, free.popleft())
            self._in_flight.append((task, self._submit(task)))
            if not free:
                slot, reply = self._next_reply()
                yield reply
                free.append(slot)
        while self._in_flight:
            yield self._next_reply()[1]

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        self._in_flight.clear()
        self._lifeline.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        context = start_forkserver("fedsim.engines.workers")
        self._has_started = self._has_started or context.Event()
        # Workers end when the other end of this pipe closes, which the parent's death does too.
        lifeline, self._lifeline = context.Pipe(duplex=False)
        return ProcessPoolExecutor(
            self._num_workers,
            mp_context=context,
            initializer=_start_worker,
            initargs=(
                lifeline,
                self._has_started,
                self._make_client_app,
                self._layout,
                self._global,
                self._slots,
            ),
        )

    def _prepare(self, unit: Unit, slot: int) -> _Task:
        self._publish(unit)
        return _Task(StrippedUnit.of(unit, self._published), slot)

    def _publish(self, unit: Unit) -> None:
        """Put a round's global arrays where every worker sees them, before its first unit."""
        if self._in_flight:
            return
        record = first_arrays(unit)
        if record is None:
            return
        arrays = to_arrays(record)
        if self._layout.holds(arrays):  # what is scored is the model alone, without what travels
            views = self._layout.views(self._global)
            torch._foreach_copy_([views[name] for name in arrays], list(arrays.values()))
            self._published = record

    def _submit(self, task: _Task) -> "Future[_Answer]":
        try:
            return self._pool.submit(_answer, task)
        except (BrokenProcessPool, BrokenPipeError) as error:
            # A worker that ends before it has read what it is started with breaks the pipe.
            future: Future[_Answer] = Future()
            future.set_exception(BrokenProcessPool(str(error)))
            return future

    def _next_reply(self) -> tuple[int, Message]:
        """Wait for the oldest unit; on a dead worker start a new pool and redo what is open."""
        for _ in range(_MAX_RESTARTS + 1):
            task, future = self._in_flight[0]
            try:
                answer = future.result()
            except BrokenProcessPool:
                self._restart()
                continue
            self._in_flight.popleft()
            return task.slot, self._unpark(answer, task.slot)
        if self._has_started is None or not self._has_started.is_set():
            raise EngineError(
                "engine.workers: expected workers to start, found that they end at once; in a "
                'script, put the call under `if __name__ == "__main__":`, since workers import it '
                "(see above for what they said)"
            )
        unit = self._in_flight[0][0].stripped.unit
        raise EngineError(
            f"worker processes were killed {_MAX_RESTARTS + 1} times over the units of "
            f"{[m.content.config_records for m in unit.messages][:1]}; "
            "look for the system's out-of-memory messages and lower engine.workers"
        )

    def _restart(self) -> None:
        self.num_replaced += 1  # one died, and took the others with it
        # Only when the last old worker is gone may a slot be written again.
        self._lifeline.close()
        self._pool.shutdown(wait=True)
        self._pool = self._start()
        self._in_flight = deque((task, self._submit(task)) for task, _ in self._in_flight)

    def _unpark(self, answer: _Answer, slot: int) -> Message:
        if answer.key is not None:
            answer.reply.content[answer.key] = to_record(self._layout.views(self._slots[slot]))
        return answer.reply

    def _finish_abandoned(self) -> None:
        """A consumer that stopped early left units running: they still write to their slots."""
        for _, future in self._in_flight:
            future.cancel()
        for _, future in self._in_flight:
            if not future.cancelled():
                future.exception()
        self._in_flight.clear()


def start_forkserver(preload: str) -> ForkServerContext:
    """Return the context in which processes are started, with its server running.

    Not fork: autograd refuses after a backward pass in the parent. The server, and so whatever it
    starts, ignores Ctrl-C, which is the parent's to handle.

    Args:
        preload: The module that its processes need.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    if threading.current_thread() is not threading.main_thread():
        return context
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)
    return context


def num_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _shared_buffer(layout: Layout) -> torch.Tensor:
    buffer = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    buffer.share_memory_()  # type: ignore[no-untyped-call]
    return buffer


def _check_shared_memory(num_bytes: int) -> None:
    try:
        stats = os.statvfs("/dev/shm")
    except OSError:
        return
    free = stats.f_bavail * stats.f_frsize
    if free < num_bytes:
        raise EngineError(
            f"engine.workers: expected {num_bytes / 1e6:.0f} MB of free shared memory for the "
            f"workers' arrays, found {free / 1e6:.0f} MB in /dev/shm; give the container more "
            "(docker run --shm-size) or set engine.workers: 1"
        )


# What follows runs in a worker.


@dataclass(frozen=True)
class _Worker:
    app: ClientApp
    layout: Layout
    published: ArrayRecord
    slots: list[Arrays]


_worker: _Worker | Exception | None = None


def _start_worker(
    lifeline: connection.Connection,
    has_started: Event,
    make_client_app: MakeClientApp,
    layout: Layout,
    global_buffer: torch.Tensor,
    slots: list[torch.Tensor],
) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=end_with, args=(lifeline,), daemon=True).start()
    has_started.set()
    torch.set_num_threads(1)
    keep_freed_memory()
    ensure_task_identity()
    try:
        _worker = _Worker(
            app=make_client_app(),
            layout=layout,
            published=to_record(layout.views(global_buffer)),
            slots=[layout.views(slot) for slot in slots],
        )
    except Exception as error:
        _worker = error  # raised by the first task: here it would only break the pool


def end_with(lifeline: connection.Connection) -> None:
    """End this process when the other end of a pipe closes, which its owner's death does too."""
    connection.wait([lifeline])
    os._exit(1)


def _answer(task: _Task) -> _Answer:
    worker = _worker
    if isinstance(worker, Exception):
        raise worker
    if worker is None:
        raise RuntimeError("the worker was not started")
    slot = worker.slots[task.slot]
    unit = task.stripped.restored(worker.published)
    reply = execute(worker.app, unit, slot)
    for key, record in reply.content.array_records.items():
        arrays = to_arrays(record)
        if worker.layout.fits(arrays):
            if unit.rule is None:  # a block's sum has grown in the slot itself
                torch._foreach_copy_(list(slot.values()), [arrays[name] for name in slot])
            del reply.content[key]
            return _Answer(reply, key)
    return _Answer(reply, None)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step.

    Activations of the same sizes come and go with every batch; returning their pages to the system
    and faulting them in again costs 10 to 20 % of a small model's round.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        mmap_threshold, trim_threshold = -3, -1
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
