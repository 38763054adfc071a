"""Seconds per round of fedsim and its peers on one small benchmark, measured in turns.

Every peer is a process of its own, in its own virtual environment, that does one round when told
to (``peers/protocol.py``). The rounds go in turns, A B C A B C, so that a slow minute of the
machine hurts all of them, and the minimum of each is compared. ``README.md`` has the recipe.

    python benchmarks/round_time.py --peers bare-nchw,pfl-1,pfl-2 --python-pfl pfl/bin/python
"""

import argparse
import contextlib
import json
import math
import os
import platform
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

HERE = Path(__file__).parent / "peers"
sys.path.insert(0, str(HERE))

import data  # noqa: E402 - a sibling of the peers, which import it by this name

WARM_UP_ROUNDS = 2  # imports, Ray's start, pfl's evaluation, memory that is first touched
REPLY_TIMEOUT = 900.0  # seconds
END_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True)
class Peer:
    """How a peer is started.

    Attributes:
        interpreter: Which virtual environment: "fedsim" (the one that runs this), "pfl", "flower".
        script: The file in ``peers/``.
        arguments: Its arguments besides ``--data``.
        launcher: Modules and options between the interpreter and the script.
        polls: Its main process keeps a processor busy while it waits, so that it has to be
            stopped (SIGSTOP) while others have their turn.
    """

    interpreter: str
    script: str
    arguments: tuple[str, ...]
    launcher: tuple[str, ...] = ()
    polls: bool = False


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

# fedsim is a peer like the others: a script that speaks the protocol.
PEERS = {
    "fedsim-1": Peer("fedsim", "fedsim_peer.py", ("--workers=1",)),
    "fedsim-2": Peer("fedsim", "fedsim_peer.py", ("--workers=2",)),
    "fedsim-2-dp": Peer("fedsim", "fedsim_peer.py", ("--workers=2", "--central-dp")),
    "fedsim-2-bfloat16": Peer("fedsim", "fedsim_peer.py", ("--workers=2", "--bfloat16")),
    "fedsim-ray-2": Peer("fedsim", "fedsim_peer.py", ("--workers=2", "--ray")),
    "bare-nchw": Peer("fedsim", "bare_loop.py", ("--layout=nchw",)),
    "bare-channels-last": Peer("fedsim", "bare_loop.py", ("--layout=channels-last",)),
    "pfl-1": Peer("pfl", "pfl_peer.py", ()),
    "pfl-2": Peer("pfl", "pfl_peer.py", (), launcher=TORCHRUN),
    "pfl-2-bfloat16": Peer("pfl", "pfl_peer.py", ("--bfloat16",), launcher=TORCHRUN),
    "flower-1000": Peer("flower", "flower_peer.py", ("--nodes=1000",), polls=True),
    "flower-41131": Peer("flower", "flower_peer.py", ("--nodes=41131",), polls=True),
}


@dataclass
class Running:
    """A started peer and what it has reported."""

    name: str
    peer: Peer
    process: subprocess.Popen[str]
    log: Path
    settings: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, python: str, folder: Path) -> Self:
        """Start the peer in a session of its own, so that Ctrl-C reaches only this program."""
        peer = PEERS[name]
        log = folder / f"{name}.log"
        command = [python, *peer.launcher, str(HERE / peer.script), *peer.arguments]
        environment = {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}  # torchrun and Ray litter
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*command, f"--data={folder}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | environment,
                start_new_session=True,
            )
        return cls(name, peer, process, log)

    def prepare(self) -> None:
        """Wait until it is ready and has warmed up."""
        self.settings = self._receive()
        for _ in range(WARM_UP_ROUNDS):
            self.run_round()
        self.rounds.clear()

    def run_round(self) -> None:
        """Let it run one round while all others sleep."""
        if self.peer.polls:
            self.process.send_signal(signal.SIGCONT)
        self._send("round")
        self.rounds.append(self._receive())
        if self.peer.polls:
            self.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Ask it to quit, then see to it that nothing of its process tree is left."""
        try:
            tree = psutil.Process(self.process.pid)
            processes = [tree, *tree.children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        self.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._send("quit")
        _, alive = psutil.wait_procs(processes, timeout=END_TIMEOUT)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=END_TIMEOUT)
        self.process.wait(END_TIMEOUT)

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None  # noqa: S101 - it was opened as a pipe
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101 - it was opened as a pipe
        ready, _, _ = select.select([self.process.stdout], [], [], REPLY_TIMEOUT)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            what = "ended" if ready else f"said nothing for {REPLY_TIMEOUT:.0f} s"
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise RuntimeError(f"peer {self.name} {what}; the end of its log:\n{tail}")
        reply: dict[str, Any] = json.loads(line)
        return reply


@contextlib.contextmanager
def running(names: list[str], pythons: dict[str, str]) -> Iterator[list[Running]]:
    """Write the data, start the peers one after another, and end them whatever happens."""
    peers: list[Running] = []
    with tempfile.TemporaryDirectory(prefix="round-time-") as folder:
        data.write(Path(folder))
        try:
            for name in names:
                print(f"starting {name}", file=sys.stderr)
                peers.append(Running.start(name, pythons[PEERS[name].interpreter], Path(folder)))
                peers[-1].prepare()
            yield peers
        finally:
            # A second Ctrl-C must not leave peers behind.
            for request in (signal.SIGINT, signal.SIGTERM):
                signal.signal(request, signal.SIG_IGN)
            for peer in peers:
                peer.end()


def summarize(peers: list[Running], base: str) -> dict[str, Any]:
    """Return minima, medians, ratios of minima to ``base``, memory and settings, by peer."""
    minima = {peer.name: min(r["seconds"] for r in peer.rounds) for peer in peers}
    return {
        peer.name: {
            "min_seconds": minima[peer.name],
            "median_seconds": statistics.median(r["seconds"] for r in peer.rounds),
            "ratio_to_base": minima[peer.name] / minima[base],
            "max_rss_mb": max(r["rss_mb"] for r in peer.rounds),
            "last_update_norm": peer.rounds[-1].get("update_norm", math.nan),
            "seconds": [r["seconds"] for r in peer.rounds],
            "settings": {k: v for k, v in peer.settings.items() if k != "ready"},
        }
        for peer in peers
    }


def markdown(summary: dict[str, Any], base: str) -> str:
    """Return the summary as a table."""
    lines = [
        f"| peer | min s | median s | min / min of {base} | memory MB | moved | settings |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in summary.items():
        settings = ", ".join(f"{key} {value}" for key, value in row["settings"].items())
        lines.append(
            f"| {name} | {row['min_seconds']:.3f} | {row['median_seconds']:.3f} "
            f"| {row['ratio_to_base']:.2f} | {row['max_rss_mb']:.0f} "
            f"| {row['last_update_norm']:.4f} | {settings} |"
        )
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas")
    parser.add_argument("--base", help="the peer that the ratios are to (default: the first)")
    parser.add_argument("--rounds", type=int, default=10, help="measured rounds of each peer")
    parser.add_argument(
        "--cohort-size", type=int, default=50, help="users a round; 2 shows whether peers work"
    )
    parser.add_argument("--python-pfl", help="interpreter of the environment with pfl")
    parser.add_argument("--python-flower", help="interpreter of the environment with Flower")
    args = parser.parse_args()
    args.peers = args.peers.split(",")
    args.base = args.base or args.peers[0]
    args.pythons = {"fedsim": sys.executable, "pfl": args.python_pfl, "flower": args.python_flower}
    for name in [*args.peers, args.base]:
        if name not in PEERS:
            parser.error(f"peer: expected one of {', '.join(PEERS)}, found {name!r}")
        if args.pythons[PEERS[name].interpreter] is None:
            parser.error(f"peer {name} needs --python-{PEERS[name].interpreter}; see README.md")
    if args.base not in args.peers:
        parser.error(f"--base: expected one of --peers, found {args.base!r}")
    if args.rounds < 1:
        parser.error(f"--rounds: expected at least 1, found {args.rounds}")
    return args


def main() -> None:
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the peers are ended
    os.environ["BENCHMARK_COHORT_SIZE"] = str(args.cohort_size)  # read in peers/workload.py
    with running(args.peers, args.pythons) as peers:
        for number in range(1, args.rounds + 1):
            for peer in peers:
                peer.run_round()
            times = "  ".join(f"{peer.name} {peer.rounds[-1]['seconds']:.2f}" for peer in peers)
            print(f"round {number}/{args.rounds}: {times}", file=sys.stderr)
        summary = summarize(peers, args.base)
    print(markdown(summary, args.base))
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    print(json.dumps({"machine": machine, "base": args.base, "peers": summary}))


if __name__ == "__main__":
    main()
