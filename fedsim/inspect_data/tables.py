"""The tables of a collection."""

from collections.abc import Sequence

import numpy as np

from fedsim.data.index import LABEL_SETS, SPLITS, ImageIndex, Int64s, StoredImages
from fedsim.data.statistics import (
    images_per_label,
    images_per_user,
    labels_per_image,
    labels_per_user,
    rows_between,
    spread_of,
    users_between,
)
from fedsim.inspect_data.measure import LabelMeasures, size_groups, splits_with_users
from fedsim.tables import Cell, Column, Table

_TAIL = 10  # rows of the tables of extremes
_SPREAD = (
    Column("mean", digits=2),
    Column("min"),
    Column("25 %", digits=1),
    Column("median", digits=1),
    Column("75 %", digits=1),
    Column("99 %", digits=1),
    Column("max"),
)


def facts_of(images: StoredImages) -> list[tuple[str, str]]:
    """Return what a collection is, as names and values."""
    about = images.about
    return [
        ("name", about.name),
        ("path", images.place),
        ("origin", about.origin),
        ("licence", about.licence),
        ("index sha256", images.index.sha256()),
        ("content sha256", images.content_sha256 or "none is stored with the collection"),
    ]


def overview_tables(index: ImageIndex) -> tuple[Table, ...]:
    """Tell what each split holds, and how images and labels are spread."""
    splits = _splits_and_all(index)
    return _split_table(index, splits), _spread_table(index, splits)


def user_tables(index: ImageIndex) -> tuple[Table, ...]:
    """Tell how many users are of which size, and who owns most."""
    return _size_table(index), _largest_users(index)


def label_tables(measures: LabelMeasures, index: ImageIndex) -> tuple[Table, ...]:
    """Tell of every label, the rarest ones, pairs of labels, and how users differ in labels."""
    splits = splits_with_users(index)
    every = _class_table(measures, index, splits)
    rest = (
        _absent_table(measures, splits),
        _pair_table(measures, len(index)),
        _divergence_table(measures),
    )
    if len(measures.names) <= 2 * _TAIL:
        return (every, *rest)  # the rarest are in sight
    rarest = Table(
        f"{measures.label_set}_rarest",
        f"Rarest {measures.label_set} labels",
        every.columns[:-1],
        tuple(row[:-1] for row in every.rows[: -_TAIL - 1 : -1]),
    )
    return (every, rarest, *rest)


def _splits_and_all(index: ImageIndex) -> list[tuple[str, str | None]]:
    return [(split, split) for split in splits_with_users(index)] + [("all", None)]


def _split_table(index: ImageIndex, splits: Sequence[tuple[str, str | None]]) -> Table:
    counts = {label_set: images_per_label(index, label_set) for label_set in LABEL_SETS}
    rows: list[tuple[Cell, ...]] = []
    for name, split in splits:
        of_split = slice(None) if split is None else SPLITS.index(split)
        first_user, last_user = users_between(index, split)
        first_row, last_row = rows_between(index, split)
        distinct = [
            int(np.count_nonzero(np.atleast_2d(counts[label_set][of_split]).sum(axis=0)))
            for label_set in LABEL_SETS
        ]
        without = [
            int((labels_per_image(index, label_set, split) == 0).sum()) for label_set in LABEL_SETS
        ]
        rows.append((name, last_user - first_user, last_row - first_row, *distinct, *without))
    columns = [
        "split",
        "users",
        "images",
        *(f"{label_set} labels" for label_set in LABEL_SETS),
        *(f"images without {label_set}" for label_set in LABEL_SETS),
    ]
    note = "A split's labels are those that at least one of its images has."
    return Table("splits", "Splits", tuple(map(Column, columns)), tuple(rows), note)


def _spread_table(index: ImageIndex, splits: Sequence[tuple[str, str | None]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, split in splits:
        rows.append(("images per user", name, *_spread_cells(images_per_user(index, split))))
    for label_set in LABEL_SETS:
        what = f"{label_set} labels per image"
        for name, split in splits:
            rows.append((what, name, *_spread_cells(labels_per_image(index, label_set, split))))
    for label_set in LABEL_SETS:
        what = f"{label_set} labels per user"
        for name, split in splits:
            rows.append((what, name, *_spread_cells(labels_per_user(index, label_set, split))))
    note = "Labels per user are the different ones on any of the user's images."
    columns = (Column("what"), Column("split"), *_SPREAD)
    return Table("spread", "How images and labels are spread", columns, tuple(rows), note)


def _spread_cells(counts: Int64s) -> tuple[Cell, ...]:
    spread = spread_of(counts)
    if spread is None:
        return (None,) * len(_SPREAD)
    return (spread.mean, spread.minimum, *spread.quartiles, spread.high, spread.maximum)


def _size_table(index: ImageIndex) -> Table:
    splits = splits_with_users(index)
    every = images_per_user(index, None)
    split_of_user = index.user_splits
    rows: list[tuple[Cell, ...]] = []
    for name, members in size_groups(every):
        counts = np.bincount(split_of_user[members], minlength=len(SPLITS))
        of_splits = [int(counts[SPLITS.index(split)]) for split in splits]
        rows.append((name, *of_splits, len(members), int(every[members].sum())))
    columns = (
        Column("images per user"),
        *(Column(f"{split} users") for split in splits),
        Column("all users", bar=True),
        Column("their images", bar=True),
    )
    return Table("user_sizes", "Users by size", columns, tuple(rows))


def _largest_users(index: ImageIndex) -> Table:
    sizes = images_per_user(index, None)
    rows: list[tuple[Cell, ...]] = []
    for user in np.argsort(-sizes, kind="stable")[:_TAIL].tolist():
        split = SPLITS[index.user_splits[user]]
        first, stop = rows_between(index, split)
        share = 100 * float(sizes[user]) / (stop - first)
        rows.append((index.user_ids[user], split, int(sizes[user]), share))
    columns = (
        Column("user"),
        Column("split"),
        Column("images", bar=True),
        Column("% of the split's images", digits=2),
    )
    return Table("largest_users", "Users with most images", columns, tuple(rows))


def _class_table(measures: LabelMeasures, index: ImageIndex, splits: Sequence[str]) -> Table:
    counts = [measures.counts[SPLITS.index(split)].tolist() for split in splits]
    totals = measures.counts.sum(axis=0)
    shares = (100 * totals / max(len(index), 1)).tolist()
    rows = zip(measures.names, *counts, totals.tolist(), shares, strict=True)
    columns = (
        Column("label"),
        *(Column(split) for split in splits),
        Column("all"),
        Column("% of images", digits=2, bar=True),
    )
    title = f"Images with each {measures.label_set} label"
    return Table(f"{measures.label_set}_labels", title, columns, tuple(rows))


def _absent_table(measures: LabelMeasures, splits: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for split in splits:
        absent = np.flatnonzero(measures.counts[SPLITS.index(split)] == 0).tolist()
        names = ", ".join(measures.names[number] for number in absent[:_TAIL])
        more = f" and {len(absent) - _TAIL:,} more" if len(absent) > _TAIL else ""
        rows.append((split, len(absent), names + more))
    columns = (Column("split"), Column("absent labels"), Column("which"))
    note = "A score of a label without any positive image is undefined."
    title = f"{measures.label_set.capitalize()} labels that a split lacks"
    return Table(f"{measures.label_set}_absent", title, columns, tuple(rows), note)


def _pair_table(measures: LabelMeasures, num_images: int) -> Table:
    together = measures.together
    first, second = np.triu_indices(len(together), k=1)
    both = together[first, second]
    alone = np.diagonal(together)
    rows: list[tuple[Cell, ...]] = []
    for place in np.argsort(-both, kind="stable")[:_TAIL].tolist():
        a, b, count = int(first[place]), int(second[place]), int(both[place])
        if not count:
            break
        lift = count * num_images / (int(alone[a]) * int(alone[b]))
        rows.append((measures.names[a], measures.names[b], count, lift))
    columns = (
        Column("label"), Column("with"), Column("images", bar=True), Column("lift", digits=2)
    )  # fmt: skip
    note = (
        f"Of the {len(together)} most frequent labels. Lift is how many times as often the two "
        "stand on one image as if they were independent."
    )
    title = f"{measures.label_set.capitalize()} labels that stand together most often"
    return Table(f"{measures.label_set}_pairs", title, columns, tuple(rows), note)


def _divergence_table(measures: LabelMeasures) -> Table:
    found = measures.divergence
    rows: list[tuple[Cell, ...]] = []
    groups = [*size_groups(found.sizes), ("all", np.arange(len(found.sizes)))]
    for name, members in groups:
        means = (_mean(found.users[members]), _mean(found.control[members]))
        rows.append((name, len(members), *means))
    columns = (
        Column("images per user"),
        Column("users"),
        Column("mean divergence", digits=3, bar=True, longest=1.0),
        Column("shuffled control", digits=3, bar=True, longest=1.0),
    )
    note = (
        "Jensen-Shannon divergence, in bits, of a user's labels from those of the whole split: 0 "
        "is alike, 1 is nothing in common. The control deals the same images at random to users of "
        "the same sizes: what it reaches is due to size alone. Users without labels do not count."
    )
    title = f"How far {measures.split} users are from the whole, in {measures.label_set} labels"
    return Table(f"{measures.label_set}_divergence", title, columns, tuple(rows), note)


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
