"""How long 500 finished runs take to load and to report.

Runs of a folder are copied until there are enough of them, each under a seed or (``--distinct``) a
setting of its own, with their scores moved a little, so that no two are alike.

    python benchmarks/report.py runs/dp_noise_levels --runs 500 --distinct
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedsim.loading import find_runs, load_rounds, load_runs

COPIED = ("config.yaml", "metrics.jsonl", "privacy.json", "test_scores.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="finished runs")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--distinct", action="store_true", help="every run is a setting")
    parser.add_argument("--keep", type=Path, help="where copies and the report stay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        multiply(arguments.folder, root / "copies", arguments.runs, arguments.distinct)
        for load in (load_runs, load_rounds):
            started = time.perf_counter()
            rows = len(load(root))
            print(f"{load.__name__}: {rows:,} rows in {time.perf_counter() - started:.2f} s")
        started, spent = time.perf_counter(), os.times().children_user
        command = [sys.executable, "-m", "fedsim.cli", "report", str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        spent = os.times().children_user - spent
        size = (root / "report" / "index.html").stat().st_size / 1e6
        print(
            f"fedsim report: {arguments.runs} runs in {seconds:.1f} s ({spent:.1f} s of "
            f"processor time), a page of {size:.1f} MB"
        )


def multiply(source: Path, target: Path, wanted: int, distinct: bool) -> None:
    """Write ``wanted`` runs, copies of those in ``source``."""
    folders = [folder for folder in find_runs([source]) if folder.finished]
    noise = np.random.default_rng(0)
    for number, folder in zip(range(wanted), itertools.cycle(folders), strict=False):
        summary = folder.read_json("summary.json")
        if distinct:
            summary["setting"] += f"-{number}"
            summary["config"]["federated"]["local"]["learning_rate"] = 0.01 + number / 1000
        else:
            summary["seed"] = summary["config"]["seed"] = number
        summary["run_id"] = f"{summary['setting']}-seed{summary['seed']}"
        for name in ("macro_ap", "micro_ap"):
            summary["test"]["scores"][name] *= float(noise.uniform(0.97, 1.03))
        copy = target / summary["run_id"]
        copy.mkdir(parents=True)
        for name in COPIED:
            if (folder.path / name).exists():
                shutil.copyfile(folder.path / name, copy / name)
        (copy / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


if __name__ == "__main__":
    main()
