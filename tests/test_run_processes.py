"""What a run's process does about the one that started it."""

import os
from multiprocessing import Pipe
from pathlib import Path

import pytest

from fedsim import run_processes
from fedsim.config import RunConfig
from fedsim.jobs import Job
from fedsim.record import RunFolder
from fedsim.reporter import Reporter


class Ended(BaseException):
    """Stands for the end of the process."""


def test_a_run_whose_parent_was_killed_ends_and_is_not_taken_for_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher that ends it with its parent may come a moment later."""

    def end(code: int) -> None:
        raise Ended(code)

    def run_job(job: Job, folder: RunFolder, reporter: Reporter, *others: object) -> None:
        reporter.started(job.run_id, 3, 0)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(run_processes, "run_job", run_job)
    parents_end, events = Pipe(duplex=False)
    parents_end.close()
    folder = RunFolder(tmp_path / "x" / "seed0")
    folder.prepare()
    job = Job("seed0", RunConfig(name="x"))
    with pytest.raises(Ended):
        run_processes.attempt(job, folder, run_processes._Sender(events), 1)
    assert folder.failure() is None
