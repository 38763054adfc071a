"""One optimizer step on one batch."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from fedsim.arrays import l2_norm
from fedsim.loss import label_mean_loss

GradientFn = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, list[torch.Tensor]]]
"""From inputs (n, 3, S, S) and labels (n, labels) to the summed loss of the batch (a scalar) and
the gradient that the step takes, one tensor per trainable parameter."""


def mean_gradient(model: nn.Module) -> GradientFn:
    """Return the plain gradient: of the mean loss over the batch."""
    parameters = [p for p in model.parameters() if p.requires_grad]

    def gradient(
        inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        loss = label_mean_loss(model(inputs), labels).mean()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return loss.detach() * len(inputs), _separate(parameters, gradients)

    return gradient


def _separate(
    parameters: list[nn.Parameter], gradients: tuple[torch.Tensor | None, ...]
) -> list[torch.Tensor]:
    """Return gradients that may be written to: autograd shares one among added parameters."""
    separate: list[torch.Tensor] = []
    taken: set[int] = set()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        elif gradient.data_ptr() in taken or not gradient.is_contiguous():
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        taken.add(gradient.data_ptr())
        separate.append(gradient)
    return separate


@dataclass
class Sgd:
    """Stochastic gradient descent with momentum, as ``torch.optim.SGD`` defines it.

    ``g <- g + weight_decay * p``, ``b <- momentum * b + g`` (``b = g`` at first),
    ``p <- p - learning_rate * b``. A gradient longer than ``max_grad_norm`` is scaled to it first:
    all tensors together, or each by itself.

    A fresh object is a fresh optimizer; making one costs nothing, and there is one per user and
    round.

    Attributes:
        learning_rate: Above 0.
        momentum: In [0, 1).
        weight_decay: 0 or more.
        max_grad_norm: Bound of the L2 norm, or None.
        clip_each_array: The bound is each tensor's own (Keras's ``clipnorm``), not that of all
            together (Keras's ``global_clipnorm``).
    """

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_grad_norm: float | None = None
    clip_each_array: bool = False
    _buffers: list[torch.Tensor] = field(default_factory=list, repr=False)

    @torch.no_grad()
    def step(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """Update the parameters in place; the gradients may be written to."""
        if self.max_grad_norm is not None:
            together = [[g] for g in gradients] if self.clip_each_array else [gradients]
            for tensors in together:
                norm = l2_norm(tensors)
                if norm > self.max_grad_norm:
                    torch._foreach_mul_(tensors, self.max_grad_norm / norm)
        if self.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=self.weight_decay)
        if self.momentum:
            if self._buffers:
                torch._foreach_mul_(self._buffers, self.momentum)
                torch._foreach_add_(self._buffers, gradients)
            else:
                self._buffers = gradients
            gradients = self._buffers
        torch._foreach_add_(parameters, gradients, alpha=-self.learning_rate)
