"""Steps of the pooled baseline under user-level DP."""

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedsim.arrays import add_clipped
from fedsim.data.dataset import UserTable
from fedsim.errors import EngineError
from fedsim.privacy.central import CentralGaussian
from fedsim.streams import torch_stream
from fedsim.training.pooled import PooledStep, TrainBatches
from fedsim.training.step import mean_gradient


class Cohorts(Protocol):
    """Draws users: a ``CohortSampler``."""

    @property
    def users(self) -> UserTable:
        """The population."""
        ...

    @property
    def cohort_size(self) -> int:
        """C."""
        ...

    def draw(self, round_num: int) -> npt.NDArray[np.int64]:
        """Return positions in the table."""
        ...


UserGradient = Callable[[int, torch.Generator], PooledStep]
"""From a user's position in the table, and where draws come from, to what the user alone gives."""


class MeanLossOfUser:
    """The gradient of the mean loss over all of a user's images.

    Args:
        model: Whose loss.
        batches: Where the images are read.
    """

    def __init__(self, model: nn.Module, batches: TrainBatches) -> None:
        self._gradient, self._batches = mean_gradient(model), batches
        num_images = batches.dataset.users("train").num_images
        self._offsets = np.concatenate([[0], np.cumsum(num_images)])

    def __call__(self, user: int, generator: torch.Generator) -> PooledStep:
        """Return it, for a user's position in the table."""
        indices = np.arange(self._offsets[user], self._offsets[user + 1])
        loss, gradients = self._gradient(*self._batches.read(indices, generator))
        return PooledStep(gradients, float(loss), len(indices))


class UserLevelSteps:
    """User-level DP: Poisson cohorts of users, each user's gradient clipped.

    What the central mechanism does with a round's updates it does here with a step's gradients.

    Args:
        parameters: The trainable ones, in the order of the gradients.
        gradient: One user's.
        cohort: Draws users.
        mechanism: Clipping norm, noise and denominator.
        seed: The run's seed.
    """

    def __init__(
        self,
        parameters: list[torch.Tensor],
        gradient: UserGradient,
        cohort: Cohorts,
        mechanism: CentralGaussian,
        *,
        seed: int,
    ) -> None:
        self._parameters, self._gradient = parameters, gradient
        self._cohort, self._mechanism, self._seed = cohort, mechanism, seed
        self.per_epoch = math.ceil(len(cohort.users) / cohort.cohort_size)

    def of_epoch(self, epoch: int) -> Iterator[PooledStep]:
        """Yield ``ceil(N / cohort_size)`` steps."""
        for number in range((epoch - 1) * self.per_epoch + 1, epoch * self.per_epoch + 1):
            yield self.step(number)

    def step(self, number: int) -> PooledStep:
        """Return a step, counted from 1 over all epochs.

        Raises:
            EngineError: A user's gradient is not finite.
        """
        mechanism = self._mechanism
        generator = torch_stream(self._seed, "pooled batches", number)
        total = [torch.zeros_like(p).contiguous() for p in self._parameters]
        norms, loss, num_examples = [], 0.0, 0
        for user in self._cohort.draw(number):
            own = self._gradient(int(user), generator)
            norm = add_clipped(total, own.gradients, mechanism.clipping_norm)
            if not math.isfinite(norm):
                raise EngineError(
                    f"step {number}, user {self._cohort.users.ids[user]!r}: expected a finite "
                    "gradient, found NaN or infinity; lower the learning rate, or check the data"
                )
            norms.append(norm)
            loss, num_examples = loss + own.loss, num_examples + own.num_examples
        figures = mechanism.release({str(i): t for i, t in enumerate(total)}, norms, number)
        torch._foreach_div_(total, mechanism.denominator)
        return PooledStep(total, loss, num_examples, figures)
