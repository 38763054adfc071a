"""What each class's AP is under each setting, and how it differs from the reference."""

import statistics
from dataclasses import dataclass

from fedsim.over_seeds import SeedDifference, difference_over_seeds
from fedsim.report.gather import Entry, Group


@dataclass(frozen=True)
class ClassScore:
    """A class under a setting.

    Attributes:
        label: The class.
        train_positives: Images of train that have it.
        positives: Images of test that have it.
        ap: Mean over seeds, a fraction; None without positives on test.
        change: Against the reference, over seeds; None for the reference, and where a score is
            undefined.
    """

    label: str
    train_positives: int
    positives: int
    ap: float | None
    change: SeedDifference | None

    @property
    def is_beyond_seeds(self) -> bool:
        """Whether the interval of its change over seeds leaves out 0."""
        bounds = self.change.interval if self.change else None
        return bounds is not None and not bounds[0] <= 0 <= bounds[1]


def class_scores(entry: Entry, group: Group) -> list[ClassScore]:
    """Return every class's score under a setting, in the order of the label set."""
    ours, theirs = _by_seed(entry), _by_seed(group.reference)
    is_reference = entry is group.reference
    scores = []
    for place, row in enumerate(entry.runs[0].summary["test"]["per_class"]):
        values = ours[place]
        change = None
        if values and theirs[place] and not is_reference:
            change = difference_over_seeds(values, theirs[place])
        ap = statistics.fmean(values.values()) if values else None
        scores.append(
            ClassScore(row["label"], row["train_positives"], row["positives"], ap, change)
        )
    return scores


def _by_seed(entry: Entry) -> list[dict[int, float]]:
    """Return each class's AP by seed, for seeds that have one."""
    rows = {run.summary["seed"]: run.summary["test"]["per_class"] for run in entry.runs}
    num_classes = len(next(iter(rows.values())))
    return [
        {seed: row[place]["ap"] for seed, row in rows.items() if row[place]["ap"] is not None}
        for place in range(num_classes)
    ]
