"""From the privacy settings and the data to mechanisms and accounting."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedsim.cohort import Sampling, check_cohort_size
from fedsim.config import (
    CentralPrivacyConfig,
    NoiseConfig,
    PooledExampleLevelConfig,
    PooledUserLevelConfig,
    RunConfig,
)
from fedsim.data.dataset import UserTable
from fedsim.errors import ConfigError, FedsimError, PrivacyError, noted, raise_together
from fedsim.privacy.accounting import GaussianRounds, calibrate_noise_multiplier, epsilon
from fedsim.privacy.central import AdaptiveClipping, CentralGaussian
from fedsim.privacy.ledger import ExampleLedger
from fedsim.privacy.spending import (
    CentralSpending,
    PooledExampleSpending,
    PrivacySpending,
)
from fedsim.secret import Secret

# A run is checked before it is started, and calibration can take seconds.
_CALIBRATED: dict[Any, float] = {}


def calibrations() -> dict[Any, float]:
    """Return what was calibrated so far, for another process to recall."""
    return dict(_CALIBRATED)


def recall_calibrations(calibrated: dict[Any, float]) -> None:
    """Take over what another process has calibrated."""
    _CALIBRATED.update(calibrated)


def _calibrated(epsilon: float, delta: float, **rounds: Any) -> float:
    key = (epsilon, delta, *sorted(rounds.items()))
    if key not in _CALIBRATED:
        _CALIBRATED[key] = calibrate_noise_multiplier(epsilon, delta, **rounds)
    return _CALIBRATED[key]


@dataclass(frozen=True)
class CentralSetting:
    """Central DP in one run: the settings, and what they are applied to.

    Attributes:
        section: Where the settings stand, for errors.
        config: The settings.
        cohort_section: Where ``cohort_size`` stands.
        cohort_size: C.
        sampling: How cohorts are drawn.
        num_releases: T: rounds, or steps of the pooled baseline.
        num_users: N, counted from the data.
        seed: The run's seed.
        partition: How images are dealt to users (the method of ``data.partition``).
    """

    section: str
    config: CentralPrivacyConfig
    cohort_section: str
    cohort_size: int
    sampling: Sampling
    num_releases: int
    num_users: int
    seed: int
    partition: str

    @property
    def predicted_population(self) -> int:
        """N of the deployment, or that of the data."""
        deployment = self.config.deployment
        return deployment.population_size if deployment else self.num_users

    @property
    def noise_cohort_size(self) -> int:
        """C~, by default the deployment's cohort, or C."""
        deployment = self.config.deployment
        default = deployment.cohort_size if deployment else self.cohort_size
        return self.config.noise_cohort_size or default


def federated_setting(config: RunConfig, num_users: int) -> CentralSetting | None:
    """Return the setting of ``privacy.central``, if there is one."""
    central, federated = config.privacy.central, config.federated
    if central is None:
        return None
    return CentralSetting(
        "privacy.central",
        central,
        "federated",
        federated.cohort_size,
        sampling_of(config),
        federated.num_rounds,
        num_users,
        config.seed,
        config.data.partition.method,
    )


def pooled_setting(
    user_level: PooledUserLevelConfig, num_users: int, config: RunConfig
) -> CentralSetting:
    """Return the setting of the pooled baseline under user-level DP."""
    section = "centralized.user_level"
    steps = user_level.epochs * math.ceil(num_users / user_level.cohort_size)
    return CentralSetting(
        section,
        user_level,
        section,
        user_level.cohort_size,
        "poisson",
        steps,
        num_users,
        config.seed,
        config.data.partition.method,
    )


def sampling_of(config: RunConfig) -> Sampling:
    """Return how cohorts are drawn."""
    sampling = config.federated.sampling
    if sampling is None:  # the settings' own check fills it in
        raise ConfigError("federated.sampling: expected a value, found none; validate the settings")
    return sampling


def central_faults(setting: CentralSetting) -> list[FedsimError]:
    """Return every reason, with its remedy, why the settings can't be what they say."""
    config, section, num_users = setting.config, setting.section, setting.num_users
    faults: list[FedsimError] = []
    with noted(faults):
        check_cohort_size(setting.cohort_size, num_users, setting.cohort_section)
    noise_cohort, population = setting.noise_cohort_size, setting.predicted_population
    if not setting.cohort_size <= noise_cohort <= population:
        whose = " of the deployment" if config.deployment else ""
        faults.append(
            ConfigError(
                f"{section}.noise_cohort_size: expected {setting.cohort_size} (the cohort) to "
                f"{population} (the population{whose}), found {noise_cohort}; change it, or name a "
                f"larger {section}.deployment"
            )
        )
    if setting.sampling == "fixed_size" and config.accountant == "pld":
        faults.append(
            PrivacyError(
                f"{section}.accountant: expected rdp for fixed-size cohorts, found pld, which "
                f"has no bound for sampling without replacement; set {section}.accountant: rdp, or "
                f"{setting.cohort_section}.sampling: poisson"
            )
        )
    smallest = min(num_users, population)
    largest = max(num_users, population)
    if config.delta is not None and config.delta >= 1 / largest:
        faults.append(
            PrivacyError(
                f"{section}.delta: expected less than 1/N = {1 / largest:.3g} for {largest} "
                f"users, found {config.delta:g}, with which somebody's data may be published "
                f"outright; leave it out for N^-1.1 = {largest**-1.1:.3g}"
            )
        )
    if config.delta is None and smallest < 2:
        faults.append(
            PrivacyError(
                f"{section}.delta: expected a population of 2 or more for the default N^-1.1, "
                f"found {smallest}; use data with more users"
            )
        )
    return faults


def central_spending(
    setting: CentralSetting, *, started_with: float | None = None, secret: Secret | None = None
) -> CentralSpending:
    """Make the mechanism, calibrated where only a budget is given, and its accounting.

    Args:
        setting: What to build.
        started_with: The noise multiplier of a run that is resumed. It stays, whatever the
            settings would give now, and the run ends where the budget does.
        secret: What the noise is a function of; None for the seed.

    Raises:
        PrivacyError: The settings are at fault, or the run would spend more than its budget.
    """
    raise_together(central_faults(setting))
    config, population = setting.config, setting.predicted_population
    delta_predicted = config.delta or population**-1.1

    def rounds(noise_multiplier: float) -> GaussianRounds:
        return GaussianRounds(
            noise_multiplier,
            setting.num_releases,
            setting.noise_cohort_size,
            population,
            setting.sampling,
        )

    sigma = started_with
    if sigma is None:
        sigma = _noise_multiplier(config, delta_predicted, rounds, setting.section)
    predicted = rounds(sigma)
    adaptive = None
    if config.adaptive_quantile is not None:
        adaptive = AdaptiveClipping(config.adaptive_quantile, config.clip_learning_rate)
    mechanism = CentralGaussian(
        clipping_norm=config.clipping_norm,
        noise_multiplier=sigma,
        cohort_size=setting.cohort_size,
        noise_cohort_size=setting.noise_cohort_size,
        seed=setting.seed,
        relation=predicted.relation,
        adaptive=adaptive,
        secret=secret,
    )
    as_run = GaussianRounds(
        mechanism.noise_multiplier_as_run,
        setting.num_releases,
        setting.cohort_size,
        setting.num_users,
        setting.sampling,
    )
    return CentralSpending(
        mechanism,
        as_run,
        predicted,
        config.delta or setting.num_users**-1.1,
        delta_predicted,
        config.accountant,
        budget=config.epsilon,
        deployment_assumed=config.deployment is not None,
        partition=setting.partition,
    )


def _noise_multiplier(
    config: NoiseConfig, delta: float, rounds: Callable[[float], GaussianRounds], section: str
) -> float:
    """Return the noise multiplier that is given and within the budget, or that meets it."""
    if config.noise_multiplier is None:
        whole = rounds(0.0)
        return _calibrated(
            config.epsilon or 0.0,
            delta,
            num_rounds=whole.num_rounds,
            cohort_size=whole.cohort_size,
            population_size=whole.population_size,
            sampling=whole.sampling,
            accountant=config.accountant,
        )
    if config.epsilon is not None:
        spent = epsilon(rounds(config.noise_multiplier), delta, config.accountant)
        if spent > config.epsilon:
            raise PrivacyError(
                f"{section}.epsilon: expected a budget of {spent:.4g} or more for all rounds at "
                f"noise_multiplier {config.noise_multiplier:g}, found {config.epsilon:g}; leave "
                "noise_multiplier out to have it calibrated, or train fewer rounds"
            )
    return config.noise_multiplier


def federated_privacy(
    config: RunConfig,
    users: UserTable,
    state: dict[str, Any] | None = None,
    secret: Secret | None = None,
) -> tuple[CentralGaussian | None, PrivacySpending]:
    """Make the central mechanism and the accounting of a run.

    Args:
        config: The settings.
        users: The population.
        state: What ``PrivacySpending.state_dict`` returned, to go on from.
        secret: What the central noise is a function of; None for the seed. With one, example-level
            noise is drawn where the images are.
    """
    setting = federated_setting(config, len(users))
    started_with = (state or {}).get("central", {}).get("noise_multiplier")
    central = None
    if setting is not None:
        central = central_spending(setting, started_with=started_with, secret=secret)
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
    spending = PrivacySpending(central, ledger, noise_of_sites=secret is not None)
    if state:
        spending.load_state_dict(state)
    return central.mechanism if central else None, spending


def pooled_example_spending(
    example_level: PooledExampleLevelConfig, num_images: int
) -> PooledExampleSpending:
    """Make the accounting of the pooled baseline under example-level DP-SGD."""
    section = "centralized.example_level"
    steps = math.ceil(num_images / example_level.batch_size)
    delta = example_level.delta or num_images**-1.1
    if delta >= 1 / num_images:
        raise PrivacyError(
            f"{section}.delta: expected less than 1/n = {1 / num_images:.3g} for {num_images} "
            f"images, found {delta:g}; leave it out for n^-1.1"
        )

    def rounds(noise_multiplier: float) -> GaussianRounds:
        return GaussianRounds(
            noise_multiplier,
            example_level.epochs * steps,
            min(example_level.batch_size, num_images),
            num_images,
        )

    sigma = _noise_multiplier(example_level, delta, rounds, section)
    return PooledExampleSpending(
        rounds(sigma), delta, example_level.accountant, example_level.max_grad_norm, steps
    )
