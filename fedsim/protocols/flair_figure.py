"""How well each label is found, against how rare it is."""

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.evaluation.flair import LabelScores
from fedsim.figures import COLOURS, DASHES, SERIES, laid_out, new_figure, number_powers, styled
from fedsim.printable import printable

_MOST_NAMES = 24  # more would hide the dots
_LETTER = 3.6  # points; the width of a letter of a name, on average
_NEAR = 4  # places beside a dot; a name at a farther one has a line to it
_LEADER = {"arrowstyle": "-", "color": COLOURS["muted"], "lw": 0.5, "shrinkA": 0, "shrinkB": 2}

Box = tuple[float, float, float, float]
Floats = npt.NDArray[np.float64]


def ap_against_frequency(title: str, labels: LabelScores, num_images: int) -> Figure:
    """Draw average precision of each label over the share of images that have it.

    A ranking by chance has an AP of about that share, which is drawn as a line; on two logarithmic
    axes the height above it is the factor by which the model is better. The AP on 200
    thresholds is a hollow dot under the exact one.

    Args:
        title: What the figure shows.
        labels: Those without positives are left out.
        num_images: Scored images.
    """
    known = np.flatnonzero(labels.positives)
    share = 100 * labels.positives[known] / num_images
    exact, binned = labels.ap[known], labels.ap_binned200[known]
    with styled():
        figure, axes = new_figure(title, 4.6)
        low, high = share.min(initial=50) / 1.4, min(share.max(initial=1) * 1.4, 100)
        line = np.geomspace(low, high, 200)
        axes.plot(
            line, line / 100, color=COLOURS["muted"], linestyle=DASHES[1], lw=1, label="by chance"
        )
        axes.vlines(share, binned, exact, color=SERIES[1], lw=1)
        hollow = axes.scatter(share, binned, s=26, facecolor="none", edgecolor=SERIES[1])
        hollow.set_label("AP on 200 thresholds, as published")
        axes.scatter(share, exact, s=13, color=SERIES[0], zorder=3, label="AP, exact")
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.set_yscale("log")
        axes.set_ylim(min(low / 100, binned.min(initial=1), exact.min(initial=1)) / 1.3, 1.1)
        axes.set_xlabel("images with the label, %")
        axes.set_ylabel("average precision")
        figure.legend(loc="outside lower left", ncols=3)
        for axis in (axes.xaxis, axes.yaxis):
            number_powers(axis)
        if len(known) <= _MOST_NAMES:
            _write_names(figure, axes, [labels.names[k] for k in known], share, exact)
    return laid_out(figure)


def _write_names(figure: Figure, axes: Axes, names: list[str], xs: Floats, ys: Floats) -> None:
    """Write each dot's name where it meets neither dots nor names, if there is such a place."""
    figure.draw_without_rendering()  # places the axes, so that distances on paper are known
    dots = axes.transData.transform(np.column_stack([xs, ys])) * 72 / figure.dpi
    x0, y0, x1, y1 = axes.get_window_extent().extents
    paper = np.array([x0, y0, x1, y1]) * 72 / figure.dpi
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in dots]
    for name, place, (x, y) in zip(names, zip(xs, ys, strict=True), dots, strict=True):
        text = printable(name, 16)
        wide = _LETTER * len(text)
        corners = [
            (dx, dy)
            for away in (0, 6, 12)
            for dx in (4 + away / 2, -4 - away / 2 - wide)
            for dy in (2 + away, -8 - away)
        ]
        boxes = [(x + dx, y + dy, x + dx + wide, y + dy + 6) for dx, dy in corners]
        met = [
            sum(_meet(box, other) for other in taken) + 2 * (not _within(box, paper))
            for box in boxes
        ]
        best = met.index(min(met))
        taken.append(boxes[best])
        written = axes.annotate(
            text,
            place,
            corners[best],
            textcoords="offset points",
            fontsize=6.5,
            arrowprops=_LEADER if best >= _NEAR else None,
        )
        written.set_in_layout(False)  # or the axes would shrink, and the places be wrong


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _within(box: Box, paper: Floats) -> bool:
    return bool(paper[0] < box[0] and box[2] < paper[2] and paper[1] < box[1] and box[3] < paper[3])
