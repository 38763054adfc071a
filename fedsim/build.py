"""The builder: from settings to the objects of a run. The only file that knows every part."""

import functools
import inspect
from typing import Any

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedsim.centralized import PooledSettings, PooledTrainer
from fedsim.cohort import CohortSampler, Sampling
from fedsim.config import CentralizedConfig, CentralPrivacyConfig, DataConfig, RunConfig
from fedsim.data.dataset import FederatedDataset, UserTable
from fedsim.data.sources import open_dataset
from fedsim.data.transforms import Transform
from fedsim.engines.client_app import client_app
from fedsim.engines.in_process import InProcessGrid
from fedsim.errors import ConfigError
from fedsim.foreign import ForeignStrategy
from fedsim.models.frozen_batch_norm import register_per_sample_gradients
from fedsim.models.initialize import build_seeded, exchanged_tensors, running_statistics
from fedsim.plugins import call, defaults, registered, resolve
from fedsim.privacy.accounting import GaussianRounds, calibrate_noise_multiplier
from fedsim.privacy.central import CentralGaussian
from fedsim.privacy.ledger import ExampleLedger
from fedsim.privacy.per_sample import PrivateGradient
from fedsim.privacy.spending import CentralSpending, PrivacySpending
from fedsim.strategy import SumStrategy
from fedsim.streams import global_torch_stream
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer

MODELS = {
    "cnn": "fedsim.models.cnn:Cnn",
    "resnet18": "fedsim.models.resnet:resnet18",
}
_NORMALIZATIONS = {
    "centered": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def with_defaults(config: RunConfig) -> RunConfig:
    """Return the settings with the parameters of model and strategy that they leave out.

    A later release may have other defaults: what a run was made with stands in its record.
    """
    model = defaults(resolve(config.model.name, MODELS, "model.name"), config.model.parameters)
    factory = resolve(config.strategy.name, registered("fedsim.strategies"), "strategy.name")
    strategy = defaults(factory, config.strategy.parameters)
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "strategy": config.strategy.model_copy(update=strategy),
        }
    )


def build_dataset(config: RunConfig) -> FederatedDataset:
    """Open the data; runs of one process that use the same data share what is opened."""
    return _open_data(config.data)


@functools.lru_cache(maxsize=2)
def _open_data(data: DataConfig) -> FederatedDataset:
    given: dict[str, Any] = {
        "labels": data.labels,
        "image_size": data.image_size,
        "max_images_per_user": data.max_images_per_user,
        "cache_mb": data.cache_mb,
    }
    if ":" in data.source:
        factory = resolve(data.source, {}, "data.source")
        taken = inspect.signature(factory).parameters
        known = {name: value for name, value in given.items() if name in taken}
        dataset: FederatedDataset = call(factory, {}, "data", **known)
        return dataset
    return open_dataset(data.source, **given)


def build_transform(config: RunConfig) -> Transform:
    """Make the transform from images to inputs."""
    mean, std = _NORMALIZATIONS[config.data.normalization]
    size = config.data.input_size or config.data.image_size
    return Transform(config.data.augmentation, size, mean, std)


def build_model(config: RunConfig, num_labels: int) -> nn.Module:
    """Make the initial model; the same seed gives the same bits."""
    factory = resolve(config.model.name, MODELS, "model.name")
    model = build_seeded(
        lambda: call(factory, config.model.parameters, "model", num_labels=num_labels), config.seed
    )
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model.name: expected a torch.nn.Module, found {type(model).__name__}; return the "
            "model from the function"
        )
    return model


def build_trainer(config: RunConfig) -> Trainer:
    """Make what trains users, in the process that does it."""
    dataset = build_dataset(config)
    model = build_model(config, len(dataset.label_names))
    local, private = config.federated.local, config.privacy.example_level
    settings = LocalSettings(
        **local.model_dump(),
        poisson=private is not None,
        channels_last=config.model.memory_format == "channels_last",
    )
    gradient = None
    if private is not None:
        register_per_sample_gradients()
        gradient = PrivateGradient(
            model,
            max_grad_norm=private.max_grad_norm,
            noise_multiplier=private.noise_multiplier,
        )
    return Trainer(
        model,
        dataset,
        build_transform(config),
        settings,
        seed=config.seed,
        private_gradient=gradient,
    )


def build_client_app(config: RunConfig) -> ClientApp:
    """Make the ClientApp, in the process that runs it."""
    return client_app(build_trainer(config))


def build_grid(config: RunConfig, model: nn.Module, num_users: int, workers: int) -> InProcessGrid:
    """Make the engine."""
    return InProcessGrid(
        functools.partial(build_client_app, config),
        exchanged_tensors(model),
        num_users=num_users,
        num_workers=workers,
    )


def build_cohort(config: RunConfig, users: UserTable) -> CohortSampler:
    """Make the cohort sampler."""
    return CohortSampler(users, config.federated.cohort_size, _sampling(config), config.seed)


def _sampling(config: RunConfig) -> Sampling:
    sampling = config.federated.sampling
    if sampling is None:  # the settings' own check fills it in
        raise ConfigError("federated.sampling: expected a value, found none; validate the settings")
    return sampling


def build_privacy(
    config: RunConfig, users: UserTable
) -> tuple[CentralGaussian | None, PrivacySpending]:
    """Make the central mechanism, calibrated if a target is given, and the accounting of a run."""
    central = config.privacy.central
    spending = _central_spending(central, config, users) if central else None
    example_level = config.privacy.example_level
    ledger = None
    if example_level is not None:
        ledger = ExampleLedger(
            users.num_images,
            batch_size=config.federated.local.batch_size,
            local_epochs=config.federated.local.epochs,
            noise_multiplier=example_level.noise_multiplier,
            max_grad_norm=example_level.max_grad_norm,
            delta=example_level.delta,
            accountant=example_level.accountant,
        )
    return spending.mechanism if spending else None, PrivacySpending(spending, ledger)


# A run is checked before it is started, and calibration can take seconds.
_calibrated = functools.cache(calibrate_noise_multiplier)


def _central_spending(
    central: CentralPrivacyConfig, config: RunConfig, users: UserTable
) -> CentralSpending:
    cohort_size, num_rounds = config.federated.cohort_size, config.federated.num_rounds
    sampling = _sampling(config)
    population = central.deployment.population_size if central.deployment else len(users)
    noise_cohort = central.noise_cohort_size or (
        central.deployment.cohort_size if central.deployment else cohort_size
    )
    if not cohort_size <= noise_cohort <= population:
        raise ConfigError(
            f"privacy.central.noise_cohort_size: expected {cohort_size} (the cohort) to "
            f"{population} (the population{' of the deployment' if central.deployment else ''}), "
            f"found {noise_cohort}; change it, or name a larger privacy.central.deployment"
        )
    delta_as_run = central.delta or len(users) ** -1.1
    delta_predicted = central.delta or population**-1.1
    noise_multiplier = central.noise_multiplier
    if noise_multiplier is None:
        noise_multiplier = _calibrated(
            central.epsilon or 0.0,
            delta_predicted,
            num_rounds=num_rounds,
            cohort_size=noise_cohort,
            population_size=population,
            sampling=sampling,
            accountant=central.accountant,
        )
    predicted = GaussianRounds(noise_multiplier, num_rounds, noise_cohort, population, sampling)
    mechanism = CentralGaussian(
        clipping_norm=central.clipping_norm,
        sensitivity=predicted.sensitivity(central.clipping_norm),
        noise_multiplier=noise_multiplier,
        cohort_size=cohort_size,
        noise_cohort_size=noise_cohort,
        seed=config.seed,
    )
    as_run = GaussianRounds(
        mechanism.noise_multiplier_as_run, num_rounds, cohort_size, len(users), sampling
    )
    return CentralSpending(
        mechanism,
        as_run,
        predicted,
        delta_as_run,
        delta_predicted,
        central.accountant,
        deployment_assumed=central.deployment is not None,
    )


def build_strategy(
    config: RunConfig, cohort: CohortSampler, mechanism: CentralGaussian | None
) -> SumStrategy | ForeignStrategy:
    """Make the strategy and compose it with the cohort sampler and the mechanism."""
    known = registered("fedsim.strategies")
    factory = resolve(config.strategy.name, known, "strategy.name")
    with global_torch_stream(config.seed, "strategy"):
        strategy = call(factory, config.strategy.parameters, "strategy")
    if isinstance(strategy, SumStrategy):
        strategy.compose(cohort, mechanism)
        return strategy
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"strategy.name: expected a flwr.serverapp.strategy.Strategy, found "
            f"{type(strategy).__name__}; derive it from fedsim.strategy.SumStrategy or from "
            "Flower's Strategy"
        )
    if mechanism is not None:
        raise ConfigError(
            f"privacy.central: expected a strategy whose aggregation is a sum, found "
            f"{config.strategy.name}, whose use of the replies fedsim can't bound; use one that "
            "derives from fedsim.strategy.SumStrategy, or drop privacy.central"
        )
    return ForeignStrategy(strategy, cohort, config.seed)


def check_outputs(config: RunConfig, model: nn.Module, num_labels: int) -> None:
    """Raise ConfigError for a model that does not give one logit per label.

    It is tried on two blank images of the size that training and scoring will use.
    """
    size = config.data.input_size or config.data.image_size
    model.eval()
    try:
        with torch.no_grad():
            found = tuple(model(torch.zeros(2, 3, size, size)).shape)
    except Exception as error:
        raise ConfigError(
            f"model.name: expected a model of images of shape (n, 3, {size}, {size}), found that "
            f"it fails on them with {type(error).__name__}: {error}; mend the model or change "
            "data.image_size"
        ) from error
    if found != (2, num_labels):
        raise ConfigError(
            f"model.name: expected logits of shape (n, {num_labels}), one per label, found "
            f"{found} for n = 2; give the last layer num_labels outputs"
        )


def check_private_model(config: RunConfig, model: nn.Module) -> None:
    """Raise ConfigError for a model whose statistics would leave the users unclipped."""
    statistics = running_statistics(model)
    if statistics and (config.privacy.central or config.privacy.example_level):
        raise ConfigError(
            f"model.name: expected no running statistics under privacy, found {statistics[:2]}, "
            "which are not clipped and mix examples; use group normalization or frozen statistics"
        )


def build_pooled_trainer(
    config: RunConfig, model: nn.Module, dataset: FederatedDataset
) -> PooledTrainer:
    """Make the trainer of the centralized baseline."""
    pooled = config.centralized or CentralizedConfig()
    settings = PooledSettings(
        **pooled.model_dump(exclude={"epochs"}),
        channels_last=config.model.memory_format == "channels_last",
    )
    return PooledTrainer(model, dataset, build_transform(config), settings, seed=config.seed)
