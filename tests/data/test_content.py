"""What a file says of its content, beside its content."""

from pathlib import Path

import numpy as np
import pytest

from fedsim.data.content import check_content
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.sources import OPENCLIPART
from fedsim.data.split import split_for_deployment
from fedsim.errors import DataError


@pytest.mark.parametrize("where", ["an image", "a label"])
def test_a_changed_file_is_not_what_it_says(tmp_path: Path, where: str) -> None:
    images = open_hdf5(OPENCLIPART)
    check_content(images)
    data = bytearray(OPENCLIPART.read_bytes())
    if where == "an image":
        place = images.blob_start + 1000
    else:
        labels = images.index.labels["fine"].indices.tobytes()
        place = data.index(labels) + 2 * int(np.flatnonzero(images.index.labels["fine"].indices)[0])
    data[place] ^= 1
    path = tmp_path / "changed.h5"
    path.write_bytes(data)
    assert len(open_hdf5(path).index) == 5078  # what opening does not see
    with pytest.raises(DataError, match=r"changed\.h5: expected images with the stored content"):
        check_content(open_hdf5(path))
    with pytest.raises(DataError, match=r"the source is damaged or was changed"):
        next(split_for_deployment(path, tmp_path / "split", 1))
