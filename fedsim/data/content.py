"""Compares what is stored of a collection's content with what is there."""

import hashlib
from collections.abc import Iterable

from fedsim.data.hdf5 import Hdf5Images
from fedsim.data.index import ImageIndex, StoredImages, content_sha256
from fedsim.errors import DataError


def check_content(images: StoredImages) -> None:
    """Read every image of a file in fedsim's format, and compare with its ``content_sha256``.

    Other kinds of collections store none, and are left alone.

    Raises:
        DataError: The content is another, or an image can't be read.
    """
    if isinstance(images, Hdf5Images):
        check_stored_hash(images, hash_of(images.index, images.read(range(len(images.index)))))


def check_stored_hash(images: StoredImages, found: str) -> None:
    """Compare the stored hash of a collection, if there is one, with that of its content.

    Raises:
        DataError: They differ.
    """
    if images.content_sha256 not in (None, found):
        raise DataError(
            f"{images.place}: expected images with the stored content {images.content_sha256[:12]}"
            f", found {found[:12]}; the source is damaged or was changed, so copy it anew"
        )


def hash_of(index: ImageIndex, stored: Iterable[bytes]) -> str:
    """Return ``content_sha256`` of an index and of what is stored of each image, by row."""
    return content_sha256(index, (hashlib.sha256(data).digest() for data in stored))
