"""Who is told what happens while runs are going on."""

from dataclasses import dataclass
from typing import Any, Protocol

from fedsim.jobs import Job


@dataclass(frozen=True)
class Failure:
    """Why a run did not reach its end.

    Attributes:
        message: One sentence, or more where a client's traceback belongs to it.
        exit_code: What the command line ends with; 1 for a bug.
        traceback: Of a bug; else empty.
    """

    message: str
    exit_code: int
    traceback: str = ""


class Reporter(Protocol):
    """Told what happens, while it happens; of several runs at a time, each by its id."""

    def checking(self, num_jobs: int) -> None:
        """So many runs are built once, and their data opened, before any of them begins."""
        ...

    def planned(self, jobs: list[Job], num_skipped: int, at_a_time: int, workers: int) -> None:
        """All settings are in order, and these runs are to do, each with so many workers."""
        ...

    def started(self, run_id: str, num_rounds: int, done: int) -> None:
        """A run begins, or goes on after ``done`` rounds."""
        ...

    def noted(self, run_id: str, text: str) -> None:
        """There is something to know about a run that stops nothing."""
        ...

    def recorded(self, run_id: str, line: dict[str, Any]) -> None:
        """A line was recorded."""
        ...

    def finished(self, run_id: str, summary: dict[str, Any], skipped: bool) -> None:
        """A run is done, or was already."""
        ...

    def failed(self, run_id: str, failure: Failure, skipped: bool) -> None:
        """A run was stopped by an error, or was before and is not repeated."""
        ...


class Silence:
    """Tells nobody."""

    def checking(self, num_jobs: int) -> None:
        """Do nothing."""

    def planned(self, jobs: list[Job], num_skipped: int, at_a_time: int, workers: int) -> None:
        """Do nothing."""

    def started(self, run_id: str, num_rounds: int, done: int) -> None:
        """Do nothing."""

    def noted(self, run_id: str, text: str) -> None:
        """Do nothing."""

    def recorded(self, run_id: str, line: dict[str, Any]) -> None:
        """Do nothing."""

    def finished(self, run_id: str, summary: dict[str, Any], skipped: bool) -> None:
        """Do nothing."""

    def failed(self, run_id: str, failure: Failure, skipped: bool) -> None:
        """Do nothing."""
