"""Who of those that a round asks does not answer: drop-out and stragglers, simulated.

The server asks everybody who was drawn. Some fail; some are too slow for its deadline, and it goes
on without them. Neither is trained here, since nothing would come of it. The mean is then over
those who answered.

Under central DP nothing changes but the sum: the denominator stays the public expected cohort
size, the noise stays, and so does epsilon. Whether a user answers depends on chance and on nobody
else's data, so one user still changes the sum by at most the clipping norm, and takes part with at
most the probability that was accounted for: epsilon is an upper bound. The mean gets smaller by
the share that is missing, and an adaptive clipping norm, whose count has the same denominator,
takes those who are missing for half clipped, half not. Example-level ledgers count everybody who
was asked, as if every answer had left the device: an upper bound, too.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.data.dataset import UserTable
from fedsim.streams import numpy_stream

DROPPED_OUT = "diagnostic-num-dropped-out"
"""Key of a round's record: users who were asked and failed."""


@dataclass(frozen=True)
class Absent:
    """Who of a round's users does not answer; boolean arrays in the order of the users.

    Attributes:
        dropped_out: They failed.
        late: They did not fail, and were too slow.
    """

    dropped_out: npt.NDArray[np.bool_]
    late: npt.NDArray[np.bool_]

    @property
    def answers(self) -> npt.NDArray[np.bool_]:
        """Everybody else."""
        answers: npt.NDArray[np.bool_] = ~(self.dropped_out | self.late)
        return answers

    def figures(self) -> dict[str, int]:
        """Return how many are missing, by the names that a round's record has for it."""
        return {
            DROPPED_OUT: int(self.dropped_out.sum()),
            "diagnostic-num-late": int(self.late.sum()),
        }


@dataclass(frozen=True)
class Attendance:
    """Tells who answers; a pure function of (seed, round, user).

    Time is measured in image passes: 1 is what the median device needs to train on one image once.
    A user with n images needs ``epochs * n * slowness``, where the logarithm of a device's slowness
    is normal with mean 0 and standard deviation ``spread``, drawn once per user.

    Attributes:
        users: The population.
        seed: The run's seed.
        share: Probability that a user fails, independently in each round.
        deadline: Image passes until the server goes on; infinity for no deadline.
        spread: Standard deviation of the logarithm of slowness.
        epochs: Passes over a user's images in a round.

    Examples:
        >>> users = UserTable(("ann", "bob"), np.array([3, 30]))
        >>> Attendance(users, seed=0, deadline=10).absent(1, [0, 1]).late
        array([False,  True])
    """

    users: UserTable
    seed: int
    share: float = 0.0
    deadline: float = math.inf
    spread: float = 0.0
    epochs: int = 1

    def absent(self, round_num: int, positions: Iterable[int]) -> Absent:
        """Return who of the users at some positions in the table does not answer."""
        asked = list(positions)
        fails = [self._fails(round_num, self.users.ids[position]) for position in asked]
        late = [self.time_of(position) > self.deadline for position in asked]
        dropped_out = np.array(fails, dtype=np.bool_)
        return Absent(dropped_out, np.array(late, dtype=np.bool_) & ~dropped_out)

    def time_of(self, position: int) -> float:
        """Return how long a user takes for a round, in image passes."""
        slowness = 1.0
        if self.spread > 0:
            stream = numpy_stream(self.seed, "device", self.users.ids[position])
            slowness = math.exp(self.spread * stream.standard_normal())
        return self.epochs * int(self.users.num_images[position]) * slowness

    def num_never_in_time(self) -> int:
        """Return how many users of the population are too slow in every round."""
        if math.isinf(self.deadline):
            return 0
        return sum(self.time_of(p) > self.deadline for p in range(len(self.users)))

    def _fails(self, round_num: int, user: str) -> bool:
        if self.share == 0:
            return False
        return bool(numpy_stream(self.seed, "drop-out", round_num, user).random() < self.share)
