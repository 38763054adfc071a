"""All 5,078 drawings in every form that people hold FLAIR in: the same bits of training."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hdf5_writers import PixelsById, write_grouped, write_pfl
from PIL import Image
from pyarrow import parquet
from raw_folders import Entry

import fedsim
from fedsim.data.hdf5 import open_hdf5
from fedsim.data.index import SPLITS
from fedsim.data.sources import OPENCLIPART


@pytest.fixture(scope="module")
def drawings() -> tuple[list[Entry], dict[str, bytes]]:
    """The packaged collection as FLAIR's metadata would list it, with its JPEGs."""
    images = open_hdf5(OPENCLIPART)
    index, entries = images.index, []
    labels = {
        name: [np.flatnonzero(row) for row in rows.dense(np.arange(len(index)))]
        for name, rows in index.labels.items()
    }
    for user in range(len(index.user_ids)):
        for row in range(*index.user_offsets[user : user + 2].tolist()):
            entry = {
                "user_id": index.user_ids[user],
                "image_id": index.image_ids[row],
                "partition": SPLITS[index.user_splits[user]],
            }
            for key, name in (("labels", "coarse"), ("fine_grained_labels", "fine")):
                entry[key] = [index.labels[name].names[label] for label in labels[name][row]]
            entries.append(entry)
    data = images.read(range(len(index)))
    return entries, {entry["image_id"]: jpeg for entry, jpeg in zip(entries, data, strict=True)}


def write_folder(path: Path, entries: list[Entry], jpegs: dict[str, bytes]) -> Path:
    (path / "small_images").mkdir(parents=True)
    (path / "labels_and_metadata.json").write_text(json.dumps(entries))
    for image_id, jpeg in jpegs.items():
        (path / "small_images" / f"{image_id}.jpg").write_bytes(jpeg)
    return path


def write_parquet(path: Path, entries: list[Entry], jpegs: dict[str, bytes]) -> Path:
    path.mkdir()
    for split in SPLITS:
        rows = [
            {**entry, "image": {"bytes": jpegs[entry["image_id"]], "path": None}}
            for entry in entries
            if entry["partition"] == split
        ]
        table = pa.Table.from_pylist(rows).drop(["partition"])
        parquet.write_table(table, path / f"{split}-00000-of-00001.parquet", row_group_size=100)
    return path


def as_pixels(write: Callable[[Path, list[Entry], PixelsById], Path]) -> Callable[..., Path]:
    def written(path: Path, entries: list[Entry], jpegs: dict[str, bytes]) -> Path:
        pixels = {key: np.asarray(Image.open(io.BytesIO(jpeg))) for key, jpeg in jpegs.items()}
        return write(path, entries, pixels)

    return written


FORMS = {
    "raw": write_folder,
    "ml_flair.h5": as_pixels(write_grouped),
    "pfl.h5": as_pixels(write_pfl),
    "parquet": write_parquet,
}


def trained(source: str, out: Path) -> tuple[dict[str, torch.Tensor], str]:
    """Return the arrays after two rounds, and the hash of the index."""
    settings = {
        "name": "form",
        "data": {"source": source, "labels": "fine", "image_size": 24},
        "model": {"name": "cnn", "channels": [4]},
        "federated": {"num_rounds": 2, "cohort_size": 12},
        "evaluation": {"bootstrap_resamples": 0, "num_val_images": 60},
        "engine": {"workers": 1},
    }
    fedsim.run(settings, out)
    state = torch.load(out / "form" / "seed0" / "checkpoint" / "state.pt", weights_only=True)
    return state["arrays"], state["settings"]["data_index"]


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], str]:
    return trained("openclipart", tmp_path_factory.mktemp("packaged"))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_bits_of_training(
    form: str,
    drawings: tuple[list[Entry], dict[str, bytes]],
    packaged: tuple[dict[str, torch.Tensor], str],
    tmp_path: Path,
) -> None:
    source = FORMS[form](tmp_path / form, *drawings)
    arrays, index_hash = trained(str(source), tmp_path / "out")
    assert index_hash == packaged[1]
    assert all(torch.equal(arrays[name], packaged[0][name]) for name in packaged[0])
