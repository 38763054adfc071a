"""The builder: from settings to the objects of a run. The only file that knows every part."""

import functools
import importlib.metadata
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from torch import nn

from fedsim import __version__
from fedsim.attendance import Attendance
from fedsim.build_privacy import sampling_of
from fedsim.client_part import ClientPart
from fedsim.client_states import ClientStates
from fedsim.cohort import CohortSampler
from fedsim.cohort_strategy import CohortStrategy
from fedsim.config import DataConfig, RunConfig
from fedsim.data.dataset import FederatedDataset, UserTable
from fedsim.data.dealing import dirichlet, iid, iid_constant, quantity
from fedsim.data.image_dataset import ImageDataset
from fedsim.data.index import StoredImages
from fedsim.data.partition import Deal, Dealing
from fedsim.data.partition_file import read_partition
from fedsim.data.sources import open_dataset, opener_of
from fedsim.data.transforms import Transform
from fedsim.engines.client_app import client_app
from fedsim.errors import ConfigError
from fedsim.foreign import ForeignStrategy
from fedsim.models.frozen_batch_norm import register_per_sample_gradients
from fedsim.models.initialize import build_seeded, running_statistics
from fedsim.models.placed import placed
from fedsim.plugins import call, defaults, registered, resolve
from fedsim.privacy.central import CentralGaussian
from fedsim.privacy.per_sample import PrivateGradient
from fedsim.secret import Secret
from fedsim.strategy import SumStrategy, check_bounded
from fedsim.strategy_checks import raised_by
from fedsim.streams import global_torch_stream
from fedsim.training.batched_head import BatchedHeadTrainer
from fedsim.training.checked_part import CheckedPart
from fedsim.training.learner import FeatureCache, Learner, on_features_if_frozen
from fedsim.training.local import LocalSettings
from fedsim.training.trainer import Trainer

MODELS = {
    "cnn": "fedsim.models.cnn:Cnn",
    "resnet18": "fedsim.models.resnet:resnet18",
    "efficientnet_lite0": "fedsim.models.efficientnet_lite0:efficientnet_lite0",
}
TrainingPath = Literal["images", "features", "batched_features"]
"""Each user's images in turn; each user's stored features in turn; those of a block at once."""

_TAKEN_OVER: dict[DataConfig, FederatedDataset] = {}
_DEALINGS: dict[str, Callable[..., Deal]] = {
    "iid": iid,
    "iid_constant": iid_constant,
    "dirichlet": dirichlet,
    "quantity": quantity,
    "file": read_partition,
}
_NORMALIZATIONS = {
    "centered": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "efficientnet_lite": ((127 / 255,) * 3, (128 / 255,) * 3),
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
    """Open the data; runs that use the same data share what is opened."""
    return _TAKEN_OVER.get(config.data) or _open_data(config.data)


def shared_dataset(config: RunConfig) -> ImageDataset | None:
    """Return the data, opened, for a process that is started to take over; None if it can't."""
    dataset = build_dataset(config)
    if not isinstance(dataset, ImageDataset):
        return None
    dataset.open()
    return dataset


def take_over(data: DataConfig, dataset: ImageDataset | None) -> None:
    """Use what another process has opened."""
    if dataset is not None:
        _TAKEN_OVER[data] = dataset


@functools.lru_cache(maxsize=2)
def _open_data(data: DataConfig) -> FederatedDataset:
    given: dict[str, Any] = {
        "labels": data.labels,
        "image_size": data.image_size,
        "max_images_per_user": data.max_images_per_user,
        "cache_mb": data.cache_mb,
    }
    if ":" in data.source:
        _check_by_user(data)
        factory = resolve(data.source, {}, "data.source")
        taken = inspect.signature(factory).parameters
        known = {name: value for name, value in given.items() if name in taken}
        dataset: FederatedDataset = call(factory, {}, "data", **known)
        return dataset
    return open_dataset(
        data.source, **given, dealing=_dealing_of(data), population_size=data.population_size
    )


def open_images(data: DataConfig) -> StoredImages:
    """Open the collection of images, its train split dealt as ``data.partition`` says."""
    if ":" in data.source:
        raise ConfigError(
            f"data.source: expected a collection of images, found the class {data.source}, which "
            "deals its examples itself; name a file or a folder"
        )
    return opener_of(data.source, _dealing_of(data), data.population_size)()


def _dealing_of(data: DataConfig) -> Dealing | None:
    """Return what deals the train images to users; None where they stay as they are."""
    if data.partition.method == "by_user":
        return None
    parameters = data.partition.model_dump(exclude={"method"})
    return functools.partial(_DEALINGS[data.partition.method], **parameters)


def _check_by_user(data: DataConfig) -> None:
    if data.partition.method != "by_user":
        raise ConfigError(
            f"data.partition.method: expected by_user with the class {data.source}, which deals "
            f"its examples itself, found {data.partition.method}; leave data.partition out"
        )


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


def build_placed(config: RunConfig, model: nn.Module) -> nn.Module:
    """Put a model where it computes; in the process that does it."""
    return placed(model, config.model.device, config.model.precision)


def build_learner(config: RunConfig, model: nn.Module, dataset: FederatedDataset) -> Learner:
    """Make what is trained: the model on images, or its last layer on features of images."""
    data = config.data
    images = Learner(
        model,
        dataset,
        build_transform(config),
        channels_last=config.model.memory_format == "channels_last",
    )
    folder = config.engine.feature_cache
    cache = FeatureCache(
        folder=Path(folder).expanduser() if folder is not None else None,
        max_bytes=data.cache_mb * 2**20,
        data=functools.partial(_name_of_images, data, dataset),
    )
    return on_features_if_frozen(images, data.input_size or data.image_size, cache)


def _name_of_images(data: DataConfig, dataset: FederatedDataset) -> str | None:
    """Return what images and their order follow from; None where no hash of the images is known."""
    info = dataset.info() if isinstance(dataset, ImageDataset) else None
    if info is None or info.content_sha256 is None:
        return None
    shown = data.model_dump(exclude={"source", "labels", "cache_mb", "population_size"})
    decoded_by = [__version__, *map(importlib.metadata.version, ("pillow", "torchvision"))]
    return repr((info.content_sha256, info.index_sha256, shown, decoded_by))


def training_path(config: RunConfig, learner: Learner) -> TrainingPath:
    """Return how the users of a run are trained."""
    if not learner.on_features:
        return "images"
    if config.privacy.example_level is not None or build_part(config) is not None:
        return "features"
    if config.federated.local.clip_each_array:  # of weight and bias, which are one array there
        return "features"
    return (
        "batched_features" if isinstance(build_plain_strategy(config), SumStrategy) else "features"
    )


def build_trainer(
    config: RunConfig,
    states: Path | None = None,
    learner: Learner | None = None,
    *,
    seed_is_known: bool = False,
) -> Trainer:
    """Make what trains users, in the process that does it.

    Args:
        config: The settings.
        states: The folder of what users keep between rounds.
        learner: What is trained on what; by default what the settings say.
        seed_is_known: To others than those who hold the images: example-level DP-SGD then draws
            batches and noise from the operating system.
    """
    if learner is None:
        dataset = build_dataset(config)
        model = build_placed(config, build_model(config, len(dataset.label_names)))
        learner = build_learner(config, model, dataset)
    local, private = config.federated.local, config.privacy.example_level
    settings = LocalSettings(
        **local.model_dump(),
        poisson=private is not None,
        channels_last=learner.channels_last,
    )
    part = build_part(config)
    if private is not None and part is not None and not part.keeps_example_level:
        raise ConfigError(
            f"privacy.example_level: expected a strategy that uses images through gradients alone, "
            f"found {config.strategy.name}, whose part on the user's side looks at them otherwise, "
            "so that the printed epsilon would not hold; use another strategy, or privacy.central"
        )
    gradient = None
    if private is not None:
        gradient = build_private_gradient(
            learner.model, private.max_grad_norm, private.noise_multiplier
        )
    batched = training_path(config, learner) == "batched_features"
    return (BatchedHeadTrainer if batched else Trainer)(
        learner.model,
        learner.dataset,
        learner.transform,
        settings,
        seed=None if private is not None and seed_is_known else config.seed,
        private_gradient=gradient,
        part=part,
        states=ClientStates(states, config.engine.checkpoint_every) if states else None,
    )


def build_part(config: RunConfig) -> ClientPart | None:
    """Make the strategy's part on the user's side, if it has one."""
    strategy = build_plain_strategy(config)
    if not isinstance(strategy, CohortStrategy):
        return None
    name = type(strategy).__name__
    with raised_by(f"strategy {name}, client_part"):
        part = strategy.client_part()
    if part is None:
        return None
    if not isinstance(part, ClientPart):
        raise ConfigError(
            f"strategy {name}: expected client_part to return a ClientPart or None, found "
            f"{type(part).__name__}; derive it from fedsim.client_part.ClientPart"
        )
    return CheckedPart(part, name)


def build_private_gradient(
    model: nn.Module, max_grad_norm: float, noise_multiplier: float
) -> PrivateGradient:
    """Attach the hooks of example-level DP-SGD to a model."""
    register_per_sample_gradients()
    return PrivateGradient(model, max_grad_norm=max_grad_norm, noise_multiplier=noise_multiplier)


def build_client_app(
    config: RunConfig, states: Path | None = None, opened: ImageDataset | None = None
) -> ClientApp:
    """Make the ClientApp, in the process that runs it, with data that another one has opened."""
    take_over(config.data, opened)
    return client_app(build_trainer(config, states))


def build_cohort(
    config: RunConfig, users: UserTable, secret: Secret | None = None
) -> CohortSampler:
    """Make the cohort sampler; with a secret, cohorts are a function of it and not of the seed."""
    size = config.federated.cohort_size
    return CohortSampler(users, size, sampling_of(config), config.seed, secret=secret)


def build_attendance(config: RunConfig, users: UserTable) -> Attendance | None:
    """Make what tells who answers; None if everybody does."""
    drop_out, stragglers = config.federated.drop_out, config.federated.stragglers
    if drop_out is None and stragglers is None:
        return None
    slow = stragglers.model_dump() if stragglers else {}
    return Attendance(
        users,
        config.seed,
        share=drop_out.share if drop_out else 0.0,
        epochs=config.federated.local.epochs,
        **slow,
    )


def build_plain_strategy(config: RunConfig) -> Strategy:
    """Make the strategy by itself: without a cohort sampler and without a mechanism."""
    known = registered("fedsim.strategies")
    factory = resolve(config.strategy.name, known, "strategy.name")
    with global_torch_stream(config.seed, "strategy"):
        strategy = call(factory, config.strategy.parameters, "strategy")
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"strategy.name: expected a flwr.serverapp.strategy.Strategy, found "
            f"{type(strategy).__name__}; derive it from fedsim.strategy.SumStrategy or from "
            "Flower's Strategy"
        )
    return strategy


def build_strategy(
    config: RunConfig, cohort: CohortSampler, mechanism: CentralGaussian | None
) -> CohortStrategy | ForeignStrategy:
    """Make the strategy and compose it with the cohort sampler and the mechanism."""
    strategy = build_plain_strategy(config)
    if mechanism is not None:
        if not isinstance(strategy, SumStrategy):
            raise ConfigError(
                f"privacy.central: expected a strategy whose aggregation is a sum, found "
                f"{config.strategy.name}, whose use of the replies fedsim can't bound; use one "
                "that derives from fedsim.strategy.SumStrategy, or drop privacy.central"
            )
        check_bounded(strategy)  # here too: a strategy's own compose() may not ask
    if not isinstance(strategy, CohortStrategy):
        return ForeignStrategy(strategy, cohort, config.seed)
    strategy.compose(cohort, mechanism)
    return strategy


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
