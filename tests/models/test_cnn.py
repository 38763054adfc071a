"""The two small networks: shapes, a functional reference, and gradients of single examples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.grad_sample import GradSampleHooks
from torch.nn import functional as F

from fedsim.errors import ConfigError
from fedsim.models.cnn import Cnn

CHANNELS = st.lists(st.sampled_from([4, 8, 16]), min_size=1, max_size=3).map(tuple)


def images(n: int, size: int) -> torch.Tensor:
    drawn = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(n))
    return drawn.contiguous(memory_format=torch.channels_last)


def reference(model: Cnn, x: torch.Tensor) -> torch.Tensor:
    """The definition, written with means and maxima over explicit windows."""
    state = dict(model.named_parameters())
    for i in range(len(model.blocks)):
        x = F.conv2d(x, state[f"blocks.{i}.0.weight"], padding=1)
        n, c, h, w = x.shape
        x = x.reshape(n, c, h // 2, 2, w // 2, 2).amax(dim=(3, 5))
        groups = x.reshape(n, min(8, c), -1)
        centered = groups - groups.mean(-1, keepdim=True)
        x = (centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()).reshape(x.shape)
        scale, shift = state[f"blocks.{i}.2.weight"], state[f"blocks.{i}.2.bias"]
        x = (x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)).clamp(min=0)
    cell = x.shape[-1] // 4
    x = x.reshape(*x.shape[:2], 4, cell, 4, cell).mean(dim=(3, 5))
    return x.flatten(1) @ state["head.weight"].T + state["head.bias"]


@settings(max_examples=15, deadline=None)
@given(CHANNELS, st.sampled_from([32, 64]), st.integers(1, 5))
def test_forward_is_its_definition(channels: tuple[int, ...], size: int, num_labels: int) -> None:
    model = Cnn(num_labels, channels=channels)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)
    x = images(3, size)
    torch.testing.assert_close(model(x), reference(model, x), rtol=1e-4, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30))
def test_number_of_parameters(num_labels: int) -> None:
    assert sum(p.numel() for p in Cnn(num_labels).parameters()) == 23_696 + 1_025 * num_labels


def test_an_example_does_not_see_its_batch() -> None:
    model, x = Cnn(17), images(5, 32)
    torch.testing.assert_close(model(x), torch.cat([model(x[i : i + 1]) for i in range(5)]))
    assert not list(model.buffers())


def test_opacus_finds_each_examples_gradient() -> None:
    # Contiguous: Opacus 1.6 gets convolutions' gradients wrong on channels-last activations.
    model, x = Cnn(17), images(4, 32).contiguous()
    labels = (torch.arange(4 * 17) % 5 == 0).float().view(4, 17)
    alone = [
        torch.autograd.grad(
            F.binary_cross_entropy_with_logits(model(x[i : i + 1]), labels[i : i + 1]),
            list(model.parameters()),
        )
        for i in range(4)
    ]
    hooks = GradSampleHooks(model)
    F.binary_cross_entropy_with_logits(model(x.clone().requires_grad_()), labels).backward()
    for index, parameter in enumerate(model.parameters()):
        expected = torch.stack([gradients[index] for gradients in alone])
        torch.testing.assert_close(parameter.grad_sample, expected, rtol=1e-4, atol=1e-6)
    hooks.cleanup()


@pytest.mark.parametrize("channels", [(), (0,), (16, 12), (-8,)])
def test_channels_that_cannot_be_grouped_are_refused(channels: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="multiples of 8"):
        Cnn(17, channels=channels)


def test_no_labels_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_labels of at least 1, found 0"):
        Cnn(0)
