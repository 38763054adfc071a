"""Figures in one plain style.

Nothing here touches pyplot, and every setting of matplotlib's is put back.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedsim.printable import printable

Numbers = npt.NDArray[np.float64] | npt.NDArray[np.int64]

# The variables of the style sheet (page/style.css) and their values on white paper. The first four
# series are blue, vermilion, green and purple of Okabe and Ito, which the colour-blind tell apart;
# of the others, which differ in lightness too, no figure uses one without dashes or a name beside.
COLOURS = {
    "ink": "#1c1e21",
    "muted": "#5d646c",
    "rule": "#dfe2e7",
    "series-1": "#0072b2",
    "series-2": "#d55e00",
    "series-3": "#009e73",
    "series-4": "#b3589a",
    "series-5": "#8a6d00",
    "series-6": "#5b4fc4",
    "series-7": "#8c2d19",
    "series-8": "#4a7a8c",
}
SERIES = tuple(value for name, value in COLOURS.items() if name.startswith("series"))
# So that colour is never the only difference.
Dashes = str | tuple[float, tuple[float, ...]]
DASHES: tuple[Dashes, ...] = (
    *("-", "--", "-.", ":"),
    *((0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2, 2, 2))),
)

WIDTH = 5.4  # inches; its letters are of a readable size on a phone that is 400 pixels wide
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.parse_math": False,  # a label may hold dollars
    "text.color": COLOURS["ink"],
    "axes.facecolor": "none",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.7,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",  # text stays text, in whatever script
    "svg.hashsalt": "fedsim",
}


@dataclass(frozen=True, eq=False)
class PictureRow:
    """One row of a sheet of pictures.

    Attributes:
        heading: Lines that stand before it.
        pictures: uint8 arrays of shape (height, width, 3).
        names: What stands under each picture: some lines.
    """

    heading: tuple[str, ...]
    pictures: Sequence[npt.NDArray[np.uint8]]
    names: Sequence[tuple[str, ...]]


def line_figure(
    title: str,
    series: Mapping[str, tuple[Numbers, Numbers]],
    *,
    x: str,
    y: str,
    log: bool = False,
    steps: bool = False,
) -> Figure:
    """Draw lines; at most eight, in the order of the palette.

    Args:
        title: What the figure shows.
        series: The x and y of each line, by its name; positive under ``log``.
        x: Name and unit of the x axis.
        y: Name and unit of the y axis.
        log: Both axes are logarithmic.
        steps: A line keeps its y up to the next x.
    """
    with styled():
        figure, axes = new_figure(title, 3.4)
        for (name, (xs, ys)), colour, dashes in zip(series.items(), SERIES, DASHES, strict=False):
            draw = "steps-post" if steps else "default"
            axes.plot(xs, ys, color=colour, linestyle=dashes, drawstyle=draw, label=printable(name))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if log:
            axes.set_xscale("log")
            axes.set_yscale("log")
            for axis in (axes.xaxis, axes.yaxis):
                number_powers(axis)
        if len(series) > 1:
            axes.legend()
    return laid_out(figure)


def bar_figure(
    title: str, names: Sequence[str], series: Mapping[str, Numbers], *, x: str
) -> Figure:
    """Draw lying bars, a group for each name from the top down.

    Args:
        title: What the figure shows.
        names: Of the groups.
        series: The lengths of one bar in each group, by the bar's name; at most four.
        x: Name and unit of the lengths.
    """
    height = 0.8 / max(len(series), 1)
    with styled():
        figure, axes = new_figure(title, 1.0 + len(names) * max(0.17, 0.075 * len(series) + 0.06))
        places = np.arange(len(names))
        for number, (name, lengths) in enumerate(series.items()):
            shift = (number - (len(series) - 1) / 2) * height
            axes.barh(
                places + shift, lengths, 0.9 * height, color=SERIES[number], label=printable(name)
            )
        axes.set_yticks(places, [printable(name, 28) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(x)
        if len(series) > 1:
            figure.legend(loc="outside lower left", ncols=len(series))
    return laid_out(figure)


def heat_map(
    title: str, names: Sequence[str], values: npt.NDArray[np.float64], *, x: str, y: str, scale: str
) -> Figure:
    """Draw a square of values; NaN leaves its cell gray.

    Args:
        title: What the figure shows.
        names: Of the rows, from the top down, and of the columns.
        values: Shape (names, names), at least 0.
        x: What a column stands for.
        y: What a row stands for.
        scale: Name and unit of the values.
    """
    with styled():
        figure, axes = new_figure(title, 5.0)
        known = values[~np.isnan(values)]
        top = float(known.max()) if known.size and known.max() > 0 else 1.0
        # From nothing to a full colour, so that it reads on light and on dark paper; by the square
        # root, so that small values are seen.
        shades = [(*to_rgb(SERIES[0]), strength) for strength in (0.0, 1.0)]
        colours = LinearSegmentedColormap.from_list("strength", shades)
        shading = colours.with_extremes(bad=COLOURS["rule"])
        cells = np.ma.masked_invalid(values)
        mesh = axes.pcolormesh(cells, cmap=shading, norm=PowerNorm(0.5, 0, top))
        short = [printable(name, 18) for name in names]
        axes.set_xticks(np.arange(len(names)) + 0.5, short, rotation=90)
        axes.set_yticks(np.arange(len(names)) + 0.5, short)
        axes.tick_params(length=0, labelsize=7)
        axes.set_ylim(len(names), 0)
        axes.set_aspect("equal")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        bar = figure.colorbar(mesh, ax=axes, shrink=0.6, aspect=22)
        bar.set_label(scale)
        bar.outline.set_visible(False)
    return laid_out(figure)


def picture_sheet(title: str, rows: Sequence[PictureRow], columns: int) -> Figure:
    """Draw rows of pictures, each as it is, never cropped.

    Args:
        title: What the figure shows.
        rows: From the top down, at least one.
        columns: Most pictures of a row.
    """
    with styled():
        figure = Figure(figsize=(1.4 + 1.05 * columns, 0.4 + 1.35 * len(rows)))
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
        ratios = [1.3, *[1.0] * columns]
        grid = figure.subplots(len(rows), columns + 1, squeeze=False, width_ratios=ratios)
        for axes in grid.flat:
            axes.set_axis_off()
        for line, row in zip(grid, rows, strict=True):
            heading = "\n".join(printable(text, 18) for text in row.heading)
            line[0].text(0, 0.98, heading, va="top", fontsize=8, linespacing=1.4)
            for axes, pixels, lines in zip(line[1:], row.pictures, row.names, strict=False):
                picture = axes.imshow(pixels, interpolation="none")
                picture.set_clip_on(False)  # a clip's id in an SVG changes from run to run
                axes.set_axis_on()
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set(visible=True, color=COLOURS["rule"])
                text = "\n".join(printable(name, 17) for name in lines)
                axes.set_xlabel(text, fontsize=6.5, color=COLOURS["ink"])
    return laid_out(figure)


@contextmanager
def drawing() -> Iterator[None]:
    """Keep the style while a figure is drawn, for its ticks are made then."""
    with styled(), warnings.catch_warnings():
        # A label in a script that the font lacks: boxes in the PNG, text in the SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def new_figure(title: str, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of the page's width, ``height`` inches high, and its axes."""
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(printable(title), pad=10)
    return figure, axes


def number_powers(axis: Axis) -> None:
    """Write powers of ten on a logarithmic axis as plain numbers; on a short one, 2 and 5 too."""
    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axis.set_minor_formatter(NullFormatter())


def _plain(value: float) -> str:
    """Return a number as an axis has room for it.

    Examples:
        >>> _plain(0.01), _plain(1000.0), _plain(20_000.0), _plain(1e6)
        ('0.01', '1,000', '20k', '1M')
    """
    for least, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= least:
            return f"{value / (least if letter != 'k' else 1e3):,.10g}{letter}"
    return f"{value:,.10g}"


def laid_out(figure: Figure) -> Figure:
    """Place everything once: each of the files of a figure would take as long again."""
    with drawing():
        figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


@contextmanager
def styled() -> Iterator[None]:
    """Keep the style while the parts of a figure are made."""
    with mpl.rc_context(_STYLE):
        yield
