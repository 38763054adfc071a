"""The pooled baselines under DP, against gradients that are computed one by one."""

import copy
import itertools

import numpy as np
import pytest
import torch
from fakes import TinyDataset, tiny_model, tiny_transform

from fedsim.build_pooled import build_pooled, methods_of
from fedsim.build_privacy import pooled_example_spending
from fedsim.cohort import CohortSampler
from fedsim.config import PooledExampleLevelConfig, RunConfig
from fedsim.errors import PrivacyError
from fedsim.loss import label_mean_loss
from fedsim.privacy.accounting import GaussianRounds, epsilon
from fedsim.privacy.central import CentralGaussian
from fedsim.privacy.per_sample import PrivateGradient, noise_of_stream
from fedsim.training.pooled import (
    ExampleLevelSteps,
    TrainBatches,
)
from fedsim.training.user_level import MeanLossOfUser, UserLevelSteps

DATA = TinyDataset()
USERS = DATA.users("train")
BATCHES = TrainBatches(DATA, tiny_transform(), False, torch.device("cpu"))


def gradient_of(indices: np.ndarray) -> torch.Tensor:
    """The gradient of the mean loss over some images, as one vector, by plain autograd."""
    model = tiny_model()
    images, labels = BATCHES.read(indices, torch.Generator())
    label_mean_loss(model(images), labels).mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def user_gradients() -> list[torch.Tensor]:
    offsets = np.concatenate([[0], np.cumsum(USERS.num_images)])
    return [gradient_of(np.arange(a, b)) for a, b in itertools.pairwise(offsets)]


def user_level(clipping_norm: float, cohort_size: int, **kwargs) -> UserLevelSteps:
    mechanism = CentralGaussian(clipping_norm, 0.0, cohort_size, cohort_size, 0, **kwargs)
    sampler = CohortSampler(USERS, cohort_size, "poisson", 0)
    model = tiny_model()
    parameters = [p for p in model.parameters() if p.requires_grad]
    return UserLevelSteps(parameters, MeanLossOfUser(model, BATCHES), sampler, mechanism, seed=0)


def flat(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_without_clipping_a_user_level_step_is_the_mean_of_the_users_gradients() -> None:
    (step,) = user_level(1e30, len(USERS)).of_epoch(1)
    expected = torch.stack(user_gradients()).mean(0)
    torch.testing.assert_close(flat(step.gradients), expected, rtol=1e-5, atol=1e-7)
    assert step.num_examples == USERS.num_images.sum()


def test_every_user_counts_at_most_the_clipping_norm_whatever_they_hold() -> None:
    bound = 0.05
    (step,) = user_level(bound, len(USERS)).of_epoch(1)
    gradients = user_gradients()
    assert sum(float(g.norm()) > bound for g in gradients) > len(USERS) / 2
    clipped = [g * min(1.0, bound / float(g.norm())) for g in gradients]
    expected = torch.stack(clipped).sum(0) / len(USERS)
    torch.testing.assert_close(flat(step.gradients), expected, rtol=1e-5, atol=1e-7)
    assert step.figures["diagnostic-clipped-share"] > 0.5


def test_the_denominator_is_the_expected_cohort() -> None:
    """Cohorts differ in size; what a step is divided by does not."""
    steps = user_level(0.05, 6)
    gradients = user_gradients()
    sizes = set()
    for number, step in enumerate(steps.of_epoch(1), start=1):
        drawn = CohortSampler(USERS, 6, "poisson", 0).draw(number)
        clipped = [gradients[i] * min(1.0, 0.05 / float(gradients[i].norm())) for i in drawn]
        expected = torch.stack(clipped).sum(0) / 6
        torch.testing.assert_close(flat(step.gradients), expected, rtol=1e-5, atol=1e-7)
        sizes.add(len(drawn))
    assert number == steps.per_epoch == 4
    assert len(sizes) > 1


def test_an_example_level_step_without_noise_and_clipping_is_the_full_gradient() -> None:
    model, num_images = tiny_model(), BATCHES.num_examples
    private = PrivateGradient(model, max_grad_norm=1e30, noise_multiplier=0.0)
    (step,) = ExampleLevelSteps(private, BATCHES, batch_size=num_images, seed=0).of_epoch(1)
    expected = gradient_of(np.arange(num_images))
    torch.testing.assert_close(flat(step.gradients), expected, rtol=1e-5, atol=1e-7)


def test_parts_of_a_batch_sum_to_the_whole(monkeypatch) -> None:
    images, labels = BATCHES.read(np.arange(10), torch.Generator())
    sums = []
    for elements in (2**28, 3 * sum(p.numel() for p in tiny_model().parameters())):
        monkeypatch.setattr("fedsim.privacy.per_sample._GRADIENT_ELEMENTS", elements)
        private = PrivateGradient(tiny_model(), max_grad_norm=0.1, noise_multiplier=0.0)
        loss, gradients = private.for_user(noise_of_stream(torch.Generator()), 10.0)(images, labels)
        sums.append((float(loss), flat(gradients)))
    assert sums[0][0] == pytest.approx(sums[1][0], rel=1e-6)
    torch.testing.assert_close(sums[0][1], sums[1][1], rtol=1e-5, atol=1e-8)


def test_example_level_epsilon_is_that_of_all_steps_of_all_epochs() -> None:
    settings = PooledExampleLevelConfig(
        epochs=3, batch_size=50, max_grad_norm=1.0, noise_multiplier=0.8, delta=1e-5
    )
    spending = pooled_example_spending(settings, 1020)
    steps = GaussianRounds(0.8, 3 * 21, 50, 1020)
    assert spending.spent(3) == {"example_epsilon_max": epsilon(steps, 1e-5)}
    assert spending.spent(0) == {"example_epsilon_max": 0.0}
    target = settings.model_copy(update={"noise_multiplier": None, "epsilon": 2.0})
    assert 1.99 < pooled_example_spending(target, 1020).spent(3)["example_epsilon_max"] <= 2.0
    with pytest.raises(PrivacyError, match=r"centralized.example_level.delta: expected less"):
        pooled_example_spending(settings.model_copy(update={"delta": 0.1}), 1020)


def test_the_baselines_that_settings_ask_for() -> None:
    private = {"max_grad_norm": 1.0, "noise_multiplier": 1.0}
    settings = {"name": "x", "centralized": {"epochs": 2, "example_level": private}}
    config = RunConfig.model_validate(settings)
    assert methods_of(config) == ["plain", "example_level"]
    assert methods_of(RunConfig.model_validate({"name": "x"})) == []


def test_a_resumed_user_level_baseline_keeps_norm_and_noise() -> None:
    central = {"clipping_norm": 0.05, "adaptive_quantile": 0.5, "epsilon": 50.0}
    central |= {"cohort_size": 8, "epochs": 3, "delta": 0.01}
    config = RunConfig.model_validate(
        {"name": "x", "centralized": {"user_level": central}, "data": {"image_size": 4}}
    )
    whole, spending = build_pooled(config, "user_level", tiny_model(), DATA)
    for epoch in (1, 2):
        whole.train_epoch(epoch)
    state, arrays = copy.deepcopy((spending.state_dict(), whole.state_dict())), whole.arrays()
    whole.train_epoch(3)
    again, _ = build_pooled(config, "user_level", tiny_model(), DATA, state[0])
    again.load(arrays, state[1])
    again.train_epoch(3)
    assert all(torch.equal(t, again.arrays()[name]) for name, t in whole.arrays().items())
