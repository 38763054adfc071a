"""What one layer gives to per-example gradients: their squared norms, and their weighted sum.

Both are asked for separately, since a layer whose per-example gradients are large can give them
without ever holding one (Goodfellow 2015 for dense layers; Bu et al. 2022, "Scalable and Efficient
Training of Large Convolutional Neural Networks with Differential Privacy").
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.nn.functional import unfold
from torch.nn.grad import conv2d_weight

from fedsim.arrays import squared_norms

# Products of positions are cheaper than gradients up to here: measured for ResNet-18's layers.
_POSITIONS_FACTOR = 5
_ROUNDING = 2.0**-23  # of a float32 sum of weighted products, in parts of their lengths' sum

ByParameter = dict[torch.Tensor, torch.Tensor]

LayerRule = Callable[[], ByParameter]
"""Computes a layer's per-example gradients, each of shape (n, *parameter.shape)."""


class LayerGradients(Protocol):
    """The per-example gradients of some parameters of a layer, for n examples."""

    def squared_norms(self) -> torch.Tensor:
        """Return each example's squared L2 norm over these parameters, float64 of shape (n,)."""
        ...

    def weighted_sums(self, factors: torch.Tensor) -> ByParameter:
        """Return Σ_i factors_i · g_i by parameter, for float64 factors of shape (n,)."""
        ...


@dataclass(frozen=True)
class Held:
    """Gradients that are in memory.

    Attributes:
        gradients: By parameter, of shape (n, *parameter.shape).
    """

    gradients: ByParameter

    def squared_norms(self) -> torch.Tensor:
        """Return the squared norms, right to 1e-6 whatever the size."""
        parts = [squared_norms(_rows(gradient)) for gradient in self.gradients.values()]
        return torch.stack(parts).sum(dim=0)

    def weighted_sums(self, factors: torch.Tensor) -> ByParameter:
        """Return the sums."""
        return {
            parameter: (factors.to(gradient.dtype) @ _rows(gradient)).view(parameter.shape)
            for parameter, gradient in self.gradients.items()
        }


@dataclass(frozen=True)
class DenseWeight:
    """The gradients of a dense layer's weight, each an outer product.

    Attributes:
        weight: Shape (outputs, inputs).
        inputs: Shape (n, inputs).
        backprops: The loss's gradient with respect to the outputs, shape (n, outputs).
    """

    weight: torch.Tensor
    inputs: torch.Tensor
    backprops: torch.Tensor

    def squared_norms(self) -> torch.Tensor:
        """Return the products of both factors' squared norms."""
        return squared_norms(self.inputs) * squared_norms(self.backprops)

    def weighted_sums(self, factors: torch.Tensor) -> ByParameter:
        """Return the sum, one matrix product."""
        weighted = self.backprops * factors.to(self.backprops.dtype)[:, None]
        return {self.weight: weighted.T @ self.inputs}


@dataclass(frozen=True)
class ConvolutionWeight:
    """The gradients of a convolution's weight: sums of outer products over few output positions.

    With patches a_t and backprops e_t at position t, ‖Σ_t e_t a_tᵀ‖² = Σ_st (a_s·a_t)(e_s·e_t).
    That is computed in float64, since large terms may cancel. The weighted sum is computed in
    float32: what it is rounded by, in proportion to Σ_t ‖e_t‖ ‖a_t‖, is added to the norm, so that
    nothing comes out longer than the norm says.

    Attributes:
        layer: Not grouped, padded with zeros.
        inputs: Shape (n, channels, height, width).
        backprops: Shape (n, output channels, output height, output width).
    """

    layer: nn.Conv2d
    inputs: torch.Tensor
    backprops: torch.Tensor

    def squared_norms(self) -> torch.Tensor:
        """Return the squared norms."""
        layer = self.layer
        patches = unfold(
            self.inputs.double(),
            layer.kernel_size,
            dilation=layer.dilation,
            padding=_as_numbers(layer),
            stride=layer.stride,
        )
        backprops = self.backprops.double().flatten(2)
        of_patches = patches.transpose(1, 2) @ patches
        of_backprops = backprops.transpose(1, 2) @ backprops
        terms = of_patches.mul_(of_backprops)
        lengths = terms.diagonal(dim1=1, dim2=2).sqrt().sum(dim=1)
        exact = terms.sum(dim=(1, 2)).clamp(min=0).sqrt()
        return (exact + _ROUNDING * lengths).square()

    def weighted_sums(self, factors: torch.Tensor) -> ByParameter:
        """Return the sum: the gradient of a batch whose examples count that much."""
        layer = self.layer
        with _whole_float32():
            total = conv2d_weight(  # type: ignore[no-untyped-call]
                self.inputs,
                layer.weight.shape,
                self.backprops * factors.to(self.backprops.dtype)[:, None, None, None],
                layer.stride,
                _as_numbers(layer),
                layer.dilation,
            )
        return {layer.weight: total.contiguous()}


def layer_gradients(
    layer: nn.Module, inputs: torch.Tensor, backprops: torch.Tensor, rule: LayerRule
) -> list[LayerGradients]:
    """Return the per-example gradients of a layer's trainable parameters.

    Args:
        layer: Any, whose gradients the rule can compute.
        inputs: What it was given, shape (n, ...).
        backprops: The summed loss's gradient with respect to its outputs, shape (n, ...).
        rule: Computes all of them at once.
    """
    weight: LayerGradients
    if type(layer) is nn.Linear and inputs.ndim == 2:
        weight = DenseWeight(layer.weight, inputs, backprops)
        of_bias = backprops
    elif type(layer) is nn.Conv2d and _has_few_positions(layer, backprops):
        weight = ConvolutionWeight(layer, inputs, backprops)
        of_bias = backprops.sum(dim=(2, 3))
    else:
        return [Held({p: g for p, g in rule().items() if p.requires_grad})]
    found: list[LayerGradients] = [weight] if layer.weight.requires_grad else []
    if layer.bias is not None and layer.bias.requires_grad:
        found.append(Held({layer.bias: of_bias}))
    return found


def _has_few_positions(layer: nn.Conv2d, backprops: torch.Tensor) -> bool:
    """Tell whether products of all pairs of positions cost less than the gradients themselves."""
    if layer.groups > 1 or layer.padding_mode != "zeros" or layer.padding == "same":
        return False
    num_positions = backprops[0, 0].numel()
    outputs = layer.out_channels
    inputs = layer.weight[0].numel()
    return num_positions**2 * (inputs + outputs) <= _POSITIONS_FACTOR * inputs * outputs


@contextmanager
def _whole_float32() -> Iterator[None]:
    """Keep cuDNN from TF32, its default: with 10 bits of mantissa a sum outgrows its norm."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _as_numbers(layer: nn.Conv2d) -> tuple[int, ...]:
    return (0, 0) if isinstance(layer.padding, str) else layer.padding  # the other is "valid"


def _rows(gradient: torch.Tensor) -> torch.Tensor:
    """Return a row per example, also of a parameter that is a single number."""
    return gradient.reshape(len(gradient), -1)
