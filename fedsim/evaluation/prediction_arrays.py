"""Reads NPZ files of predictions and of truth. Nothing is unpickled."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import numpy.typing as npt

from fedsim.data.faults import shown
from fedsim.errors import DataError
from fedsim.evaluation.prediction_files import file_faults


def array_names(path: Path) -> tuple[str, ...]:
    """Return the names of an NPZ file's arrays.

    Raises:
        DataError: There is no such file, or it is no NPZ file.
    """
    with _stored(path) as stored:
        return tuple(stored.files)


def read_arrays(
    path: Path, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of an NPZ file by their names; others are not looked at.

    Raises:
        DataError: There is no such file, it is no NPZ file, lacks an array, or holds a pickle.
    """
    with _stored(path) as stored:
        missing = [name for name in needed if name not in stored.files]
        if missing:
            raise DataError(
                f"{path}: expected the arrays {', '.join(needed)}, found no "
                f"{', '.join(missing)} among {shown(stored.files)}; name them so"
            )
        return {name: stored[name] for name in (*needed, *optional) if name in stored.files}


@contextmanager
def _stored(path: Path) -> Iterator[Any]:
    try:
        with file_faults(path, "an NPZ file"), path.open("rb") as file:
            if not is_zipfile(file):
                raise BadZipFile("another kind of file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                yield stored
    except (ValueError, EOFError, BadZipFile) as error:
        raise DataError(
            f"{path}: expected an NPZ file of plain arrays, found {str(error)[:200]}; write it "
            "with numpy.savez, and strings as text, not as objects"
        ) from error
