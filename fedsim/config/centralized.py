"""Settings of the baselines that train on pooled images."""

from typing import Annotated, Literal

from pydantic import Field

from fedsim.config.privacy import CentralPrivacyConfig, NoiseConfig
from fedsim.config.section import Count, NonNegative, Positive, Section


class PooledConfig(Section):
    """How the pooled train split is trained on.

    Attributes:
        epochs: Passes over the pooled images; each is scored like a round.
        optimizer: ``adam`` or ``sgd``.
        learning_rate: Of the optimizer.
        momentum: Of SGD.
        weight_decay: L2 penalty's factor.
    """

    epochs: Count = 10
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: Positive = 1e-3
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0


class PooledExampleLevelConfig(PooledConfig, NoiseConfig):
    """The baseline under example-level DP-SGD: what one image may change is bounded.

    Attributes:
        batch_size: Expected number of images in a step, drawn by Poisson sampling.
        max_grad_norm: L2 bound of one image's gradient.
    """

    batch_size: Count = 64
    max_grad_norm: Positive


class PooledUserLevelConfig(PooledConfig, CentralPrivacyConfig):
    """The baseline under user-level DP: each step's gradients are clipped per user and noised.

    Attributes:
        cohort_size: Expected number of users in a step, drawn by Poisson sampling. A user's
            gradient is that of the mean loss over their images.
    """

    cohort_size: Count = 20


class CentralizedConfig(PooledConfig):
    """The baseline that trains the same model on the pooled train split.

    Attributes:
        batch_size: Images a step.
        example_level: A second baseline, under example-level DP-SGD.
        user_level: Another one, under user-level DP.
    """

    batch_size: Count = 64
    example_level: PooledExampleLevelConfig | None = None
    user_level: PooledUserLevelConfig | None = None
