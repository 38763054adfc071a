"""The central mechanism: Gaussian noise on the sum of the cohort's clipped updates."""

from dataclasses import dataclass

from fedsim.arrays import Arrays
from fedsim.streams import torch_stream


@dataclass(frozen=True)
class CentralGaussian:
    """Noise of standard deviation sigma * Delta * C / C~ on the sum.

    That is sigma * Delta / C~ on the mean of C users.

    A small cohort C stands for a larger one C~ with the same signal-to-noise ratio (Song et al.
    2022, FLAIR, section 5.1; first in McMahan et al. 2018): the mean of C users' updates has the
    size of the mean of C~ users', so it gets the noise that the mean of C~ users would get.

    Attributes:
        clipping_norm: S, the L2 bound of one user's update.
        sensitivity: Delta, what one user can change in the sum: S when neighbours differ by a
            user added or removed, 2 S when by one replaced.
        noise_multiplier: sigma, calibrated for a cohort of ``noise_cohort_size``.
        cohort_size: C, the public (expected) cohort size; the denominator of the mean.
        noise_cohort_size: C~, at least C.
        seed: The run's seed.
    """

    clipping_norm: float
    sensitivity: float
    noise_multiplier: float
    cohort_size: int
    noise_cohort_size: int
    seed: int

    @property
    def denominator(self) -> float:
        """C: public, and the same in every round, whoever takes part."""
        return float(self.cohort_size)

    @property
    def noise_stddev_sum(self) -> float:
        """Standard deviation of the noise on every coordinate of the sum."""
        scale = self.cohort_size / self.noise_cohort_size
        return self.noise_multiplier * self.sensitivity * scale

    @property
    def noise_stddev_mean(self) -> float:
        """Standard deviation of the noise on every coordinate of the mean."""
        return self.noise_multiplier * self.sensitivity / self.noise_cohort_size

    @property
    def noise_multiplier_as_run(self) -> float:
        """What the noise is, over the sensitivity, for the cohort that is really drawn."""
        return self.noise_multiplier * self.cohort_size / self.noise_cohort_size

    def add_noise(self, total: Arrays, round_num: int) -> None:
        """Noise the sum in place; draws nothing if sigma is 0."""
        stddev = self.noise_stddev_sum
        if stddev == 0:
            return
        generator = torch_stream(self.seed, "central noise", round_num)
        for tensor in total.values():
            noise = tensor.new_empty(tensor.shape).normal_(0.0, stddev, generator=generator)
            tensor.add_(noise)
