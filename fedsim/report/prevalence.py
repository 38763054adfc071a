"""Each class's AP as if all classes were equally frequent."""

import numpy as np
import numpy.typing as npt

from fedsim.errors import DataError
from fedsim.evaluation.prevalence import average_precision_at_prevalence
from fedsim.kept_scores import load_kept_scores
from fedsim.report.gather import Entry, Group
from fedsim.tables import Cell, Column, Table

PREVALENCE = 0.1
_MOST_COLUMNS = 40

Floats = npt.NDArray[np.float64]


def prevalence_table(group: Group, suffix: str) -> Table | None:
    """Return each class's AP at one prevalence under the settings that kept their test scores.

    AP by chance is about the share of images that have the class, so plain AP of a rare and of a
    common class can't be compared; at one prevalence it can.

    Args:
        group: Runs on one test split.
        suffix: Of the table's name.

    Returns:
        None if no setting kept its scores.
    """
    columns = {
        entry.name: values
        for entry in group.entries[:_MOST_COLUMNS]
        if (values := _over_seeds(entry)) is not None
    }
    if not columns:
        return None
    classes = group.reference.runs[0].summary["test"]["per_class"]
    rows: list[tuple[Cell, ...]] = [
        (row["label"], row["positives"], *(_percent(values[place]) for values in columns.values()))
        for place, row in enumerate(classes)
    ]
    rows.sort(key=lambda row: row[2] if isinstance(row[2], float) else -1.0, reverse=True)
    share = f"{100 * PREVALENCE:g} %"
    note = (
        f"Means over seeds on test, as if {share} of the images had each class, so that a rare and "
        "a common class can be compared: by chance each has about that AP. A class that all test "
        "images have, or none, has no value."
    )
    return Table(
        f"class_ap_at_prevalence{suffix}",
        f"AP of each class at a prevalence of {share}, %",
        (Column("class"), Column("in test"), *(Column(name, digits=1) for name in columns)),
        tuple(rows),
        note,
    )


def _over_seeds(entry: Entry) -> Floats | None:
    """Return each class's mean over seeds; None unless every run kept its scores."""
    try:
        kept = [load_kept_scores(run.folder) for run in entry.runs]
    except DataError:  # the section on users says of which settings, and why
        return None
    by_seed = [
        average_precision_at_prevalence(of.targets, of.logits, PREVALENCE, average=None)
        for of in kept
    ]
    mean: Floats = np.mean(by_seed, axis=0)
    return mean


def _percent(value: float) -> float | None:
    return None if np.isnan(value) else 100 * float(value)
