"""Per-example gradients against autograd, one example at a time, and against Opacus itself."""

import itertools
import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from fedsim.errors import EngineError, PrivacyError
from fedsim.loss import label_mean_loss
from fedsim.models.frozen_batch_norm import FrozenBatchNorm2d, register_per_sample_gradients
from fedsim.models.placed import placed
from fedsim.privacy.per_sample import (
    Noise,
    PerSampleGradients,
    PrivateGradient,
    noise_of_nobody,
    noise_of_stream,
    noisy_mean,
)
from fedsim.streams import torch_stream

LABELS = 5


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, stride=2, bias=False)
        self.norm2 = nn.GroupNorm(4, 8)
        self.shortcut = nn.Conv2d(8, 8, 1, stride=2, bias=False)
        self.head = nn.Linear(8, LABELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)) + self.shortcut(x))
        logits: torch.Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


class Scale(nn.Module):
    """A layer that Opacus has no rule for."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full(shape, 1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def plain_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        Scale(8, 1, 1),
        nn.Flatten(),
        nn.Linear(8 * 16, LABELS),
    )


def frozen_front() -> nn.Module:
    model = plain_cnn()
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model


def frozen_statistics() -> nn.Module:
    register_per_sample_gradients()
    model = plain_cnn()
    model[2] = FrozenBatchNorm2d(8)
    return model


def with_temperature() -> nn.Module:
    return nn.Sequential(plain_cnn(), Scale())


MODELS: list[Callable[[], nn.Module]] = [
    plain_cnn,
    Residual,
    frozen_front,
    frozen_statistics,
    with_temperature,
]


def seeded(factory: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return factory()


def batch(num_examples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch_stream(seed, "test batch")
    images = torch.randn(num_examples, 3, 8, 8, generator=generator)
    return images, (torch.rand(num_examples, LABELS, generator=generator) < 0.3).to(torch.uint8)


def one_at_a_time(
    model: nn.Module, images: torch.Tensor, targets: torch.Tensor, bound: float
) -> tuple[list[torch.Tensor], int]:
    """The definition: clip each example's gradient in float64 and add them up."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    num_clipped = 0
    for i in range(len(images)):
        loss = label_mean_loss(model(images[i : i + 1]), targets[i : i + 1]).sum()
        gradients = [g.double() for g in torch.autograd.grad(loss, parameters)]
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        num_clipped += norm > bound
        for t, g in zip(total, gradients, strict=True):
            t += g * min(1.0, bound / norm)
    return total, num_clipped


@pytest.mark.parametrize("factory", MODELS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_equals_the_sum_over_batches_of_one(
    factory: Callable[[], nn.Module], layout: torch.memory_format
) -> None:
    model = seeded(factory)
    images, targets = batch(7)
    images = images.contiguous(memory_format=layout)
    # About half of the norms are larger. Opacus's own rules are wrong for channels_last.
    bounds = {
        plain_cnn: 3.1,
        Residual: 0.5,
        frozen_front: 2.55,
        frozen_statistics: 2.4,
        with_temperature: 4.65,
    }
    bound = bounds[factory]
    expected, num_clipped = one_at_a_time(model, images, targets, bound)
    assert 0 < num_clipped < 7
    clipped = PerSampleGradients(model).clipped_gradient_sum(images, targets, max_grad_norm=bound)
    assert clipped.num_clipped == num_clipped
    assert clipped.loss.item() == pytest.approx(
        label_mean_loss(model(images), targets).sum().item(), rel=1e-6
    )
    for found, right in zip(clipped.gradients, expected, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-6)
        assert found.is_contiguous()


def test_equals_opacus() -> None:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    images, targets = batch(6)
    model = seeded(Residual)
    clipped = PerSampleGradients(model).clipped_gradient_sum(images, targets, max_grad_norm=0.4)

    wrapped = GradSampleModule(seeded(Residual), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=0.4,
        expected_batch_size=1,
        loss_reduction="sum",
    )
    # Opacus's hooks complain of inputs that need no gradient unless one does.
    label_mean_loss(wrapped(images.clone().requires_grad_()), targets).sum().backward()
    optimizer.pre_step()
    for found, parameter in zip(clipped.gradients, wrapped.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("factory", MODELS)
def test_a_huge_bound_and_no_noise_give_the_plain_gradient(
    factory: Callable[[], nn.Module],
) -> None:
    model = seeded(factory)
    images, targets = batch(5)
    parameters = [p for p in model.parameters() if p.requires_grad]
    plain = torch.autograd.grad(label_mean_loss(model(images), targets).mean(), parameters)
    private = PrivateGradient(model, max_grad_norm=1e30, noise_multiplier=0.0)
    loss, gradients = private.for_user(noise_of_stream(torch.Generator()), 5)(images, targets)
    assert loss.item() > 0
    for found, right in zip(gradients, plain, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-7)


def test_one_image_is_clipped_to_the_bound() -> None:
    images, targets = batch(1)
    model = seeded(Residual)
    clipped = PerSampleGradients(model).clipped_gradient_sum(images, targets, max_grad_norm=1e-2)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in clipped.gradients))
    assert norm == pytest.approx(1e-2, rel=1e-6)


def test_a_model_that_multiplies_in_bfloat16_gives_float32_sums() -> None:
    images, targets = batch(6)
    exact, _ = one_at_a_time(seeded(Residual), images, targets, 0.4)
    model = placed(seeded(Residual), "cpu", "bfloat16")
    clipped = PerSampleGradients(model).clipped_gradient_sum(images, targets, max_grad_norm=0.4)
    length = math.sqrt(sum(float(g.square().sum()) for g in exact))
    for found, right in zip(clipped.gradients, exact, strict=True):
        assert found.dtype == torch.float32
        assert (found - right).norm() < 0.05 * length


def test_an_empty_batch_is_a_step_of_noise_alone() -> None:
    images, targets = batch(0)
    model = seeded(Residual)
    private = PrivateGradient(model, max_grad_norm=2.0, noise_multiplier=1.5)
    loss, gradients = private.for_user(noise_of_stream(torch_stream(0, "noise")), 4)(
        images, targets
    )
    assert loss.item() == 0
    expected = noisy_mean(
        [torch.zeros_like(p) for p in model.parameters()],
        noise_multiplier=1.5,
        max_grad_norm=2.0,
        expected_batch_size=4,
        noise=noise_of_stream(torch_stream(0, "noise")),
    )
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    silent = PerSampleGradients(seeded(Residual))
    zero = silent.clipped_gradient_sum(images, targets, max_grad_norm=1.0)
    assert zero.num_clipped == 0
    assert all(not g.any() for g in zero.gradients)


@pytest.mark.parametrize(
    "noise", [noise_of_stream(torch_stream(3, "noise")), noise_of_nobody()], ids=["seed", "nobody"]
)
def test_noise_has_the_claimed_standard_deviation(noise: Noise) -> None:
    num = 1_000_000
    (mean,) = noisy_mean(
        [torch.full((num,), 3.0)],
        noise_multiplier=1.2,
        max_grad_norm=0.5,
        expected_batch_size=2.5,
        noise=noise,
    )
    claimed = 1.2 * 0.5 / 2.5
    # Five standard errors of the mean and of the standard deviation: one of the two is new draws
    # every time.
    assert mean.mean().item() == pytest.approx(3 / 2.5, abs=5 * claimed / math.sqrt(num))
    assert mean.std().item() == pytest.approx(claimed, rel=5 / math.sqrt(2 * num))


def test_noise_of_nobody_is_never_the_same_twice() -> None:
    gradient = torch.zeros(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    one, other = noise_of_nobody(), noise_of_nobody()
    drawn = [noise(gradient, 1.0) for noise in (one, one, other, other)]
    assert all(noise.shape == gradient.shape and noise.dtype == torch.float32 for noise in drawn)
    assert all((a == b).sum() < 3 for a, b in itertools.combinations(drawn, 2))


def test_no_noise_draws_nothing_and_the_expected_size_is_not_rounded() -> None:
    generator = torch_stream(0, "noise")
    before = generator.get_state()
    (mean,) = noisy_mean(
        [torch.tensor([7.0])],
        noise_multiplier=0.0,
        max_grad_norm=1.0,
        expected_batch_size=3.5,
        noise=noise_of_stream(generator),
    )
    assert mean.item() == 2.0
    assert torch.equal(generator.get_state(), before)


def test_noise_does_not_depend_on_the_layout_of_the_sum() -> None:
    means = [
        noisy_mean(
            [torch.zeros(4, 3, 5, 5).contiguous(memory_format=layout)],
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=1.0,
            noise=noise_of_stream(torch_stream(0, "noise")),
        )[0]
        for layout in (torch.contiguous_format, torch.channels_last)
    ]
    assert torch.equal(*means)


@cache
def hooked_cnn() -> PerSampleGradients:
    return PerSampleGradients(seeded(plain_cnn))


@settings(max_examples=15, deadline=None)
@given(num_examples=st.integers(0, 6), bound=st.floats(1e-3, 1e3), split=st.integers(0, 6))
def test_a_batch_is_the_sum_of_its_parts(num_examples: int, bound: float, split: int) -> None:
    hooks = hooked_cnn()
    images, targets = batch(num_examples)
    parts = [slice(None), slice(0, split), slice(split, None)]
    whole, *halves = (
        hooks.clipped_gradient_sum(images[part], targets[part], max_grad_norm=bound)
        for part in parts
    )
    assert whole.num_clipped == sum(half.num_clipped for half in halves)
    for sums in zip(whole.gradients, *(half.gradients for half in halves), strict=True):
        torch.testing.assert_close(sums[0], sums[1] + sums[2], rtol=1e-5, atol=1e-6)


def test_names_stay_and_closing_leaves_nothing_behind() -> None:
    model = seeded(Residual)
    names = list(model.state_dict())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    hooks = PerSampleGradients(model)
    for seed in range(3):
        hooks.clipped_gradient_sum(*batch(3, seed), max_grad_norm=1.0)
    assert list(model.state_dict()) == names
    assert all(p.grad is None for p in model.parameters())
    hooks.close()
    for name, module in model.named_modules():
        assert set(vars(module)) == attributes[name]
        assert not module._forward_hooks
        assert not module._backward_hooks
        assert not module._forward_pre_hooks
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())
    PerSampleGradients(model)


def test_plain_training_and_scoring_go_on_beside_the_hooks() -> None:
    model = seeded(Residual)
    images, targets = batch(4)
    hooks = PerSampleGradients(model)
    expected = hooks.clipped_gradient_sum(images, targets, max_grad_norm=1.0)
    with torch.no_grad():
        model(images)
    model.eval()
    leaf = images.clone().requires_grad_()
    label_mean_loss(model(leaf), targets).sum().backward()
    found = hooks.clipped_gradient_sum(images, targets, max_grad_norm=1.0)
    assert all(torch.equal(a, b) for a, b in zip(found.gradients, expected.gradients, strict=True))


def test_a_failed_pass_leaves_the_next_one_right() -> None:
    model = seeded(Residual)
    images, targets = batch(4)
    hooks = PerSampleGradients(model)
    expected = hooks.clipped_gradient_sum(images, targets, max_grad_norm=1.0)
    with pytest.raises(ValueError, match="size"):
        hooks.clipped_gradient_sum(images, targets[:, :2], max_grad_norm=1.0)
    found = hooks.clipped_gradient_sum(images, targets, max_grad_norm=1.0)
    assert all(torch.equal(a, b) for a, b in zip(found.gradients, expected.gradients, strict=True))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(self.layer(x))
        return result


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x))
        return result


class FoldsExamples(nn.Module):
    """Gives its layer a row for every part of an example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts: torch.Tensor = self.layer(x.reshape(-1, 1))
        return parts.view(len(x), -1, 2).sum(dim=1)


class AddsInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        out += x
        return out


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Twice(), "layer.weight used twice"),
        (Tied(), "first.weight used twice"),
        (AddsInPlace(), "in-place operation"),
        (FoldsExamples(), "6 rows for 3 examples"),
    ],
)
def test_a_pass_that_would_be_wrong_is_refused(model: nn.Module, reason: str) -> None:
    hooks = PerSampleGradients(model)
    with pytest.raises(PrivacyError, match=reason):
        hooks.clipped_gradient_sum(torch.ones(3, 2), torch.ones(3, 2), max_grad_norm=1.0)


class Buffered(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("mean", torch.zeros(2))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)), "mixes examples"),
        (
            nn.Sequential(nn.Conv2d(3, 2, 1), nn.InstanceNorm2d(2, track_running_stats=True)),
            "keeps",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), "works in place"),
        (Buffered(), "has buffers"),
        (nn.Linear(2, 2).requires_grad_(False), "at least one trainable"),
    ],
)
def test_a_model_that_would_be_wrong_is_refused(model: nn.Module, reason: str) -> None:
    with pytest.raises(PrivacyError, match=reason):
        PerSampleGradients(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "wrap",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
    ],
)
def test_a_layer_that_computes_its_weight_is_refused(
    wrap: Callable[[nn.Module], nn.Module],
) -> None:
    """A rule's gradients are of that weight; what it is computed from would get none."""
    for layer in (nn.Linear(2, 2, bias=False), nn.ConvTranspose2d(2, 2, 1)):
        with pytest.raises(PrivacyError, match="computes a weight"):
            PerSampleGradients(nn.Sequential(wrap(layer)))
    frozen = wrap(nn.Linear(2, 2)).requires_grad_(False)
    PerSampleGradients(nn.Sequential(frozen, nn.Linear(2, 2)))


def test_a_constant_beside_the_parameters_is_no_computed_weight() -> None:
    layer = nn.Linear(2, 2)
    layer.scale = torch.ones(2)
    PerSampleGradients(nn.Sequential(layer))


def test_hooks_are_attached_once() -> None:
    model = nn.Linear(2, 2)
    PerSampleGradients(model)
    with pytest.raises(PrivacyError, match="close them first"):
        PerSampleGradients(model)


def test_faults_of_a_step_are_named() -> None:
    images, targets = batch(3)
    hooks = PerSampleGradients(seeded(plain_cnn))
    images[1, 0, 0, 0] = math.nan
    with pytest.raises(EngineError, match=r"examples \[1\] of a batch of 3"):
        hooks.clipped_gradient_sum(images, targets, max_grad_norm=1.0)
    with pytest.raises(PrivacyError, match="max_grad_norm"):
        hooks.clipped_gradient_sum(images, targets, max_grad_norm=0.0)
    averaging = PerSampleGradients(seeded(plain_cnn), lambda x, y: label_mean_loss(x, y).mean())
    with pytest.raises(PrivacyError, match="one loss per example"):
        averaging.clipped_gradient_sum(*batch(3), max_grad_norm=1.0)
    with pytest.raises(PrivacyError, match="expected batch size"):
        noisy_mean(
            [torch.zeros(1)],
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=0.0,
            noise=noise_of_stream(torch.Generator()),
        )
