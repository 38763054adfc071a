"""Federated data sets over images, whatever they are stored in."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedsim.data.dataset import Examples, UserTable
from fedsim.data.decode import decode_image
from fedsim.data.decode_ahead import DecodeAhead
from fedsim.data.index import LABEL_SETS, SPLITS, Int64s, LabelRows, Pixels, StoredImages
from fedsim.data.pixel_cache import PixelCache
from fedsim.errors import ConfigError, DataError


@dataclass(frozen=True)
class DatasetInfo:
    """What a run's record says of its data.

    Attributes:
        name: What the collection is called.
        path: The file or folder that was read.
        index_sha256: Hash of every id, owner, split and label (``ImageIndex.sha256``).
        content_sha256: Hash of the index and of every encoded image, stored when a file was
            made; None for a raw folder, whose images would all have to be read for it.
        num_users: Users of each split.
        num_images: Images of each split, as read: without the images that were left out.
        num_left_out: Images left out under ``max_images_per_user``.
    """

    name: str
    path: str
    index_sha256: str
    content_sha256: str | None
    num_users: dict[str, int]
    num_images: dict[str, int]
    num_left_out: int


@dataclass(frozen=True)
class _Split:
    """One split in use; ``rows`` maps an example's number to its row in the collection."""

    users: UserTable
    rows: Int64s
    left_out: Int64s


class ImageDataset:
    """Images that belong to users, decoded to squares; implements ``FederatedDataset``.

    Nothing is opened before the first read, a pickled copy holds the arguments alone, and no file
    stays open between two reads, so no handle is ever shared between processes. A process that is
    started with this among its arguments takes over the index, and shares the decoded images.

    Args:
        open_images: Opens the collection; a picklable callable.
        labels: Which label set: "coarse" or "fine".
        image_size: Height and width of the images in pixels, at least 1.
        max_images_per_user: Each *train* user's images after this many, in stored order, are
            left out; None keeps all.
        cache_mb: Decoded images are kept up to this many MiB (2**20 bytes), over all splits, the
            first that are read. Memory is used as images are read.

    Raises:
        ConfigError: A number is out of its range or the label set is unknown.
    """

    def __init__(
        self,
        open_images: Callable[[], StoredImages],
        *,
        labels: str,
        image_size: int,
        max_images_per_user: int | None = None,
        cache_mb: int = 512,
    ) -> None:
        if labels not in LABEL_SETS:
            raise ConfigError(f'labels: expected "coarse" or "fine", found {labels!r}; choose one')
        _check_at_least(1, "image_size", image_size)
        if max_images_per_user is not None:
            _check_at_least(1, "max_images_per_user", max_images_per_user)
        _check_at_least(0, "cache_mb", cache_mb)
        self._open_images = open_images
        self._label_set = labels
        self._image_size = image_size
        self._max_images_per_user = max_images_per_user
        self._cache_bytes = cache_mb * 2**20

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"_splits", "_ahead"}
        if get_spawning_popen() is None:
            left_out |= {"_images", "_cache"}
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def open(self) -> None:
        """Open the collection, so that processes that are started with this have it open, too."""
        _ = self._images, self._cache

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the columns of the labels, in alphabetical order."""
        return self._labels.names

    def users(self, split: str) -> UserTable:
        """Return the users of ``split`` and how many images each holds."""
        return self._split(split).users

    def labels(self, split: str, indices: Int64s) -> npt.NDArray[np.bool_]:
        """Return the labels of the examples with these numbers, shape (indices, labels).

        The array is made anew from sparse rows each time, and is the caller's.

        Raises:
            IndexError: A number is not one of the split's.
        """
        return self._labels.dense(self._rows(split, indices)).view(np.bool_)

    def load(self, split: str, indices: Int64s) -> Examples:
        """Return copies of the examples with these numbers, in this order.

        Raises:
            DataError: An image can't be read or decoded; the message names it.
            IndexError: A number is not one of the split's.
        """
        rows = self._rows(split, indices)
        pixels = self._cache.read(rows, self._ahead.decode)
        labels = self._labels.dense(rows)
        return Examples(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels))

    def expect(self, split: str, indices: Int64s) -> None:
        """Decode in the background what ``load`` is asked for next, if it is not in memory.

        Numbers that are not the split's are left to ``load`` to refuse, as are broken images.
        """
        try:
            rows = self._rows(split, indices)
        except IndexError:
            rows = np.empty(0, dtype=np.int64)
        self._ahead.expect(self._cache.missing(rows))

    def left_out(self) -> tuple[str, ...]:
        """Return the ids of the images that ``max_images_per_user`` leaves out."""
        image_ids = self._images.index.image_ids
        return tuple(image_ids[row] for row in self._split("train").left_out.tolist())

    def info(self) -> DatasetInfo:
        """Return what a run's record says of this data."""
        parts = {split: self._split(split) for split in SPLITS}
        return DatasetInfo(
            name=self._images.about.name,
            path=self._images.place,
            index_sha256=self._images.index.sha256(),
            content_sha256=self._images.content_sha256,
            num_users={split: len(part.users) for split, part in parts.items()},
            num_images={split: len(part.rows) for split, part in parts.items()},
            num_left_out=len(parts["train"].left_out),
        )

    @cached_property
    def _images(self) -> StoredImages:
        return self._open_images()

    @cached_property
    def _splits(self) -> dict[str, _Split]:
        return {}

    @cached_property
    def _cache(self) -> PixelCache:
        return PixelCache(len(self._images.index), self._image_size, self._cache_bytes)

    @cached_property
    def _ahead(self) -> DecodeAhead:
        return DecodeAhead(self._decode)

    @property
    def _labels(self) -> LabelRows:
        return self._images.index.labels[self._label_set]

    def _split(self, split: str) -> _Split:
        if split not in self._splits:
            if split not in SPLITS:
                raise DataError(
                    f'{self._images.place}: expected the split "train", "val" or "test", '
                    f"found {split!r}; choose one of the three"
                )
            limit = self._max_images_per_user if split == "train" else None
            self._splits[split] = self._open_split(split, limit)
        return self._splits[split]

    def _open_split(self, split: str, limit: int | None) -> _Split:
        index = self._images.index
        first, stop = index.users_of(split)
        offsets = index.user_offsets[first : stop + 1]
        sizes = np.diff(offsets)
        rows = np.arange(offsets[0], offsets[-1], dtype=np.int64)
        place_within_user = rows - np.repeat(offsets[:-1], sizes)
        kept = np.ones(len(rows), dtype=np.bool_) if limit is None else place_within_user < limit
        num_images = sizes if limit is None else np.minimum(sizes, limit)
        return _Split(
            users=UserTable(index.user_ids.cut(first, stop), num_images),
            rows=rows[kept],
            left_out=rows[~kept],
        )

    def _rows(self, split: str, indices: Int64s) -> Int64s:
        rows = self._split(split).rows
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < len(rows):
            raise IndexError(
                f"{split} has examples 0 to {len(rows) - 1}, "
                f"found numbers {indices.min()} to {indices.max()}"
            )
        return rows[indices]

    def _decode(self, rows: Int64s) -> Iterator[Pixels]:
        images = self._images
        numbers = rows.tolist()
        for row, data in zip(numbers, images.read(numbers), strict=True):
            name = f"{images.place}: image {images.index.image_ids[row]!r}"
            yield decode_image(data, self._image_size, name=name)


def _check_at_least(least: int, name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{name}: expected a whole number of at least {least}, found {value!r}; change it"
        )
