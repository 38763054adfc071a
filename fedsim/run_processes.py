"""Several runs at a time, each in a process of its own.

A run's numbers do not depend on what runs beside it: its process has one thread, its own model and
its own random streams. The parent only listens, so that one run's end, good or bad, touches no
other.
"""

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from fedsim import build
from fedsim.build_privacy import calibrations, recall_calibrations
from fedsim.data.image_dataset import ImageDataset
from fedsim.engines.workers import end_with, start_forkserver
from fedsim.errors import FedsimError, unwritable
from fedsim.jobs import Job
from fedsim.record import RunFolder
from fedsim.reporter import Failure, Reporter
from fedsim.runtime import HERE, Runtime
from fedsim.single_run import run_job

_SECONDS_TO_SAVE = 60.0

Outcome = dict[str, Any] | Failure
"""A run's summary, or why there is none."""


@dataclass
class _Running:
    job: Job
    folder: RunFolder
    process: BaseProcess
    events: connection.Connection
    lifeline: connection.Connection = field(repr=False)


def run_in_processes(
    tasks: Sequence[tuple[Job, RunFolder]], reporter: Reporter, *, at_a_time: int, workers: int
) -> dict[str, Outcome]:
    """Run all tasks, some at a time, in order of their start.

    Args:
        tasks: Runs and their folders.
        reporter: Told what happens, in this process.
        at_a_time: Runs at a time.
        workers: Processes that each of them may use.

    Returns:
        Each run's outcome, by its id.

    Raises:
        KeyboardInterrupt: After every run has saved a checkpoint.
    """
    waiting, running = deque(tasks), dict[connection.Connection, _Running]()
    outcomes: dict[str, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                started = _start(*waiting.popleft(), workers)
                running[started.events] = started
            for events in connection.wait(list(running)):
                run = running[events]  # type: ignore[index]
                outcome = _listen(run, reporter)
                if outcome is not None:
                    outcomes[run.job.run_id] = outcome
                    del running[run.events]
    finally:
        _stop(list(running.values()))
    return outcomes


def attempt(
    job: Job, folder: RunFolder, reporter: Reporter, workers: int, runtime: Runtime = HERE
) -> Outcome:
    """Run a job and tell its end; whatever stops it is returned."""
    try:
        summary = run_job(job, folder, reporter, workers, runtime)
    except Exception as error:
        told = error if isinstance(error, FedsimError) else unwritable(error, folder.path)
        if told is not None:
            failure = Failure(str(told), told.exit_code)
        else:
            failure = Failure(f"{type(error).__name__}: {error}", 1, traceback.format_exc())
    else:
        reporter.finished(job.run_id, summary, skipped=False)
        return summary
    return _failed(job, folder, reporter, failure)


def _failed(job: Job, folder: RunFolder, reporter: Reporter, failure: Failure) -> Failure:
    with suppress(OSError):  # a full disk has no room for it, and the failure is told below
        folder.mark_failed({**asdict(failure), "config": job.config.model_dump()})
    reporter.failed(job.run_id, failure, skipped=False)
    return failure


def _start(job: Job, folder: RunFolder, workers: int) -> _Running:
    context = start_forkserver("fedsim.run_processes")
    events, sender = context.Pipe(duplex=False)
    read_end, lifeline = context.Pipe(duplex=False)
    opened = build.shared_dataset(job.config)
    process = context.Process(
        target=_child, args=(sender, read_end, job, folder, workers, calibrations(), opened)
    )
    process.start()
    sender.close()
    read_end.close()
    return _Running(job, folder, process, events, lifeline)


def _listen(run: _Running, reporter: Reporter) -> Outcome | None:
    """Pass one event on; return the outcome if it is the last one."""
    try:
        kind, content = run.events.recv()
    except EOFError:
        run.process.join()
        failure = Failure(
            f"{run.job.run_id}: expected the run's process to end by itself, found it killed (exit "
            f"code {run.process.exitcode}); look for the system's out-of-memory messages, and add "
            "--resume to go on from its checkpoint",
            5,
        )
        return _failed(run.job, run.folder, reporter, failure)
    if kind == "outcome":
        run.process.join()
        outcome: Outcome = content
        return outcome
    getattr(reporter, kind)(run.job.run_id, **content)
    return None


def _stop(running: list[_Running]) -> None:
    """Let runs save a checkpoint, and end those that take too long."""
    for run in running:
        run.process.terminate()
    for run in running:
        run.process.join(_SECONDS_TO_SAVE)
        run.process.kill()


# What follows runs in a run's process.


class _Sender:
    """Tells the parent."""

    def __init__(self, events: connection.Connection) -> None:
        self._events = events

    def checking(self, num_jobs: int) -> None:
        """Never: the parent checks."""

    def planned(self, jobs: list[Job], num_skipped: int, at_a_time: int, workers: int) -> None:
        """Never: the parent plans."""

    def started(self, run_id: str, num_rounds: int, done: int) -> None:
        self._tell("started", num_rounds=num_rounds, done=done)

    def noted(self, run_id: str, text: str) -> None:
        self._tell("noted", text=text)

    def recorded(self, run_id: str, line: dict[str, Any]) -> None:
        self._tell("recorded", line=line)

    def finished(self, run_id: str, summary: dict[str, Any], skipped: bool) -> None:
        self._tell("finished", summary=summary, skipped=skipped)

    def failed(self, run_id: str, failure: Failure, skipped: bool) -> None:
        self._tell("failed", failure=failure, skipped=skipped)

    def _tell(self, kind: str, **content: Any) -> None:
        try:
            self._events.send((kind, content))
        except OSError:  # the parent was killed, which is no fault of the run's
            os._exit(1)


def _child(
    events: connection.Connection,
    lifeline: connection.Connection,
    job: Job,
    folder: RunFolder,
    workers: int,
    calibrated: dict[Any, float],
    opened: ImageDataset | None,
) -> None:
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=end_with, args=(lifeline,), daemon=True).start()
    recall_calibrations(calibrated)
    build.take_over(job.config.data, opened)
    try:
        events.send(("outcome", attempt(job, folder, _Sender(events), workers)))
    except KeyboardInterrupt:
        events.close()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
