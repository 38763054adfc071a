"""Local training: what one user does in one round. There is no other such function."""

import math
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import torch

from fedsim.arrays import Arrays
from fedsim.data.dataset import Examples
from fedsim.data.transforms import InputTransform
from fedsim.training.ahead import ahead
from fedsim.training.step import GradientFn, Sgd

_INPUTS_KEPT = 256  # images of a user whose inputs are made once: 154 MB at 224 pixels


@dataclass(frozen=True)
class LocalSettings:
    """How one user trains.

    Attributes:
        epochs: Passes over the user's examples.
        batch_size: Examples a step.
        learning_rate, momentum, weight_decay, max_grad_norm, clip_each_array: See ``Sgd``.
        poisson: Draw every batch by Poisson sampling, as DP-SGD's accounting supposes, with
            probability ``min(1, batch_size / n)`` per example; a pass is then ``ceil(n /
            batch_size)`` steps, and a batch may be empty.
        channels_last: How a batch lies in memory.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_grad_norm: float | None = None
    clip_each_array: bool = False
    poisson: bool = False
    channels_last: bool = True


@dataclass(frozen=True)
class LocalResult:
    """What local training returns beside the changed parameters.

    Attributes:
        num_examples: The user's examples.
        train_loss: Mean loss over all examples of all steps; 0 if every batch was empty, NaN if
            nobody is to know it.
        sent_back: What goes back beside the parameters, under the names of what came along.
    """

    num_examples: int
    train_loss: float
    sent_back: Arrays = field(default_factory=dict)


def train_locally(
    parameters: list[torch.Tensor],
    gradient: GradientFn,
    examples: Examples,
    transform: InputTransform,
    settings: LocalSettings,
    generator: torch.Generator,
) -> LocalResult:
    """Train in place on one user's examples.

    Args:
        parameters: The model's trainable parameters.
        gradient: The plain gradient, or a private one.
        examples: At least one.
        transform: From uint8 images to the model's inputs.
        settings: Epochs, batch size, optimizer.
        generator: Where the order of the examples and the augmentation are drawn from.
    """
    optimizer = Sgd(
        settings.learning_rate,
        settings.momentum,
        settings.weight_decay,
        settings.max_grad_norm,
        settings.clip_each_array,
    )
    total_loss: torch.Tensor | float = 0.0
    num_seen = 0
    with closing(_prepared(examples, transform, settings, generator)) as batches:
        for inputs, labels in batches:
            loss, gradients = gradient(inputs, labels)
            optimizer.step(parameters, gradients)
            total_loss += loss
            num_seen += len(labels)
    return LocalResult(len(examples), float(total_loss) / num_seen if num_seen else 0.0)


def _prepared(
    examples: Examples,
    transform: InputTransform,
    settings: LocalSettings,
    generator: torch.Generator,
) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
    """Return the inputs and labels of every step; those made for a step are made one ahead."""
    draw = poisson_batches if settings.poisson else shuffled_batches
    batches = draw(len(examples), settings.batch_size, settings.epochs, generator)
    # Without augmentation an image's input is the same in every epoch: make it once.
    if not transform.is_random and len(examples) <= _INPUTS_KEPT:
        inputs = laid_out(transform.eval_batch(examples.images), settings.channels_last)
        return ((inputs[batch], examples.labels[batch]) for batch in batches)

    def inputs_of(batch: torch.Tensor) -> torch.Tensor:
        images = examples.images[batch]
        if transform.is_random:
            return laid_out(transform.train_batch(images, generator), settings.channels_last)
        return laid_out(transform.eval_batch(images), settings.channels_last)

    return ahead((inputs_of(batch), examples.labels[batch]) for batch in batches)


def shuffled_batches(
    num_examples: int, batch_size: int, epochs: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Yield batches of positions; every example is in one batch of each epoch."""
    for order in shuffled_orders(num_examples, epochs, generator):
        yield from torch.split(order, batch_size)


def shuffled_orders(
    num_examples: int, epochs: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Yield each epoch's order of all positions."""
    for _ in range(epochs):
        yield torch.randperm(num_examples, generator=generator)


def poisson_batches(
    num_examples: int, batch_size: int, epochs: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Yield batches of positions, as DP-SGD's accounting supposes; one may be empty.

    Every example is in a batch with probability ``min(1, batch_size / n)``, and an epoch is
    ``ceil(n / batch_size)`` batches.
    """
    rate = min(1.0, batch_size / num_examples)
    for _ in range(epochs * math.ceil(num_examples / batch_size)):
        yield torch.nonzero(torch.rand(num_examples, generator=generator) < rate).flatten()


def laid_out(inputs: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Return a batch of images in the memory layout that the run's numbers are made in."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return inputs.contiguous(memory_format=layout)
