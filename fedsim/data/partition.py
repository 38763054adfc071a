"""Deals the images of the train split to users anew; val and test stay as they are."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.index import (
    About,
    ImageIndex,
    Int64s,
    LabelRows,
    Stored,
    StoredImages,
    StringTable,
    offsets_of,
)
from fedsim.errors import DataError


@dataclass(frozen=True, eq=False)
class Deal:
    """Which user gets which images of the train split.

    Attributes:
        user_ids: Ids of all train users, sorted (by code point), unique.
        sizes: int64 array of shape (users,), each user's number of images, at least 1.
        rows: int64 array of shape (train images,): rows of the collection, user by user; every row
            of the train split occurs once.
    """

    user_ids: tuple[str, ...]
    sizes: Int64s
    rows: Int64s


Dealing = Callable[[ImageIndex], Deal]


@dataclass(frozen=True, eq=False)
class Repartitioned:
    """A collection with its train images dealt to other users; what is stored is read through.

    Attributes:
        source: The collection as it is stored.
        index: Who owns which image now.
        rows: int64 array of shape (images,): an image's row in ``source``, by row of ``index``.
    """

    source: StoredImages
    index: ImageIndex
    rows: Int64s

    @property
    def place(self) -> str:
        """The source's file or folder."""
        return self.source.place

    @property
    def about(self) -> About:
        """The source's name, origin and licence."""
        return self.source.about

    @property
    def content_sha256(self) -> None:
        """None: the source's hash is that of other owners, and this one's is stored nowhere."""
        return None

    def read(self, rows: Iterable[int]) -> Iterator[Stored]:
        """Yield what the source stores of each row's image."""
        return self.source.read(int(self.rows[row]) for row in rows)


def repartition(source: StoredImages, dealing: Dealing) -> Repartitioned:
    """Deal the train images of a collection to users.

    Args:
        source: The collection.
        dealing: Says who gets what; a function of the collection's index alone.

    Raises:
        DataError: A user of the deal is one of val or test too.
    """
    before = source.index
    _, stop = before.users_of("train")
    start = int(before.user_offsets[stop])
    deal = dealing(before)
    others = before.user_ids.cut(stop, len(before.user_ids))
    both = set(others).intersection(deal.user_ids)
    if both:
        raise DataError(
            f"{source.place}: expected train users that are in no other split, found "
            f"{min(both)!r} in val or test too; rename this user, or choose another data.partition"
        )
    rows = np.concatenate([deal.rows, np.arange(start, len(before), dtype=np.int64)])
    trained = np.zeros(len(deal.user_ids), dtype=np.uint8)
    index = ImageIndex(
        user_ids=StringTable.of([*deal.user_ids, *others]),
        user_splits=np.concatenate([trained, before.user_splits[stop:]]),
        user_offsets=offsets_of(np.concatenate([deal.sizes, np.diff(before.user_offsets[stop:])])),
        image_ids=_strings(before.image_ids, rows),
        labels={name: _labels(labels, rows) for name, labels in before.labels.items()},
    )
    return Repartitioned(source, index, rows)


def only_users(source: StoredImages, users: Int64s) -> Repartitioned:
    """Keep some users of a collection, with all its label names.

    Args:
        source: The collection.
        users: Their places in the index, in ascending order.
    """
    before = source.index
    sizes = np.diff(before.user_offsets)[users]
    offsets = offsets_of(sizes)
    rows = np.arange(offsets[-1]) + np.repeat(before.user_offsets[users] - offsets[:-1], sizes)
    index = ImageIndex(
        user_ids=_strings(before.user_ids, users),
        user_splits=before.user_splits[users],
        user_offsets=offsets,
        image_ids=_strings(before.image_ids, rows),
        labels={name: _labels(labels, rows) for name, labels in before.labels.items()},
    )
    return Repartitioned(source, index, rows)


def open_dealt(open_images: Callable[[], StoredImages], dealing: Dealing) -> Repartitioned:
    """Open a collection and deal its train images; for ``functools.partial``, which pickles."""
    return repartition(open_images(), dealing)


def _strings(table: StringTable, rows: Int64s) -> StringTable:
    letters, offsets = _take(np.frombuffer(table.blob, dtype=np.uint8), table.offsets, rows)
    return StringTable(letters.tobytes(), offsets)


def _labels(labels: LabelRows, rows: Int64s) -> LabelRows:
    indices, indptr = _take(labels.indices, labels.indptr, rows)
    return LabelRows(labels.names, indptr, indices)


def _take(
    values: npt.NDArray[Any], offsets: Int64s, rows: Int64s
) -> tuple[npt.NDArray[Any], Int64s]:
    """Return pieces ``values[offsets[row] : offsets[row + 1]]`` end to end, and their bounds."""
    sizes = offsets[rows + 1] - offsets[rows]
    taken = offsets_of(sizes)
    places = np.repeat(offsets[rows] - taken[:-1], sizes)
    places += np.arange(len(places))
    return values[places], taken
