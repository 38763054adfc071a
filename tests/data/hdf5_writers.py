"""Writes FLAIR's HDF5 files with plain h5py calls, as ml-flair and pfl-research lay them out.

``pixels`` gives each image's array by its id, as ``numpy.asarray`` of an opened image does.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from raw_folders import Entry

PixelsById = dict[str, npt.NDArray[Any]]
WriteFlair = Callable[[Path, list[Entry], PixelsById], Path]

KEYS = ("labels", "fine_grained_labels")


def write_grouped(path: Path, entries: list[Entry], pixels: PixelsById) -> Path:
    """ml-flair, grouped by user."""
    with h5py.File(path, "w") as file:
        for user, own in of_users(entries).items():
            group = f"/{own[0]['partition']}/{user}"
            for key in KEYS:
                file[f"{group}/{key}"] = fixed(["|".join(entry[key]) for entry in own])
            write_images(file, group, own, pixels)
        write_counts(file, entries, "counter")
    return path


def write_ungrouped(path: Path, entries: list[Entry], pixels: PixelsById) -> Path:
    """ml-flair, a group for every image."""
    with h5py.File(path, "w") as file:
        write_single_images(file, entries, pixels)
        write_counts(file, entries, "counter")
    return path


def write_pfl_ungrouped(path: Path, entries: list[Entry], pixels: PixelsById) -> Path:
    """pfl-research, a group for every image, with counts in place of a mapping."""
    with h5py.File(path, "w") as file:
        write_single_images(file, entries, pixels)
        write_counts(file, entries, "mapping")
    return path


def write_pfl(path: Path, entries: list[Entry], pixels: PixelsById) -> Path:
    """pfl-research, grouped by user, with the ones of a sparse matrix for labels."""
    columns = {
        key: {
            name: place for place, name in enumerate(sorted({n for e in entries for n in e[key]}))
        }
        for key in KEYS
    }
    with h5py.File(path, "w") as file:
        for user, own in of_users(entries).items():
            group = f"/{own[0]['partition']}/{user}"
            for key, bits in (("labels", np.uint8), ("fine_grained_labels", np.uint16)):
                ones = [(row, name) for row, entry in enumerate(own) for name in entry[key]]
                file[f"{group}/{key}_row"] = np.array([row for row, _ in ones], dtype=np.uint16)
                numbers = [columns[key][name] for _, name in ones]
                file[f"{group}/{key}_col"] = np.array(numbers, dtype=bits)
            write_images(file, group, own, pixels)
        file["/metadata/label_mapping"] = json.dumps(columns["labels"])
        file["/metadata/fine_grained_label_mapping"] = json.dumps(columns["fine_grained_labels"])
    return path


def of_users(entries: list[Entry]) -> dict[str, list[Entry]]:
    users: dict[str, list[Entry]] = {}
    for entry in entries:
        users.setdefault(entry["user_id"], []).append(entry)
    return users


def fixed(texts: list[str]) -> npt.NDArray[np.bytes_]:
    return np.array([text.encode() for text in texts], dtype="S")


def write_images(file: h5py.File, group: str, own: list[Entry], pixels: PixelsById) -> None:
    file[f"{group}/image_ids"] = fixed([entry["image_id"] for entry in own])
    stack = np.stack([pixels[entry["image_id"]] for entry in own])
    file.create_dataset(f"{group}/images", data=stack)


def write_single_images(file: h5py.File, entries: list[Entry], pixels: PixelsById) -> None:
    for entry in entries:
        group = f"/{entry['partition']}/{entry['image_id']}"
        file[f"{group}/image"] = pixels[entry["image_id"]]
        for key in KEYS:
            file[f"{group}/{key}"] = "|".join(entry[key])
        file[f"{group}/user_id"] = entry["user_id"]


def write_counts(file: h5py.File, entries: list[Entry], what: str) -> None:
    for key in KEYS:
        counts = Counter(name for entry in entries for name in entry[key])
        file[f"/metadata/{key[:-1]}_{what}"] = json.dumps(counts)
