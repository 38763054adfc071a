"""Steps of the pooled baseline under user-level DP, with users who make their gradients up."""

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedsim.arrays import Arrays
from fedsim.audit.rounds import Answer, Answers, Released, nothing
from fedsim.cohort import CohortSampler
from fedsim.data.dataset import UserTable
from fedsim.privacy.central import CentralGaussian
from fedsim.training.pooled import PooledStep
from fedsim.training.user_level import Cohorts, UserGradient, UserLevelSteps


class MakeSteps(Protocol):
    """Makes what is audited: ``UserLevelSteps`` but for the seed."""

    def __call__(
        self,
        parameters: list[torch.Tensor],
        gradient: UserGradient,
        cohort: Cohorts,
        mechanism: CentralGaussian,
    ) -> UserLevelSteps:
        """Return the steps of these parts."""
        ...


class PooledRounds:
    """Plays a step as a round (``fedsim.audit.rounds.Rounds``).

    In training everybody who is drawn takes part; here somebody may be missing, and is then taken
    out of what the sampler has drawn.

    Args:
        make_steps: Makes what is audited.
        cohort: The sampler.
        arrays: The model's trainable parameters.
        mechanism: One for these rounds alone, since it may adapt.

    Attributes:
        sent: The parameters; nothing travels beside them.
    """

    def __init__(
        self,
        make_steps: MakeSteps,
        cohort: CohortSampler,
        arrays: Arrays,
        mechanism: CentralGaussian,
    ) -> None:
        self.sent = arrays
        self._make_steps, self._users = make_steps, cohort.users
        self._cohort, self._asked = _Present(cohort), list[str]()
        self._answers: Answers = nothing
        self.restart(mechanism)

    def play(
        self,
        round_num: int,
        answers: Answers = nothing,
        *,
        present: Collection[str] | None = None,
        folded: bool = True,
    ) -> Released:
        """Play a step; there is one place alone that sums."""
        self._cohort.only = present
        return self._released(round_num, answers)

    def release(self, round_num: int, replies: Mapping[str, Answer]) -> Released:
        """Play a step in which these users were drawn."""
        self._cohort.instead = [self._users.ids.index(user) for user in replies]
        try:
            return self._released(round_num, replies.__getitem__)
        finally:
            self._cohort.instead = None

    def restart(self, mechanism: CentralGaussian) -> None:
        """Go on with a mechanism in the state of the first step."""
        self._mechanism = mechanism
        parameters = list(self.sent.values())
        self._steps = self._make_steps(parameters, self._gradient, self._cohort, mechanism)

    def _released(self, round_num: int, answers: Answers) -> Released:
        self._answers, self._asked = answers, []
        norm = self._mechanism.clipping_norm
        step = self._steps.step(round_num)
        total = {
            name: gradient * self._cohort.cohort_size
            for name, gradient in zip(self.sent, step.gradients, strict=True)
        }
        return Released(total, self._asked, norm, self._mechanism.clipping_norm)

    def _gradient(self, user: int, generator: torch.Generator) -> PooledStep:
        name = self._users.ids[user]
        self._asked.append(name)
        answer = self._answers(name)
        update = answer.update or {key: torch.zeros_like(p) for key, p in self.sent.items()}
        gradients = [update[key].clone() for key in self.sent]
        return PooledStep(gradients, 0.0, answer.num_examples)


class _Present:
    """Draws as a sampler does, less those who are not present.

    Attributes:
        only: Users who are; None for all.
        instead: Positions that take the place of what is drawn; None for none.
    """

    def __init__(self, cohort: CohortSampler) -> None:
        self._cohort = cohort
        self.only: Collection[str] | None = None
        self.instead: list[int] | None = None

    @property
    def users(self) -> UserTable:
        return self._cohort.users

    @property
    def cohort_size(self) -> int:
        return self._cohort.cohort_size

    def draw(self, round_num: int) -> npt.NDArray[np.int64]:
        if self.instead is not None:
            return np.array(self.instead, dtype=np.int64)
        drawn = self._cohort.draw(round_num)
        if self.only is None:
            return drawn
        present = [self.users.ids[int(position)] in self.only for position in drawn]
        return drawn[np.array(present, dtype=np.bool_)]
