"""What is claimed of a mechanism, derived from the settings alone.

The formulas stand here a second time, on purpose: an audit that asked the mechanism what its noise
should be would agree with whatever the mechanism does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fedsim.arrays import Arrays
from fedsim.audit.rounds import Rounds
from fedsim.build_privacy import CentralSetting
from fedsim.cohort import CohortSampler, Sampling
from fedsim.privacy.accounting import Accountant, GaussianRounds
from fedsim.privacy.central import AdaptiveClipping, CentralGaussian
from fedsim.privacy.spending import CentralSpending


@dataclass(frozen=True)
class Claims:
    """What a run under central DP promises.

    Attributes:
        clipping_norm: S, of the first round if it adapts.
        noise_multiplier: sigma, of all that a round releases, at ``noise_cohort_size``.
        cohort_size: C.
        noise_cohort_size: C~.
        population_size: N, counted from the data.
        sampling: How cohorts are drawn; it says how neighbours differ, too.
        delta: Of the epsilon as run.
        accountant: Of the epsilon as run.
        adaptive: How the clipping norm follows the updates; None for a fixed one.
    """

    clipping_norm: float
    noise_multiplier: float
    cohort_size: int
    noise_cohort_size: int
    population_size: int
    sampling: Sampling
    delta: float
    accountant: Accountant
    adaptive: AdaptiveClipping | None = None

    @property
    def sampling_rate(self) -> float:
        """Q = C / N."""
        return self.cohort_size / self.population_size

    @property
    def replaces(self) -> bool:
        """Whether neighbours replace a user; otherwise they add or remove one."""
        return self.sampling == "fixed_size"

    def sensitivity(self, clipping_norm: float) -> float:
        """Return Delta: S for a user who joins or leaves, 2 S for one who is replaced."""
        return clipping_norm * (2 if self.replaces else 1)

    def noise_stddev_sum(self, clipping_norm: float) -> float:
        """Return sigma Delta C / C~ at a round's norm, sigma less what the count's release takes.

        The count's noise has a standard deviation of C~ / 20 at the scale of C~, and one user moves
        it by 1/2 (by 1 if replaced); inverse squares of multipliers add up to that of sigma.
        """
        if self.noise_multiplier == 0:
            return 0.0
        precision = self.noise_multiplier**-2
        if self.adaptive is not None:
            moved = 1.0 if self.replaces else 0.5
            precision -= (self.noise_cohort_size / 20 / moved) ** -2
        scale = self.cohort_size / self.noise_cohort_size
        return self.sensitivity(clipping_norm) * scale / math.sqrt(precision)

    def rounds_as_run(self, num_rounds: int) -> GaussianRounds:
        """Return some rounds of the mechanism as it runs, for the accountant."""
        as_run = self.noise_multiplier * self.cohort_size / self.noise_cohort_size
        return GaussianRounds(
            as_run, num_rounds, self.cohort_size, self.population_size, self.sampling
        )

    def mechanism(
        self, seed: int, kind: Callable[..., CentralGaussian] = CentralGaussian
    ) -> CentralGaussian:
        """Return a mechanism made from these claims, in the state of the first round."""
        return kind(
            self.clipping_norm,
            self.noise_multiplier,
            self.cohort_size,
            self.noise_cohort_size,
            seed,
            relation="replace_one" if self.replaces else "add_or_remove_one",
            adaptive=self.adaptive,
        )

    @classmethod
    def of_run(cls, setting: CentralSetting, spending: CentralSpending) -> "Claims":
        """Return the claims of a run: its settings, and the noise multiplier that came of them."""
        config, adaptive = setting.config, None
        if config.adaptive_quantile is not None:
            adaptive = AdaptiveClipping(config.adaptive_quantile, config.clip_learning_rate)
        return cls(
            clipping_norm=config.clipping_norm,
            noise_multiplier=spending.mechanism.noise_multiplier,
            cohort_size=setting.cohort_size,
            noise_cohort_size=setting.noise_cohort_size,
            population_size=setting.num_users,
            sampling=setting.sampling,
            delta=spending.delta_as_run,
            accountant=spending.accountant,
            adaptive=adaptive,
        )


@dataclass(frozen=True)
class Subject:
    """What is audited: makers of the real parts, and the claims about them.

    Attributes:
        start: From a model and a mechanism to rounds of what is audited: ``StrategyRounds`` or
            ``PooledRounds`` but for these two.
        cohort: The sampler.
        make_mechanism: Returns the mechanism in the state of the first round.
        arrays: A model with the names and shapes of the run's. It stays as it is: nothing trains.
        claims: What is claimed.
        seed: Of the draws that the audit makes.
    """

    start: Callable[[Arrays, CentralGaussian], Rounds]
    cohort: CohortSampler
    make_mechanism: Callable[[], CentralGaussian]
    arrays: Arrays
    claims: Claims
    seed: int = 0

    def on(self, arrays: Arrays) -> "Subject":
        """Return the same parts on another model."""
        return replace(self, arrays=arrays)

    def rounds(self, mechanism: CentralGaussian | None = None) -> Rounds:
        """Return new rounds on the model, by default with the mechanism as it is at first."""
        return self.start(self.arrays, mechanism or self.make_mechanism())

    def noiseless(self) -> CentralGaussian:
        """Return the mechanism with its noise switched off."""
        return replace(self.make_mechanism(), noise_multiplier=0.0)
