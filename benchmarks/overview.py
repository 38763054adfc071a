r"""What the project claims about speed, measured anew: one table after another.

    python benchmarks/overview.py --rounds 6 \
        --python-pfl venvs/pfl/bin/python --python-flower venvs/flower/bin/python

Starts the programs beside it, which measure; without a peer's interpreter its rows are left out.
Their progress goes to standard error. One that fails does not stop the rest, but the exit code
is then 1. ``README.md`` has the environments.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VARIABLES = {  # as its own recipe has it
    "dp_step.py": {
        "MALLOC_MMAP_THRESHOLD_": "1073741824",
        "MALLOC_TRIM_THRESHOLD_": "2147483647",
    }
}

Claims = dict[str, list[str]]
"""A program and its arguments, by heading."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="repeats; the minimum counts")
    parser.add_argument("--python-pfl", help="interpreter of the environment with pfl")
    parser.add_argument("--python-flower", help="interpreter of the environment with Flower")
    args = parser.parse_args()
    sys.exit(show_all(claims(args.rounds, args.python_pfl, args.python_flower)))


def claims(rounds: int, python_pfl: str | None, python_flower: str | None) -> Claims:
    """Return what to run, in order."""
    peers, interpreters = ["fedsim-1", "fedsim-2"], []
    in_bfloat16 = ["fedsim-2", "fedsim-2-bfloat16"]
    if python_pfl:
        peers += ["pfl-1", "pfl-2"]
        in_bfloat16 += ["pfl-2-bfloat16"]
        interpreters += ["--python-pfl", python_pfl]
    if python_flower:
        peers += ["flower-1000", "flower-41131"]
        interpreters += ["--python-flower", python_flower]
    count = str(rounds)
    round_time = ["round_time.py", "--base", "fedsim-2", "--rounds", count, "--peers"]
    return {
        "A round, beside peers": [*round_time, ",".join(peers), *interpreters],
        "A round in bfloat16": [*round_time, ",".join(in_bfloat16), *interpreters],
        "Central DP beside none": [*round_time, "fedsim-2,fedsim-2-dp"],
        "Example-level DP beside none and Opacus": ["dp_step.py", "--rounds", count],
        "A head, users batched beside one by one": ["head.py", "--rounds", count],
        "Scoring beside scikit-learn": ["average_precision.py", "--repeats", count],
    }


def show_all(programs: Claims) -> int:
    """Run programs one after another, and return 1 if one failed, else 0."""
    failed = []
    for number, (heading, (program, *arguments)) in enumerate(programs.items(), 1):
        print(f"{number}/{len(programs)}: {program} {' '.join(arguments)}", file=sys.stderr)
        print(f"\n## {heading}\n", flush=True)
        command = [sys.executable, str(HERE / program), *arguments]
        # Not subprocess.run, which would kill it on Ctrl-C before it has ended its own peers.
        with subprocess.Popen(command, env=os.environ | VARIABLES.get(program, {})) as process:
            process.wait()
        if process.returncode:
            failed.append(heading)
            print(f"failed: exit code {process.returncode}", flush=True)
    for heading in failed:
        print(f"failed: {heading}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    main()
