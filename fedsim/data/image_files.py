"""Collections whose images are files of their own in one folder."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsim.data.index import About, ImageIndex
from fedsim.errors import DataError, remedy_for


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """The encoded images of a folder.

    Attributes:
        folder: The folder; no image outside it is ever read.
        described_by: The file or folder that says whose images they are, for messages.
        index: Who owns which image, with which labels.
        file_of: The path of an image below the folder, with ``{}`` for its id.
    """

    folder: Path
    described_by: Path
    index: ImageIndex
    file_of: str

    @property
    def place(self) -> str:
        """What describes the images."""
        return str(self.described_by)

    @property
    def about(self) -> About:
        """The folder's own name; it states no origin and no licence."""
        return About(self.folder.name)

    @property
    def content_sha256(self) -> None:
        """None: a folder stores no hash of its images."""
        return None

    def read(self, rows: Iterable[int]) -> Iterator[bytes]:
        """Yield the encoded image of each row."""
        root = os.path.realpath(self.folder)
        for row in rows:
            path = self.folder / self.file_of.format(self.index.image_ids[row])
            if not is_within(root, path):
                raise DataError(
                    f"{path}: expected an image inside {root}, found a link that leads out of it; "
                    "put the image itself there"
                )
            try:
                data = path.read_bytes()
            except OSError as error:
                otherwise = f"put it back or remove what {self.described_by.name} says of it"
                raise DataError(
                    f"{path}: expected an image, found {error.strerror}; "
                    f"{remedy_for(error, otherwise)}"
                ) from error
            yield data


def file_fault(root: str, entry: os.DirEntry[str]) -> str | None:
    """Return what keeps an entry of a folder below ``root`` from being an image's file, or None."""
    if entry.is_symlink() and not is_within(root, entry.path):
        return "a link that leads out of the folder"
    try:
        return None if entry.is_file() else "something that is no file"
    except OSError as error:  # a link to itself
        return error.strerror


def is_within(root: str, path: str | Path) -> bool:
    """Tell whether a path, links resolved, lies below ``root``, which is resolved already."""
    return os.path.realpath(path).startswith(root.rstrip(os.sep) + os.sep)
