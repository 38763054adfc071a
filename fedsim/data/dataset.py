"""What a data set of users looks like to everything that trains or scores."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class UserTable:
    """The users of one split and how many images each holds; nothing is decoded to build it.

    Attributes:
        ids: User ids, sorted, unique.
        num_images: int64 array of shape (users,); every entry is at least 1.
    """

    ids: tuple[str, ...]
    num_images: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Examples:
    """Some images with their labels.

    Attributes:
        images: uint8 tensor of shape (n, 3, height, width), stored channels-last.
        labels: uint8 tensor of shape (n, labels), entries 0 or 1.
    """

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.images)


class FederatedDataset(Protocol):
    """Images that belong to users, in splits that are disjoint by user.

    The examples of a split are numbered user by user in the order of its ``UserTable``: user ``i``
    holds the examples ``offsets[i]`` to ``offsets[i + 1] - 1`` with
    ``offsets = [0, *cumsum(num_images)]``. An object is cheap to pickle and opens its files in the
    process that first reads from it.
    """

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the columns of ``Examples.labels``, in alphabetical order."""
        ...

    def users(self, split: str) -> UserTable:
        """Return the users of ``split``: "train", "val" or "test"."""
        ...

    def labels(self, split: str) -> npt.NDArray[np.bool_]:
        """Return the labels of all examples of ``split``, shape (examples, labels)."""
        ...

    def load(self, split: str, indices: npt.NDArray[np.int64]) -> Examples:
        """Return the examples with these numbers, in this order."""
        ...
