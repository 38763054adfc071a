"""Finds the data set that a name or a path in the configuration means."""

from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

from fedsim.data.csv_folder import find_csv, scan_csv
from fedsim.data.faults import Faults
from fedsim.data.flair_folder import METADATA, scan_flair_folder
from fedsim.data.flair_hdf5 import LABEL_ARRAYS, scan_flair_hdf5
from fedsim.data.h5_groups import GroupedFile, open_file
from fedsim.data.hdf5 import SUFFIXES, scan_hdf5
from fedsim.data.image_dataset import ImageDataset
from fedsim.data.index import StoredImages
from fedsim.data.parquet import holds_parquet, scan_parquet
from fedsim.data.partition import Dealing, open_dealt
from fedsim.data.pfl_hdf5 import LABEL_ARRAYS as PFL_LABEL_ARRAYS
from fedsim.data.pfl_hdf5 import scan_pfl_hdf5
from fedsim.data.scan import Scan, open_whole
from fedsim.data.synthetic import scan_synthetic
from fedsim.errors import DataError, remedy_for
from fedsim.nearest import hint

OPENCLIPART = Path(str(resources.files("fedsim.data") / "openclipart64.h5"))


def open_dataset(
    source: str,
    *,
    labels: str,
    image_size: int,
    max_images_per_user: int | None = None,
    cache_mb: int = 512,
    dealing: Dealing | None = None,
    population_size: int | None = None,
) -> ImageDataset:
    """Return the data set that ``source`` means; its files are opened on the first read.

    Args:
        source: "openclipart" for the collection that comes with fedsim (``./openclipart`` is a
            folder of that name), "synthetic" for one that is drawn, the path of a ``.h5`` or
            ``.hdf5`` file made by fedsim, ml-flair or pfl-research, of a folder in FLAIR's raw
            layout, of a ``.csv`` file or a folder with one, or of a ``.parquet`` file or a folder
            with some; the first that fits, in this order. ``~`` is the home folder.
        labels: Which label set: "coarse" or "fine".
        image_size: Height and width of the images in pixels, at least 1.
        max_images_per_user: Each *train* user's images after this many, in stored order, are
            left out; None keeps all.
        cache_mb: Decoded images are kept up to this many MiB, over all splits, the first that are
            read.
        dealing: Deals the train images to other users (``fedsim.data.dealing``); picklable.
        population_size: Train users of "synthetic"; the default is as many as FLAIR has.

    Raises:
        ConfigError: A number is out of its range or the label set is unknown.
        DataError: ``source`` is nothing of the kind.

    Examples:
        >>> dataset = open_dataset("openclipart", labels="fine", image_size=64)
        >>> dataset.users("test").num_images.sum(), len(dataset.label_names)
        (np.int64(361), 81)
    """
    return ImageDataset(
        opener_of(source, dealing, population_size),
        labels=labels,
        image_size=image_size,
        max_images_per_user=max_images_per_user,
        cache_mb=cache_mb,
    )


def opener_of(
    source: str, dealing: Dealing | None = None, population_size: int | None = None
) -> Callable[[], StoredImages]:
    """Return what opens the collection that ``source`` means; a picklable function.

    Args:
        source: As for ``open_dataset``.
        dealing: Deals the train images to other users.
        population_size: Train users of "synthetic".

    Raises:
        DataError: ``source`` is nothing of the kind.
    """
    whole = partial(open_whole, scanner_of(source, population_size))
    return whole if dealing is None else partial(open_dealt, whole, dealing)


def scanner_of(source: str, population_size: int | None = None) -> Callable[[], Scan]:
    """Return what scans the collection that ``source`` means; a picklable function.

    Raises:
        DataError: ``source`` is nothing of the kind.
    """
    if source == "synthetic":
        return partial(scan_synthetic, population_size)
    path = OPENCLIPART if source == "openclipart" else Path(source).expanduser().absolute()
    try:
        scanner = _scanner_at(path)
    except OSError as error:
        raise DataError(
            f"data source {source!r}: expected to look at {error.filename or path}, found "
            f"{error.strerror}; {remedy_for(error, 'correct the path')}"
        ) from error
    if scanner is not None:
        return scanner
    raise DataError(
        f'data source {source!r}: expected "openclipart", "synthetic", a .h5 or .hdf5 file made by '
        f"fedsim, ml-flair or pfl-research, a folder with {METADATA}, a .csv file or a folder with "
        "one, or a .parquet file or a folder with some, found "
        f"{_found(source, path)}; {_remedy(source, path)}"
    )


def _scanner_at(path: Path) -> Callable[[], Scan] | None:
    """Return what scans the collection at a path, if there is one; OSError if it can't be seen."""
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return partial(scan_any_hdf5, path)
    if (path / METADATA).is_file():
        return partial(scan_flair_folder, path)
    csv_path = find_csv(path)
    if csv_path is not None:
        return partial(scan_csv, csv_path)
    if holds_parquet(path):
        return partial(scan_parquet, path)
    return None


def scan_any_hdf5(path: Path) -> Scan:
    """Scan an HDF5 file in fedsim's format, ml-flair's or pfl-research's.

    Raises:
        DataError: It can't be opened, or holds nothing of the kind.
    """
    return _hdf5_scanner_of(path)(path)


def _hdf5_scanner_of(path: Path) -> Callable[[Path], Scan]:
    with open_file(path) as file:
        found = GroupedFile(file, Faults(str(path)))  # whose faults the scanner tells
        if "format" in file.attrs or not found.partitions:
            return scan_hdf5
        for group in found.groups():
            if not group.datasets.keys().isdisjoint(PFL_LABEL_ARRAYS):
                return scan_pfl_hdf5
            if not group.datasets.keys().isdisjoint(LABEL_ARRAYS):
                return scan_flair_hdf5
    return scan_flair_hdf5


def _remedy(source: str, path: Path) -> str:
    """Ask after the nearest name: one of fedsim's own, or one that lies where the path points."""
    otherwise = "correct the path"
    if len(Path(source).parts) == 1:
        otherwise = hint(source, ("openclipart", "synthetic"), otherwise)
    if path.exists():
        return otherwise
    try:
        return hint(path.name, [one.name for one in path.parent.iterdir()], otherwise)
    except OSError:  # a folder that may not be listed, or none
        return otherwise


def _found(source: str, path: Path) -> str:
    if path.is_dir():
        return "a folder without it"
    if ":" in source and not path.exists():
        return "what looks like a class, whose examples can be trained on only"
    return "a file of another kind" if path.exists() else "nothing there"
