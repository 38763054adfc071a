"""The figures of a collection."""

from collections.abc import Sequence

import numpy as np

from fedsim.chart import Chart
from fedsim.data.decode import decode_image
from fedsim.data.index import SPLITS, ImageIndex, Int64s, StoredImages
from fedsim.data.statistics import images_per_user, rows_between
from fedsim.figures import (
    Numbers,
    PictureRow,
    bar_figure,
    heat_map,
    line_figure,
    picture_sheet,
)
from fedsim.inspect_data.measure import LabelMeasures, splits_with_users
from fedsim.streams import numpy_stream

_MOST_BARS = 40  # more labels than this are drawn as a line
_USERS_SHOWN = 6
_PICTURES_SHOWN = 6  # of a user
_LABELS_SHOWN = 2  # of a picture
_SIDE = 96  # pixels of a picture


def user_chart(index: ImageIndex) -> Chart:
    """Draw which share of each split's users has at least so many images."""
    series: dict[str, tuple[Numbers, Numbers]] = {}
    for split in splits_with_users(index):
        sizes = np.sort(images_per_user(index, split))
        distinct, first = np.unique(sizes, return_index=True)
        series[split] = (distinct, 100 * (1 - first / len(sizes)))
    title = "Images per user"
    return Chart(
        "images_per_user",
        title,
        "Share of each split's users who have at least so many images; both axes are logarithmic. "
        "A straight line would be a power law.",
        line_figure(title, series, x="images", y="% of users with at least so many", log=True),
    )


def label_charts(measures: LabelMeasures, index: ImageIndex) -> tuple[Chart, ...]:
    """Draw how frequent labels are, which stand together, and how users differ in them."""
    if not measures.names:
        return ()
    return (_frequency(measures, index), _together(measures), _divergence(measures))


def sheet_chart(images: StoredImages, label_set: str, seed: int) -> Chart:
    """Draw a few images of some users, chosen by ``seed``; only these images are read.

    Raises:
        DataError: One of them can't be read or decoded.
    """
    index = images.index
    title = "Images of some users"
    rows = [
        _picture_row(images, label_set, user, _rows(index, user, seed))
        for user in _users_of_all_sizes(index, seed)
    ]
    return Chart(
        "contact_sheet",
        title,
        f"Users of all sizes, drawn by seed {seed}: one each from ranges of sizes that are equally "
        f"wide on a logarithmic scale, with up to {_PICTURES_SHOWN} of their images, stretched to "
        f"squares as training sees them, and up to {_LABELS_SHOWN} {label_set} labels of each and "
        "how many more.",
        picture_sheet(title, rows, max(len(row.pictures) for row in rows)),
        is_wide=True,
    )


def _frequency(measures: LabelMeasures, index: ImageIndex) -> Chart:
    label_set = measures.label_set
    shares = {}
    for split in splits_with_users(index):
        first, stop = rows_between(index, split)
        shares[split] = 100 * measures.counts[SPLITS.index(split)] / (stop - first)
    title = f"{label_set.capitalize()} labels by frequency"
    name = f"{label_set}_frequency"
    if len(measures.names) <= _MOST_BARS:
        caption = "Share of each split's images that have the label; an image may have several."
        figure = bar_figure(title, measures.names, shares, x="% of the split's images")
        return Chart(name, title, caption, figure)
    lines: dict[str, tuple[Numbers, Numbers]] = {}
    for split, share in shares.items():
        ranked = np.sort(share[share > 0])[::-1]
        lines[split] = (np.arange(1, len(ranked) + 1), ranked)
    caption = (
        "Share of each split's images that have a label, from its most frequent label to its "
        "rarest; both axes are logarithmic. A line ends where a split has no more labels."
    )
    figure = line_figure(title, lines, x="rank of the label", y="% of the split's images", log=True)
    return Chart(name, title, caption, figure)


def _together(measures: LabelMeasures) -> Chart:
    shown = len(measures.together)
    alone = np.diagonal(measures.together).astype(np.float64)
    shares = 100 * measures.together / np.maximum(alone, 1)[:, None]
    np.fill_diagonal(shares, np.nan)
    title = f"{measures.label_set.capitalize()} labels on the same image"
    which = "all labels" if shown == len(measures.names) else f"the {shown} most frequent labels"
    figure = heat_map(
        title,
        measures.names[:shown],
        shares,
        x="also have",
        y="of the images with",
        scale="% of the images with the row's label",
    )
    caption = (
        f"Of all images with the row's label, the share that also has the column's, for {which}, "
        "from the most frequent. Shades grow with the square root, so that small shares are seen."
    )
    return Chart(f"{measures.label_set}_together", title, caption, figure)


def _divergence(measures: LabelMeasures) -> Chart:
    found = measures.divergence
    series = {
        f"{measures.split} users": _cumulative(found.users),
        "shuffled control": _cumulative(found.control),
    }
    title = f"Users' {measures.label_set} labels against the whole"
    caption = (
        f"Share of {measures.split} users whose labels are at most so far from those of the split: "
        "Jensen-Shannon divergence, 0 is alike, 1 is nothing in common. The control deals the same "
        "images at random to users of the same sizes, so the gap between the lines is what users "
        "have of their own."
    )
    figure = line_figure(
        title, series, x="divergence from the whole, in bits", y="% of users", steps=True
    )
    return Chart(f"{measures.label_set}_divergence", title, caption, figure)


def _cumulative(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return a line's x and y: the share, in percent, of values at or below each; 0 to 1."""
    known = np.sort(values[~np.isnan(values)])
    shares = 100 * np.arange(1, len(known) + 1) / max(len(known), 1)
    last = [100.0] if len(known) else [0.0]
    return np.concatenate([[0.0], known, [1.0]]), np.concatenate([[0.0], shares, last])


def _users_of_all_sizes(index: ImageIndex, seed: int) -> list[int]:
    """Return one user of each range of sizes, by size; ranges are equally wide in logarithms."""
    sizes = images_per_user(index, None)
    edges = np.geomspace(sizes.min(), sizes.max() + 1, _USERS_SHOWN + 1)
    group = np.clip(np.searchsorted(edges, sizes, side="right") - 1, 0, _USERS_SHOWN - 1)
    stream = numpy_stream(seed, "inspected users")
    return [int(stream.choice(np.flatnonzero(group == number))) for number in np.unique(group)]


def _rows(index: ImageIndex, user: int, seed: int) -> Int64s:
    first, stop = index.user_offsets[user : user + 2].tolist()
    stream = numpy_stream(seed, "inspected images", index.user_ids[user])
    size = min(stop - first, _PICTURES_SHOWN)
    return np.sort(stream.choice(np.arange(first, stop), size=size, replace=False))


def _picture_row(images: StoredImages, label_set: str, user: int, rows: Int64s) -> PictureRow:
    index = images.index
    size = int(index.user_offsets[user + 1] - index.user_offsets[user])
    numbers = rows.tolist()
    pictures = [
        decode_image(data, _SIDE, name=f"{images.place}: image {index.image_ids[row]!r}")
        for row, data in zip(numbers, images.read(numbers), strict=True)
    ]
    heading = (
        index.user_ids[user],
        SPLITS[index.user_splits[user]],
        f"{size:,} image{'' if size == 1 else 's'}",
    )
    return PictureRow(heading, pictures, [_label_lines(index, label_set, row) for row in numbers])


def _label_lines(index: ImageIndex, label_set: str, row: int) -> tuple[str, ...]:
    labels = index.labels[label_set]
    numbers: Sequence[int] = labels.indices[labels.indptr[row] : labels.indptr[row + 1]].tolist()
    names = [labels.names[number] for number in numbers]
    hidden = len(names) - _LABELS_SHOWN
    more = [f"and {hidden} more"] if hidden > 0 else []
    return (*names[:_LABELS_SHOWN], *more) or ("no label",)
