"""Files for a deployment: the server's, and one for each machine that holds users."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsim.data.content import check_content, hash_of
from fedsim.data.hdf5 import Hdf5Images
from fedsim.data.hdf5_writer import write_hdf5
from fedsim.data.index import Int64s
from fedsim.data.partition import only_users
from fedsim.data.sources import scanner_of
from fedsim.errors import ConfigError, DataError
from fedsim.whole_file import whole_file

SERVER = "server.h5"


def split_for_deployment(
    source: str | Path, destination: str | Path, num_nodes: int
) -> Iterator[tuple[Path, int, int]]:
    """Write ``server.h5`` (val and test) and ``node-1.h5`` and so on (the train users, in turn).

    Every file has all label names, and every image keeps its bytes.

    Args:
        source: A file in fedsim's HDF5 format, or "openclipart".
        destination: The folder; made if it is not there.
        num_nodes: At least 1, at most the train users.

    Yields:
        Each file, its users and its images, when it is written.

    Raises:
        ConfigError: ``num_nodes`` is out of its range.
        DataError: The source is of another kind, is not what its ``content_sha256`` says or would
            be overwritten, or a file can't be written.
    """
    images = scanner_of(str(source))().images
    if not isinstance(images, Hdf5Images):
        raise DataError(
            f"{source}: expected a file in fedsim's HDF5 format, found another kind of collection; "
            "make one with `fedsim data convert`"
        )
    _, num_train = images.index.users_of("train")
    if not 1 <= num_nodes <= num_train:
        raise ConfigError(
            f"nodes: expected 1 to {num_train} (the train users), found {num_nodes}; change it"
        )
    check_content(images)  # or damage would get a hash of its own
    folder = Path(destination)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder}: expected a folder to write to, found {error.strerror}; choose another"
        ) from error
    shares = {SERVER: np.arange(num_train, len(images.index.user_ids), dtype=np.int64)}
    for node in range(num_nodes):
        shares[f"node-{node + 1}.h5"] = np.arange(node, num_train, num_nodes, dtype=np.int64)
    if Path(images.place).resolve() in [(folder / name).resolve() for name in shares]:
        raise DataError(
            f"{folder}: expected a folder in which no file of the split is the source, found "
            f"{Path(images.place).name} there; choose another folder"
        )
    for name, users in shares.items():
        yield folder / name, len(users), _write(images, users, folder / name)


def _write(images: Hdf5Images, users: Int64s, path: Path) -> int:
    kept = only_users(images, users)
    sizes = np.diff(images.offsets)[kept.rows]
    checksum = hash_of(kept.index, images.read(kept.rows.tolist()))
    stored = images.read(kept.rows.tolist())
    try:
        with whole_file(path) as place:
            write_hdf5(place, kept.index, stored, sizes, images.about, checksum)
    except OSError as error:  # of the last step
        raise DataError(
            f"{path}: expected a place for a file, found {error.strerror}; choose another folder"
        ) from error
    return len(kept.index)
