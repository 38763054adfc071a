"""SGD on a stack of last layers, one for each user: the loop's steps as batched matrix products.

A bias is the weight of a feature that is always 1, so a layer is one matrix W, and the logits of a
batch of n images with features x are ``W x^T``. The gradient of its mean loss over L labels is
``r x`` with the residuals ``r = (sigmoid(logits) - y) / (n L)``. So a step of k users is two
products of stacks of k matrices. The numbers differ from the loop's in the last bits: the same
sums, in another order.

A user's numbers do not depend on the others: the matrices of a product are computed alike however
many there are, a norm is made of those of short runs, and where torch computes what does not fill
its registers by other instructions, arrays fill them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedsim.arrays import Arrays, l2_norm
from fedsim.data.dataset import Examples
from fedsim.training.local import LocalSettings

_ALIGNED = 32  # floats of two registers

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StackedForm:
    """A layer as one matrix: the weight's columns, the bias, and zeros up to whole registers.

    Attributes:
        matrix: Shape (labels, width).
        num_columns: Of weight and bias.
    """

    matrix: torch.Tensor
    num_columns: int

    @classmethod
    def of(cls, layer: Arrays) -> "StackedForm":
        """Put weight and perhaps bias side by side."""
        columns = torch.cat([array.reshape(len(array), -1) for array in layer.values()], dim=1)
        padding = -columns.shape[1] % _ALIGNED
        return cls(torch.nn.functional.pad(columns, (0, padding)), columns.shape[1])

    def copy_to(self, layer: Arrays) -> None:
        """Copy the columns to weight and bias."""
        first = 0
        for array in layer.values():
            width = array[0].numel()
            array.copy_(self.matrix[:, first : first + width].reshape(array.shape))
            first += width


@torch.no_grad()
def train_stack(
    start: StackedForm,
    examples: Examples,
    batches: Int64s,
    num_steps: Int64s,
    settings: LocalSettings,
) -> tuple[torch.Tensor, Float64s]:
    """Train a layer for each of k users.

    Args:
        start: What all start from.
        examples: Features and labels.
        batches: Rows of the examples, shape (steps, k, rows); -1 pads a batch at its end.
        num_steps: Of each user, falling.
        settings: How a user trains.

    Returns:
        What was added to each layer, shape (k, labels, width), and each user's loss, summed over
        the images of all steps and over labels.
    """
    goes_on = num_steps > np.arange(len(batches))[:, None]
    chosen = batches[goes_on]
    mask, active = torch.from_numpy(chosen >= 0), goes_on.sum(axis=1).tolist()
    rows = torch.from_numpy(np.where(chosen < 0, chosen[:, :1], chosen))
    labels = examples.labels.index_select(0, rows.view(-1)).view(*rows.shape, -1)
    losses = _Losses(labels, mask.float(), active)
    num_features = examples.images.shape[1]
    inputs = torch.empty(active[0], rows.shape[1], start.matrix.shape[1])
    inputs[..., num_features : start.num_columns] = 1
    inputs[..., start.num_columns :] = 0
    layers = start.matrix.expand(active[0], *start.matrix.shape).clone()
    now, given = layers, inputs
    optimizer = _StackedSgd(settings)
    for step, (k, own) in enumerate(zip(active, torch.split(rows, active), strict=True)):
        if k < len(now):
            now, given = layers[:k], inputs[:k]
        into = given.view(own.numel(), -1)[:, :num_features]
        torch.index_select(examples.images, 0, own.view(-1), out=into)
        torch.bmm(now, given.transpose(1, 2), out=losses.logits[step])
        optimizer.step(now, losses.residuals(step), given)
    summed = np.zeros(len(num_steps))
    np.add.at(summed, np.nonzero(goes_on)[1], losses.summed())
    return layers.sub_(start.matrix), summed


class _Losses:
    """Logits of batches, and what follows from them and the labels.

    Args:
        labels: Shape (batches, rows, labels).
        mask: 1 where there is an image, 0 where a batch is padded; shape (batches, rows).
        active: Batches of each step.

    Attributes:
        logits: Of each step, to be filled in, shape (active, labels, rows).
    """

    def __init__(self, labels: torch.Tensor, mask: torch.Tensor, active: list[int]) -> None:
        self._wanted = labels.float().transpose(1, 2).contiguous()
        self._mask = mask[:, None]
        self._wanted_of = torch.split(self._wanted, active)
        scale = self._mask / (mask.sum(dim=1)[:, None, None] * labels.shape[2])
        self._scale_of = torch.split(scale, active)
        self._flat = torch.zeros(labels.numel() + 2 * _ALIGNED)
        self._logits = self._flat[: labels.numel()].view(self._wanted.shape)
        self.logits = torch.split(self._logits, active)

    def residuals(self, step: int) -> torch.Tensor:
        """Return the gradient of a step's mean losses with respect to its logits."""
        logits, wanted = self.logits[step], self._wanted_of[step]
        first, size = logits.storage_offset(), logits.numel()
        sigmoids = self._flat[first : first + size + -size % _ALIGNED].sigmoid()
        residuals = sigmoids.as_strided(logits.shape, logits.stride())
        return residuals.sub_(wanted).mul_(self._scale_of[step])

    def summed(self) -> Float64s:
        """Return each batch's loss, summed over images and labels.

        ``log(1 + exp(z)) - y z = max(z, 0) - y z - log(sigmoid(|z|))``, a form without overflow.
        """
        shape, size = self._logits.shape, self._logits.numel()
        flat = self._flat[: size + -size % _ALIGNED]
        losses = self._logits.clamp_min(0).sub_(self._wanted * self._logits)
        losses.sub_(flat.abs().sigmoid_().log_()[:size].view(shape)).mul_(self._mask)
        summed: Float64s = losses.flatten(1).double().numpy().sum(axis=1)
        return summed


class _StackedSgd:
    """What ``fedsim.training.step.Sgd`` does to one layer, for a stack of them."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._buffer: torch.Tensor | None = None

    def step(self, layers: torch.Tensor, residuals: torch.Tensor, inputs: torch.Tensor) -> None:
        """Update the layers in place.

        Args:
            layers: Shape (k, labels, width); k never grows.
            residuals: The loss's gradient with respect to the logits, shape (k, labels, rows).
            inputs: Shape (k, rows, width).
        """
        settings = self._settings
        rate, decay = settings.learning_rate, settings.weight_decay
        if settings.max_grad_norm is None and not settings.momentum:
            layers.baddbmm_(residuals, inputs, beta=1 - rate * decay, alpha=-rate)
            return
        gradients = torch.bmm(residuals, inputs)
        if settings.max_grad_norm is not None:
            factors = settings.max_grad_norm / np.maximum(norms_of(gradients), 1e-300)
            gradients *= torch.from_numpy(np.minimum(factors, 1.0)).float().view(-1, 1, 1)
        if decay:
            gradients.add_(layers, alpha=decay)
        if settings.momentum:
            if self._buffer is not None:
                gradients.add_(self._buffer[: len(layers)], alpha=settings.momentum)
            self._buffer = gradients
        layers.add_(gradients, alpha=-rate)


def norms_of(stack: torch.Tensor) -> Float64s:
    """Return the L2 norm of each matrix of a stack, shape (k,); its width is a multiple of 32."""
    runs = torch.linalg.vector_norm(stack.view(len(stack), -1, _ALIGNED), dim=2)
    norms: Float64s = torch.linalg.vector_norm(runs.double(), dim=1).numpy()
    for place in np.flatnonzero(np.isinf(norms)):  # float32 squares overflow from 1.8e19 on
        norms[place] = l2_norm([stack[place]])
    return norms
