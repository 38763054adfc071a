"""What a run costs as its population grows, and as its rounds go on.

    python benchmarks/scale.py population
    python benchmarks/scale.py rounds --rounds 10000

The first trains five rounds of 200 users out of 1,000 to 1,000,000 synthetic ones, scores 1,000
images, and is stopped then. The second trains many rounds of a tiny model and prints, for every
tenth of them, the time of a round, the memory of all processes (USS: what would be free without
them), the record's and the checkpoint's size. Every run is `fedsim run` as a user would start it.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from ruamel.yaml import YAML

TINY_MODEL = """
from torch import nn

def make_model(num_labels):
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, num_labels))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    population = commands.add_parser("population")
    population.add_argument("--sizes", default="1000,10000,100000,1000000")
    rounds = commands.add_parser("rounds")
    rounds.add_argument("--rounds", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.command == "population":
            by_population(folder, [int(size) for size in args.sizes.split(",")])
        else:
            by_rounds(folder, args.rounds)


def by_population(folder: Path, sizes: list[int]) -> None:
    print("| users | until round 1 | a round (median of 5) | peak memory, all processes |")
    print("|---|---|---|---|")
    for size in sizes:
        settings = {
            "data": {"source": "synthetic", "population_size": size, "image_size": 32},
            "model": {"name": "cnn"},
            "federated": {"num_rounds": 5, "cohort_size": 200},
            "evaluation": {"every": 5, "num_val_images": 1000, "bootstrap_resamples": 0},
        }
        run = Run(folder, f"users{size}", settings)
        start, peak, first = time.perf_counter(), 0.0, 0.0
        for megabytes in run.watch():
            peak = max(peak, megabytes)
            if not first and run.lines("train"):
                first = time.perf_counter() - start - run.lines("train")[0]["seconds"]
            if len(run.lines("val")) == 2:  # the test split, which grows too, is left out
                run.stop()
        middle = median(line["seconds"] for line in run.lines("train"))
        print(f"| {size:,} | {first:.1f} s | {middle:.2f} s | {peak:.0f} MB |", flush=True)


def by_rounds(folder: Path, num_rounds: int) -> None:
    (folder / "tiny.py").write_text(TINY_MODEL)
    settings = {
        "data": {"source": "openclipart", "image_size": 16},
        "model": {"name": f"{folder / 'tiny.py'}:make_model"},
        "federated": {"num_rounds": num_rounds, "cohort_size": 10},
        "evaluation": {"every": num_rounds // 10, "bootstrap_resamples": 0},
        "engine": {"checkpoint_every": 100},
    }
    run = Run(folder, "rounds", settings)
    print("| rounds | ms a round (median) | memory, all processes | record | checkpoint |")
    print("|---|---|---|---|---|", flush=True)
    done = 0
    for megabytes in run.watch():
        lines = run.lines("train")
        if len(lines) - done >= num_rounds // 10 or done < len(lines) == num_rounds:
            middle = 1000 * median(line["seconds"] for line in lines[done:])
            done = len(lines)
            sizes = [run.bytes_of("metrics.jsonl"), run.bytes_of("checkpoint/state.pt")]
            print(
                f"| {done:,} | {middle:.1f} | {megabytes:.0f} MB | {sizes[0] / done:.0f} bytes a "
                f"round | {sizes[1] / 1e3:.1f} kB |",
                flush=True,
            )


class Run:
    """A run in a process of its own."""

    def __init__(self, folder: Path, name: str, settings: dict[str, Any]) -> None:
        yaml = folder / f"{name}.yaml"
        YAML().dump({"name": name, **settings}, yaml)
        self._folder = folder / "runs" / name / "seed0"
        command = [sys.executable, "-m", "fedsim", "run", str(yaml), "--out", str(folder / "runs")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def watch(self) -> Iterator[float]:
        """Yield the memory of its processes in MB, twice a second, and the last once it ended."""
        tree, megabytes = psutil.Process(self._process.pid), 0.0
        while self._process.poll() is None:
            megabytes = sum(map(_uss, [tree, *_children(tree)])) / 1e6
            yield megabytes
            time.sleep(0.5)
        if self._process.returncode:
            raise SystemExit(self._process.returncode)
        yield megabytes

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self._process.returncode = 0

    def lines(self, split: str) -> list[dict[str, Any]]:
        """Return what it has recorded of a split."""
        record = self._folder / "metrics.jsonl"
        text = record.read_text() if record.exists() else ""
        whole = (json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n")
        return [line for line in whole if line["split"] == split]

    def bytes_of(self, name: str) -> int:
        """Return a file's size."""
        path = self._folder / name
        return path.stat().st_size if path.exists() else 0


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:  # it just ended
        return []


def _uss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
