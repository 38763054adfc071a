"""From settings to the trainer and the accounting of the centralized baselines."""

import copy
from typing import Any, Literal

from torch import nn

from fedsim.build import build_learner, build_placed, build_private_gradient
from fedsim.build_privacy import central_spending, pooled_example_spending, pooled_setting
from fedsim.cohort import CohortSampler
from fedsim.config import (
    CentralizedConfig,
    PooledConfig,
    PooledExampleLevelConfig,
    PooledUserLevelConfig,
    RunConfig,
)
from fedsim.data.dataset import FederatedDataset, UserTable
from fedsim.models.placed import device_of
from fedsim.privacy.spending import PooledExampleSpending, PrivacySpending
from fedsim.training.pooled import (
    ExampleLevelSteps,
    OptimizerSettings,
    PooledSteps,
    PooledTrainer,
    ShuffledSteps,
    TrainBatches,
)
from fedsim.training.user_level import MeanLossOfUser, UserLevelSteps

Method = Literal["plain", "example_level", "user_level"]
Spending = PrivacySpending | PooledExampleSpending
CENTRALIZED = "centralized"


def methods_of(config: RunConfig) -> list[Method]:
    """Return the baselines that some settings ask for."""
    if config.centralized is None:
        return []
    private: list[Method] = ["example_level", "user_level"]
    return ["plain", *(m for m in private if getattr(config.centralized, m) is not None)]


def baseline_id(method: Method, seed: int) -> str:
    """Return what a baseline's run is called."""
    name = CENTRALIZED if method == "plain" else f"{CENTRALIZED}_{method}"
    return f"{name}-seed{seed}"


def settings_of(config: RunConfig, method: Method) -> PooledConfig:
    """Return the settings of one baseline."""
    plain = config.centralized or CentralizedConfig()
    chosen = {"example_level": plain.example_level, "user_level": plain.user_level}.get(method)
    return chosen or plain


def build_pooled(
    config: RunConfig,
    method: Method,
    model: nn.Module,
    dataset: FederatedDataset,
    state: dict[str, Any] | None = None,
) -> tuple[PooledTrainer, Spending]:
    """Make the trainer and the accounting of a baseline.

    Args:
        config: The settings.
        method: Which of the baselines.
        model: The model, which is copied.
        dataset: The data.
        state: The accounting's, to go on from.
    """
    settings = settings_of(config, method)
    learner = build_learner(config, build_placed(config, copy.deepcopy(model)), dataset)
    model = learner.model
    device = device_of(model)
    batches = TrainBatches(learner.dataset, learner.transform, learner.channels_last, device)
    steps: PooledSteps
    spending: Spending = PrivacySpending(None, None)
    if isinstance(settings, PooledUserLevelConfig):
        steps, spending = _user_level(settings, config, model, batches, state)
    elif isinstance(settings, PooledExampleLevelConfig):
        spending = pooled_example_spending(settings, batches.num_examples)
        gradient = build_private_gradient(
            model, settings.max_grad_norm, spending.steps.noise_multiplier
        )
        steps = ExampleLevelSteps(
            gradient, batches, batch_size=settings.batch_size, seed=config.seed
        )
    else:
        size = (config.centralized or CentralizedConfig()).batch_size
        steps = ShuffledSteps(model, batches, batch_size=size, seed=config.seed)
    optimizer = OptimizerSettings(
        settings.optimizer, settings.learning_rate, settings.momentum, settings.weight_decay
    )
    return PooledTrainer(model, steps, optimizer, seed=config.seed), spending


def pooled_cohort(settings: PooledUserLevelConfig, users: UserTable, seed: int) -> CohortSampler:
    """Make the sampler of the baseline under user-level DP."""
    return CohortSampler(users, settings.cohort_size, "poisson", seed)


def _user_level(
    settings: PooledUserLevelConfig,
    config: RunConfig,
    model: nn.Module,
    batches: TrainBatches,
    state: dict[str, Any] | None,
) -> tuple[UserLevelSteps, PrivacySpending]:
    users = batches.dataset.users("train")
    started_with = (state or {}).get("central", {}).get("noise_multiplier")
    setting = pooled_setting(settings, len(users), config)
    central = central_spending(setting, started_with=started_with)
    steps = UserLevelSteps(
        [p for p in model.parameters() if p.requires_grad],
        MeanLossOfUser(model, batches),
        pooled_cohort(settings, users, config.seed),
        central.mechanism,
        seed=config.seed,
    )
    spending = PrivacySpending(central, None, steps_per_epoch=steps.per_epoch)
    if state:
        spending.load_state_dict(state)
    return steps, spending
