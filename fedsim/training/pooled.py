"""Training on the pooled train split: plainly, or under DP per image or per user."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedsim.arrays import Arrays, one_thread
from fedsim.data.dataset import FederatedDataset
from fedsim.data.transforms import InputTransform
from fedsim.models.initialize import exchanged_tensors
from fedsim.models.placed import device_of
from fedsim.privacy.per_sample import PrivateGradient, noise_of_stream
from fedsim.streams import global_torch_stream, torch_stream
from fedsim.training.local import laid_out, poisson_batches, shuffled_batches
from fedsim.training.step import mean_gradient


@dataclass(frozen=True)
class PooledStep:
    """What one optimizer step takes, or what one user gives to it.

    Attributes:
        gradients: One per trainable parameter, in the order of ``model.parameters()``.
        loss: Summed over the images; not private.
        num_examples: Images.
        figures: What else is known about it.
    """

    gradients: list[torch.Tensor]
    loss: float
    num_examples: int
    figures: dict[str, float] = field(default_factory=dict)


class PooledSteps(Protocol):
    """Where the gradients of an epoch come from."""

    def of_epoch(self, epoch: int) -> Iterator[PooledStep]:
        """Yield the epoch's steps; the model changes between them."""
        ...


@dataclass(frozen=True)
class TrainBatches:
    """Reads images of the pooled train split as the model's inputs."""

    dataset: FederatedDataset
    transform: InputTransform
    channels_last: bool
    device: torch.device

    @property
    def num_examples(self) -> int:
        """Images of the train split."""
        return int(self.dataset.users("train").num_images.sum())

    def read(
        self, indices: npt.NDArray[np.int64], generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels of some images."""
        examples = self.dataset.load("train", indices)
        inputs = self.transform.train_batch(examples.images.to(self.device), generator)
        return laid_out(inputs, self.channels_last), examples.labels.to(self.device)


class ShuffledSteps:
    """Plain training: every image once an epoch, in a seeded order."""

    def __init__(
        self, model: nn.Module, batches: TrainBatches, *, batch_size: int, seed: int
    ) -> None:
        self._gradient, self._batches = mean_gradient(model), batches
        self._batch_size, self._seed = batch_size, seed

    def of_epoch(self, epoch: int) -> Iterator[PooledStep]:
        """Yield one step per batch."""
        generator = torch_stream(self._seed, "pooled batches", epoch)
        population = self._batches.num_examples
        for batch in shuffled_batches(population, self._batch_size, 1, generator):
            inputs, labels = self._batches.read(batch.numpy(), generator)
            loss, gradients = self._gradient(inputs, labels)
            yield PooledStep(gradients, float(loss), len(batch))


class ExampleLevelSteps:
    """Example-level DP-SGD: Poisson batches of images, each image's gradient clipped."""

    def __init__(
        self, gradient: PrivateGradient, batches: TrainBatches, *, batch_size: int, seed: int
    ) -> None:
        self._private, self._batches = gradient, batches
        self._batch_size, self._seed = batch_size, seed

    def of_epoch(self, epoch: int) -> Iterator[PooledStep]:
        """Yield ``ceil(n / batch_size)`` steps; a batch may be empty, and is noise then."""
        population = self._batches.num_examples
        generator = torch_stream(self._seed, "pooled batches", epoch)
        device = str(self._batches.device)
        stream = torch_stream(self._seed, "pooled example-level noise", epoch, device=device)
        expected_batch_size = min(self._batch_size, population)
        gradient = self._private.for_user(noise_of_stream(stream), expected_batch_size)
        for batch in poisson_batches(population, self._batch_size, 1, generator):
            inputs, labels = self._batches.read(batch.numpy(), generator)
            loss, gradients = gradient(inputs, labels)
            yield PooledStep(gradients, float(loss), len(batch))


@dataclass(frozen=True)
class OptimizerSettings:
    """Of the pooled training."""

    optimizer: Literal["adam", "sgd"]
    learning_rate: float
    momentum: float
    weight_decay: float

    def make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of some parameters."""
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
        return torch.optim.SGD(parameters, rate, momentum=self.momentum, weight_decay=decay)


class PooledTrainer:
    """Trains one model on the train split, whoever its images belong to.

    Args:
        model: The model.
        steps: Where the gradients come from; they are the same model's.
        settings: The optimizer.
        seed: The run's seed.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: PooledSteps,
        settings: OptimizerSettings,
        *,
        seed: int,
    ) -> None:
        self._model, self._seed = model, seed
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = settings.make(self._parameters)
        self._steps = steps
        self._arrays = exchanged_tensors(model)

    @one_thread()
    def train_epoch(self, epoch: int) -> dict[str, float]:
        """Pass once over the pooled images; return the mean loss and the last step's figures."""
        loss, num_examples, figures = 0.0, 0, {}
        self._model.train()
        device = str(device_of(self._model))
        with global_torch_stream(self._seed, "pooled model", epoch, device=device):
            for step in self._steps.of_epoch(epoch):
                for parameter, gradient in zip(self._parameters, step.gradients, strict=True):
                    parameter.grad = gradient
                self._optimizer.step()
                loss, num_examples = loss + step.loss, num_examples + step.num_examples
                figures = step.figures
        return {"train_loss": loss / num_examples, **figures} if num_examples else figures

    def arrays(self) -> Arrays:
        """Return a copy of the model's arrays, on the CPU."""
        return {name: t.detach().to("cpu", copy=True) for name, t in self._arrays.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, on the CPU."""
        given = self._optimizer.state_dict()
        kept = {
            number: {name: v.cpu() if isinstance(v, torch.Tensor) else v for name, v in own.items()}
            for number, own in given["state"].items()
        }
        return {**given, "state": kept}

    @torch.no_grad()
    def load(self, arrays: Arrays, state: dict[str, Any]) -> None:
        """Go on from arrays and an optimizer's state, which is empty at the start."""
        torch._foreach_copy_(list(self._arrays.values()), [arrays[name] for name in self._arrays])
        if state:
            self._optimizer.load_state_dict(state)
