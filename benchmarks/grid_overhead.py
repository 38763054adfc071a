"""What the Grid itself costs: clients that receive a model, train nothing, and reply.

    python benchmarks/grid_overhead.py

Prints milliseconds per client for a tiny and an 11-million-parameter model, milliseconds per round
out of small and large populations, and memory over fifty rounds and over growing cohorts. Times
are minima over rounds.
"""

import argparse
import functools
import time

import numpy as np
import psutil
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from torchvision.models import resnet18

from fedsim.arrays import Arrays
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import UserTable
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.flower_seam import to_record
from fedsim.training.local import LocalResult
from fedsim_strategies.fedavg import FedAvg

MODELS = {
    "tiny": lambda: torch.nn.Linear(10, 10),
    "11M": lambda: resnet18(num_classes=17, norm_layer=lambda c: torch.nn.GroupNorm(32, c)),
}


class Idle:
    """Receives and replies."""

    def __init__(self, model: str) -> None:
        self.arrays: Arrays = dict(MODELS[model]().named_parameters())

    def train(self, user: str, round_num: int, received: Arrays) -> LocalResult:
        return LocalResult(num_examples=1, train_loss=0.0)

    def logits(self, split: str, indices: list[int]) -> torch.Tensor:
        return torch.zeros(len(indices), 1)


def idle_app(model: str) -> ClientApp:
    return client_app(Idle(model))


def population(num_users: int) -> UserTable:
    sizes = np.random.default_rng(0).integers(1, 50, num_users)
    return UserTable(tuple(f"{i:07d}" for i in range(num_users)), sizes)


class Rounds:
    """Runs rounds of one setting."""

    def __init__(self, model: str, num_users: int, cohort_size: int, workers: int) -> None:
        users = population(num_users)
        self.arrays = {n: p.detach().clone() for n, p in MODELS[model]().named_parameters()}
        self.strategy = FedAvg(weighting="uniform")
        self.strategy.compose(CohortSampler(users, cohort_size, "fixed_size", seed=0))
        self.grid = InProcessGrid(
            functools.partial(idle_app, model),
            self.arrays,
            num_users=num_users,
            num_workers=workers,
        )
        self.round_num = 0

    def one(self) -> float:
        self.round_num += 1
        start = time.perf_counter()
        record = to_record(self.arrays)
        messages = self.strategy.configure_train(self.round_num, record, ConfigRecord(), self.grid)
        self.strategy.aggregate_train(self.round_num, self.grid.send_and_receive(messages))
        return time.perf_counter() - start

    def best(self, rounds: int) -> float:
        self.one()
        return min(self.one() for _ in range(rounds))


def tree_mb() -> float:
    """Return private memory of this process and its children, in MB (shared pages left out)."""
    own = psutil.Process()
    return sum(p.memory_full_info().uss for p in [own, *own.children(recursive=True)]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--toy", action="store_true", help="a few users, to see whether it works")
    args = parser.parse_args()
    part = 25 if args.toy else 1

    print("| model | workers | ms/client |\n|---|---|---|")
    for model, cohort in (("tiny", 200 // part), ("11M", 100 // part)):
        for workers in (1, 2):
            run = Rounds(model, 1000, cohort, workers)
            print(f"| {model} | {workers} | {1000 * run.best(args.rounds) / cohort:.2f} |")
            run.grid.close()

    print("\n| users | ms/round (tiny, cohort 50, 1 worker) |\n|---|---|")
    for num_users in (1000, 41_131, 1_000_000):
        run = Rounds("tiny", num_users, 50, 1)
        print(f"| {num_users} | {1000 * run.best(args.rounds):.1f} |")
        run.grid.close()

    run = Rounds("11M", 1000, 20 if part == 1 else 2, 2)
    for _ in range(10):
        run.one()
    before = tree_mb()
    for _ in range(50 // part):
        run.one()
    growth = (tree_mb() - before) / (50 // part)
    print(f"\nmemory growth after the tenth round: {growth:.3f} MB/round")
    run.grid.close()

    print("\n| cohort | MB, 11M, 2 workers |\n|---|---|")
    for cohort in (50 // part, 200 // part, 800 // part):
        run = Rounds("11M", 1000, cohort, 2)
        run.one()
        run.one()
        print(f"| {cohort} | {tree_mb():.0f} |")
        run.grid.close()


if __name__ == "__main__":
    main()
