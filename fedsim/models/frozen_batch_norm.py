"""Batch normalization whose statistics are given and never change."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import batch_norm


class FrozenBatchNorm2d(nn.Module):
    """``y = weight * (x - running_mean) / sqrt(running_var + eps) + bias``, per channel.

    Weight and bias train; the statistics are buffers that only loading changes. So an example's
    output does not depend on its batch, and no statistic of private images is collected: how a
    pretrained network is fine-tuned in FLAIR (Song, Granqvist and Talwar 2022). Train and eval
    mode are the same. Names in the state dict are those of ``torch.nn.BatchNorm2d``.

    Before statistics are loaded they are 0 and 1, and the layer is a plain scale and shift.

    Args:
        num_features: Channels.
        eps: Added to the variance.

    Examples:
        >>> norm = FrozenBatchNorm2d(1, eps=0.0)
        >>> _ = norm.running_var.fill_(4.0)
        >>> norm(torch.full((1, 1, 1, 2), 6.0)).flatten().tolist()
        [3.0, 3.0]
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        # Unused, but BatchNorm2d's state dicts hold it.
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalized activations; the shape (n, channels, height, width) stays."""
        return batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


def register_per_sample_gradients() -> None:
    """Teach Opacus the per-example gradients of ``FrozenBatchNorm2d``; calling again is harmless.

    Opacus's own check refuses trainable layers with buffers, since buffers may mix examples; these
    do not. Hooks are then attached without that check (``strict=False``), once it is known that
    every other layer treats each example by itself.

    Imports Opacus, which takes a second.
    """
    from opacus.grad_sample import register_grad_sampler

    register_grad_sampler(FrozenBatchNorm2d)(_per_sample_gradients)


def _per_sample_gradients(
    layer: FrozenBatchNorm2d, activations: Sequence[torch.Tensor], backprops: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    """Return gradients of shape (n, channels): d y / d weight is the normalized activation."""
    gradients = {}
    if layer.weight.requires_grad:
        normalized = batch_norm(
            activations[0], layer.running_mean, layer.running_var, eps=layer.eps
        )
        gradients[layer.weight] = torch.einsum("nchw,nchw->nc", normalized, backprops)
    if layer.bias.requires_grad:
        gradients[layer.bias] = backprops.sum(dim=(2, 3))
    return gradients
