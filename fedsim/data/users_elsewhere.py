"""What a server sees of data whose train users are on other machines."""

import dataclasses
import hashlib

import numpy as np
import numpy.typing as npt

from fedsim.data.dataset import Examples, UserTable, label_counts
from fedsim.data.image_dataset import DatasetInfo, ImageDataset
from fedsim.errors import DataError


class UsersElsewhere:
    """A data set whose val and test are here, and of whose train users little is known.

    Args:
        here: The data on this machine; train users in it take no part.
        users: The train users, wherever they are.
        counts: How many of their images have each label, shape (labels,).
    """

    def __init__(self, here: ImageDataset, users: UserTable, counts: npt.NDArray[np.int64]) -> None:
        self._here, self._users, self._counts = here, users, counts

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the columns of the labels, in alphabetical order."""
        return self._here.label_names

    def users(self, split: str) -> UserTable:
        """Return the users of ``split`` and how many images each holds."""
        return self._users if split == "train" else self._here.users(split)

    def labels(self, split: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return the labels of some examples of val or test.

        Raises:
            DataError: They are asked of train.
        """
        _check_here(split)
        return self._here.labels(split, indices)

    def label_counts(self, split: str) -> npt.NDArray[np.int64]:
        """Return how many examples of a split have each label, shape (labels,)."""
        return self._counts if split == "train" else label_counts(self._here, split)

    def load(self, split: str, indices: npt.NDArray[np.int64]) -> Examples:
        """Return some examples of val or test.

        Raises:
            DataError: They are asked of train.
        """
        _check_here(split)
        return self._here.load(split, indices)

    def info(self) -> DatasetInfo:
        """Return what a run's record says of this data; the hash covers the table of users."""
        info = self._here.info()
        digest = hashlib.sha256(info.index_sha256.encode())
        digest.update("\n".join(self._users.ids).encode())
        digest.update(self._users.num_images.astype("<i8").tobytes())
        return dataclasses.replace(
            info,
            index_sha256=digest.hexdigest(),
            content_sha256=None,
            num_users={**info.num_users, "train": len(self._users)},
            num_images={**info.num_images, "train": int(self._users.num_images.sum())},
        )


def _check_here(split: str) -> None:
    if split == "train":
        raise DataError(
            "data: expected to do without the train images, found them asked for on the server of "
            "a deployment, where they are not; leave out what needs them"
        )
