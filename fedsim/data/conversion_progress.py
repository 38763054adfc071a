"""Shows how far a conversion is: a bar on a terminal, now and then a line elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsim.data.convert import Progress as Report

_SECONDS = 10.0  # between two lines


@contextmanager
def shown_progress(console: Console) -> Iterator[Report]:
    """Give what ``convert`` takes as ``progress``.

    Args:
        console: Where to show it, usually the standard error.
    """
    if not console.is_terminal:
        yield _Lines(console).report
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("images, left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {
            "reading": bars.add_task("reading", total=None)
        }  # seen while the source is scanned

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


class _Lines:
    """Prints a line whenever ten seconds have passed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()
        self._stage, self._began, self._first = "", self._last, 0

    def report(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._first = stage, now, done
        if now - self._last < _SECONDS:
            return
        self._last = now
        fresh = done - self._first
        left = (now - self._began) * (total - done) / fresh if fresh else None
        told = "" if left is None else f", {left:.0f} s left"
        self._console.print(f"{stage}: {done:,} of {total:,} images{told}", highlight=False)
