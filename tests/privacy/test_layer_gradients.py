"""A layer's squared norms and weighted sums, against gradients made one by one in float64."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer
from torch import nn
from torch.nn.grad import conv2d_weight

from fedsim.privacy.layer_gradients import (
    ByParameter,
    ConvolutionWeight,
    DenseWeight,
    Held,
    LayerGradients,
    layer_gradients,
)
from fedsim.streams import torch_stream

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], type]] = {
    "dense": (lambda: nn.Linear(300, 7), (300,), DenseWeight),
    "dense over a sequence": (lambda: nn.Linear(6, 4), (5, 6), Held),
    "few positions": (lambda: nn.Conv2d(16, 32, 3, padding=1), (16, 3, 3), ConvolutionWeight),
    "strided": (lambda: nn.Conv2d(16, 32, 3, stride=2, padding=1), (16, 6, 5), ConvolutionWeight),
    "dilated": (lambda: nn.Conv2d(16, 32, 3, dilation=2), (16, 7, 6), ConvolutionWeight),
    "oblong": (lambda: nn.Conv2d(16, 32, (1, 3), padding=(0, 1)), (16, 3, 2), ConvolutionWeight),
    "one by one": (lambda: nn.Conv2d(64, 64, 1, stride=2), (64, 3, 3), ConvolutionWeight),
    "valid": (lambda: nn.Conv2d(16, 32, 3, padding="valid"), (16, 4, 4), ConvolutionWeight),
    "same": (lambda: nn.Conv2d(16, 32, 3, padding="same"), (16, 3, 3), Held),
    "reflected": (
        lambda: nn.Conv2d(16, 32, 3, padding=1, padding_mode="reflect"),
        (16, 3, 3),
        Held,
    ),
    "grouped": (lambda: nn.Conv2d(16, 32, 3, padding=1, groups=2), (16, 3, 3), Held),
    "many positions": (lambda: nn.Conv2d(3, 4, 3), (3, 9, 9), Held),
}


def of_layer(
    layer: nn.Module, inputs: torch.Tensor, backprops: torch.Tensor
) -> list[LayerGradients]:
    prepared = copy.deepcopy(layer)
    prepare_layer(prepared)

    def rule() -> ByParameter:
        # Not a rule of a layer's own, so that none is its own judge.
        found = ft_compute_per_sample_gradient(prepared, [inputs.contiguous()], backprops)
        names = {p: name for name, p in prepared.named_parameters()}
        own: dict[str, torch.Tensor] = dict(layer.named_parameters())
        return {own[names[p]]: g for p, g in found.items()}

    return layer_gradients(layer, inputs, backprops, rule)


def one_by_one(
    layer: nn.Module, inputs: torch.Tensor, backprops: torch.Tensor
) -> list[list[torch.Tensor]]:
    exact = copy.deepcopy(layer).double()
    trainable = [p for p in exact.parameters() if p.requires_grad]
    return [
        list(
            torch.autograd.grad(
                (exact(inputs[i : i + 1].double()) * backprops[i : i + 1].double()).sum(), trainable
            )
        )
        for i in range(len(inputs))
    ]


@pytest.mark.parametrize("memory", ["contiguous", "channels-last"])
@pytest.mark.parametrize("frozen", ["none", "weight", "bias"])
@pytest.mark.parametrize("name", LAYERS)
def test_norms_and_sums_are_those_of_gradients_one_by_one(
    name: str, frozen: str, memory: str
) -> None:
    make, shape, kind = LAYERS[name]
    layer = make()
    if frozen != "none":
        getattr(layer, frozen).requires_grad_(False)
    generator = torch_stream(0, "layer gradients")
    inputs = torch.randn(4, *shape, generator=generator)
    if memory == "channels-last" and inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    backprops = torch.randn(layer(inputs).shape, generator=generator)
    factors = torch.rand(4, generator=generator, dtype=torch.float64)

    found = of_layer(layer, inputs, backprops)
    exact = one_by_one(layer, inputs, backprops)

    if frozen != "weight":
        assert isinstance(found[0], kind)
    norms = torch.stack([part.squared_norms() for part in found]).sum(dim=0)
    right = [sum(float(g.square().sum()) for g in gradients) for gradients in exact]
    assert norms.tolist() == pytest.approx(right, rel=1e-6)
    sums = {p: total for part in found for p, total in part.weighted_sums(factors).items()}
    trainable = [p for p in layer.parameters() if p.requires_grad]
    assert sums.keys() == set(trainable)
    for column, parameter in enumerate(trainable):
        weighted = sum(float(factors[i]) * exact[i][column] for i in range(4))
        assert isinstance(weighted, torch.Tensor)
        torch.testing.assert_close(sums[parameter].double(), weighted, rtol=1e-5, atol=1e-5)
        assert sums[parameter].is_contiguous()


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-9, 7.0])
@pytest.mark.parametrize("size", [1, 255, 256, 4097, 3_000_000])
def test_norms_are_right_to_a_millionth_whatever_the_size(size: int, value: float) -> None:
    # Equal elements are the worst case: every rounding of a running sum goes the same way.
    held = Held(
        {
            nn.Parameter(torch.zeros(size)): torch.full((2, size), value),
            nn.Parameter(torch.zeros(3)): torch.full((2, 3), value),
        }
    )
    exact = (size + 3) * torch.tensor(value).double().item() ** 2
    assert held.squared_norms().tolist() == pytest.approx([exact, exact], rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rest", [0.0, 1e-9, 1e-7, 1e-5, 1e-3, 1e-2])
def test_what_rounding_leaves_of_positions_that_cancel_is_no_longer_than_the_norm(
    rest: float, seed: int
) -> None:
    layer = nn.Conv2d(64, 64, 1, bias=False)
    generator = torch_stream(seed, "cancelling positions")
    patch, backprop = torch.randn(2, 64, generator=generator)
    inputs = torch.stack([patch, patch * 3], dim=1).view(1, 64, 1, 2)
    backprops = torch.stack([backprop * (1 + rest), -backprop / 3], dim=1).view(1, 64, 1, 2)
    weight = ConvolutionWeight(layer, inputs, backprops)
    norm = weight.squared_norms().sqrt()
    (clipped,) = weight.weighted_sums(1 / norm).values()
    assert math.sqrt(clipped.double().square().sum().item()) <= 1 + 1e-6


def test_sums_are_computed_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cuDNN uses by default: a sum may then be a thousandth longer than its norm."""
    allowed = []

    def computed(*args: Any) -> torch.Tensor:
        allowed.append(torch.backends.cudnn.allow_tf32)
        return conv2d_weight(*args)

    monkeypatch.setattr("fedsim.privacy.layer_gradients.conv2d_weight", computed)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    inputs, backprops = torch.ones(2, 8, 1, 1), torch.ones(2, 8, 1, 1)
    ConvolutionWeight(nn.Conv2d(8, 8, 1), inputs, backprops).weighted_sums(torch.ones(2))
    assert allowed == [False]
    assert torch.backends.cudnn.allow_tf32
