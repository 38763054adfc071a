"""The baseline: the same model, transforms and scores, trained on the pooled train split."""

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fedsim.arrays import Arrays, one_thread
from fedsim.bookkeeping import Bookkeeper
from fedsim.data.dataset import FederatedDataset
from fedsim.data.transforms import Transform
from fedsim.flower_seam import to_arrays, to_record
from fedsim.loss import label_mean_loss
from fedsim.models.initialize import exchanged_tensors
from fedsim.state import RunState
from fedsim.streams import global_torch_stream, torch_stream
from fedsim.training.local import laid_out


@dataclass(frozen=True)
class PooledSettings:
    """How the pooled data are trained on; an epoch counts as a round."""

    batch_size: int
    optimizer: Literal["adam", "sgd"]
    learning_rate: float
    momentum: float
    weight_decay: float
    channels_last: bool


class PooledTrainer:
    """Trains one model on all images of the train split, whoever they belong to.

    Args:
        model: The model.
        dataset: Read in this process.
        transform: From images to inputs.
        settings: Optimizer and batch size.
        seed: The run's seed.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: FederatedDataset,
        transform: Transform,
        settings: PooledSettings,
        *,
        seed: int,
    ) -> None:
        self._model, self._dataset, self._transform = model, dataset, transform
        self._settings, self._seed = settings, seed
        self._num_examples = int(dataset.users("train").num_images.sum())
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(
                parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
            )
            if settings.optimizer == "adam"
            else torch.optim.SGD(
                parameters,
                lr=settings.learning_rate,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
        )
        self._arrays = exchanged_tensors(model)

    def train_epoch(self, epoch: int) -> float:
        """Pass once over the pooled images in a seeded order; return the mean loss."""
        generator = torch_stream(self._seed, "pooled batches", epoch)
        order = torch.randperm(self._num_examples, generator=generator)
        total = 0.0
        self._model.train()
        with one_thread(), global_torch_stream(self._seed, "pooled model", epoch):
            for batch in torch.split(order, self._settings.batch_size):
                examples = self._dataset.load("train", batch.numpy().astype(np.int64))
                inputs = laid_out(
                    self._transform.train_batch(examples.images, generator),
                    self._settings.channels_last,
                )
                loss = label_mean_loss(self._model(inputs), examples.labels).mean()
                self._optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
                total += float(loss.detach()) * len(batch)
        return total / self._num_examples

    def arrays(self) -> Arrays:
        """Return a copy of the model's arrays."""
        return {name: tensor.detach().clone() for name, tensor in self._arrays.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state."""
        return self._optimizer.state_dict()

    @torch.no_grad()
    def load(self, state: RunState) -> None:
        """Go on from a state."""
        arrays = to_arrays(state.arrays)
        torch._foreach_copy_(list(self._arrays.values()), [arrays[name] for name in self._arrays])
        if state.strategy:
            self._optimizer.load_state_dict(state.strategy)


def train_centralized(
    trainer: PooledTrainer, book: Bookkeeper, num_epochs: int, state: RunState
) -> RunState:
    """Train from ``state`` to the last epoch and return the state after it."""
    trainer.load(state)
    if state.round_num < 0:
        state = book.close_round(state.start(), training=None, spent={})
    for epoch in range(state.round_num + 1, num_epochs + 1):
        started = time.perf_counter()
        loss = trainer.train_epoch(epoch)
        state = state.advance(epoch, to_record(trainer.arrays()), trainer.state_dict(), {})
        training = {"train_loss": loss, "seconds": time.perf_counter() - started}
        state = book.close_round(state, training, spent={})
    return state
