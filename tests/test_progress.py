"""The time that is left of many runs, as it is told."""

import io
import time

import pytest
from rich.console import Console

from fedsim import progress
from fedsim.estimate import Cost
from fedsim.progress import SweepReporter


def test_the_time_left_is_told_once_there_is_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    costs = {name: Cost(seconds=100.0, disk_mb=1.0) for name in ("a", "b")}
    monkeypatch.setattr(progress, "estimate_costs", lambda jobs: costs)
    output = io.StringIO()
    reporter = SweepReporter(Console(file=output, width=200))
    reporter.planned([], 0, 1, 1)
    reporter.started("a", 100, 0)

    def told_after(seconds: float, rounds: int) -> str:
        nonlocal clock
        clock = seconds
        before = output.tell()
        reporter.recorded("a", {"split": "train", "round": rounds})
        return output.getvalue()[before:]

    early = told_after(20.0, 2)  # of 200 rounds, and most of the time went into the start
    assert "0 of 2 runs done, 1 running" in early
    assert "left" not in early
    assert "about 3 min 0 s left" in told_after(60.0, 50)  # a quarter in a minute
