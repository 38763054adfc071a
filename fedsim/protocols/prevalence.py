"""What ``fedsim evaluate class-prior --prevalence`` shows: labels at one common prevalence."""

import numpy as np
import numpy.typing as npt

from fedsim.chart import Chart
from fedsim.evaluation.flair_files import FlairPredictions
from fedsim.evaluation.prevalence import (
    average_precision_at_prevalence,
    precision_at_prevalence,
)
from fedsim.figures import bar_figure
from fedsim.metrics import average_precision, precision_recall_f1
from fedsim.metrics.precision_steps import mean_of_scored
from fedsim.protocols.output import Findings
from fedsim.tables import Cell, Column, Table

_MOST_BARS = 40  # more would make a figure that no page has room for

Floats = npt.NDArray[np.float64]


def prevalence_findings(predictions: FlairPredictions, prevalence: float) -> Findings:
    """Score each label as it is and at a prevalence, and say what is shown of it.

    Args:
        predictions: Multi-label scores and truth.
        prevalence: Share of images that have a label, between 0 and 1, the same for all labels.

    Raises:
        ConfigError: A prevalence out of range.
    """
    targets, scores = predictions.targets, predictions.scores
    probabilities = predictions.probabilities
    at = f"at {prevalence:g}"
    values = {
        "share": targets.mean(axis=0),
        "AP": average_precision(targets, scores, average=None),
        f"AP {at}": average_precision_at_prevalence(targets, scores, prevalence, average=None),
        "precision": precision_recall_f1(targets, probabilities, average=None)[0],
        f"precision {at}": precision_at_prevalence(
            targets, probabilities, prevalence, average=None
        ),
    }
    # Label by label, so that every mean is of the same labels.
    scored = ~np.isnan(values[f"AP {at}"])
    values = {name: np.where(scored, column, np.nan) for name, column in values.items()} | {
        "share": values["share"]
    }
    macro = {name: float(mean_of_scored(column)) for name, column in values.items()}
    names = predictions.label_names
    rows = [
        {"label": name} | {head: float(column[place]) for head, column in values.items()}
        for place, name in enumerate(names)
    ]
    facts = {
        "protocol": "class-prior",
        "prevalence": prevalence,
        "num_images": len(targets),
        "num_labels_scored": int(scored.sum()),
        "macro": {name: value for name, value in macro.items() if name != "share"},
        "per_label": rows,
    }
    table = _table(names, values, macro, len(targets), int(scored.sum()))
    return Findings(
        "prevalence", facts, (table,), (_REMARK,), lambda: (_chart(names, values, prevalence),)
    )


_REMARK = (
    "AP and precision grow with the share of images that have a label. At one prevalence a rare "
    "and a common label can be compared, and so can two splits."
)


def _table(
    names: tuple[str, ...],
    values: dict[str, Floats],
    macro: dict[str, float],
    num_images: int,
    num_scored: int,
) -> Table:
    order = np.argsort(-values["share"], kind="stable")
    rows: list[tuple[Cell, ...]] = [
        ("mean", None, *(_known(macro[head]) for head in list(values)[1:]))
    ]
    rows += [(names[k], *(_known(column[k]) for column in values.values())) for k in order]
    return Table(
        "prevalence",
        f"{num_images:,} images: labels as they are and at one prevalence",
        (Column("label"), *(Column(head, 4) for head in values)),
        tuple(rows),
        f"Means are over the {num_scored:,} labels that some images have and some lack. Precision "
        "is at 0.5.",
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _chart(names: tuple[str, ...], values: dict[str, Floats], prevalence: float) -> Chart:
    at = f"AP at {prevalence:g}"
    order = np.argsort(-values["share"], kind="stable")
    shown = [k for k in order if not np.isnan(values[at][k])][:_MOST_BARS]
    title = f"Average precision at a prevalence of {prevalence:g}"
    figure = bar_figure(
        title,
        [names[k] for k in shown],
        {"as it is": values["AP"][shown], f"at {prevalence:g}": values[at][shown]},
        x="average precision",
    )
    caption = (
        f"The most frequent labels, {len(shown)} of {len(names)}, the most frequent at the top. "
        "A label that is rarer than the prevalence has a higher AP at it."
    )
    return Chart("ap_at_prevalence", title, caption, figure)
