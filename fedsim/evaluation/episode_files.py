"""Features of images, and stored episodes, as NPZ files; nothing in them is ever unpickled."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.evaluation.episodes import Episodes, Int64s
from fedsim.evaluation.prediction_arrays import read_arrays


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """Features of images with their classes.

    Attributes:
        features: Numbers, shape (images, features).
        labels: int64 array of shape (images,): the classes as given if they are whole numbers,
            else their positions in ``names``.
        names: Sorted class names, if the classes are texts.
    """

    features: npt.NDArray[Any]
    labels: Int64s
    names: tuple[str, ...] | None


def read_features(path: Path) -> LabelledFeatures:
    """Read ``features`` (images x anything, numbers) and ``classes`` (whole numbers or texts).

    Raises:
        DataError: The file can't be read, an array is missing or of another form, there are no
            images, or a feature is NaN or infinite.
    """
    arrays = read_arrays(path, ("features", "classes"))
    features, classes = arrays["features"], arrays["classes"]
    if features.dtype.kind not in "fiub" or features.ndim < 2:
        raise DataError(
            f"{path}: expected features of numbers with a row per image, found shape "
            f"{features.shape} of {features.dtype}; store an array of shape (images, features)"
        )
    if classes.shape != features.shape[:1] or classes.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: expected one class, a whole number or a text, for each of "
            f"{len(features)} images, found shape {classes.shape} of {classes.dtype}; store an "
            "array of shape (images,), names as text"
        )
    if not features.size:
        raise DataError(f"{path}: expected features, found none; store at least one row")
    features = features.reshape(len(features), -1)
    bad = ~np.isfinite(features).all(axis=1)
    if bad.any():
        raise DataError(
            f"{path}: expected finite features, found NaN or infinity in {bad.sum()} rows, first "
            f"in row {bad.argmax()}; leave these images out"
        )
    if classes.dtype.kind == "U":
        names, labels = np.unique(classes, return_inverse=True)
        return LabelledFeatures(features, labels.astype(np.int64), tuple(names.tolist()))
    return LabelledFeatures(features, classes.astype(np.int64), None)


def store_episodes(path: Path, runs: Sequence[Episodes]) -> None:
    """Write the episodes of runs: ``classes``, ``indices`` (run first) and ``num_shots``."""
    with path.open("wb") as file:
        np.savez_compressed(
            file,
            allow_pickle=False,
            classes=np.stack([run.classes for run in runs]),
            indices=np.stack([run.indices for run in runs]),
            num_shots=np.array(runs[0].num_shots),
        )


def load_episodes(path: Path, num_shots: int = 5) -> list[Episodes]:
    """Read the episodes of runs.

    Args:
        path: What ``store_episodes`` wrote, or any NPZ with ``classes`` of shape (runs, episodes,
            ways) and ``indices`` of shape (runs, episodes, ways, shots + queries).
        num_shots: Support images of a class, for a file that does not tell.

    Raises:
        DataError: The file can't be read, or the arrays do not fit one another.
    """
    arrays = read_arrays(path, ("classes", "indices"), ("num_shots",))
    classes, indices = arrays["classes"], arrays["indices"]
    if (
        classes.dtype.kind not in "iu"
        or indices.dtype.kind not in "iu"
        or classes.ndim != 3
        or indices.shape[:-1] != classes.shape
        or not indices.size
    ):
        raise DataError(
            f"{path}: expected whole numbers, classes of shape (runs, episodes, ways) and indices "
            f"of shape (runs, episodes, ways, images), found {classes.shape} of {classes.dtype} "
            f"and {indices.shape} of {indices.dtype}; store them so"
        )
    stored = arrays.get("num_shots", np.array(num_shots))
    shots = int(stored) if stored.shape == () and stored.dtype.kind in "iu" else 0
    if not 0 < shots < indices.shape[-1]:
        raise DataError(
            f"{path}: expected from 1 to {indices.shape[-1] - 1} shots among "
            f"{indices.shape[-1]} images of a class, found {stored}; change num_shots"
        )
    return [
        Episodes(one.astype(np.int64), rows.astype(np.int64), shots)
        for one, rows in zip(classes, indices, strict=True)
    ]


def check_fit(path: Path, runs: Sequence[Episodes], labels: Int64s) -> None:
    """Refuse stored episodes that are not of some data, or whose queries are in their support.

    Args:
        path: The episodes' file, for errors.
        runs: The episodes.
        labels: The class of every image.

    Raises:
        DataError: What is wrong, with the first such episode.
    """
    for run, episodes in enumerate(runs):
        outside = (episodes.indices < 0) | (episodes.indices >= len(labels))
        _refuse(path, run, outside, f"rows from 0 to {len(labels) - 1}", "another row")
        others = labels[episodes.indices] != episodes.classes[..., None]
        _refuse(path, run, others, "images of the episode's classes", "an image of another class")
        twice = np.diff(np.sort(episodes.indices, axis=2), axis=2) == 0
        _refuse(path, run, twice, "different images", "an image twice")
        same = np.diff(np.sort(episodes.classes, axis=1), axis=1) == 0
        _refuse(path, run, same, "different classes", "a class twice")


def _refuse(path: Path, run: int, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> None:
    bad = wrong.reshape(len(wrong), -1).any(axis=1)
    if bad.any():
        raise DataError(
            f"{path}, run {run}, episode {bad.argmax()}: expected {expected}, found {found}; use "
            "the features that the episodes were drawn for"
        )
