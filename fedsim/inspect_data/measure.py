"""What the tables and the figures of a label set share, measured once."""

from dataclasses import dataclass

import numpy as np

from fedsim.data.index import SPLITS, ImageIndex, Int64s
from fedsim.data.statistics import Divergence, co_occurrence, divergence_of, images_per_label
from fedsim.streams import numpy_stream

MOST_TOGETHER = 25  # labels whose co-occurrence can be read off a figure


@dataclass(frozen=True, eq=False)
class LabelMeasures:
    """The labels of a collection, by frequency, and how users differ in them.

    Attributes:
        label_set: "coarse" or "fine".
        names: Label names by the number of images in all splits, from the most; equals by name.
        counts: int64 array (splits, labels), images of each split with each label, in that order.
        together: int64 array (n, n), images with both of two of the first n labels.
        split: Whose users are compared with it as a whole: the first split that has users.
        divergence: How far these users are from it.
    """

    label_set: str
    names: tuple[str, ...]
    counts: Int64s
    together: Int64s
    split: str
    divergence: Divergence


def measure_labels(index: ImageIndex, label_set: str, seed: int) -> LabelMeasures:
    """Measure one label set; ``seed`` deals the control of the divergence."""
    labels = index.labels[label_set]
    counts = images_per_label(index, label_set)
    order = np.argsort(-counts.sum(axis=0), kind="stable")
    split = splits_with_users(index)[0]
    stream = numpy_stream(seed, "inspected divergence", label_set)
    return LabelMeasures(
        label_set=label_set,
        names=tuple(labels.names[number] for number in order.tolist()),
        counts=counts[:, order],
        together=co_occurrence(labels, order[:MOST_TOGETHER]),
        split=split,
        divergence=divergence_of(index, label_set, split, stream),
    )


def splits_with_users(index: ImageIndex) -> list[str]:
    """Return the splits that are not empty."""
    return [split for split in SPLITS if np.diff(index.users_of(split))[0]]


def size_groups(sizes: Int64s) -> list[tuple[str, Int64s]]:
    """Group users by size: 1, 2-3, 4-7 and so on; return names and the members' positions.

    Examples:
        >>> [(name, members.tolist()) for name, members in size_groups(np.array([1, 9, 1, 3]))]
        [('1', [0, 2]), ('2–3', [3]), ('8–15', [1])]
    """
    powers = np.frexp(sizes)[1] - 1  # exact floor of the binary logarithm
    groups = []
    for power in np.unique(powers).tolist():
        least, most = 2**power, 2 ** (power + 1) - 1
        name = f"{least:,}" if least == most else f"{least:,}–{most:,}"
        groups.append((name, np.flatnonzero(powers == power)))
    return groups
