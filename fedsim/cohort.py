"""Who takes part in a round, and in which order the work is dealt."""

import heapq
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedsim.data.dataset import UserTable
from fedsim.errors import ConfigError
from fedsim.secret import Secret
from fedsim.streams import numpy_stream

Sampling = Literal["fixed_size", "poisson"]


@dataclass(frozen=True)
class CohortSampler:
    """Draws each round's cohort; a pure function of (seed, round), or of (secret, round).

    Attributes:
        users: The population.
        cohort_size: C. The cohort's size under ``fixed_size`` (uniform, without replacement), its
            expected size under ``poisson`` (every user independently with probability C / N).
        sampling: Which of the two.
        seed: The run's seed.
        secret: What cohorts are a function of instead, where they have to be unknown to those who
            know the seed. Who knows which of some users were drawn then learns nothing of others,
            but for the number of them under ``fixed_size``.

    Raises:
        ConfigError: A cohort below one user or above the population.
    """

    users: UserTable
    cohort_size: int
    sampling: Sampling
    seed: int
    secret: Secret | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_cohort_size(self.cohort_size, len(self.users))

    @property
    def sampling_rate(self) -> float:
        """Q = C / N."""
        return self.cohort_size / len(self.users)

    def draw(self, round_num: int) -> npt.NDArray[np.int64]:
        """Return the round's users as positions in the table: images descending, then id.

        A Poisson cohort may be empty.
        """
        secret = self.secret
        drawn = self._of(secret, round_num) if secret else self._of_seed(round_num)
        # Ids are sorted in the table, so a stable sort breaks ties by id.
        by_size = np.argsort(-self.users.num_images[drawn], kind="stable")
        return drawn[by_size].astype(np.int64)

    def _of_seed(self, round_num: int) -> npt.NDArray[np.int64]:
        """Return the sorted positions of those who are drawn; the cost depends on them only.

        Under Poisson sampling their number is drawn first (binomial), then that many of them, which
        is the same distribution.
        """
        stream = numpy_stream(self.seed, "cohort", round_num)
        population = len(self.users)
        size = self.cohort_size
        if self.sampling == "poisson":
            size = int(stream.binomial(population, self.sampling_rate))
        return np.sort(stream.choice(population, size, replace=False, shuffle=False))

    def _of(self, secret: Secret, round_num: int) -> npt.NDArray[np.int64]:
        """Return the sorted positions of those who are drawn: every user draws a number."""
        drawn = secret.uniform(len(self.users), "cohort", round_num)
        if self.sampling == "poisson":
            return np.flatnonzero(drawn < self.sampling_rate)
        return np.sort(np.argsort(drawn, kind="stable")[: self.cohort_size])


def check_cohort_size(cohort_size: int, num_users: int, section: str = "federated") -> None:
    """Raise ConfigError for a cohort below one user or above the population.

    Args:
        cohort_size: C.
        num_users: N.
        section: Where the setting stands.
    """
    if not 1 <= cohort_size <= num_users:
        raise ConfigError(
            f"{section}.cohort_size: expected 1 to {num_users} (the users of the train split), "
            f"found {cohort_size}; lower it or use data with more users"
        )


def deal(sizes: npt.NDArray[np.int64], num_blocks: int) -> list[list[int]]:
    """Deal a cohort into blocks of even work.

    Each member goes, in order, to the block that holds the fewest images so far (the first of
    those that tie). The result depends on the cohort and on ``num_blocks`` alone, never on how many
    workers there are: it fixes the order of every floating-point sum.

    Args:
        sizes: Images of each member, in the cohort's order.
        num_blocks: Blocks to deal to; a smaller cohort fills one block per member.

    Returns:
        For each block the positions of its members, in order.

    Examples:
        >>> deal(np.array([5, 3, 2, 1]), 2)
        [[0, 3], [1, 2]]
    """
    blocks: list[list[int]] = [[] for _ in range(min(num_blocks, len(sizes)))]
    loads = [(0, index) for index in range(len(blocks))]
    for position, size in enumerate(sizes):
        load, index = heapq.heappop(loads)
        blocks[index].append(position)
        heapq.heappush(loads, (load + int(size), index))
    return blocks
