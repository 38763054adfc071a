"""What a data set of users looks like to everything that trains or scores."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

_CHUNK = 4096  # rows of labels in memory at once: 7 MB of FLAIR's 1,628


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

    def find(self, user: str) -> int | None:
        """Return a user's place in the table; None if it is not there."""
        index = bisect_left(self.ids, user)
        return index if index < len(self.ids) and self.ids[index] == user else None


@dataclass(frozen=True)
class Examples:
    """Some images with their labels.

    Attributes:
        images: uint8 tensor of shape (n, 3, height, width), stored channels-last; where only a
            model's last layer trains, float32 features of shape (n, features) stand for them.
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

    def labels(self, split: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return the labels of the examples with these numbers, shape (indices, labels).

        The same as ``load(split, indices).labels``, without a look at the images. fedsim asks for
        all of val or test at once, which are scored, and for train a few thousand at a time.
        """
        ...

    def load(self, split: str, indices: npt.NDArray[np.int64]) -> Examples:
        """Return the examples with these numbers, in this order."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """What a data set may offer besides: to prepare in the background what is loaded next."""

    def expect(self, split: str, indices: npt.NDArray[np.int64]) -> None:
        """Prepare ``load(split, indices)``, and forget what was expected before.

        No indices: stop. What is wrong with the examples is for ``load`` to raise, and any other
        examples may be loaded next.
        """
        ...


@runtime_checkable
class CountsLabels(Protocol):
    """What a data set offers that knows of a split no more than how often it has each label."""

    def label_counts(self, split: str) -> npt.NDArray[np.int64]:
        """Return how many examples of a split have each label, shape (labels,)."""
        ...


def num_examples(dataset: FederatedDataset, split: str) -> int:
    """Return how many examples a split has."""
    return int(dataset.users(split).num_images.sum())


def label_counts(dataset: FederatedDataset, split: str) -> npt.NDArray[np.int64]:
    """Return how many examples of a split have each label, shape (labels,).

    Labels are asked for in chunks: all 345,879 x 1,628 of FLAIR's train split are 563 MB.
    """
    if isinstance(dataset, CountsLabels):
        return dataset.label_counts(split)
    total = num_examples(dataset, split)
    counts = np.zeros(len(dataset.label_names), dtype=np.int64)
    for start in range(0, total, _CHUNK):
        chunk = np.arange(start, min(start + _CHUNK, total))
        counts += np.count_nonzero(dataset.labels(split, chunk), axis=0)
    return counts
