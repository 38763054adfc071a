"""Training a last layer on stored features: blocks of users at once beside one user at a time.

    python benchmarks/head.py --rounds 5

First 200 users in this process: the loop over users (autograd), and the same blocks trained at
once, interleaved; each keeps its least CPU time, and the ratio is of these. Then whole rounds of
5,000 users with FLAIR's sizes on two workers, from addressing the cohort to the server's step: wall
time, and the CPU time of all processes. Features are noise, 512 a user's image, with 17 labels; two
epochs in batches of 16; updates are clipped.
"""

import argparse
import functools
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import psutil
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays, one_thread, zeros_like
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import Examples, UserTable
from fedsim.data.synthetic_users import image_counts, num_users
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.engines.unit import execute, split_into_units
from fedsim.flower_seam import ensure_task_identity, to_arrays, to_record
from fedsim.models.initialize import build_seeded
from fedsim.models.last_layer import Head
from fedsim.privacy.central import CentralGaussian
from fedsim.training.batched_head import NUM_BLOCKS, BatchedHeadTrainer
from fedsim.training.learner import FeaturesAsInputs
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer
from fedsim_strategies.fedavg import FedAvg

FEATURES, LABELS = 512, 17
SETTINGS = LocalSettings(epochs=2, batch_size=16, learning_rate=0.1, channels_last=False)
CLIPPING_NORM = 0.1

Sizes = npt.NDArray[np.int64]


def table_of(sizes: Sizes) -> UserTable:
    return UserTable(tuple(f"{i:06d}" for i in range(len(sizes))), sizes)


class NoiseFeatures:
    """Users with noise for features."""

    label_names = tuple(f"label{i:02d}" for i in range(LABELS))

    def __init__(self, sizes: Sizes) -> None:
        self._users = table_of(sizes)
        generator = torch.Generator().manual_seed(0)
        total = int(sizes.sum())
        self._features = torch.randn(total, FEATURES, generator=generator).relu()
        self._labels = (torch.rand(total, LABELS, generator=generator) < 0.1).to(torch.uint8)

    def users(self, split: str) -> UserTable:
        return self._users

    def labels(self, split: str, indices: Sizes) -> npt.NDArray[np.bool_]:
        return self._labels[torch.from_numpy(indices)].numpy().astype(np.bool_)

    def load(self, split: str, indices: Sizes) -> Examples:
        rows = torch.from_numpy(indices)
        return Examples(self._features.index_select(0, rows), self._labels.index_select(0, rows))


def head() -> Head:
    return build_seeded(lambda: Head("fc", torch.nn.Linear(FEATURES, LABELS)), 0)


def app(kind: type[Trainer], sizes: Sizes) -> ClientApp:
    data = NoiseFeatures(sizes)
    return client_app(kind(head(), data, FeaturesAsInputs(), SETTINGS, seed=0))


def start() -> Arrays:
    return {name: tensor.detach().clone() for name, tensor in head().named_parameters()}


def strategy_of(sizes: Sizes, cohort_size: int) -> FedAvg:
    users = table_of(sizes)
    strategy = FedAvg(weighting="uniform")
    strategy.num_blocks = NUM_BLOCKS
    mechanism = CentralGaussian(CLIPPING_NORM, 0.0, cohort_size, cohort_size, 0)
    strategy.compose(CohortSampler(users, cohort_size, "fixed_size", 0), mechanism)
    return strategy


@one_thread()
def beside_the_loop(title: str, sizes: Sizes, rounds: int) -> None:
    ensure_task_identity()
    strategy = strategy_of(sizes, len(sizes))
    messages = strategy.configure_train(1, to_record(start()), ConfigRecord(), None)  # type: ignore
    units = list(split_into_units(messages))
    apps = {"loop": app(Trainer, sizes), "batched": app(BatchedHeadTrainer, sizes)}
    first = start()
    least, sums = dict.fromkeys(apps, float("inf")), {}
    for _ in range(rounds):
        for name, own in apps.items():
            begin = time.process_time()
            totals = [zeros_like(first) for _ in units]
            for unit, total in zip(units, totals, strict=True):
                execute(own, unit, total)
            least[name] = min(least[name], time.process_time() - begin)
            sums[name] = sum(total["fc.weight"] for total in totals)
    difference = float((sums["loop"] - sums["batched"]).abs().max())
    print(
        f"{title}, {int(sizes.sum())} images, CPU seconds: loop {least['loop']:.3f}, batched "
        f"{least['batched']:.3f}, ratio {least['loop'] / least['batched']:.1f}; largest difference "
        f"of the sums {difference:.1e} of {float(sums['loop'].abs().max()):.2f}"
    )


def cpu_seconds() -> float:
    own = psutil.Process()
    times = [process.cpu_times() for process in [own, *own.children(recursive=True)]]
    return sum(t.user + t.system for t in times)


def whole_rounds(cohort_size: int, workers: int, rounds: int) -> None:
    sizes = image_counts(num_users(41_131), 0)[0]
    strategy = strategy_of(sizes, cohort_size)
    make: Callable[[], ClientApp] = functools.partial(app, BatchedHeadTrainer, sizes)
    arrays, walls, cpus, asking = to_record(start()), [], [], []
    with InProcessGrid(make, start(), num_users=len(sizes), num_workers=workers) as grid:
        for round_num in range(1, rounds + 2):  # the first starts the workers
            begin, before = time.perf_counter(), cpu_seconds()
            messages = strategy.configure_train(round_num, arrays, ConfigRecord(), grid)
            asking.append(time.perf_counter() - begin)
            record, _ = strategy.aggregate_train(round_num, grid.send_and_receive(messages))
            arrays = to_record(to_arrays(record))
            walls.append(time.perf_counter() - begin)
            cpus.append(cpu_seconds() - before)
    print(
        f"{cohort_size} of {len(sizes)} users, FLAIR's sizes, {workers} workers: "
        f"{min(walls[1:]):.2f} s a round, of which {min(asking[1:]):.2f} address the cohort; "
        f"{min(cpus[1:]):.2f} CPU s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    draws = np.random.default_rng(0)
    flair = image_counts(num_users(41_131), 0)[0]
    beside_the_loop("200 users of 1 to 100 images", draws.integers(1, 101, 200), rounds)
    beside_the_loop("200 users of FLAIR's sizes", draws.choice(flair, 200, replace=False), rounds)
    whole_rounds(5000, 2, rounds)


if __name__ == "__main__":
    main()
