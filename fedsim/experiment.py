"""The runs of a file: which are done, which are to do, how many at a time."""

import contextlib
import dataclasses
import fcntl
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from fedsim import build
from fedsim.check import check_splits, faults_of
from fedsim.config import RunConfig
from fedsim.config_file import runs_of
from fedsim.engines.workers import num_cores
from fedsim.errors import CheckpointError, EngineError, FedsimError, noted, raise_together
from fedsim.jobs import Job, jobs_of
from fedsim.progress import shown_progress
from fedsim.record import RunFolder
from fedsim.reporter import Failure, Reporter
from fedsim.run_processes import Outcome, attempt, run_in_processes
from fedsim.runtime import HERE, Runtime
from fedsim.single_run import resumed

_SECONDS_TO_LOCK = 10.0
_FROM_PYTHON = "fedsim.run(...) in Python"

Task = tuple[Job, RunFolder]


def run_jobs(
    jobs: list[Job],
    out: Path,
    reporter: Reporter,
    *,
    command: str,
    repeat_failed: bool = False,
    runtime: Runtime = HERE,
) -> dict[str, Outcome]:
    """Run all jobs, as many at a time as there are cores for, and return how each ended.

    A run that is finished is skipped, one that was broken off goes on from its checkpoint, and one
    that failed stays so unless its settings have changed or it is asked for. A run that fails now
    stops no other one.

    Args:
        jobs: What to run.
        out: The folder of all experiments; a job writes to ``out/<name>/<run_id>``.
        reporter: Told what happens.
        command: What asked for it, for the record.
        repeat_failed: Go on with failed runs, too, from their last checkpoints.
        runtime: Where the users are; elsewhere than here, the runs go on one after another.

    Returns:
        Each job's summary or failure, by run id, in the order of the jobs.

    Raises:
        FedsimError: Whatever is wrong with settings or data, before any training.
    """
    tasks = [
        (job, RunFolder(out / job.config.name / job.run_id))
        for job in (dataclasses.replace(j, config=build.with_defaults(j.config)) for j in jobs)
    ]
    with _locked({folder.path.parent for _, folder in tasks}):
        outcomes = {} if repeat_failed else _failed_before(tasks)
        outcomes |= _finished_before(tasks, unchanged=True)
        reporter.checking(len(tasks) - len(outcomes))
        # Everything is built once before anything runs: a fault in the last run shows at once.
        faults: list[FedsimError] = []
        for job, folder in tasks:
            if job.run_id not in outcomes:
                with noted(faults):
                    faults += _faults(job, folder, runtime)
        raise_together(faults)
        outcomes |= _finished_before(tasks, unchanged=False)
        _tell(tasks, outcomes, reporter)
        _note_origins(tasks, outcomes, command)
        todo = [task for task in tasks if task[0].run_id not in outcomes]
        if todo:
            jobs = [job for job, _ in todo]
            at_a_time, workers = processes_for(jobs) if runtime is HERE else (1, 1)
            reporter.planned(jobs, len(outcomes), at_a_time, workers)
            outcomes |= _run(todo, reporter, at_a_time, workers, runtime)
    return {job.run_id: outcomes[job.run_id] for job, _ in tasks}


def run(
    config: RunConfig | dict[str, Any], out: str | Path = "runs", reporter: Reporter | None = None
) -> dict[str, dict[str, Any]]:
    """Run what a configuration describes, with its baselines, from Python.

    A script that calls this keeps the call under ``if __name__ == "__main__":``, since workers
    import the script.

    Args:
        config: The settings of one run, or the mapping that a YAML file holds.
        out: The folder of all experiments.
        reporter: Told what happens; by default it is printed. ``Silence()`` tells nobody.

    Returns:
        Each run's summary (as in ``summary.json``), by its id.

    Raises:
        FedsimError: The settings are at fault, or a run failed.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        print('fedsim: put the call of run() under `if __name__ == "__main__":`', file=sys.stderr)
        os._exit(1)  # a worker that imports the script; an exception would be a page of traceback
    given = {f"seed{config.seed}": config} if isinstance(config, RunConfig) else None
    jobs = jobs_of(given or runs_of(dict(config), {}, "the settings"))
    with shown_progress(Console(), processes_for(jobs)[0]) as shown:
        told = reporter or shown
        outcomes = run_jobs(jobs, Path(out), told, command=_FROM_PYTHON, repeat_failed=True)
    return summaries_of(outcomes)


def summaries_of(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Any]]:
    """Return the runs' summaries by id, or raise EngineError for the first that failed."""
    summaries = {}
    for run_id, outcome in outcomes.items():
        if isinstance(outcome, Failure):
            raise EngineError(f"{run_id}: {outcome.message}\n{outcome.traceback}".rstrip())
        summaries[run_id] = outcome
    return summaries


def processes_for(jobs: Sequence[Job]) -> tuple[int, int]:
    """Return how many of these runs go on at a time, and with how many workers each.

    Runs side by side use cores best; what is left over goes to each run's own workers. On Ray they
    go side by side where they share a cluster and each says how many workers it takes there. On a
    GPU they go one after another, with one worker unless the settings say how many share it.
    """
    asked = max((job.config.engine.workers or 0 for job in jobs), default=0)
    engines = [job.config.engine for job in jobs]
    if any(engine.name == "ray" for engine in engines):
        side_by_side = all(engine.address and engine.workers for engine in engines)
        return min(len(jobs), num_cores()) if side_by_side else 1, asked or num_cores()
    if any(job.config.model.device != "cpu" for job in jobs):
        return 1, asked or 1
    at_a_time = max(1, min(len(jobs), num_cores() // (asked or 1)))
    return at_a_time, asked or max(1, num_cores() // at_a_time)


def _run(
    tasks: list[Task], reporter: Reporter, at_a_time: int, workers: int, runtime: Runtime
) -> dict[str, Outcome]:
    for _, folder in tasks:
        folder.clear_failure()
    if at_a_time > 1:
        return run_in_processes(tasks, reporter, at_a_time=at_a_time, workers=workers)
    return {job.run_id: attempt(job, folder, reporter, workers, runtime) for job, folder in tasks}


def _tell(tasks: list[Task], outcomes: dict[str, Outcome], reporter: Reporter) -> None:
    for run_id in [job.run_id for job, _ in tasks if job.run_id in outcomes]:
        outcome = outcomes[run_id]
        if isinstance(outcome, Failure):
            reporter.failed(run_id, outcome, skipped=True)
        else:
            reporter.finished(run_id, outcome, skipped=True)


def _faults(job: Job, folder: RunFolder, runtime: Runtime) -> list[FedsimError]:
    """Build every part of a run once, and return what stands in its way."""
    dataset = runtime.dataset(job.config)
    check_splits(job.config, dataset)
    state = resumed(folder, job, dataset)
    return faults_of(job.config, job.baseline, dataset, state.ledger if state else None)


def _finished_before(tasks: list[Task], *, unchanged: bool) -> dict[str, Outcome]:
    """Return the summaries that are there, unless more rounds are asked for than they are of.

    Args:
        tasks: Runs and their folders.
        unchanged: Only of runs whose settings are what they were to the letter: nothing has to be
            built to know that they are done, unless their data are newer.
    """
    found: dict[str, Outcome] = {}
    for job, folder in tasks:
        if folder.finished:
            summary: dict[str, Any] = folder.read_json("summary.json")
            same = not unchanged or (
                summary["config"] == job.config.model_dump(mode="json")
                and not _data_is_newer(job.config, folder)
            )
            if same and summary["num_rounds"] >= job.num_rounds:
                found[job.run_id] = summary
    return found


def _data_is_newer(config: RunConfig, folder: RunFolder) -> bool:
    """Tell whether the data's file or folder was changed after a run had finished."""
    try:
        return folder.finished_at < Path(config.data.source).expanduser().stat().st_mtime
    except OSError:  # no path, or nothing there
        return False


def _note_origins(tasks: list[Task], outcomes: dict[str, Outcome], command: str) -> None:
    """Record each run's place among its siblings, and the command of those that are to do."""
    for place, (job, folder) in enumerate(tasks):
        is_to_do = job.run_id not in outcomes
        if is_to_do:
            folder.prepare()
        folder.note_origin(place, command if is_to_do else None)


def _failed_before(tasks: list[Task]) -> dict[str, Outcome]:
    """Return the failures that are marked, of runs whose settings are what they were."""
    found: dict[str, Outcome] = {}
    for job, folder in tasks:
        mark = folder.failure()
        if mark is not None and mark.pop("config") == job.config.model_dump(mode="json"):
            found[job.run_id] = Failure(**mark)
    return found


@contextmanager
def _locked(folders: set[Path]) -> Iterator[None]:
    """Keep others from writing to the same experiments meanwhile; leave no folder empty."""
    missing = {
        path for folder in folders for path in (folder, *folder.parents) if not path.exists()
    }
    for folder in folders:
        RunFolder(folder).prepare()
    files = [(folder / ".lock").open("w") for folder in sorted(folders)]
    try:
        for file in files:
            _lock(file.fileno(), Path(file.name).parent)
        yield
    finally:
        for file in files:
            path = Path(file.name)
            if list(path.parent.iterdir()) == [path]:  # nothing was run
                path.unlink()
            file.close()
        for path in sorted(missing, reverse=True):  # inner ones first
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()


def _lock(descriptor: int, folder: Path) -> None:
    until = time.monotonic() + _SECONDS_TO_LOCK
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                raise CheckpointError(
                    f"{folder}: expected nobody else to write there, found another fedsim at work; "
                    "wait for it, stop it, or choose another --out"
                ) from None
            time.sleep(0.2)
