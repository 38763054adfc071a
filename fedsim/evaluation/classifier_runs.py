"""Reads what classifiers predicted for the images of one test set: some models, some seeds each."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.faults import shown
from fedsim.errors import ConfigError, DataError
from fedsim.evaluation.class_prior import Counts, check_labels
from fedsim.evaluation.prediction_arrays import read_arrays
from fedsim.evaluation.prediction_files import (
    PredictionTable,
    check_columns,
    column_names,
    read_table,
)

_MOST_CLASSES = 10_000  # a confusion matrix of more would not fit
_OPTIONAL = ("model", "seed", "image")


@dataclass(frozen=True, eq=False)
class ClassifierRun:
    """Predictions of one training run.

    Attributes:
        model: What was trained.
        seed: Tells the model's runs apart.
        targets: Class of each test image, shape (images,).
        predictions: Predicted class of each test image.
        validation: Targets and predictions of other images, if there are any.
        class_counts: Training images of each class, if known, shape (classes,).
        images: Names of the test images, if known, in the order of ``targets``.
    """

    model: str
    seed: int
    targets: Counts
    predictions: Counts
    validation: tuple[Counts, Counts] | None = None
    class_counts: Counts | None = None
    images: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class ClassifierRuns:
    """Runs on one test set.

    Attributes:
        num_classes: Of all of them.
        by_model: The runs of each model, by seed; models in the order of the files.
    """

    num_classes: int
    by_model: dict[str, list[ClassifierRun]]

    @property
    def targets(self) -> Counts:
        """Class of each test image, shape (images,)."""
        return next(iter(self.by_model.values()))[0].targets


def read_runs(paths: Sequence[Path], num_classes: int | None = None) -> ClassifierRuns:
    """Read runs from NPZ files and tables.

    An NPZ file holds ``loss`` (the model's name) and ``seed`` of each run, shape (runs,),
    ``y_test`` of shape (images,) and ``pred_test`` of shape (runs, images); and, if it likes,
    ``y_val`` and ``pred_val`` of shape (runs, other images) and ``class_counts`` of shape (runs,
    classes). A table (CSV, Parquet, JSON lines) has the columns ``target`` and ``prediction``, and,
    if it likes, ``model`` (the file's name otherwise), ``seed`` (0 otherwise) and ``image`` (a
    name, by which rows are then sorted).

    Args:
        paths: At least one file.
        num_classes: By default the width of ``class_counts``, or else the largest label plus 1.

    Raises:
        ConfigError: ``num_classes`` is below 2.
        DataError: A file that is not of this form, a label out of range, a run that is there twice,
            or runs on different test sets.
    """
    if num_classes is not None and num_classes < 2:
        raise ConfigError(f"classes: expected at least 2, found {num_classes}; count all of them")
    runs = []
    for path in paths:
        runs += _npz_runs(path) if path.suffix.lower() == ".npz" else _table_runs(path)
    if num_classes is None:
        widths = [len(run.class_counts) for run in runs if run.class_counts is not None]
        labels = [array.max() for run in runs for array in (run.targets, run.predictions)]
        num_classes = widths[0] if widths else int(max(labels)) + 1
    by_model: dict[str, list[ClassifierRun]] = {}
    for run in runs:
        _check_run(run, num_classes, runs[0])
        siblings = by_model.setdefault(run.model, [])
        if any(other.seed == run.seed for other in siblings):
            raise DataError(
                f"model {shown(run.model)}: expected each seed once, found seed {run.seed} twice; "
                "give the runs different seeds or names"
            )
        siblings.append(run)
    ordered = {model: sorted(found, key=lambda run: run.seed) for model, found in by_model.items()}
    return ClassifierRuns(num_classes, ordered)


def _check_run(run: ClassifierRun, num_classes: int, first: ClassifierRun) -> None:
    name = f"model {shown(run.model)}, seed {run.seed}"
    arrays = [(run.targets, "targets"), (run.predictions, "predictions")]
    if run.validation is not None:
        arrays += [(run.validation[0], "y_val"), (run.validation[1], "pred_val")]
    for array, kind in arrays:
        check_labels(array, num_classes, f"{name}, {kind}")
    if run.class_counts is not None and (
        run.class_counts.shape != (num_classes,)
        or (run.class_counts < 0).any()
        or not run.class_counts.any()
    ):
        raise DataError(
            f"{name}, class_counts: expected a number of training images for each of "
            f"{num_classes} classes, found {shown(run.class_counts.tolist())}; mend or drop it"
        )
    if run.images != first.images or not np.array_equal(run.targets, first.targets):
        what = "targets" if run.images == first.images else "image names"
        raise DataError(
            f"{name}: expected the {what} of {shown(first.model)}, seed {first.seed}, in the same "
            "order, found others; predict the same test images in every run"
        )


def _npz_runs(path: Path) -> list[ClassifierRun]:
    arrays = read_arrays(
        path,
        ("loss", "seed", "y_test", "pred_test"),
        ("y_val", "pred_val", "class_counts"),
    )
    num_runs = arrays["loss"].size
    if not num_runs:
        raise DataError(f"{path}, loss: expected at least one run, found none; check what wrote it")
    shapes: dict[str, tuple[int | None, ...]] = {
        **{"loss": (num_runs,), "seed": (num_runs,), "y_test": (None,)},
        **{"pred_test": (num_runs, arrays["y_test"].size), "y_val": (num_runs, None)},
        **{"class_counts": (num_runs, None)},
    }
    if ("y_val" in arrays) != ("pred_val" in arrays):
        raise DataError(
            f"{path}: expected y_val and pred_val, or neither, found one of them; add the other"
        )
    if "y_val" in arrays:
        shapes["pred_val"] = arrays["y_val"].shape
    for name, array in arrays.items():
        _check_array(path, name, array, shapes[name])
    integers = {name: array.astype(np.int64) for name, array in arrays.items() if name != "loss"}
    return [
        ClassifierRun(
            model=str(arrays["loss"][row]),
            seed=int(integers["seed"][row]),
            targets=integers["y_test"],
            predictions=integers["pred_test"][row],
            validation=(integers["y_val"][row], integers["pred_val"][row])
            if "y_val" in integers
            else None,
            class_counts=integers["class_counts"][row] if "class_counts" in integers else None,
        )
        for row in range(num_runs)
    ]


def _check_array(
    path: Path, name: str, array: npt.NDArray[Any], shape: tuple[int | None, ...]
) -> None:
    fits = array.ndim == len(shape) and all(
        wanted is None or wanted == length
        for wanted, length in zip(shape, array.shape, strict=True)
    )
    kinds, words = ("U", "text") if name == "loss" else ("iu", "whole numbers")
    if not fits or array.dtype.kind not in kinds:
        told = ", ".join("any" if length is None else str(length) for length in shape)
        raise DataError(
            f"{path}, {name}: expected {words} of shape ({told}), found {array.dtype} of shape "
            f"{array.shape}; see docs/protocols.md for the form"
        )


def _table_runs(path: Path) -> list[ClassifierRun]:
    found = column_names(path)
    needed = ("target", "prediction")
    check_columns(path, found, needed)
    unknown = [name for name in found if name not in (*needed, *_OPTIONAL)]
    if unknown:
        raise DataError(
            f"{path}: expected no columns but {', '.join((*needed, *_OPTIONAL))}, found "
            f"{shown(unknown[0])}; rename or remove it"
        )
    table = read_table(path, found)
    num_rows = len(table.places)
    targets, predictions = _labels(table, "target"), _labels(table, "prediction")
    models = table.names("model") if "model" in found else [path.stem] * num_rows
    seeds = _integers(table, "seed") if "seed" in found else [0] * num_rows
    rows_of: dict[tuple[str, int], list[int]] = {}
    for row, run in enumerate(zip(models, seeds, strict=True)):
        rows_of.setdefault(run, []).append(row)
    images = table.names("image") if "image" in found else None
    runs = []
    for (model, seed), rows in rows_of.items():
        order, names = rows, None
        if images is not None:
            order = _by_image(table, rows, images)
            names = tuple(images[row] for row in order)
        runs.append(ClassifierRun(model, seed, targets[order], predictions[order], images=names))
    return runs


def _by_image(table: PredictionTable, rows: list[int], images: list[str]) -> list[int]:
    """Return a run's rows in the order of their images' names, each of which is there once."""
    order = sorted(rows, key=lambda row: images[row])
    for before, row in pairwise(order):
        if images[before] == images[row]:
            raise DataError(
                f"{table.path}: expected each image once in a run, found {shown(images[row])} in "
                f"{table.places[before]} and in {table.places[row]}; remove one of them"
            )
    return order


def _labels(table: PredictionTable, column: str) -> Counts:
    labels = _integers(table, column)
    for place, label in zip(table.places, labels, strict=True):
        if not 0 <= label < _MOST_CLASSES:
            raise DataError(
                f"{table.path}, {place}: expected a class from 0 up in column {column}, found "
                f"{label}; number the classes from 0"
            )
    return np.array(labels, dtype=np.int64)


def _integers(table: PredictionTable, column: str) -> list[int]:
    numbers = []
    for place, cell in zip(table.places, table.cells[column], strict=True):
        try:
            # A float or a boolean is no class number, though int() would take it.
            numbers.append(int(cell if isinstance(cell, str) else str(cell)))
        except ValueError as error:
            raise DataError(
                f"{table.path}, {place}: expected a whole number in column {column}, found "
                f"{str(cell)!r:.60}; write one"
            ) from error
    return numbers
