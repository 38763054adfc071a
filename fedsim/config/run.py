"""All settings of a run, and those of its engine."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedsim.config.centralized import CentralizedConfig
from fedsim.config.data import DataConfig
from fedsim.config.evaluation import EvaluationConfig, PersonalizationConfig
from fedsim.config.privacy import PrivacyConfig
from fedsim.config.section import Count, NonNegative, Positive, Section
from fedsim.config.training import FederatedConfig, ModelConfig, StrategyConfig


class EngineConfig(Section):
    """Where clients run. Nothing here changes a number.

    Attributes:
        name: ``in_process``: workers on this machine; ``ray``: actors of Ray, here or on a cluster.
        workers: How many; the default is one for each core, and on Ray as many as find room
            beside one another, by the memory that one user was seen to need.
        checkpoint_every: Rounds between checkpoints.
        address: Of a Ray cluster that is running: ``auto``, ``host:port`` or ``ray://host:port``.
            The default is a Ray of the run's own, on this machine alone.
        cpus_per_worker: Cores of one Ray actor; the default is 1, since it computes in one thread.
        gpus_per_worker: GPUs of one Ray actor, or a fraction of one; the default is none.
        feature_cache: The folder of features that a frozen backbone has made of images, which all
            runs share; null to keep them in memory. They are as private as the images.
    """

    name: Literal["in_process", "ray"] = "in_process"
    workers: Count | None = None
    checkpoint_every: Count = 1
    address: Annotated[str, Field(pattern=r"^(auto|(ray://)?[^\s/]+:[0-9]+)$")] | None = None
    cpus_per_worker: Positive | None = None
    gpus_per_worker: NonNegative | None = None
    feature_cache: Annotated[str, Field(min_length=1)] | None = "~/.cache/fedsim/features"

    @model_validator(mode="after")
    def _ray_settings(self) -> "EngineConfig":
        for key in ("address", "cpus_per_worker", "gpus_per_worker"):
            if self.name != "ray" and getattr(self, key) is not None:
                raise ValueError(
                    f"{key}: expected none with {self.name}, found {getattr(self, key)}; set "
                    "engine.name: ray, or leave it out"
                )
        gpus = self.gpus_per_worker or 0.0
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(
                f"gpus_per_worker: expected a fraction of one GPU or a whole number, found {gpus}; "
                "round it"
            )
        return self


class RunConfig(Section):
    """All settings of one run.

    Attributes:
        name: Of the experiment; its folder.
        case: Which of the file's cases this is.
        seed: Every draw of the run follows from it.
        data: Which data.
        model: Which model.
        federated: Rounds and cohorts.
        strategy: How updates are combined.
        privacy: What is noised.
        centralized: The baseline; its presence adds it.
        evaluation: How models are scored.
        engine: Where clients run.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    case: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    federated: FederatedConfig = FederatedConfig()
    strategy: StrategyConfig = StrategyConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    centralized: CentralizedConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _resolve_sampling(self) -> "RunConfig":
        if self.federated.sampling is None:
            sampling = "poisson" if self.privacy.central else "fixed_size"
            federated = self.federated.model_copy(update={"sampling": sampling})
            object.__setattr__(self, "federated", federated)
        return self

    @model_validator(mode="after")
    def _resolve_personalization(self) -> "RunConfig":
        own = self.evaluation.personalization
        if own is not None:
            names = {"epochs", "batch_size", "learning_rate"}
            local = self.federated.local.model_dump(include=names)
            given = {name: v for name, v in own.model_dump().items() if v is not None}
            resolved = PersonalizationConfig(**{**local, **given})
            evaluation = self.evaluation.model_copy(update={"personalization": resolved})
            object.__setattr__(self, "evaluation", evaluation)
        return self
