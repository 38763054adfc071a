"""What is shown while runs are going on: lines, and something live on a terminal."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedsim.display import epsilon, percent
from fedsim.estimate import Cost, estimate_costs, memory_mb
from fedsim.jobs import Job
from fedsim.reporter import Failure

_SECONDS_BETWEEN_LINES = 15.0  # where nothing is live
_TELLING = 0.05  # share of the work before which the start drowns the pace


class _Lines:
    """Lines that begin and end runs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def checking(self, num_jobs: int) -> None:
        if num_jobs > 1:
            self._print(f"checking {num_jobs} runs")

    def planned(self, jobs: list[Job], num_skipped: int, at_a_time: int, workers: int) -> None:
        if len(jobs) > 1:
            self._print(costs_in_words(estimate_costs(jobs), num_skipped, at_a_time, workers))

    def noted(self, run_id: str, text: str) -> None:
        self._print(f"{run_id}: {text}")

    def finished(self, run_id: str, summary: dict[str, Any], skipped: bool) -> None:
        scores = summary["test"]["scores"]
        how = "was finished before" if skipped else f"done in {duration(summary['seconds'])}"
        self._print(
            f"{run_id}: {how}; best round {summary['best_round']}, test macro AP "
            f"{percent(scores['macro_ap'])}, micro AP {percent(scores['micro_ap'])}"
        )

    def failed(self, run_id: str, failure: Failure, skipped: bool) -> None:
        how = "failed before; --resume repeats it" if skipped else "failed"
        self._print(f"{run_id}: {how}: {failure.message.splitlines()[0]}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class RoundReporter(_Lines):
    """Shows one run at a time: a line a round, and a bar on a terminal.

    Args:
        console: Where to; a live bar stands under the lines if it is a terminal.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", visible=False)
        self._total = 0
        self._training: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def started(self, run_id: str, num_rounds: int, done: int) -> None:
        """Head a run's lines."""
        self._total, self._training = num_rounds, {}
        resumed = f", resumed after round {done}" if done else ""
        self._print(f"\n{run_id}: {num_rounds} rounds{resumed}")
        self._progress.update(
            self._task, description=run_id, total=num_rounds, completed=done, visible=True
        )

    def recorded(self, run_id: str, line: dict[str, Any]) -> None:
        """Show a round: its scores, or its training if it was not scored."""
        if line["split"] == "train":
            self._print_unscored()
            self._training = line
            self._progress.update(self._task, completed=line["round"])
            return
        seconds = line["seconds"] + self._training.get("seconds", 0.0)
        scores = (
            f"val macro AP {percent(line['macro_ap'])}  micro AP {percent(line['micro_ap'])}",
        )
        self._print_round(line, self._training, scores, seconds)
        self._training = {}

    def _print_unscored(self) -> None:
        if self._training:
            self._print_round(self._training, self._training, (), self._training["seconds"])
            self._training = {}

    def _print_round(
        self,
        line: Mapping[str, Any],
        training: Mapping[str, Any],
        scores: tuple[str, ...],
        seconds: float,
    ) -> None:
        loss = training.get("loss")
        parts = [
            f"  round {line['round']:>{len(str(self._total))}}/{self._total}",
            *scores,
            f"train loss {loss:.4f}" if loss is not None else "train loss      -",
            *_spent(line),
            f"{seconds:.2f} s",
        ]
        self._print("  ".join(parts))

    def finished(self, run_id: str, summary: dict[str, Any], skipped: bool) -> None:
        """Close a run's lines."""
        self._print_unscored()
        self._progress.update(self._task, visible=False)
        super().finished(run_id, summary, skipped)

    def failed(self, run_id: str, failure: Failure, skipped: bool) -> None:
        """Close a run's lines."""
        self._progress.update(self._task, visible=False)
        super().failed(run_id, failure, skipped)


@dataclass
class _Run:
    """What is known of a run that is going on."""

    num_rounds: int
    done_before: int
    started: float = field(default_factory=time.monotonic)
    line: Mapping[str, Any] = field(default_factory=dict)
    scored: Mapping[str, Any] = field(default_factory=dict)

    @property
    def round_num(self) -> int:
        return int(self.line.get("round", self.done_before))

    @property
    def seconds_left(self) -> float | None:
        """Return what is left at the pace so far."""
        done = self.round_num - self.done_before
        pace = (time.monotonic() - self.started) / done if done > 0 else None
        return None if pace is None else pace * (self.num_rounds - self.round_num)


class SweepReporter(_Lines):
    """Shows many runs at a time: a live table on a terminal, a line now and then elsewhere.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._work: dict[str, float] = {}  # seconds on one core
        self._left: dict[str, float] = {}
        self._running: dict[str, _Run] = {}
        self._num_failed = 0
        self._started = self._told = time.monotonic()
        self._live = Live(
            console=console, get_renderable=self._table, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def planned(self, jobs: list[Job], num_skipped: int, at_a_time: int, workers: int) -> None:
        """Say what is about to come."""
        costs = estimate_costs(jobs)
        self._print(costs_in_words(costs, num_skipped, at_a_time, workers))
        self._work = {
            run_id: 1.0 if math.isnan(cost.seconds) else cost.seconds
            for run_id, cost in costs.items()
        }
        self._left = dict(self._work)
        self._started = time.monotonic()

    def started(self, run_id: str, num_rounds: int, done: int) -> None:
        """Take a run into the table."""
        self._running[run_id] = _Run(num_rounds, done)
        self._left[run_id] *= 1 - done / max(num_rounds, 1)
        self._work[run_id] = self._left[run_id]

    def recorded(self, run_id: str, line: dict[str, Any]) -> None:
        """Bring a run's row up to date."""
        run = self._running[run_id]
        run.line = line
        if line["split"] == "val":
            run.scored = line
        share = (run.round_num - run.done_before) / max(run.num_rounds - run.done_before, 1)
        self._left[run_id] = self._work[run_id] * (1 - share)
        quiet = time.monotonic() - self._told > _SECONDS_BETWEEN_LINES
        if quiet and not self._console.is_terminal:
            self._told = time.monotonic()
            self._print(f"  {self._progress()}")

    def finished(self, run_id: str, summary: dict[str, Any], skipped: bool) -> None:
        """Close a run's row with a line."""
        self._close(run_id, skipped)
        super().finished(run_id, summary, skipped)

    def failed(self, run_id: str, failure: Failure, skipped: bool) -> None:
        """Close a run's row with a line."""
        self._num_failed += 1
        self._close(run_id, skipped)
        super().failed(run_id, failure, skipped)

    def _close(self, run_id: str, skipped: bool) -> None:
        self._running.pop(run_id, None)
        if not skipped:
            self._left[run_id] = 0.0

    def _progress(self) -> str:
        done = sum(left == 0 for left in self._left.values())
        parts = [f"{done} of {len(self._left)} runs done", f"{len(self._running)} running"]
        if self._num_failed:
            parts.append(f"{self._num_failed} failed")
        whole = sum(self._work.values())
        worked = whole - sum(self._left.values())
        if worked > _TELLING * whole:
            pace = (time.monotonic() - self._started) / worked
            parts.append(f"about {duration(pace * sum(self._left.values()))} left")
        return ", ".join(parts)

    def _table(self) -> RenderableType:
        table = Table(title=self._progress(), title_justify="left")
        table.add_column("run", no_wrap=True, overflow="ellipsis")
        for name in ("round", "val macro AP", "val micro AP", "epsilon", "left"):
            table.add_column(name, justify="right", no_wrap=True)
        for run_id, run in self._running.items():
            left = run.seconds_left
            table.add_row(
                Text(run_id),
                f"{run.round_num}/{run.num_rounds}",
                percent(run.scored.get("macro_ap")),
                percent(run.scored.get("micro_ap")),
                epsilon(
                    run.line.get("epsilon_at_noise_cohort", run.line.get("example_epsilon_max"))
                ),
                duration(left) if left is not None else "",
            )
        return Group(table)


def shown_progress(console: Console, at_a_time: int) -> RoundReporter | SweepReporter:
    """Return what shows some runs, so many at a time; a context manager."""
    return RoundReporter(console) if at_a_time == 1 else SweepReporter(console)


def costs_in_words(
    costs: Mapping[str, Cost], num_skipped: int, at_a_time: int, workers: int
) -> str:
    """Say what runs will cost together.

    Args:
        costs: Of each run that is left.
        num_skipped: Runs that are done.
        at_a_time: Runs side by side.
        workers: Processes that train for each of them, the run's own if it is one.
    """
    num = len(costs) + num_skipped
    seconds = sum(cost.seconds for cost in costs.values())
    before = f", {num_skipped} of them done before" if num_skipped else ""
    unknown = sum(math.isnan(cost.seconds) for cost in costs.values())
    took = (
        f"{unknown} of which could not be timed"
        if unknown
        else f"about {duration(seconds / (at_a_time * workers))}"
    )
    processes = at_a_time * (1 if workers == 1 else 1 + workers)
    how = f"{at_a_time} at a time" if num > 1 else f"{workers} worker{'s' * (workers > 1)}"
    return (
        f"{num} run{'s' * (num > 1)}{before}: {took} with {how}, "
        f"{processes * memory_mb() / 1000:.1f} GB of memory, "
        f"{sum(cost.disk_mb for cost in costs.values()):,.0f} MB of disk"
    )


def duration(seconds: float) -> str:
    """Format a duration.

    Examples:
        >>> duration(8.2), duration(200), duration(4000), duration(400_000)
        ('8 s', '3 min 20 s', '1 h 6 min', '111 h')
    """
    minutes, hours = round(seconds) // 60, round(seconds) // 3600
    if minutes == 0:
        return f"{seconds:.0f} s"
    if hours == 0:
        return f"{minutes} min {round(seconds) % 60} s"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{hours} h"


def _spent(line: Mapping[str, Any]) -> list[str]:
    spent = []
    if "epsilon_as_run" in line:
        spent.append(
            f"epsilon {epsilon(line['epsilon_at_noise_cohort'])} "
            f"(as run {epsilon(line['epsilon_as_run'])})"
        )
    if "example_epsilon_max" in line:
        spent.append(f"user epsilon <= {epsilon(line['example_epsilon_max'])}")
    return spent
