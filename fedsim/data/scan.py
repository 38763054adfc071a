"""What is found in a collection, of whatever kind, before any image is read."""

from collections.abc import Callable
from dataclasses import dataclass

from fedsim.data.faults import Faults
from fedsim.data.index import StoredImages


@dataclass(frozen=True, eq=False)
class Scan:
    """A collection and its faults.

    Attributes:
        images: The images whose records are sound.
        faults: Everything else.
        repeated_labels: Labels named again within one image's list, which count once.
        unused_files: Files beside the images that no record names.
    """

    images: StoredImages
    faults: Faults
    repeated_labels: int = 0
    unused_files: int = 0


def open_whole(scan: Callable[[], Scan]) -> StoredImages:
    """Return the images of a collection without faults.

    Raises:
        DataError: It has faults, which the message lists.
    """
    found = scan()
    found.faults.check()
    return found.images
