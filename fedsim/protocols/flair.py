"""Shows what FLAIR's protocol says of a model."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.chart import Chart
from fedsim.errors import ConfigError
from fedsim.evaluation.flair import AveragedScores, FlairScores, score_flair, why_not_ap
from fedsim.evaluation.flair_files import FlairPredictions, read_npz, read_two_tables
from fedsim.evaluation.prediction_files import TABLES
from fedsim.kept_scores import SCORES_FILE, load_kept_scores
from fedsim.protocols.flair_figure import ap_against_frequency
from fedsim.protocols.output import Findings
from fedsim.tables import Cell, Column, Table

_MEASURES = (
    ("average precision, exact", "ap"),
    ("average precision, 200 thresholds (as published)", "ap_binned200"),
    ("precision at 0.5", "precision"),
    ("recall at 0.5", "recall"),
    ("F1 at 0.5 (macro: mean of the labels' F1)", "f1"),
)


def read_predictions(
    files: Sequence[Path], *, id_column: str = "id", user_column: str = "user"
) -> FlairPredictions:
    """Read what the command is given: an NPZ file, a run's scores or its folder, or two tables.

    Raises:
        ConfigError: It is another number of files.
        DataError: A file can't be used.
    """
    if len(files) == 2:
        return read_two_tables(*files, id_column=id_column, user_column=user_column)
    if len(files) != 1 or files[0].suffix.lower() in TABLES:
        raise ConfigError(
            f"files: expected one NPZ file, one run, or a table of labels and a table of scores, "
            f"found {', '.join(map(str, files))}; name these"
        )
    (path,) = files
    if path.is_dir():
        return _of_run(path)
    return _of_run(path.parent) if path.name == SCORES_FILE else read_npz(path)


def flair_findings(
    predictions: FlairPredictions, *, num_resamples: int = 1000, seed: int = 0
) -> Findings:
    """Score predictions by ``score_flair``, and say what is shown of it."""
    scores = score_flair(predictions, num_resamples=num_resamples, seed=seed)
    return Findings(
        "flair",
        _facts(scores),
        (_overall(scores), _by_label(scores)),
        (why_not_ap(scores),),
        lambda: (_chart(scores),),
    )


def _of_run(folder: Path) -> FlairPredictions:
    import torch  # takes seconds, and only runs' logits need it

    kept = load_kept_scores(folder)
    # As in training: a sigmoid of another library differs in the last bit.
    probabilities = torch.from_numpy(kept.logits).sigmoid().numpy()
    checked = FlairPredictions.of(
        kept.targets, probabilities, kept.label_names, where=str(folder / SCORES_FILE)
    )
    return FlairPredictions(
        checked.targets, kept.logits, probabilities, checked.label_names, kept.owner
    )


def _facts(scores: FlairScores) -> dict[str, Any]:
    labels = scores.per_label
    numbers = ("positives", "ap", "ap_binned200", "precision", "recall", "f1")
    columns = {"label": labels.names} | {key: getattr(labels, key).tolist() for key in numbers}
    rows = zip(*columns.values(), strict=True)
    return {
        "protocol": "flair",
        "num_images": scores.num_images,
        "num_users": scores.num_users,
        "num_labels": len(labels.names),
        "num_labels_scored": int(np.count_nonzero(labels.positives)),
        "micro": asdict(scores.micro),
        "macro": asdict(scores.macro),
        "apple_macro_f1": scores.apple_macro_f1,
        "why_card_f1_is_not_ap": why_not_ap(scores),
        "per_label": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def _overall(scores: FlairScores) -> Table:
    both = (scores.micro, scores.macro)
    rows: list[tuple[Cell, ...]] = [
        (words, *(_known(getattr(each, key)) for each in both)) for words, key in _MEASURES
    ]
    if any(each.interval for each in both):
        ends = [("low end of 95 %, by user", 0), ("high end of 95 %, by user", 1)]
        rows[1:1] = [(words, *(_end(each, place) for each in both)) for words, place in ends]
    rows += [
        (
            "F1 of macro precision and recall (published as FLAIR's macro F1)",
            None,
            _known(scores.apple_macro_f1),
        ),
        (
            'F1, which the evaluation card calls "averaged precision"',
            *(_known(each.card_f1) for each in both),
        ),
    ]
    labels = scores.per_label
    scored = int(np.count_nonzero(labels.positives))
    users = "" if scores.num_users is None else f" of {scores.num_users:,} users"
    return Table(
        "flair",
        f"FLAIR: {scores.num_images:,} images{users}, {len(labels.names):,} labels",
        (Column("measure"), Column("micro", 4), Column("macro", 4)),
        tuple(rows),
        f"{scored:,} labels have an image. The others are left out of the exact macro AP; in the "
        "published form they count as 0.",
    )


def _by_label(scores: FlairScores) -> Table:
    labels = scores.per_label
    order = np.argsort(-labels.positives, kind="stable")
    return Table(
        "flair_labels",
        "Each label, the most frequent first",
        (
            Column("label"),
            Column("images"),
            Column("AP", 4, bar=True, longest=1.0),
            Column("AP, 200 thresholds", 4),
            Column("precision", 4),
            Column("recall", 4),
            Column("F1", 4),
        ),
        tuple(
            (
                labels.names[k],
                int(labels.positives[k]),
                _known(labels.ap[k]),
                _known(labels.ap_binned200[k]),
                float(labels.precision[k]),
                float(labels.recall[k]),
                float(labels.f1[k]),
            )
            for k in order
        ),
    )


def _chart(scores: FlairScores) -> Chart:
    title = "Average precision against how frequent a label is"
    caption = (
        "A dot is a label. A ranking by chance has an AP of about the share of images with the "
        "label, so the height above the dashed line is the factor by which the model ranks "
        "better. Where the hollow dot lies apart, many scores fall between the same two of the "
        "200 thresholds."
    )
    figure = ap_against_frequency(title, scores.per_label, scores.num_images)
    return Chart("flair_ap_by_frequency", title, caption, figure)


def _end(scores: AveragedScores, place: int) -> float | None:
    return None if scores.interval is None else scores.interval[place]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
