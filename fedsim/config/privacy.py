"""Settings of differential privacy."""

from typing import Literal

from pydantic import model_validator

from fedsim.config.section import Count, Fraction, NonNegative, Positive, Section


class DeploymentConfig(Section):
    """A deployment that the run predicts: an assumption of the user's, printed as such.

    Attributes:
        population_size: Users that can be sampled there.
        cohort_size: Users of a round there.
    """

    population_size: Count
    cohort_size: Count

    @model_validator(mode="after")
    def _cohort_within_population(self) -> "DeploymentConfig":
        if self.cohort_size > self.population_size:
            raise ValueError(
                f"cohort_size: expected at most population_size = {self.population_size}, found "
                f"{self.cohort_size}; lower it"
            )
        return self


class NoiseConfig(Section):
    """How much noise, and what it may cost.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum over its sensitivity. Give
            this, or ``epsilon``, or both.
        epsilon: Budget of all rounds together. Without ``noise_multiplier`` the noise is
            calibrated to it; with it, a run that would spend more is refused.
        delta: The default is N^-1.1 of the population that epsilon is about.
        accountant: ``pld`` (tight) or ``rdp``.
    """

    noise_multiplier: NonNegative | None = None
    epsilon: Positive | None = None
    delta: Fraction | None = None
    accountant: Literal["pld", "rdp"] = "pld"

    @model_validator(mode="after")
    def _noise_or_budget(self) -> "NoiseConfig":
        if self.noise_multiplier is None and self.epsilon is None:
            raise ValueError(
                "expected noise_multiplier or epsilon, found neither; give the noise, or the "
                "budget that it is calibrated to"
            )
        return self


class CentralPrivacyConfig(NoiseConfig):
    """User-level DP: the server clips every user's update and noises the sum.

    Noise multiplier and budget are those at ``noise_cohort_size``.

    Attributes:
        clipping_norm: S, the L2 bound of one user's update; of the first round's if it adapts.
        adaptive_quantile: The share of users whose update should stay unclipped; the clipping norm
            follows it. The default is a fixed norm.
        clip_learning_rate: How fast it follows.
        noise_cohort_size: The cohort that the noise is calibrated for; the noise is then scaled to
            the cohort at hand, so that both have the same signal-to-noise ratio. The default is the
            deployment's cohort, or ``cohort_size``.
        deployment: Another population and cohort that the run predicts.
    """

    clipping_norm: Positive
    adaptive_quantile: Fraction | None = None
    clip_learning_rate: Positive = 0.2
    noise_cohort_size: Count | None = None
    deployment: DeploymentConfig | None = None


class ExampleLevelPrivacyConfig(Section):
    """Example-level DP-SGD on every user's own training.

    Attributes:
        max_grad_norm: L2 bound of one example's gradient.
        noise_multiplier: Standard deviation of the noise on a batch's sum over ``max_grad_norm``.
        delta: Of every user's epsilon.
        accountant: ``rdp`` or ``pld``.
    """

    max_grad_norm: Positive
    noise_multiplier: NonNegative
    delta: Fraction = 1e-5
    accountant: Literal["pld", "rdp"] = "rdp"


class PrivacyConfig(Section):
    """Central DP, example-level DP-SGD, both or neither.

    Attributes:
        central: The server's part.
        example_level: The users' part.
    """

    central: CentralPrivacyConfig | None = None
    example_level: ExampleLevelPrivacyConfig | None = None
