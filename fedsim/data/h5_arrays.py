"""Reads the small arrays of a group of an HDF5 file, and notes what is wrong with them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from h5py import h5d, h5s
from PIL import Image

from fedsim.data.faults import Faults, shown
from fedsim.data.h5_heaps import Heaps

# What HDF5 and h5py raise where a file is damaged.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)


@dataclass(frozen=True, eq=False)
class DataGroup:
    """A group that directly holds arrays; what is wrong with one is noted where it is read.

    Every method returns None after noting a fault.

    Attributes:
        partition: The group right below the root.
        name: The path below it; h5py makes nested groups of an id with ``/``.
        datasets: The arrays by name.
        heaps: Where the file keeps texts of any length.
        faults: Takes what is wrong.
    """

    partition: str
    name: str
    datasets: Mapping[str, h5d.DatasetID]
    heaps: Heaps
    faults: Faults

    @property
    def where(self) -> str:
        """The group's path in the file."""
        return f"/{self.partition}/{self.name}".rstrip("/")

    def texts(self, name: str, rank: int = 1) -> list[str] | None:
        """Return the texts of an array of ``rank`` 1, or the one of a scalar (0), in a list."""
        array = self._array(name, "text", rank)
        if array is None:
            return None
        try:
            return [text.decode() for text in array.ravel().tolist()]
        except UnicodeDecodeError as error:
            self._note(name, "text in UTF-8", f"the bytes {error.object!r}")
            return None

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        """Return an array of whole numbers of rank 1."""
        array = self._array(name, "whole numbers", 1)
        return None if array is None else array.astype(np.int64)

    def count_images(self, name: str, rank: int) -> int | None:
        """Return how many images an array holds: any number (``rank`` 1), or itself one (0)."""
        dataset = self._inside(name)
        if dataset is None:
            return None
        shape, dtype = _shape_and_dtype(dataset)
        expected = _expected_pixels(shape, dtype, rank)
        if expected is not None:
            self._note(name, expected, f"{dtype} of shape {shape}")
            return None
        return int(shape[0]) if rank else 1

    def numbers_by_name(self, name: str) -> dict[str, int] | None:
        """Return the JSON object of names and whole numbers that a single text holds."""
        texts = self.texts(name, rank=0)
        if texts is None:
            return None
        expected = "a JSON object of names and whole numbers"
        try:
            found = json.loads(texts[0])
        except (ValueError, RecursionError) as error:
            self._note(name, expected, f"text that can't be parsed ({error})")
            return None
        if not isinstance(found, dict) or not all(type(n) is int for n in found.values()):
            self._note(name, expected, shown(found))
            return None
        return found

    def _array(self, name: str, kind: str, rank: int) -> npt.NDArray[Any] | None:
        dataset = self._inside(name)
        if dataset is None:
            return None
        shape, dtype = _shape_and_dtype(dataset)
        if shape is None or len(shape) != rank or _kind(dtype) != kind:
            expected = f"{kind} in one dimension" if rank else f"a single {kind}"
            self._note(name, expected, f"{dtype} of shape {shape}")
            return None
        if dtype.kind == "O" and not self.heaps.are_sound(dataset):
            self._note(name, kind, "data that can't be read (the heap of texts is damaged)")
            return None
        try:
            array = np.empty(shape, dtype)
            if array.size:
                dataset.read(h5s.ALL, h5s.ALL, array)
        except HDF5_ERRORS as error:
            self._note(name, kind, f"data that can't be read ({one_line(error)})")
            return None
        return array

    def _inside(self, name: str) -> h5d.DatasetID | None:
        """Return an array whose data lies in this very file."""
        dataset = self.datasets.get(name)
        if dataset is None:
            self._note(name, "an array", "none")
            return None
        if _leads_out(dataset):
            self._note(name, "an array in this file", "one whose data lies in another")
            return None
        return dataset

    def _note(self, name: str, expected: str, found: str) -> None:
        self.faults.add(f"{self.where}/{name}: expected {expected}, found {found}")


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _expected_pixels(shape: Any, dtype: Any, rank: int) -> str | None:
    """Say what was expected if these can't be pixels of images."""
    image: tuple[int, ...] = () if shape is None else shape[rank:]
    lengths = "images, height, width" if rank else "height, width"
    expected = f"uint8 pixels of shape ({lengths}, 3), or ({lengths}) if gray"
    if image[2:] in ((2,), (4,)):
        return f"{expected}, since RGBA and CMYK can't be told apart without the images' files"
    if dtype != np.uint8 or len(image) not in (2, 3) or image[2:] not in ((), (3,)):
        return expected
    if 0 in shape:
        return "at least one image, of at least one pixel"
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image[0] * image[1] > limit:
        return f"images of at most {limit} pixels"
    return None


def _kind(dtype: Any) -> str | None:
    if dtype is None:
        return None
    if h5py.check_string_dtype(dtype) is not None:
        return "text"
    return "whole numbers" if dtype.kind in "iu" else None


def _shape_and_dtype(dataset: h5d.DatasetID) -> tuple[Any, Any]:
    try:
        return dataset.shape, dataset.dtype
    except HDF5_ERRORS:  # a type that NumPy does not know
        return None, None


def _leads_out(dataset: h5d.DatasetID) -> bool:
    if dataset.get_offset() is not None:  # the data lies here, in one piece
        return False
    storage = dataset.get_create_plist()
    return bool(storage.get_layout() == h5d.VIRTUAL or storage.get_external_count())
