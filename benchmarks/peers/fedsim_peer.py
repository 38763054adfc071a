"""Peer: fedsim's own Grid and strategy base, on the benchmark's images."""

import argparse
import functools
import time
from pathlib import Path

import data
import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from model import make_model
from protocol import Channel
from workload import BATCH_SIZE, COHORT_SIZE, IMAGE_SHAPE, LEARNING_RATE, NUM_CLASSES, SEED

from fedsim.arrays import l2_norm
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import Examples, UserTable
from fedsim.data.transforms import Transform
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.engines.ray_grid import RayGrid
from fedsim.engines.user_grid import UserGrid
from fedsim.flower_seam import to_arrays, to_record
from fedsim.models.placed import Precision, placed
from fedsim.privacy.central import CentralGaussian
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer
from fedsim_strategies.fedavg import FedAvg


class MappedDataset:
    """The benchmark's arrays as a federated data set."""

    label_names = tuple(f"label{column}" for column in range(NUM_CLASSES))

    def __init__(self, folder: Path) -> None:
        self._images, self._labels = data.load(folder)
        self._num_images = self._images.shape[1]

    def users(self, split: str) -> UserTable:
        num_users = len(self._images)
        ids = tuple(f"{user:07d}" for user in range(num_users))
        return UserTable(ids, np.full(num_users, self._num_images))

    def labels(self, split: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self._labels.reshape(-1, NUM_CLASSES)[indices].astype(bool)

    def load(self, split: str, indices: npt.NDArray[np.int64]) -> Examples:
        images = self._images.reshape(-1, *IMAGE_SHAPE)[indices]
        labels = self._labels.reshape(-1, NUM_CLASSES)[indices]
        return Examples(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels))


def make_app(folder: Path, precision: Precision) -> ClientApp:
    transform = Transform("none", IMAGE_SHAPE[0], (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    settings = LocalSettings(epochs=1, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE)
    model = placed(make_model(), "cpu", precision)
    return client_app(Trainer(model, MappedDataset(folder), transform, settings, seed=SEED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ray", action="store_true", help="train in Ray actors")
    parser.add_argument("--central-dp", action="store_true", help="clip users and noise the sum")
    parser.add_argument("--bfloat16", action="store_true", help="multiply in bfloat16")
    args = parser.parse_args()

    channel = Channel()
    users = MappedDataset(args.data).users("train")
    arrays = {name: p.detach().clone() for name, p in make_model().named_parameters()}
    strategy = FedAvg(weighting="uniform")
    mechanism = None
    if args.central_dp:
        mechanism = CentralGaussian(0.1, 1.0, COHORT_SIZE, COHORT_SIZE, SEED)
    strategy.compose(CohortSampler(users, COHORT_SIZE, "fixed_size", SEED), mechanism)
    make = functools.partial(make_app, args.data, "bfloat16" if args.bfloat16 else "float32")
    grid: UserGrid = (
        RayGrid(make, num_users=len(users), num_actors=args.workers)
        if args.ray
        else InProcessGrid(make, arrays, num_users=len(users), num_workers=args.workers)
    )
    with grid:
        channel.ready(torch=torch.__version__, workers=args.workers, ray=args.ray)
        round_num = 0
        while channel.wait():
            round_num += 1
            start = time.perf_counter()
            messages = strategy.configure_train(round_num, to_record(arrays), ConfigRecord(), grid)
            record, _ = strategy.aggregate_train(round_num, grid.send_and_receive(messages))
            seconds = time.perf_counter() - start
            stepped = to_arrays(record)
            moved = l2_norm([stepped[name] - arrays[name] for name in arrays])
            arrays = stepped
            channel.report(seconds, moved)


if __name__ == "__main__":
    main()
