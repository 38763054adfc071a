"""The kinds of figures that only results need."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.figures import COLOURS, SERIES, laid_out, new_figure, number_powers, styled
from fedsim.printable import printable
from fedsim.report.marks import Curve, Level, Point, Span, Trail
from fedsim.report.naming import LETTERS, box_around, boxes_of, name_at_the_right, name_points

_MOST_NAMED = 30  # points; more of them have no room for names


def curve_figure(
    title: str, curves: Sequence[Curve], levels: Sequence[Level], *, x: str, y: str
) -> Figure:
    """Draw lines that are named where they end, and levels across.

    Args:
        title: What the figure shows.
        curves: At least one; the first is drawn on top.
        levels: Named as the lines are.
        x: Name and unit of the x axis.
        y: Name and unit of the y axis.
    """
    with styled():
        figure, axes = new_figure(title, 3.9)
        for curve in reversed(curves):
            if curve.band is not None:
                low, high = curve.band
                axes.fill_between(curve.x, low, high, color=curve.pen.colour, alpha=0.13, lw=0)
            pen = curve.pen
            axes.plot(curve.x, curve.y, color=pen.colour, linestyle=pen.dashes, lw=pen.width)
        for level in levels:
            axes.axhline(level.value, color=COLOURS["muted"], lw=0.9, ls=(0, (2, 2)))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.margins(x=0.01)
        ends = [(c.name, float(c.y[-1]), c.pen.colour) for c in curves if c.name and len(c.y)]
        ends += [(level.name, level.value, COLOURS["muted"]) for level in levels]
        name_at_the_right(axes, ends)
    return laid_out(figure)


def quantile_figure(
    title: str, rows: Sequence[tuple[str, tuple[float, float, float, float, float]]], *, x: str
) -> Figure:
    """Draw five quantiles of each row from the top down: line, bar, dot.

    Args:
        title: What the figure shows.
        rows: Names, and the quantiles from the lowest to the highest.
        x: Name and unit of the values, in percent.
    """
    with styled():
        figure, axes = new_figure(title, 1.15 + 0.3 * len(rows))
        for place, (_, values) in enumerate(rows):
            axes.plot([values[0], values[4]], [place] * 2, color=SERIES[0], lw=1.2)
            axes.plot([values[1], values[3]], [place] * 2, color=SERIES[0], lw=6, alpha=0.55)
            axes.plot([values[2]], [place], "o", color=COLOURS["ink"], ms=4.5)
        _rows(axes, [name for name, _ in rows])
        axes.set_xlim(0, 101)
        axes.set_xlabel(x)
        axes.plot([], [], color=SERIES[0], lw=1.2, label="10 to 90 %")
        axes.plot([], [], color=SERIES[0], lw=6, alpha=0.55, label="25 to 75 %")
        axes.plot([], [], "o", color=COLOURS["ink"], ms=4.5, label="median")
        figure.legend(loc="outside lower left", ncols=3)
    return laid_out(figure)


def span_figure(title: str, spans: Sequence[Span], *, x: str) -> Figure:
    """Draw differences from the top down, with their intervals, around a line at no difference."""
    with styled():
        figure, axes = new_figure(title, 1.15 + 0.36 * len(spans))
        axes.axvline(0, color=COLOURS["ink"], lw=1.1)
        for place, span in enumerate(spans):
            for bounds, shift, colour in (
                (span.seeds, -0.13, SERIES[0]),
                (span.users, 0.13, SERIES[1]),
            ):
                if bounds is not None:
                    axes.plot(bounds, [place + shift] * 2, color=colour, lw=2.6)
            axes.plot([span.value], [place], "o", color=COLOURS["ink"], ms=4.5)
        _rows(axes, [span.name for span in spans])
        axes.set_xlabel(x)
        values = [v for s in spans for v in (s.value, *(s.users or ()))]
        values += [v for s in spans for v in _not_too_wide(s)]
        reach = (min([0.0, *values]), max([0.0, *values]))
        room = 0.06 * max(reach[1] - reach[0], 1e-9)
        axes.set_xlim(reach[0] - room, reach[1] + room)
        axes.plot([], [], color=SERIES[0], lw=2.6, label="95 % over seeds")
        axes.plot([], [], color=SERIES[1], lw=2.6, label="95 % over test users")
        figure.legend(loc="outside lower left", ncols=2)
    return laid_out(figure)


def trail_figure(
    title: str, trails: Sequence[Trail], levels: Sequence[Level], *, x: str, y: str
) -> Figure:
    """Draw points with their spread on a logarithmic x axis, and levels across.

    Args:
        title: What the figure shows.
        trails: At least one; of at most four series.
        levels: Named at the right.
        x: Name of the x axis; its values are positive.
        y: Name and unit of the y axis.
    """
    series = list(dict.fromkeys(trail.series for trail in trails))
    with styled():
        figure, axes = new_figure(title, 4.1)
        axes.set_xscale("log")
        for trail in trails:
            number = series.index(trail.series)
            _trail(axes, trail, SERIES[number], filled=number == 0)
        axes.margins(x=0.12, y=0.1)
        number_powers(axes.xaxis)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        for level in levels:
            axes.axhline(level.value, color=COLOURS["muted"], lw=0.9, ls=(0, (2, 2)))
        name_at_the_right(axes, [(v.name, v.value, COLOURS["muted"]) for v in levels])
        if len(series) > 1:
            for number, name in enumerate(series):
                face = SERIES[number] if number == 0 else "none"
                axes.plot([], [], "o", color=SERIES[number], mfc=face, ms=6, label=name)
            figure.legend(loc="outside lower left", ncols=2)
        laid_out(figure)
        named = [point for trail in trails if trail.is_named for point in trail.points]
        if len(named) <= _MOST_NAMED:
            name_points(axes, named, boxes_of(axes, trails, levels))
    return figure


def pair_figure(
    title: str, names: tuple[str, str], points: Sequence[tuple[str, float, float, float]]
) -> Figure:
    """Draw each class's AP under two settings against its frequency.

    Args:
        title: What the figure shows.
        names: Of the two settings.
        points: Of each class its name, positives in train (at least 1), and both APs in percent.
    """
    with styled():
        figure, axes = new_figure(title, 4.0)
        axes.set_xscale("log")
        for _, x, first, second in points:
            axes.plot([x, x], [first, second], color=COLOURS["muted"], lw=0.8)
        xs = [x for _, x, _, _ in points]
        for number, (name, marker) in enumerate(zip(names, "os", strict=True)):
            face = SERIES[0] if number == 0 else "none"
            ys = [point[2 + number] for point in points]
            axes.plot(
                xs, ys, marker, color=SERIES[number], mfc=face, ms=5, label=printable(name, 40)
            )
        number_powers(axes.xaxis)
        axes.set_xlabel("images of train that have the class")
        axes.set_ylabel("AP on test, %")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.08)
        figure.legend(loc="outside lower left", ncols=2)
        laid_out(figure)
        widest = sorted(points, key=lambda point: -abs(point[3] - point[2]))[:6]
        marks = [Point(n, x, y, a, b) for n, x, a, b in points for y in (a, b)]
        name_points(
            axes,
            [Point(n, x, max(a, b), a, b) for n, x, a, b in widest],
            [box_around(axes, mark.x, mark.y, mark.y, 4) for mark in marks],
        )
    return figure


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """Name rows from the top down."""
    axes.set_yticks(range(len(names)), [printable(name, LETTERS) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def _not_too_wide(span: Span) -> tuple[float, ...]:
    """Return the seeds' bounds, cut where they would hide everything else."""
    if span.seeds is None:
        return ()
    widest = 4 * max(abs(span.value), *(abs(v) for v in (span.users or (0.0,))), 1.0)
    return tuple(max(-widest, min(widest, bound)) for bound in span.seeds)


def _trail(axes: Axes, trail: Trail, colour: str, *, filled: bool) -> None:
    xs = [point.x for point in trail.points]
    ys = [point.y for point in trail.points]
    for point in trail.points:
        axes.plot([point.x] * 2, [point.low, point.high], color=colour, lw=1.2)
    order, size = (3, 4.5) if filled else (2, 7.5)  # both are seen where they coincide
    axes.plot(xs, ys, color=colour, lw=1.0, ls="-" if filled else (0, (4, 2)), zorder=order)
    face = colour if filled else "none"
    axes.plot(xs, ys, "o", color=colour, mfc=face, ms=size, zorder=order)
