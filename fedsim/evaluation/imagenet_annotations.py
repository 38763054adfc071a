"""Reads the reviewed labels of ImageNet's validation images, in the forms that they come in."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.faults import shown
from fedsim.errors import DataError
from fedsim.evaluation.imagenet_classes import NUM_CLASSES, WNID, Classes, read_lines
from fedsim.evaluation.prediction_files import (
    PredictionTable,
    check_columns,
    column_names,
    file_faults,
    read_table,
)

Labels = tuple[frozenset[int], ...]

_PREFIX = "ILSVRC2012_val_"  # other names in the published file are of another test set
_KINDS = ("correct", "wrong", "unclear")
_BOTH = "correct_or_unclear_multi_labels"
_APART = ("correct_multi_labels", "unclear_multi_labels")
_OPTIONAL = ("wrong_multi_labels", "is_problematic", "imagenet_m")
_SEPARATORS = re.compile(r"[\s,|]+")


@dataclass(frozen=True, eq=False)
class Annotations:
    """Reviewed labels; arrays and tuples are of the length of ``file_names``.

    Attributes:
        place: Where they were read, for messages.
        file_names: Of the images, no two the same.
        original: The class that each has in ImageNet, int64.
        correct: Labels that are right; with ``unclear`` None, the unclear ones are among them.
        unclear: Labels that experts did not agree on; None if they are not told apart.
        wrong: Labels that were reviewed and are wrong; None if they are not told.
        problematic: Images that accuracy leaves out.
        imagenet_m: Images that belong to ImageNet-M.
        classes: What labels mean.
    """

    place: str
    file_names: tuple[str, ...]
    original: npt.NDArray[np.int64]
    correct: Labels
    unclear: Labels | None
    wrong: Labels | None
    problematic: npt.NDArray[np.bool_]
    imagenet_m: npt.NDArray[np.bool_]
    classes: Classes


def read_annotations(
    path: Path, *, originals: Path | None = None, classes: Classes | None = None
) -> Annotations:
    """Read reviewed labels.

    The form is told by the name's ending. ``.json`` is the published file, which does not hold the
    images' own classes. ``.csv``, ``.parquet`` and ``.jsonl`` are tables, as exports of the
    TensorFlow data set are: a row for each image with ``file_name``, ``original_label`` and
    ``correct_multi_labels`` and ``unclear_multi_labels``, or ``correct_or_unclear_multi_labels``;
    perhaps ``wrong_multi_labels``, ``is_problematic`` and ``imagenet_m``. In text, lists are
    joined by blanks, commas or ``|``.

    Args:
        path: The file.
        originals: The images' own classes, for ``.json`` only: a text file whose line n is the
            wnid of validation image n, or a table of ``file_name`` and ``original_label``.
        classes: What labels mean. By default 1,000 classes, whose wnids a ``.json`` file shows.

    Raises:
        DataError: It is no such file, an image is there twice, or a label names no class.
    """
    if path.suffix.lower() == ".json":
        if originals is None:
            raise DataError(
                f"{path}: expected the images' own classes beside it, which the published file "
                "does not hold; name a file of them with --originals"
            )
        return _of_published(path, originals, classes)
    if originals is not None:
        raise DataError(
            f"{originals}: expected no file of original labels, since {path} has a column of them; "
            "leave --originals away"
        )
    return _of_table(path, classes or Classes())


def _of_published(path: Path, originals: Path, classes: Classes | None) -> Annotations:
    images, problematic, imagenet_m = _published_parts(path)
    own = _read_originals(originals)
    unknown = [name for name in images if name not in own]
    if unknown:
        raise DataError(
            f"{originals}: expected the class of every annotated image, found none of "
            f"{shown(unknown[:2])}; give the whole validation set's"
        )
    lists = [labels for image in images.values() for labels in image.values()]
    if classes is None:
        wnids = {label for labels in lists for label in labels if WNID.fullmatch(label)}
        wnids |= {own[name] for name in images if WNID.fullmatch(str(own[name]))}
        if len(wnids) != NUM_CLASSES:
            raise DataError(
                f"{path}: expected labels of {NUM_CLASSES} wnids, found {len(wnids)}, so a class's "
                "number is unknown; name a file of all wnids with --wnids"
            )
        classes = Classes.of(wnids)
    names = list(images)

    def sets(kind: str) -> Labels:
        values = [image.get(kind, ()) for image in images.values()]
        return tuple(_read_each(path, names, values, lambda v: _label_set(v, classes)))

    own_classes = _read_each(originals, names, [own[name] for name in names], classes.index)
    return Annotations(
        str(path),
        tuple(names),
        np.array(own_classes, dtype=np.int64),
        sets("correct"),
        sets("unclear"),
        sets("wrong"),
        np.array([name in problematic for name in names], dtype=np.bool_),
        np.array([name in imagenet_m for name in names], dtype=np.bool_),
        classes,
    )


def _published_parts(path: Path) -> tuple[dict[str, dict[str, list[str]]], set[str], set[str]]:
    """Return each validation image's lists of wnids, problematic images, and ImageNet-M."""
    try:
        with file_faults(path, "the published annotations"):
            found = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(found, dict):
            raise TypeError(f"a {type(found).__name__}")
        images = {
            name: {kind: _wnids(name, image[kind]) for kind in _KINDS if kind in image}
            for name, image in found["initial_annots"].items()
            if name.startswith(_PREFIX)
        }
        problematic, imagenet_m = set(found["problematic_images"]), set(found["imagenet_m"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path}: expected initial_annots, problematic_images and imagenet_m as published, "
            f"found {what}; download it again"
        ) from error
    if not images:
        raise DataError(
            f"{path}: expected images named {_PREFIX}..., found none; download it again"
        )
    lost = sorted(imagenet_m - set(images))
    if lost:
        raise DataError(
            f"{path}: expected annotations of every ImageNet-M image, found none of "
            f"{shown(lost[:2])}; download it again"
        )
    return images, problematic, imagenet_m


def _wnids(name: str, labels: Any) -> list[str]:
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise TypeError(f"{shown(labels)} for {name}")
    return labels


def _read_originals(path: Path) -> Mapping[str, Any]:
    if path.suffix.lower() == ".txt":
        return {f"{_PREFIX}{n:08d}.JPEG": wnid for n, wnid in enumerate(read_lines(path), start=1)}
    table = read_table(path, ["file_name", "original_label"])
    names = table.unique_names("file_name")
    return dict(zip(names, table.cells["original_label"], strict=True))


def _of_table(path: Path, classes: Classes) -> Annotations:
    names = column_names(path)
    kinds = (_BOTH,) if _BOTH in names else _APART
    check_columns(path, names, ["file_name", "original_label", *kinds])
    table = read_table(
        path, ["file_name", "original_label", *kinds, *(n for n in _OPTIONAL if n in names)]
    )

    def sets(column: str) -> Labels | None:
        if column not in table.cells:
            return None
        read = _read_each(
            path, table.places, table.cells[column], lambda v: _label_set(v, classes), column
        )
        return tuple(read)

    original = _read_each(
        path, table.places, table.cells["original_label"], classes.index, "original_label"
    )
    return Annotations(
        str(path),
        tuple(table.unique_names("file_name")),
        np.array(original, dtype=np.int64),
        sets(kinds[0]) or (),
        None if _BOTH in names else sets(_APART[1]),
        sets("wrong_multi_labels"),
        _flags(table, "is_problematic"),
        _flags(table, "imagenet_m"),
        classes,
    )


def _label_set(value: Any, classes: Classes) -> frozenset[int]:
    """Return a list of labels, which may be written as text, as numbers of classes."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        value = [label for label in _SEPARATORS.split(value.strip("[]() \n")) if label]
    if not isinstance(value, list | tuple | np.ndarray):
        raise DataError(f"expected a list of labels, found {value!r:.60}")
    return frozenset(classes.index(label) for label in value)


def _flags(table: PredictionTable, column: str) -> npt.NDArray[np.bool_]:
    """Return a column of yes and no; without it, none is set."""
    values = table.cells.get(column, [False] * len(table.places))
    return np.array(_read_each(table.path, table.places, values, _flag, column), dtype=np.bool_)


def _flag(value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in ("true", "false", "1", "0"):
        raise DataError(f"expected true or false, found {value!r:.60}")
    return word in ("true", "1")


def _read_each(
    path: Path,
    places: Iterable[str],
    values: Iterable[Any],
    read: Callable[[Any], Any],
    column: str = "labels",
) -> list[Any]:
    """Read values one by one, and say where one is that can't be read."""
    found = []
    for place, value in zip(places, values, strict=True):
        try:
            found.append(read(value))
        except DataError as error:
            raise DataError(
                f"{path}, {place}, {column}: {error}; mend it, or say what labels mean with --wnids"
            ) from error
    return found
