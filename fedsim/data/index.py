"""The index of a collection of images: who owns which, in which split, with which labels.

Every way of storing images is an index value and something that reads what is stored by row; all
the rest of the reading code is shared, so one collection gives the same bits from any storage.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

SPLITS = ("train", "val", "test")
LABEL_SETS = ("coarse", "fine")
MAX_LABELS = 2**16  # label numbers are stored as uint16

Int64s = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]
Stored = bytes | Pixels  # an encoded image (a JPEG file's bytes), or what it decodes to


@dataclass(frozen=True, eq=False)
class StringTable:
    """Many strings as one UTF-8 blob, so that opening a file reads two arrays and not each string.

    Attributes:
        blob: All strings, encoded, one after the other.
        offsets: int64 array of shape (strings + 1,); string ``i`` is
            ``blob[offsets[i] : offsets[i + 1]]``.

    Examples:
        >>> table = StringTable.of(["Zoë", "", "0123"])
        >>> table.offsets.tolist(), table[0], table.cut(1, 3)
        ([0, 4, 4, 8], 'Zoë', ('', '0123'))
    """

    blob: bytes
    offsets: Int64s

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringTable":
        """Pack strings; each must be encodable in UTF-8 (no lone surrogates)."""
        encoded = [string.encode() for string in strings]
        return cls(b"".join(encoded), offsets_of([len(part) for part in encoded]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> str:
        return self.blob[self.offsets[position] : self.offsets[position + 1]].decode()

    def cut(self, start: int, stop: int) -> tuple[str, ...]:
        """Return the strings ``start`` to ``stop - 1``."""
        bounds = self.offsets[start : stop + 1].tolist()
        return tuple(self.blob[a:b].decode() for a, b in pairwise(bounds))


@dataclass(frozen=True, eq=False)
class LabelRows:
    """The labels of every image as sparse rows.

    Attributes:
        names: Label names in alphabetical order (by code point); label ``k`` is ``names[k]``.
        indptr: int64 array of shape (images + 1,).
        indices: uint16 array; image ``i`` has the labels ``indices[indptr[i] : indptr[i + 1]]``.
    """

    names: tuple[str, ...]
    indptr: Int64s
    indices: npt.NDArray[np.uint16]

    def dense(self, rows: Int64s) -> npt.NDArray[np.uint8]:
        """Return the labels of ``rows`` as 0 and 1, shape (rows, labels)."""
        starts = self.indptr[rows]
        counts = self.indptr[rows + 1] - starts
        ends = np.cumsum(counts)
        # Position of each label in ``indices``: its row's start plus its place within the row.
        places = np.arange(counts.sum()) + np.repeat(starts - ends + counts, counts)
        matrix = np.zeros((len(rows), len(self.names)), dtype=np.uint8)
        matrix[np.repeat(np.arange(len(rows)), counts), self.indices[places]] = 1
        return matrix


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image of a collection that is being indexed.

    Attributes:
        user_id: Whose image it is; the same user must be in one split only.
        image_id: Unique in the collection.
        split: "train", "val" or "test".
        labels: Label names for each of ``LABEL_SETS``, in that order.
    """

    user_id: str
    image_id: str
    split: str
    labels: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """Who owns which image of a collection, in which split, with which labels.

    Users are sorted by split (train, val, test), then by id (by code point). Images are ordered
    by user, and within a user as the source listed them; an image's place is called its row.

    Attributes:
        user_ids: Ids of all users.
        user_splits: uint8 array of shape (users,), positions in ``SPLITS``.
        user_offsets: int64 array of shape (users + 1,); user ``u`` owns the rows
            ``user_offsets[u]`` to ``user_offsets[u + 1] - 1``.
        image_ids: Ids of all images, by row.
        labels: Rows of labels for each of ``LABEL_SETS``.
    """

    user_ids: StringTable
    user_splits: npt.NDArray[np.uint8]
    user_offsets: Int64s
    image_ids: StringTable
    labels: Mapping[str, LabelRows]

    @classmethod
    def of(
        cls,
        records: Sequence[ImageRecord],
        names: Mapping[str, Iterable[str]] | None = None,
    ) -> "ImageIndex":
        """Index records whose users are each in one split and whose image ids are unique.

        Args:
            records: The records, in any order.
            names: Label names to keep besides those that occur, by label set.

        Examples:
            >>> index = ImageIndex.of([
            ...     ImageRecord("b", "1", "train", (("cat",), ("tabby", "indoor"))),
            ...     ImageRecord("a", "2", "train", ((), ("indoor",))),
            ...     ImageRecord("b", "3", "train", (("cat",), ())),
            ... ])
            >>> index.user_ids.cut(0, 2), index.image_ids.cut(0, 3)
            (('a', 'b'), ('2', '1', '3'))
            >>> index.labels["fine"].dense(np.arange(3)).tolist()
            [[1, 0], [1, 1], [0, 0]]
        """
        ordered = [records[position] for position in row_order(records)]
        sizes: dict[tuple[str, str], int] = {}
        for record in ordered:
            user = (record.split, record.user_id)
            sizes[user] = sizes.get(user, 0) + 1
        return cls(
            user_ids=StringTable.of(user_id for _, user_id in sizes),
            user_splits=np.array([SPLITS.index(split) for split, _ in sizes], dtype=np.uint8),
            user_offsets=offsets_of(list(sizes.values())),
            image_ids=StringTable.of(record.image_id for record in ordered),
            labels={
                label_set: _label_rows(
                    [record.labels[position] for record in ordered],
                    (names or {}).get(label_set, ()),
                )
                for position, label_set in enumerate(LABEL_SETS)
            },
        )

    def __len__(self) -> int:
        return len(self.image_ids)

    def users_of(self, split: str) -> tuple[int, int]:
        """Return the first user of a split and the one after its last."""
        code = SPLITS.index(split)
        first, stop = np.searchsorted(self.user_splits, [code, code + 1])
        return int(first), int(stop)

    def sha256(self) -> str:
        """Return a hash of every id, owner, split and label, equal for equal collections."""
        digest = hashlib.sha256(b"fedsim image index 1")
        for part in self.parts():
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def parts(self) -> Iterator[bytes]:
        """Yield every array of the index as little-endian bytes, in the order of the hash."""
        yield from _table_parts(self.user_ids)
        yield self.user_splits.tobytes()
        yield self.user_offsets.astype("<i8").tobytes()
        yield from _table_parts(self.image_ids)
        for label_set in LABEL_SETS:
            rows = self.labels[label_set]
            yield from _table_parts(StringTable.of(rows.names))
            yield rows.indptr.astype("<i8").tobytes()
            yield rows.indices.astype("<u2").tobytes()


@dataclass(frozen=True)
class About:
    """What is told of a collection.

    Attributes:
        name: What it is called.
        origin: Where it comes from.
        licence: What may be done with it.
    """

    name: str
    origin: str = "not stated"
    licence: str = "not stated"


class StoredImages(Protocol):
    """A collection of images: its index, and what is stored of each by row."""

    @property
    def index(self) -> ImageIndex:
        """Who owns which image, with which labels."""
        ...

    @property
    def place(self) -> str:
        """The file or folder, for messages and records."""
        ...

    @property
    def about(self) -> About:
        """Name, origin and licence of the collection."""
        ...

    @property
    def content_sha256(self) -> str | None:
        """The stored ``content_sha256`` of the collection; None where none is stored."""
        ...

    def read(self, rows: Iterable[int]) -> Iterator[Stored]:
        """Yield what is stored of each row's image; raises DataError where it can't be read."""
        ...


def row_order(records: Sequence[ImageRecord]) -> list[int]:
    """Return the positions of the records in the order of the rows of their index.

    Examples:
        >>> row_order([ImageRecord(user, user, "train", ((), ())) for user in "bcab"])
        [2, 0, 3, 1]
    """
    keys = [(SPLITS.index(record.split), record.user_id) for record in records]
    return sorted(range(len(records)), key=keys.__getitem__)


def content_sha256(index: ImageIndex, digests: Iterable[bytes]) -> str:
    """Return the hash of a whole collection, with its images.

    It is SHA-256 over the index's hash (64 hex characters) followed by the 32-byte SHA-256 of
    what is stored of each image, by row.

    Args:
        index: The collection's index.
        digests: SHA-256 of what is stored of each image, by row.
    """
    digest = hashlib.sha256(index.sha256().encode())
    for image_digest in digests:
        digest.update(image_digest)
    return digest.hexdigest()


def offsets_of(sizes: Sequence[int] | Int64s) -> Int64s:
    """Return 0 and the running sums of ``sizes``.

    Examples:
        >>> offsets_of([2, 0, 3]).tolist()
        [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int64)


def _label_rows(rows: Sequence[tuple[str, ...]], also: Iterable[str]) -> LabelRows:
    names = tuple(sorted({label for row in rows for label in row}.union(also)))
    number = {label: position for position, label in enumerate(names)}
    return LabelRows(
        names=names,
        indptr=offsets_of([len(row) for row in rows]),
        indices=np.array([number[label] for row in rows for label in sorted(row)], dtype=np.uint16),
    )


def _table_parts(table: StringTable) -> tuple[bytes, bytes]:
    return table.blob, table.offsets.astype("<i8").tobytes()
