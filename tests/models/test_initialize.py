"""Seeded weights, and which tensors a round exchanges."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsim.errors import ConfigError
from fedsim.models.frozen_batch_norm import FrozenBatchNorm2d
from fedsim.models.initialize import build_seeded, exchanged_tensors, running_statistics


def build() -> nn.Linear:
    return nn.Linear(4, 3)


@given(st.integers(0, 2**63), st.integers(0, 100))
def test_weights_follow_from_the_seed_alone(seed: int, draws: int) -> None:
    first = build_seeded(build, seed)
    torch.rand(draws)
    assert torch.equal(first.weight, build_seeded(build, seed).weight)


@given(st.integers(0, 2**32))
def test_seeds_that_share_their_low_32_bits_differ(seed: int) -> None:
    a, b = build_seeded(build, seed), build_seeded(build, seed + 2**32)
    assert not torch.equal(a.weight, b.weight)


def fail() -> nn.Module:
    torch.rand(3)
    raise KeyError


def test_the_global_generator_is_left_alone() -> None:
    torch.rand(5)
    before = torch.get_rng_state()
    build_seeded(build, 0)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyError):
        build_seeded(fail, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm2d(2),
        lambda: nn.BatchNorm2d(2, affine=False),
        lambda: nn.BatchNorm2d(2, track_running_stats=False),
        lambda: nn.InstanceNorm2d(2),
        lambda: nn.InstanceNorm2d(2, track_running_stats=True),
        lambda: nn.GroupNorm(1, 2),
        lambda: FrozenBatchNorm2d(2),
        lambda: nn.Identity(),
    ],
)
def test_running_statistics_are_what_a_training_step_changes(
    norm: Callable[[], nn.Module],
) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(norm())).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)))
    changed = tuple(
        name
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and not torch.equal(buffer, before[name])
    )
    assert running_statistics(model) == changed


def test_exchanged_are_trainable_parameters_then_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    model[1].bias.requires_grad_(False)
    exchanged = exchanged_tensors(model)
    assert list(exchanged) == [
        "0.weight", "0.bias", "1.weight", "2.weight", "0.running_mean", "0.running_var",
    ]  # fmt: skip
    assert exchanged["2.weight"] is model[2].weight
    assert exchanged["0.running_var"] is model[0].running_var


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one trainable parameter"):
        exchanged_tensors(build().requires_grad_(False))


def test_mixed_types_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match=r"float32 in 0\.weight and torch\.float64 in 1\.weight"):
        exchanged_tensors(model)
    with pytest.raises(ConfigError, match="complex64"):
        exchanged_tensors(nn.Linear(2, 2, dtype=torch.complex64))
