"""Is a GPU right, and how fast is it? FLAIR-shaped rounds, beside pfl-research 0.6.

    python benchmarks/gpu.py --python-pfl venvs/pfl/bin/python
    python benchmarks/gpu.py --device cpu --toy      # what it does, in a minute without a GPU

First one round on the device beside the same on the CPU: the updates' relative distance is to stay
below 1e-3 in float32 (without TF32) and below 0.2 in bfloat16. Then seconds a round with 200 users
of FLAIR's sizes, ResNet-18, 224 pixels, two epochs, batches of 16, for several numbers of workers
and both precisions, and for pfl in one process; then a step of small models for one user, and for
many users batched by ``torch.func.vmap``. What would pass eight minutes is left out.
"""

import argparse
import functools
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp

from fedsim.arrays import Arrays, l2_norm
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import Examples, UserTable
from fedsim.data.sources import open_dataset
from fedsim.data.transforms import Transform
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.flower_seam import to_arrays, to_record
from fedsim.models.initialize import build_seeded, exchanged_tensors
from fedsim.models.placed import Precision, placed
from fedsim.models.resnet import resnet18
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer
from fedsim_strategies.fedavg import FedAvg

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))

from gpu_workload import (  # noqa: E402 - a sibling of the peer
    BATCH_SIZE,
    EPOCHS,
    LABELS,
    LEARNING_RATE,
    SHEET,
    labels,
    sheet,
)

SECONDS = 8 * 60
TOLERANCES: dict[Precision, float] = {"float32": 1e-3, "bfloat16": 0.2}


@dataclass(frozen=True)
class Workload:
    """The users of every round, and the side of their images."""

    sizes: tuple[int, ...]
    side: int


class NoiseDataset:
    """Users whose images are taken from one sheet of noise; implements FederatedDataset."""

    label_names = tuple(f"label{column:02d}" for column in range(LABELS))

    def __init__(self, workload: Workload) -> None:
        self._sizes = np.array(workload.sizes)
        images = torch.from_numpy(sheet(workload.side)).permute(0, 3, 1, 2)
        self._images = images.contiguous(memory_format=torch.channels_last)

    def users(self, split: str) -> UserTable:
        return UserTable(tuple(f"{n:05d}" for n in range(len(self._sizes))), self._sizes)

    def labels(self, split: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return labels(indices)

    def load(self, split: str, indices: npt.NDArray[np.int64]) -> Examples:
        ones = torch.from_numpy(labels(indices).view(np.uint8))
        return Examples(self._images[torch.from_numpy(indices % SHEET)], ones)


def make_app(workload: Workload, device: str, precision: Precision) -> ClientApp:
    torch.backends.cudnn.allow_tf32 = False
    model = placed(build_seeded(lambda: resnet18(LABELS), 0), device, precision)
    transform = Transform("none", workload.side, (0.5,) * 3, (0.5,) * 3)
    settings = LocalSettings(EPOCHS, BATCH_SIZE, LEARNING_RATE)
    return client_app(Trainer(model, NoiseDataset(workload), transform, settings, seed=0))


def rounds(
    workload: Workload, device: str, precision: Precision, workers: int, number: int
) -> tuple[list[float], Arrays]:
    """Return the seconds of some rounds, and the first one's update."""
    users = NoiseDataset(workload).users("train")
    arrays = exchanged_tensors(build_seeded(lambda: resnet18(LABELS), 0))
    arrays = {name: array.detach().clone() for name, array in arrays.items()}
    strategy = FedAvg(weighting="uniform")
    strategy.compose(CohortSampler(users, len(users), "fixed_size", 0), None)
    make = functools.partial(make_app, workload, device, precision)
    seconds: list[float] = []
    update: Arrays = {}
    with InProcessGrid(make, arrays, num_users=len(users), num_workers=workers) as grid:
        for round_num in range(1, number + 1):
            start = time.perf_counter()
            messages = strategy.configure_train(round_num, to_record(arrays), ConfigRecord(), grid)
            record, _ = strategy.aggregate_train(round_num, grid.send_and_receive(messages))
            seconds.append(time.perf_counter() - start)
            stepped = to_arrays(record)
            update = update or {name: stepped[name] - arrays[name] for name in arrays}
            arrays = stepped
    return seconds, update


def check(device: str, side: int) -> bool:
    """Compare one round of four users with the CPU's."""
    few = Workload((1, 5, 16, 21), side)
    _, expected = rounds(few, "cpu", "float32", 1, 1)
    is_right = True
    for precision, tolerance in TOLERANCES.items():
        _, found = rounds(few, device, precision, 1, 1)
        apart = l2_norm([found[name] - expected[name] for name in expected])
        distance = apart / l2_norm(expected.values())
        is_right &= distance <= tolerance
        verdict = "right" if distance <= tolerance else "WRONG"
        print(
            f"{device}, {precision}: update {distance:.1e} from the CPU's ({verdict})", flush=True
        )
    return is_right


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=3, help="after one to warm up")
    parser.add_argument("--python-pfl", help="interpreter of the environment with pfl 0.6")
    parser.add_argument("--toy", action="store_true", help="6 small users, 32 pixels")
    args = parser.parse_args()
    deadline = time.monotonic() + SECONDS
    table = open_dataset("synthetic", labels="coarse", image_size=224).users("train").num_images
    sizes = tuple(np.minimum(table[:200], 512).tolist())
    workload = Workload((1, 2, 3, 5, 8, 13), 32) if args.toy else Workload(sizes, 224)
    is_right = check(args.device, 32 if args.toy else 64)
    images = EPOCHS * sum(workload.sizes)
    print(f"{len(workload.sizes)} users, {images} images a round, {workload.side} pixels")
    print("| who | precision | processes | seconds a round (min) | images a second |")
    print("|---|---|---|---|---|", flush=True)
    for precision in TOLERANCES:
        for workers in map(int, args.workers.split(",")):
            if time.monotonic() > deadline:
                print(f"left out: {precision} with {workers} workers and what follows")
                sys.exit(not is_right)
            seconds, _ = rounds(workload, args.device, precision, workers, 1 + args.rounds)
            show("fedsim", precision, workers, min(seconds[1:]), images)
    if args.python_pfl and time.monotonic() < deadline:
        sizes_given = ",".join(map(str, workload.sizes))
        done = subprocess.run(
            [
                *(args.python_pfl, PEERS / "pfl_gpu.py", "--device", args.device),
                *("--side", str(workload.side), "--sizes", sizes_given),
                *("--rounds", str(1 + args.rounds)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        show("pfl 0.6", "float32", 1, min(map(float, done.stdout.split()[1:])), images)
    if time.monotonic() < deadline:
        small_models(args.device, toy=args.toy)
    sys.exit(not is_right)


def small_models(device: str, *, toy: bool) -> None:
    """Time a step for one user beside one for many at once, which fedsim does not do."""
    size = ["--cases", "cnn-few", "--users", "4", "--seconds", "0.2"]
    if not toy:
        size = ["--cases", "benchmark", "cnn", "cnn-few", "--users", "50", "--seconds", "3"]
    script = Path(__file__).with_name("step.py")
    kinds = ["--kinds", "plain", "users batched"]
    subprocess.run([sys.executable, script, "--device", device, *kinds, *size], check=True)


def show(who: str, precision: str, processes: int, seconds: float, images: int) -> None:
    print(
        f"| {who} | {precision} | {processes} | {seconds:.2f} | {images / seconds:,.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
