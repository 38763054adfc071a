"""The programs in ``benchmarks/`` still run, at toy size, and print what they should."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedsim

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NEED_PEERS = {"parity", "scaffold_pfl", "overview"}

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")
NOT_FINITE = re.compile(r"\b(nan|inf|infinity)\b", re.IGNORECASE)

Rows = dict[str, int]
"""How many numbers follow each beginning of a line that must occur."""

TOYS: list[tuple[str, Rows]] = [
    (
        "average_precision --examples 500 --classes 17 --repeats 1",
        {"500 x 17 float32": 1, "micro:": 2, "  50 rows": 6, "macro:": 2},
    ),
    ("calibrate_synthetic", {'"animal":': 1, "\"plant\": {'grass'": 5, "worst:": 2}),
    (
        "conversion --images 100 --side 16 --no-codecs",
        {"100 JPEGs": 3, "1 workers:": 11, "2 workers:": 11},
    ),
    (
        "head --rounds 1",
        {"200 users of 1 to 100 images": 6, "200 users of FLAIR's sizes": 6, "5000 of": 5},
    ),
    ("scale rounds --rounds 20", {"| 20 |": 4}),
    (
        "step --cases cnn-few --kinds plain bfloat16 --seconds 0.1",
        {"| CPU ms per user and step | plain | bfloat16 |": 0, "| Cnn, 32 px, B=2 |": 4},
    ),
    (
        "synthetic --population-size 500 --images 20",
        {"index of": 3, "memory:": 2, "an image at 256": 2, "  published": 7, "  synthetic": 7},
    ),
]
SLOW_TOYS: list[tuple[str, Rows]] = [
    ("conversion --images 100 --side 16 --workers 1", {"drawings": 4, "photos": 4, "1 workers": 9}),
    ("dp_step --rounds 1", {"Cnn 32px B=10:": 5, "ResNet-18 GroupNorm 64px B=16:": 5}),
    (
        "gpu --device cpu --toy --rounds 1 --workers 1,2",
        {
            "cpu, float32: update": 1,
            "cpu, bfloat16: update": 1,
            "| fedsim | float32 |": 3,
            "| fedsim | bfloat16 |": 3,
            "| Cnn, 32 px, B=2 |": 4,
        },
    ),
    (
        "grid_overhead --toy --rounds 1",
        {"| tiny |": 2, "| 11M |": 2, "| 1000000 |": 1, "memory growth": 1, "| 32 |": 1},
    ),
    (
        "reading --passes 1 --photos 60",
        {
            "ResNet-18": 1,
            "| openclipart": 4,
            "| photos": 4,
            "| Cnn, photos": 2,
            "| Cnn, openclipart": 2,
        },
    ),
    ("scale population --sizes 300", {"| 300 |": 3}),
    (
        "round_time --peers fedsim-2-dp,bare-channels-last --cohort-size 2 --rounds 1",
        {"| fedsim-2-dp |": 5, "| bare-channels-last |": 5},
    ),
]


def test_every_program_is_tried_here_or_needs_a_peer() -> None:
    tried = {command.split()[0] for command, _ in TOYS + SLOW_TOYS} | {"report"}
    assert tried | NEED_PEERS == {path.stem for path in BENCHMARKS.glob("*.py")}


@pytest.mark.parametrize(
    ("command", "rows"),
    [*TOYS, *(pytest.param(*toy, marks=pytest.mark.slow) for toy in SLOW_TOYS)],
)
def test_its_table_is_whole_and_of_finite_numbers(command: str, rows: Rows) -> None:
    check(printed(*command.split()), rows)


@pytest.mark.slow
def test_a_report_of_many_runs(tmp_path: Path) -> None:
    settings = {
        "name": "few",
        "data": {"source": "openclipart", "image_size": 8},
        "model": {"name": "cnn"},
        "federated": {"num_rounds": 1, "cohort_size": 2},
    }
    fedsim.run(settings, tmp_path)
    found = printed("report", str(tmp_path / "few"), "--runs", "4")
    check(found, {"load_runs: 4 rows": 1, "load_rounds:": 2, "fedsim report: 4 runs": 3})


def test_an_overview_goes_on_after_a_program_that_fails() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import overview; sys.exit(overview.show_all("
        "{'None': ['none.py'], 'Wrong': ['head.py', '--wrong'], 'Good': ['head.py', '--help']}))"
    )
    command = [sys.executable, "-c", program, str(BENCHMARKS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    none, wrong, good = done.stdout.split("\n## ")[1:]
    assert none == "None\n\nfailed: exit code 2\n"
    assert wrong == "Wrong\n\nfailed: exit code 2\n"
    assert good.startswith("Good\n\nusage: head.py")
    assert "failed" not in good
    assert done.stderr.endswith("failed: None\nfailed: Wrong\n")


def printed(program: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / f"{program}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check(found: str, rows: Rows) -> None:
    for start, least in rows.items():
        lines = [line for line in found.splitlines() if line.startswith(start)]
        assert lines, (start, found)
        for line in lines:
            rest = line.removeprefix(start)
            assert len(NUMBER.findall(rest)) >= least, (line, least)
            assert not NOT_FINITE.search(rest), line


def test_the_check_sees_what_is_missing_or_not_finite() -> None:
    check("| a | 1.5 | -2e-3 | 4,000 |", {"| a": 3})
    for wrong in (
        "| b | 1 | 2 | 3 |",
        "| a | 1 | nan | 3 | 4 |",
        "| a | 1 | 2 |",
        "| a | x1 y2 z3",
    ):
        with pytest.raises(AssertionError):
            check(wrong, {"| a": 3})
