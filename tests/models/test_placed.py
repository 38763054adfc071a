"""Devices and precisions."""

import pytest
import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.models.cnn import Cnn
from fedsim.models.initialize import build_seeded
from fedsim.models.placed import device_of, placed


def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def cnn() -> nn.Module:
    return build_seeded(lambda: Cnn(17), 0)


def test_bfloat16_computes_roughly_the_same_and_leaves_the_rest_float32() -> None:
    exact, rough = cnn(), placed(cnn(), "cpu", "bfloat16")
    assert list(rough.state_dict()) == list(exact.state_dict())
    expected, found = exact(images()), rough(images())
    assert found.dtype == torch.float32
    distance = float((found - expected).detach().norm() / expected.detach().norm())
    assert 1e-4 < distance < 0.03  # 8 bits of mantissa
    found.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(rough.parameters(), exact.parameters(), strict=True):
        assert ours.dtype == ours.grad.dtype == torch.float32
        assert float((ours.grad - theirs.grad).norm() / theirs.grad.norm()) < 0.3


def test_float32_on_the_cpu_is_the_model_itself() -> None:
    model = cnn()
    assert placed(model, "cpu") is model
    assert torch.equal(model(images()), cnn()(images()))
    assert device_of(model) == device_of(nn.ReLU()) == torch.device("cpu")


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_here_is_told(device: str) -> None:
    with pytest.raises(ConfigError, match=f"model.device: expected a device .* found '{device}'"):
        placed(cnn(), device)
