"""The peak memory that a run records."""

import subprocess
import sys

import psutil

from fedsim.single_run import _peak_memory_mb


def test_it_is_this_process_and_its_largest_ended_child() -> None:
    before = _peak_memory_mb()
    assert before is not None
    assert before >= 0.95 * psutil.Process().memory_info().rss / 1e6
    subprocess.run([sys.executable, "-c", "b'x' * 2_000_000_000"], check=True)
    after = _peak_memory_mb()
    assert after is not None
    assert 2000 < after < before + 2200
