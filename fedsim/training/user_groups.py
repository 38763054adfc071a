"""Which users of a block take their steps together, and on which of their examples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedsim.training.local import LocalSettings, shuffled_orders

Int64s = npt.NDArray[np.int64]

_FEW_IMAGES = 4  # half of FLAIR's users have one or two: their batches are padded to this


@dataclass(frozen=True)
class UserGroup:
    """Users whose batches are padded to the same number of rows, those of more steps first.

    Attributes:
        places: Of the users in the block.
        sizes: Images of each.
        num_steps: Of each, in all epochs.
        rows: Of a batch.
    """

    places: Int64s
    sizes: Int64s
    num_steps: Int64s
    rows: int

    def batches(self, settings: LocalSettings, stream: Callable[[int], torch.Generator]) -> Int64s:
        """Return what every user's batch of every step holds.

        The order is the loop's. A user whose images are all in one batch needs none, since a
        gradient is a sum.

        Args:
            settings: Epochs and batch size.
            stream: From a user's place to the stream that the order is drawn from.

        Returns:
            Rows of the group's examples, which stand user by user; -1 pads, also after a user's
            last step. Shape (steps, users, rows).
        """
        epochs, numbers = settings.epochs, np.arange(self.rows)
        batches = np.full((self.num_steps[0], len(self.sizes), self.rows), -1)
        batches[:epochs] = np.where(numbers < self.sizes[:, None], numbers, -1)
        for user in np.flatnonzero(self.sizes > settings.batch_size).tolist():
            size, num_steps = int(self.sizes[user]), int(self.num_steps[user])
            drawn = shuffled_orders(size, epochs, stream(int(self.places[user])))
            orders = np.full((epochs, num_steps // epochs * self.rows), -1)
            orders[:, :size] = torch.stack(list(drawn)).numpy()
            batches[:num_steps, user] = orders.reshape(num_steps, self.rows)
        firsts = np.cumsum(self.sizes) - self.sizes
        return np.where(batches < 0, batches, batches + firsts[:, None])


def grouped(sizes: Int64s, settings: LocalSettings, at_once: int) -> Iterator[UserGroup]:
    """Deal a block's users to groups.

    How a user's batches are padded depends on the user alone.

    Args:
        sizes: Images of each user.
        settings: Epochs and batch size.
        at_once: Users of a group at most.
    """
    num_steps = settings.epochs * -(-sizes // settings.batch_size)
    few = min(_FEW_IMAGES, settings.batch_size)
    is_small = sizes <= few
    for rows, alike in ((settings.batch_size, ~is_small), (few, is_small)):
        users = np.flatnonzero(alike)
        users = users[np.argsort(-num_steps[users], kind="stable")]
        for first in range(0, len(users), at_once):
            places = users[first : first + at_once]
            yield UserGroup(places, sizes[places], num_steps[places], rows)
