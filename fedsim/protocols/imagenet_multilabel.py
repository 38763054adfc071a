"""Shows how many predictions are right by ImageNet's reviewed labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.chart import Chart
from fedsim.errors import DataError
from fedsim.evaluation.imagenet_annotations import Annotations
from fedsim.evaluation.imagenet_multilabel import AveragedClasses, MultiLabelScores
from fedsim.evaluation.imagenet_predictions import read_predictions
from fedsim.metrics.inputs import Average
from fedsim.printable import printable
from fedsim.protocols.imagenet_multilabel_figure import original_against_reviewed
from fedsim.protocols.output import Findings
from fedsim.tables import Cell, Column, Table

_AVERAGE_WORDS = {"macro": "mean over classes", "micro": "all images pooled"}
_PUBLISHED_M = 68


def read_models(
    files: Sequence[Path], annotations: Annotations, columns: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Read the predictions of all files; a model is named by its file, or its column, or both.

    Raises:
        DataError: A file can't be used, or two models have one name.
    """
    models: dict[str, dict[str, int]] = {}
    for path in files:
        for name, found in read_predictions(path, annotations.classes, columns).items():
            name = f"{path.stem}: {name}" if columns and len(files) > 1 else name
            if name in models:
                raise DataError(
                    f"{path}: expected files of different names, found {name} twice; rename one"
                )
            models[name] = found
    return models


def multilabel_findings(
    annotations: Annotations,
    models: Mapping[str, Mapping[Any, Any]],
    *,
    average: Average = "macro",
    classes: AveragedClasses = "all",
    strict: bool = False,
) -> Findings:
    """Score models by ``MultiLabelScores``, and say what is shown of it.

    Args:
        annotations: Reviewed labels.
        models: Predictions by file name, by the name of the model.
        average: As in ``MultiLabelScores.share``.
        classes: Likewise.
        strict: As in ``MultiLabelScores.of``.
    """
    scores = {
        name: MultiLabelScores.of(annotations, predictions, strict=strict)
        for name, predictions in models.items()
    }
    facts = {
        "protocol": "imagenet-multilabel",
        "average": average,
        "classes": classes,
        "strict": strict,
        "models": [
            {"model": name, **_facts(each, average, classes)} for name, each in scores.items()
        ],
    }
    return Findings(
        "imagenet_multilabel",
        facts,
        (_overall(scores, average, classes, strict), _by_class(scores)),
        _remarks(annotations, average, strict),
        lambda: [_chart(name, k, each) for k, (name, each) in enumerate(scores.items())],
    )


def _facts(scores: MultiLabelScores, average: Average, classes: AveragedClasses) -> dict[str, Any]:
    present = np.flatnonzero(scores.images)
    wnids = scores.classes.wnids
    return {
        "accuracy": scores.accuracy(average, classes),
        "original_label_accuracy": scores.original_accuracy(average, classes),
        "num_images": int(scores.images.sum()),
        "num_right": int(scores.right.sum()),
        "num_classes": len(present),
        "num_problematic_left_out": scores.num_problematic,
        "num_predictions_not_reviewed": scores.num_not_reviewed,
        "imagenet_m_right": scores.imagenet_m_right,
        "imagenet_m_images": scores.imagenet_m_images,
        "per_class": [
            {
                "class": int(k),
                "wnid": None if wnids is None else wnids[k],
                "images": int(scores.images[k]),
                "right": int(scores.right[k]),
                "right_original_label": int(scores.right_original[k]),
            }
            for k in present
        ],
    }


def _overall(
    scores: Mapping[str, MultiLabelScores],
    average: Average,
    classes: AveragedClasses,
    strict: bool,
) -> Table:
    accepted = "correct labels only" if strict else "correct or unclear labels"
    return Table(
        "imagenet_multilabel",
        f"ImageNet, reviewed labels: {accepted}, {_AVERAGE_WORDS[average]}",
        (
            Column("model"),
            Column("images"),
            Column("classes"),
            Column("accuracy", 8),
            Column("by own label", 8),
            Column("not reviewed"),
            Column("ImageNet-M"),
        ),
        tuple(
            (
                name,
                int(each.images.sum()),
                int((each.images > 0).sum()),
                each.accuracy(average, classes),
                each.original_accuracy(average, classes),
                each.num_not_reviewed,
                f"{each.imagenet_m_right} of {each.imagenet_m_images}"
                if each.imagenet_m_images
                else None,
            )
            for name, each in scores.items()
        ),
        "By own label: top-1 accuracy by ImageNet's single labels. Not reviewed: predictions that "
        "no expert has seen; they count as wrong.",
    )


def _by_class(scores: Mapping[str, MultiLabelScores]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, each in scores.items():
        wnids = each.classes.wnids
        for k in np.flatnonzero(each.images):
            images = int(each.images[k])
            shares = [float(right[k]) / images for right in (each.right, each.right_original)]
            wnid = None if wnids is None else wnids[k]
            rows.append((name, int(k), wnid, images, *shares, shares[0] - shares[1]))
    rows.sort(key=lambda row: (abs(float(row[-1] or 0)), row[3]), reverse=True)
    return Table(
        "imagenet_multilabel_classes",
        "Each class, the largest differences first",
        (
            Column("model"),
            Column("class"),
            Column("wnid"),
            Column("images"),
            Column("accuracy", 4),
            Column("by own label", 4),
            Column("difference", 4),
        ),
        tuple(rows),
    )


def _remarks(annotations: Annotations, average: Average, strict: bool) -> tuple[str, ...]:
    left_out = int(annotations.problematic.sum())
    remarks = [
        f"{left_out:,} problematic images were left out."
        if left_out
        else "No image is marked as problematic: they must have been left out before."
    ]
    if average == "micro" and not strict:
        remarks.append("The published protocol takes the mean over classes, not over images.")
    if strict:
        remarks.append("The published protocol accepts unclear labels too.")
    number = int(annotations.imagenet_m.sum())
    if number not in (0, _PUBLISHED_M):
        remarks.append(f"ImageNet-M has {_PUBLISHED_M} images; {number} of them are annotated.")
    return tuple(remarks)


def _chart(name: str, number: int, scores: MultiLabelScores) -> Chart:
    title = f"Each class by reviewed labels: {printable(name, 24)}"
    caption = (
        "A mark is a class, or as many as its area says that share a place. Above the dashed line, "
        "predictions that ImageNet's own label calls wrong are right by the reviewed labels."
    )
    figure = original_against_reviewed(title, scores)
    return Chart(f"imagenet_multilabel_{number + 1}", title, caption, figure)
