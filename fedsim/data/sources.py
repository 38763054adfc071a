"""Finds the data set that a name or a path in the configuration means."""

from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

from fedsim.data.convert import SUFFIXES
from fedsim.data.flair_folder import METADATA, scan_flair_folder
from fedsim.data.hdf5 import scan_hdf5
from fedsim.data.image_dataset import ImageDataset
from fedsim.data.scan import Scan, open_whole
from fedsim.errors import DataError

OPENCLIPART = Path(str(resources.files("fedsim.data") / "openclipart64.h5"))


def open_dataset(
    source: str,
    *,
    labels: str,
    image_size: int,
    max_images_per_user: int | None = None,
    cache_mb: int = 512,
) -> ImageDataset:
    """Return the data set that ``source`` means; its files are opened on the first read.

    Args:
        source: "openclipart" for the collection that comes with fedsim (``./openclipart`` is a
            folder of that name), the path of a ``.h5`` or ``.hdf5`` file made by fedsim, or that
            of a folder in FLAIR's raw layout. ``~`` is the home folder.
        labels: Which label set: "coarse" or "fine".
        image_size: Height and width of the images in pixels, at least 1.
        max_images_per_user: Each *train* user's images after this many, in stored order, are
            left out; None keeps all.
        cache_mb: Decoded images of a split are kept if the whole split takes no more than this
            many MiB, else every read decodes.

    Raises:
        ConfigError: A number is out of its range or the label set is unknown.
        DataError: ``source`` is nothing of the kind.

    Examples:
        >>> dataset = open_dataset("openclipart", labels="fine", image_size=64)
        >>> dataset.users("test").num_images.sum(), len(dataset.label_names)
        (np.int64(361), 81)
    """
    return ImageDataset(
        partial(open_whole, scanner_of(source)),
        labels=labels,
        image_size=image_size,
        max_images_per_user=max_images_per_user,
        cache_mb=cache_mb,
    )


def scanner_of(source: str) -> Callable[[], Scan]:
    """Return what scans the collection that ``source`` means; a picklable function.

    Raises:
        DataError: ``source`` is nothing of the kind.
    """
    path = OPENCLIPART if source == "openclipart" else Path(source).expanduser().absolute()
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return partial(scan_hdf5, path)
    if (path / METADATA).is_file():
        return partial(scan_flair_folder, path)
    raise DataError(
        f'data source {source!r}: expected "openclipart", a .h5 or .hdf5 file made by fedsim, '
        f"or a folder with {METADATA}, found {_found(path)}; correct the path"
    )


def _found(path: Path) -> str:
    if path.is_dir():
        return "a folder without it"
    return "a file of another kind" if path.exists() else "nothing there"
