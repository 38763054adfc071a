"""The figure of ``rank``: average ranks on one line, each led to its name."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from fedsim.figures import COLOURS, SERIES, laid_out, new_figure, styled
from fedsim.printable import printable

_ROW = 0.24  # inches


def ranks_on_a_line(title: str, averages: Mapping[str, float]) -> Figure:
    """Draw average ranks as Demsar does: the better half leads to names on the left.

    Args:
        title: What the figure shows.
        averages: Average ranks by submission, the best first.

    References:
        Demsar: Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006.
    """
    names, last = list(averages), max(len(averages), 2)
    half = (len(names) + 1) // 2
    room = 0.55 * (last - 1)  # for names, on both sides of the line
    with styled():
        figure, axes = new_figure(title, 1.0 + _ROW * (half + 1))
        axes.plot([1, last], [0, 0], color=COLOURS["ink"], linewidth=1.2)
        every = max(1, round((last - 1) / 10))
        for rank in range(1, last + 1, every):
            axes.plot([rank, rank], [0, 0.25], color=COLOURS["ink"], linewidth=0.8)
            axes.text(rank, 0.35, str(rank), ha="center", va="bottom", fontsize=8)
        for place, name in enumerate(names):
            left = place < half
            row = -(place + 1) if left else -(len(names) - place)
            x, end = averages[name], (1 - 0.05 * (last - 1) if left else last + 0.05 * (last - 1))
            colour = SERIES[0] if left else COLOURS["muted"]
            axes.plot([x, x, end], [0, row, row], color=colour, linewidth=0.9)
            axes.plot([x], [0], color=colour, marker="o", markersize=4.5)
            text = f"{printable(name, 24)}  {averages[name]:.2f}"
            nudge = -0.02 * (last - 1) if left else 0.02 * (last - 1)
            side = "right" if left else "left"
            axes.text(end + nudge, row, text, ha=side, va="center", fontsize=8)
        axes.set_xlim(1 - room, last + room)
        axes.set_ylim(-half - 0.6, 1.2)
        axes.set_axis_off()
        axes.text(
            (1 + last) / 2, 1.15, "average rank, 1 is the best", ha="center", va="bottom",
            fontsize=8, color=COLOURS["muted"],
        )  # fmt: skip
    return laid_out(figure)
