"""Peer of ``gpu.py``: rounds of pfl-research 0.6 in one process; prints seconds, a line each."""

import argparse
import time

import numpy as np
import torch
import torchvision
from gpu_workload import BATCH_SIZE, EPOCHS, LABELS, LEARNING_RATE, SHEET, labels, sheet
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn


class Network(nn.Module):
    """ResNet-18 with group norm, normalizing on the device, with the methods that pfl asks for."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.network = torchvision.models.resnet18(
            num_classes=LABELS,
            norm_layer=lambda channels: nn.GroupNorm(min(32, channels), channels),
        ).to(device, memory_format=torch.channels_last)
        self.device = device

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch of uint8 images."""
        inputs = x.to(self.device).float().div(255).sub(0.5).div(0.5)
        return nn.functional.binary_cross_entropy_with_logits(
            self.network(inputs), y.to(self.device)
        )

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """Score a user's images, which pfl asks for in its first round only."""
        return {"loss": Weighted(0.0, len(x))}


class Clock(TrainingProcessCallback):  # type: ignore[misc] # untyped here
    """Prints how long each round took."""

    def __init__(self, device: str) -> None:
        self._device, self._start = device, time.perf_counter()

    def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, Metrics]:
        """Print it."""
        if self._device != "cpu":
            torch.cuda.synchronize()
        now = time.perf_counter()
        print(now - self._start, flush=True)
        self._start = now
        return False, Metrics()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--sizes", required=True, help="images of each user, separated by commas")
    parser.add_argument("--rounds", type=int, required=True)
    args = parser.parse_args()
    images, sizes = (
        torch.from_numpy(sheet(args.side)),
        [int(size) for size in args.sizes.split(",")],
    )
    images = images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    users, first = [], 0
    for size in sizes:
        rows = np.arange(first, first + size)
        users.append([images[rows % SHEET], torch.from_numpy(labels(rows)).float()])
        first += size
    everyone = iter(list(range(len(users))) * (args.rounds + 2))
    dataset = FederatedDataset.from_slices(users, lambda: next(everyone))
    network = Network(args.device)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=args.rounds,
            evaluation_frequency=1_000_000,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        SimulatedBackend(dataset, dataset, postprocessors=[WeightByUser()]),
        PyTorchModel(
            network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        NNTrainHyperParams(
            local_learning_rate=LEARNING_RATE, local_num_epochs=EPOCHS, local_batch_size=BATCH_SIZE
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock(args.device)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
