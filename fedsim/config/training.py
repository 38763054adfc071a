"""Settings of what is trained and how users train it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedsim.config.section import Component, Count, Fraction, NonNegative, Positive, Section


class ModelConfig(Component):
    """The model.

    ``cnn``, ``resnet18``, ``efficientnet_lite0``, or ``package.module:function`` of one's own.

    Attributes:
        name: Which one.
        memory_format: How images lie in memory. The two differ in the last bits of the numbers.
        device: Where it trains and is scored, as torch names it: ``cpu``, ``cuda``, ``cuda:1``. All
            workers use the same one. Numbers differ between devices.
        precision: Of forward and backward passes; parameters stay float32. Under ``bfloat16``
            convolutions and matrix products compute with 8 bits of mantissa.
    """

    name: str = "cnn"
    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    device: Annotated[str, Field(pattern=r"^[a-z]+(:\d+)?$")] = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"


class LocalConfig(Section):
    """How one user trains.

    Attributes:
        epochs: Passes over the user's images.
        batch_size: Images a step; the last batch of a pass may be smaller. Under example-level
            DP-SGD the expected size.
        learning_rate: Of SGD.
        momentum: Of SGD, starting at zero for every user and round.
        weight_decay: L2 penalty's factor.
        max_grad_norm: A batch's gradient is scaled to at most this L2 norm.
        clip_each_array: That is the norm of each parameter array's gradient by itself, as Keras's
            ``clipnorm`` has it, and not that of all of them together.
    """

    epochs: Count = 1
    batch_size: Count = 16
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    max_grad_norm: Positive | None = None
    clip_each_array: bool = False

    @model_validator(mode="after")
    def _clipping_has_a_bound(self) -> "LocalConfig":
        if self.clip_each_array and self.max_grad_norm is None:
            raise ValueError(
                "clip_each_array: expected max_grad_norm beside it, found none; add the bound"
            )
        return self


class DropOutConfig(Section):
    """Users that fail in a round (``fedsim.attendance``).

    Attributes:
        share: Probability that a user who is asked does not answer, drawn for each round.
    """

    share: Fraction


class StragglersConfig(Section):
    """Users that are too slow for a round's deadline (``fedsim.attendance``).

    Attributes:
        deadline: When the server goes on, in image passes: 1 is what the median device needs to
            train on one image once. A user with n images needs ``epochs * n * slowness`` of them.
        spread: Standard deviation of the logarithm of a device's slowness, which is drawn once for
            each user and has the median 1; 0 for devices that are all alike.
    """

    deadline: Positive
    spread: NonNegative = 0.5


class FederatedConfig(Section):
    """Rounds and cohorts.

    Attributes:
        num_rounds: T.
        cohort_size: C, the users of a round; the expected number under Poisson sampling.
        sampling: ``poisson`` (every user with probability C / N) or ``fixed_size`` (C users without
            replacement). The default is Poisson under central DP, fixed size otherwise.
        local: How one user trains.
        drop_out: Users of a cohort that fail; the default is none.
        stragglers: Users of a cohort that are too slow; the default is none.
    """

    num_rounds: Count = 100
    cohort_size: Count = 20
    sampling: Literal["poisson", "fixed_size"] | None = None
    local: LocalConfig = LocalConfig()
    drop_out: DropOutConfig | None = None
    stragglers: StragglersConfig | None = None


class StrategyConfig(Component):
    """The aggregation strategy: a registered name, ``package.module:Class`` or ``./file.py:Class``.

    Attributes:
        name: Which one.
    """

    name: str = "fedavg"
