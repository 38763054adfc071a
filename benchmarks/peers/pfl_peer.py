"""Peer: pfl-research's simulator (pfl 0.6), in one process or, under ``torchrun``, in several.

Set up like its own CIFAR-10 benchmark: all users' images lie in memory as float32, height by
width by channels, and the network turns each batch, so that convolutions see channels-last.
"""

import argparse
import os
import time
from importlib.metadata import version
from pathlib import Path

import data
import numpy as np
import torch
from model import flat_copy, loss_function, make_model, to_tensors
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from protocol import Channel
from torch import nn
from workload import BATCH_SIZE, COHORT_SIZE, LEARNING_RATE, SEED

FOREVER = 1_000_000_000  # rounds; the parent says when to stop

LAYOUTS = {"nchw": torch.contiguous_format, "channels-last": torch.channels_last}


class NetworkForPfl(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, layout: torch.memory_format) -> None:
        super().__init__()
        self.network = make_model().to(memory_format=layout)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        loss: torch.Tensor = loss_function(self.network(x), y)
        return loss

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """Score a user's images, which pfl asks for in its first round only."""
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


class Rounds(TrainingProcessCallback):  # type: ignore[misc] # untyped here
    """Holds pfl's loop after every round until the parent asks for the next.

    Rank 0 reads the parent's lines and reports; the other ranks sleep in a broadcast.
    """

    def __init__(self, model: nn.Module, channel: Channel | None) -> None:
        self._model = model
        self._channel = channel
        self._before = flat_copy(model)
        self._start = 0.0

    def wait(self) -> bool:
        """Sleep until the next round may start; False ends the run."""
        go = torch.tensor(self._channel.wait() if self._channel else False)
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(go, src=0)
        self._start = time.perf_counter()
        return bool(go)

    def after_central_iteration(self, *args: object, **kwargs: object) -> tuple[bool, Metrics]:
        """Report the round that ended, wait for the next."""
        seconds = time.perf_counter() - self._start
        if self._channel:
            after = flat_copy(self._model)
            self._channel.report(seconds, (after - self._before).norm().item())
            self._before = after
        return not self.wait(), Metrics()


def make_users(folder: Path, layout: torch.memory_format) -> list[list[torch.Tensor]]:
    """Convert all users' arrays once, before the first round."""
    users = []
    for images, labels in zip(*data.load(folder), strict=True):
        x, y = to_tensors(images, labels)
        users.append([x.contiguous(memory_format=layout), y])
    return users


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--layout", choices=LAYOUTS, default="channels-last")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bfloat16", action="store_true", help="multiply in bfloat16")
    args = parser.parse_args()

    launched = "TORCHELASTIC_RUN_ID" in os.environ  # then torchrun is at the top of the tree
    channel = None
    if int(os.environ.get("RANK", "0")) == 0:
        channel = Channel(root_pid=os.getppid() if launched else None)
    torch.set_num_threads(args.threads)
    np.random.seed(SEED)  # noqa: NPY002 - pfl draws its cohorts from the global generator
    layout = LAYOUTS[args.layout]
    users = make_users(args.data, layout)
    sampler = get_user_sampler("random", range(len(users)))
    dataset = FederatedDataset.from_slices(users, sampler)
    network = NetworkForPfl(layout)
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if args.bfloat16 else None,
    )
    rounds = Rounds(network, channel)
    if channel:
        channel.ready(
            torch=torch.__version__,
            pfl=version("pfl"),
            layout=args.layout,
            threads=args.threads,
            processes=int(os.environ.get("WORLD_SIZE", "1")),
        )
    if not rounds.wait():
        return
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=FOREVER,
            evaluation_frequency=FOREVER,  # it still scores the users of its first round
            train_cohort_size=COHORT_SIZE,
            val_cohort_size=0,
        ),
        SimulatedBackend(dataset, dataset, postprocessors=[WeightByUser()]),
        model,
        NNTrainHyperParams(
            local_learning_rate=LEARNING_RATE, local_num_epochs=1, local_batch_size=BATCH_SIZE
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[rounds],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
