"""The central mechanism: Gaussian noise on the sum of the cohort's clipped updates."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedsim.arrays import Arrays, l2_norm
from fedsim.errors import PrivacyError
from fedsim.privacy.accounting import Relation
from fedsim.secret import Secret
from fedsim.streams import numpy_stream, torch_stream

COUNT_NOISE_SHARE = 1 / 20
"""Standard deviation of the noise on the number of unclipped users, over the cohort's size."""


@dataclass(frozen=True)
class AdaptiveClipping:
    """A clipping norm that follows a quantile of the updates' norms (Andrew et al. 2021).

    After every round S <- S * exp(-eta * (b - gamma)), where b is the noised share of users whose
    update was **not** clipped.

    Attributes:
        quantile: gamma, the share that should stay unclipped; above 0 and below 1.
        learning_rate: eta, above 0.
    """

    quantile: float
    learning_rate: float = 0.2


@dataclass
class CentralGaussian:
    """Noise of standard deviation sigma * Delta * C / C~ on the sum.

    That is sigma * Delta / C~ on the mean of C users.

    A small cohort C stands for a larger one C~ with the same signal-to-noise ratio (Song et al.
    2022, FLAIR, section 5.1; first in McMahan et al. 2018): the mean of C users' updates has the
    size of the mean of C~ users', so it gets the noise that the mean of C~ users would get.

    With adaptive clipping a round releases two numbers, the sum and the count of unclipped users,
    and sigma is that of both together: the count gets noise of C~ / 20 at the scale of C~, the sum
    the rest of the budget, and then both are scaled to C.

    Attributes:
        clipping_norm: S, the L2 bound of one user's update in the round at hand. With adaptive
            clipping it changes after every round: the only state of a mechanism.
        noise_multiplier: sigma, of all that a round releases, for a cohort of
            ``noise_cohort_size``.
        cohort_size: C, the public (expected) cohort size; the denominator of the mean.
        noise_cohort_size: C~, at least C.
        seed: The run's seed, of which the noise is a function.
        relation: How neighbours differ. Delta, what one user can change in the sum, is S when a
            user is added or removed, and 2 S when one is replaced.
        adaptive: How the clipping norm follows the updates; None for a fixed one.
        secret: What the noise is a function of instead, where others know the seed.

    Raises:
        PrivacyError: The noise on the count alone would spend more than sigma allows.

    Examples:
        >>> mechanism = CentralGaussian(0.1, 17.36, cohort_size=200, noise_cohort_size=5000, seed=0)
        >>> round(mechanism.noise_stddev_sum, 5), round(mechanism.noise_stddev_mean, 7)
        (0.06944, 0.0003472)
    """

    clipping_norm: float
    noise_multiplier: float
    cohort_size: int
    noise_cohort_size: int
    seed: int
    relation: Relation = "add_or_remove_one"
    adaptive: AdaptiveClipping | None = None
    secret: Secret | None = None

    def __post_init__(self) -> None:
        if self.adaptive is not None and self.noise_multiplier >= self._count_multiplier:
            raise PrivacyError(
                "privacy.central.adaptive_quantile: expected a noise multiplier below "
                f"{self._count_multiplier:g} (the count of unclipped users is released with noise "
                f"of {self.noise_cohort_size} / 20), found {self.noise_multiplier:g}; raise "
                "privacy.central.noise_cohort_size or epsilon, or use a fixed clipping norm"
            )

    @property
    def denominator(self) -> float:
        """C: public, and the same in every round, whoever takes part."""
        return float(self.cohort_size)

    @property
    def sensitivity(self) -> float:
        """Delta: what one user can change in the sum of the round at hand."""
        return self.clipping_norm * self._users_changed

    @property
    def sum_noise_multiplier(self) -> float:
        """Of the sum alone, at ``noise_cohort_size``: sigma, unless a count is released too.

        Releases with multipliers a and b cost what one with (a^-2 + b^-2)^(-1/2) costs.
        """
        if self.adaptive is None or self.noise_multiplier == 0:
            return self.noise_multiplier
        return 1 / math.sqrt(self.noise_multiplier**-2 - self._count_multiplier**-2)

    @property
    def noise_stddev_sum(self) -> float:
        """Standard deviation of the noise on every coordinate of the sum, in this round."""
        scale = self.cohort_size / self.noise_cohort_size
        return self.sum_noise_multiplier * self.sensitivity * scale

    @property
    def noise_stddev_mean(self) -> float:
        """Standard deviation of the noise on every coordinate of the mean, in this round."""
        return self.sum_noise_multiplier * self.sensitivity / self.noise_cohort_size

    @property
    def noise_multiplier_as_run(self) -> float:
        """What sigma is for the cohort that is really drawn."""
        return self.noise_multiplier * self.cohort_size / self.noise_cohort_size

    @property
    def count_noise_stddev(self) -> float:
        """Standard deviation of the noise on the count of unclipped users: C / 20."""
        noised = self.adaptive is not None and self.noise_multiplier > 0
        return self.cohort_size * COUNT_NOISE_SHARE if noised else 0.0

    def release(self, total: Arrays, update_norms: list[float], round_num: int) -> dict[str, float]:
        """Noise the sum in place, then adapt the clipping norm for the next round.

        Draws nothing if sigma is 0.

        Args:
            total: The sum of this round's clipped updates.
            update_norms: Norms of this round's updates before they were clipped.
            round_num: From 1.

        Returns:
            Figures that describe the round; those called ``diagnostic-`` are **not** private, and
            a real deployment would not release them.
        """
        clipped = sum(norm > self.clipping_norm for norm in update_norms)
        clean = l2_norm(total.values())
        overlap = self._add_noise(total, round_num)
        noised = l2_norm(total.values())
        size = sum(tensor.numel() for tensor in total.values())
        expected_noise = self.noise_stddev_sum * math.sqrt(size)
        product = clean * noised
        figures = {
            "clipping-norm": self.clipping_norm,
            "diagnostic-clipped-share": (clipped / len(update_norms) if update_norms else math.nan),
            "diagnostic-sum-norm": clean,
            "diagnostic-noised-sum-norm": noised,
            "diagnostic-signal-to-noise-ratio": (
                clean / expected_noise if expected_noise else math.inf
            ),
            "diagnostic-cosine-to-clean": (
                min(1.0, (clean**2 + overlap) / product) if product else math.nan
            ),
        }
        if self.adaptive is not None:
            share = self._noised_share(len(update_norms) - clipped, clipped, round_num)
            figures["unclipped-share-noised"] = share
            exponent = self.adaptive.learning_rate * (self.adaptive.quantile - share)
            self.clipping_norm *= math.exp(exponent)
        return figures

    def state_dict(self) -> dict[str, float]:
        """Return what the next round depends on beside the settings."""
        return {"clipping_norm": self.clipping_norm, "noise_multiplier": self.noise_multiplier}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take back what ``state_dict`` returned."""
        self.clipping_norm = state["clipping_norm"]
        self.noise_multiplier = state["noise_multiplier"]

    @property
    def _users_changed(self) -> int:
        return 1 if self.relation == "add_or_remove_one" else 2

    @property
    def _count_multiplier(self) -> float:
        """Of the count, at ``noise_cohort_size``.

        Users are counted as +1/2 or -1/2, so one that joins or leaves changes the count by 1/2.
        """
        return self.noise_cohort_size * COUNT_NOISE_SHARE / (self._users_changed / 2)

    def _add_noise(self, total: Arrays, round_num: int) -> float:
        """Noise the sum in place; return the inner product of sum and noise."""
        if self.noise_stddev_sum == 0:
            return 0.0
        overlap = 0.0
        for tensor, noise in zip(total.values(), self._noise(total, round_num), strict=True):
            overlap += float(torch.dot(tensor.reshape(-1), noise.reshape(-1)))
            tensor.add_(noise)
        return overlap

    def _noise(self, total: Arrays, round_num: int) -> Iterator[torch.Tensor]:
        """Yield the noise on each of the sum's arrays."""
        stddev, purpose = self.noise_stddev_sum, "central noise"
        if self.secret is not None:
            for name, tensor in total.items():
                yield self.secret.noise(tensor, stddev, purpose, round_num, name)
            return
        device = str(next(iter(total.values())).device)
        generator = torch_stream(self.seed, purpose, round_num, device=device)
        for tensor in total.values():
            yield tensor.new_empty(tensor.shape).normal_(0.0, stddev, generator=generator)

    def _noised_share(self, num_unclipped: int, num_clipped: int, round_num: int) -> float:
        """Return b, over the public cohort size like the sum; it may leave [0, 1]."""
        count = (num_unclipped - num_clipped) / 2
        if self.count_noise_stddev > 0:
            purpose = "central count noise"
            if self.secret is not None:
                count += self.count_noise_stddev * float(
                    self.secret.normal(1, purpose, round_num)[0]
                )
            else:
                stream = numpy_stream(self.seed, purpose, round_num)
                count += float(stream.normal(0.0, self.count_noise_stddev))
        return count / self.cohort_size + 0.5
