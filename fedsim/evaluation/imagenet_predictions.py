"""Reads what models predict for ImageNet images: classes by number or wnid, or scores."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.data.faults import shown
from fedsim.errors import DataError
from fedsim.evaluation.imagenet_classes import Classes, class_of_scores
from fedsim.evaluation.prediction_arrays import array_names, read_arrays
from fedsim.evaluation.prediction_files import column_names, plain_name, read_table

PREDICTION = "prediction"
FILE_NAME = "file_name"


def predicted_classes(
    predictions: Mapping[Any, Any], classes: Classes, *, where: str = "predictions"
) -> dict[str, int]:
    """Return the number of the class that is predicted for each image.

    Args:
        predictions: By file name, as text or bytes: a class's number or wnid, or a score for each
            class, of which the first of the highest counts.
        classes: What predictions may name.
        where: What they are called, for messages.

    Raises:
        DataError: A name is there as text and as bytes, or a prediction is of no class.

    Examples:
        >>> predicted_classes({b"a.JPEG": 7, "b.JPEG": [0.1] * 999 + [0.2]}, Classes())
        {'a.JPEG': 7, 'b.JPEG': 999}
    """
    found: dict[str, int] = {}
    for key, value in predictions.items():
        name = plain_name(key)
        if not name:
            raise DataError(f"{where}: expected file names, found {key!r:.60}; name the images so")
        if name in found:
            raise DataError(
                f"{where}: expected each image once, found {shown(name)} twice; remove one of them"
            )
        is_row = hasattr(value, "__len__") and not isinstance(value, str | bytes)
        try:
            found[name] = class_of_scores(value, classes) if is_row else classes.index(value)
        except DataError as error:
            raise DataError(f"{where}, {shown(name)}: {error}; mend the prediction") from error
    return found


def read_predictions(
    path: Path, classes: Classes, columns: Sequence[str] = ()
) -> dict[str, dict[str, int]]:
    """Read the predictions of one model or more.

    * ``.npz``: ``file_names`` (text or bytes), and ``predictions`` (numbers or wnids) or
      ``scores`` of shape (images, classes).
    * ``.csv``, ``.parquet``, ``.jsonl``: ``file_name``, and ``prediction`` or a column of scores
      for each class, named by its number or wnid.

    Args:
        path: The file.
        classes: What predictions may name.
        columns: Of a table: one for each model, instead of ``prediction``.

    Returns:
        The class of each image by its file name, for each model by its name.

    Raises:
        DataError: It is no such file, an image is there twice, or a prediction is of no class.
    """
    if path.suffix.lower() == ".npz":
        return {path.stem: _of_arrays(path, classes)}
    names = column_names(path)
    if columns or PREDICTION in names:
        table = read_table(path, [FILE_NAME, *(columns or [PREDICTION])])
        images = table.unique_names(FILE_NAME)
        found = {}
        for column in columns or [PREDICTION]:
            by_name = dict(zip(images, table.cells[column], strict=True))
            where = f"{path}, column {column}"
            model = column if columns else path.stem
            found[model] = predicted_classes(by_name, classes, where=where)
        return found
    return {path.stem: _of_score_columns(path, names, classes)}


def _of_arrays(path: Path, classes: Classes) -> dict[str, int]:
    given = "scores" if "scores" in array_names(path) else "predictions"
    arrays = read_arrays(path, ("file_names", given))
    names, values = arrays["file_names"], arrays[given]
    dimensions = 2 if given == "scores" else 1
    if names.ndim != 1 or values.ndim != dimensions or len(values) != len(names):
        raise DataError(
            f"{path}: expected file_names of shape (images,) and {given} of "
            f"{'(images, classes)' if dimensions == 2 else '(images,)'}, found {names.shape} and "
            f"{values.shape}; write one for each image"
        )
    if not len(names):
        raise DataError(f"{path}: expected at least one image, found none; check what wrote it")
    images = [plain_name(name) or "" for name in names.tolist()]
    _check_once(path, images)
    rows = values if dimensions == 2 else values.tolist()
    return predicted_classes(dict(zip(images, rows, strict=True)), classes, where=str(path))


def _of_score_columns(path: Path, names: Sequence[str], classes: Classes) -> dict[str, int]:
    columns: dict[int, str] = {}
    try:
        for name in names:
            if name != FILE_NAME:
                columns[classes.index(name)] = name
    except DataError as error:
        raise DataError(
            f"{path}: expected a column {PREDICTION}, or scores in columns named by class, found "
            f"the columns {shown(list(names))}; rename one, or choose it with --column"
        ) from error
    if len(columns) != classes.number or len(columns) != len(names) - 1:
        raise DataError(
            f"{path}: expected the scores of {classes.number} classes, found "
            f"{len(names) - 1} columns; write each class once"
        )
    table = read_table(path, [FILE_NAME], [columns[number] for number in range(classes.number)])
    by_name = dict(zip(table.unique_names(FILE_NAME), table.numbers, strict=True))
    return predicted_classes(by_name, classes, where=str(path))


def _check_once(path: Path, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise DataError(
            f"{path}: expected each image once, found {shown(twice)} again; remove one of them"
        )
