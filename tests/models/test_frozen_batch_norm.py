"""Frozen batch norm is torch's batch norm in eval mode, for ever."""

import pytest
import torch
from opacus.grad_sample import GradSampleHooks
from torch import nn

from fedsim.models.frozen_batch_norm import FrozenBatchNorm2d, register_per_sample_gradients


@pytest.fixture
def pair() -> tuple[FrozenBatchNorm2d, nn.BatchNorm2d]:
    """A frozen norm, and torch's with the same weights and statistics."""
    theirs = nn.BatchNorm2d(3).eval()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in theirs.state_dict().items():
        if tensor.is_floating_point():
            low = 0.5 if name == "running_var" else -1.0
            tensor.uniform_(low, 2.0, generator=generator)
    ours = FrozenBatchNorm2d(3)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def activations() -> torch.Tensor:
    return torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))


def test_equals_batch_norm_in_eval_mode(
    pair: tuple[FrozenBatchNorm2d, nn.BatchNorm2d],
) -> None:
    results = []
    for norm in pair:
        x = activations().requires_grad_()
        y = norm(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, norm.weight, norm.bias])])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_training_changes_no_buffer(pair: tuple[FrozenBatchNorm2d, nn.BatchNorm2d]) -> None:
    norm = pair[0].train()
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    norm(activations()).sum().backward()
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())
    assert {name for name, p in norm.named_parameters() if p.grad is not None} == {"weight", "bias"}


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",)])
def test_opacus_finds_each_examples_gradient(
    pair: tuple[FrozenBatchNorm2d, nn.BatchNorm2d], frozen: tuple[str, ...]
) -> None:
    norm, x = pair[0], activations()
    for name in frozen:
        getattr(norm, name).requires_grad_(False)
    trained = [p for p in norm.parameters() if p.requires_grad]
    alone = [torch.autograd.grad(norm(x[i : i + 1]).square().sum(), trained) for i in range(4)]
    register_per_sample_gradients()
    hooks = GradSampleHooks(norm, strict=False, loss_reduction="sum")
    norm(x.requires_grad_()).square().sum().backward()
    for index, parameter in enumerate(trained):
        expected = torch.stack([gradients[index] for gradients in alone])
        torch.testing.assert_close(parameter.grad_sample, expected, rtol=1e-4, atol=1e-4)
    hooks.cleanup()


def test_opacus_refuses_the_buffers_when_strict() -> None:
    """When this stops failing, strict=False is no longer needed."""
    register_per_sample_gradients()
    with pytest.raises(NotImplementedError, match="buffers"):
        GradSampleHooks(FrozenBatchNorm2d(3))
