"""Images that lie as bare pixels in the arrays of an HDF5 file, many or one in each."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.faults import Faults
from fedsim.data.h5_arrays import HDF5_ERRORS, DataGroup, one_line
from fedsim.data.h5_groups import check_unchanged, open_file, stamp_of
from fedsim.data.index import (
    About,
    ImageIndex,
    ImageRecord,
    Int64s,
    Pixels,
    StringTable,
    row_order,
)
from fedsim.data.records import RecordReader, indexable
from fedsim.data.scan import Scan
from fedsim.errors import DataError

_WHOLE = -1  # the place of an image that has an array of its own


@dataclass(frozen=True, eq=False)
class PixelImages:
    """The images of an HDF5 file of bare pixels.

    The file is opened for each ``read`` and closed after it.

    Attributes:
        path: The file.
        index: Who owns which image, with which labels.
        arrays: Paths in the file of all arrays of pixels.
        places: int64 array of shape (images, 2): the number of each row's array, and its place
            along the first axis, or -1 if it is the whole array.
        stamp: Size in bytes and time of change in ns of the file when it was opened.
    """

    path: Path
    index: ImageIndex
    arrays: StringTable
    places: Int64s
    stamp: tuple[int, int]

    @property
    def place(self) -> str:
        """The file's path."""
        return str(self.path)

    @property
    def about(self) -> About:
        """The file's own name; it states no origin and no licence."""
        return About(self.path.stem)

    @property
    def content_sha256(self) -> None:
        """None: such a file stores no hash of its images."""
        return None

    def read(self, rows: Iterable[int]) -> Iterator[Pixels]:
        """Yield the RGB pixels of each row; of an array with many images only one is read."""
        with open_file(self.path) as file:
            check_unchanged(self.path, self.path.stat(), self.stamp)
            last, array = -1, None  # mostly, the next row's array is the last row's
            for row in rows:
                number, place = self.places[row].tolist()
                try:
                    if array is None or number != last:
                        last, array = number, file[self.arrays[number]]
                    pixels = array[() if place == _WHOLE else place]
                except HDF5_ERRORS as error:
                    raise DataError(
                        f"{self.path}: image {self.index.image_ids[row]!r}: expected pixels, found "
                        f"data that can't be read ({one_line(error)}); copy or make the file anew"
                    ) from error
                yield _to_rgb(pixels)


class PixelRecords:
    """Collects the records of images whose pixels lie in arrays.

    Args:
        path: The file.
        faults: Takes what is wrong.

    Attributes:
        records: The sound records so far.
    """

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path = path
        self._stamp = stamp_of(path.stat())
        self._faults = faults
        self._reader = RecordReader(faults)
        self._arrays: list[str] = []
        self._places: list[tuple[int, int]] = []
        self.records: list[ImageRecord] = []

    def add(self, group: DataGroup, array: str, entries: Iterable[dict[str, Any]]) -> None:
        """Add entries in the words of FLAIR's metadata, one for each image of a group.

        Args:
            group: The group.
            array: Its array of pixels: "image" for a single one, else that of many.
            entries: Who owns each image, with which labels, in the order of the pixels.
        """
        whole = array == "image"
        for place, entry in enumerate(entries):
            where = group.where if whole else f"{group.where}: image {place}"
            record = self._reader.read(where, {**entry, "partition": group.partition})
            if record is not None:
                self.records.append(record)
                self._places.append((len(self._arrays), _WHOLE if whole else place))
        self._arrays.append(f"{group.where}/{array}")

    def scan(self, names: Mapping[str, Iterable[str]] | None = None) -> Scan:
        """Return the collection.

        Args:
            names: Label names that count whether or not an image has them, by label set.

        Raises:
            DataError: There are neither images nor faults.
        """
        names = names or {}
        if not self.records:
            self._faults.check()
            raise DataError(
                f"{self._path}: expected images of users in /train, /val (or /dev) and /test, "
                "found none; copy or make the file anew"
            )
        if not indexable(self.records, self._faults, names):
            self._faults.check()
        places = np.array(self._places, dtype=np.int64).reshape(-1, 2)
        images = PixelImages(
            path=self._path,
            index=ImageIndex.of(self.records, names),
            arrays=StringTable.of(self._arrays),
            places=places[row_order(self.records)],
            stamp=self._stamp,
        )
        return Scan(images, self._faults, repeated_labels=self._reader.repeated_labels)


def _to_rgb(pixels: Pixels) -> Pixels:
    return np.repeat(pixels[..., None], 3, axis=2) if pixels.ndim == 2 else pixels
