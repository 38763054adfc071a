"""Names in figures, put where nothing else is."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import blended_transform_factory

from fedsim.figures import COLOURS, WIDTH
from fedsim.printable import printable
from fedsim.report.marks import Level, Point, Trail

LETTERS = 26  # of a name in a figure
_LEADER = {"arrowstyle": "-", "lw": 0.5, "color": COLOURS["muted"], "shrinkA": 0, "shrinkB": 3}
Box = tuple[float, float, float, float]

_NEAR = (
    *((7, 0, "left"), (-7, 0, "right"), (0, 9, "center"), (0, -10, "center")),
    *((6, 8, "left"), (6, -8, "left"), (-6, 8, "right"), (-6, -8, "right")),
    *((x, y, "center") for y in (18, -18, 28, -28, 38, -38) for x in (0, -20, 20)),  # with a line
)
_LINE_HEIGHT = 0.052  # of names at the end of lines, over the height of the axes


def name_at_the_right(axes: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Write names beside the axes at their values, moved apart where they would overlap."""
    axes.autoscale_view()
    axes.set_ylim(axes.get_ylim())
    low, high = axes.get_ylim()
    places = spread([(value - low) / (high - low) for _, value, _ in ends], _LINE_HEIGHT)
    across = blended_transform_factory(axes.transAxes, axes.transAxes)
    for (name, value, colour), place in zip(ends, places, strict=True):
        height = (value - low) / (high - low)
        axes.plot(
            [1.0, 1.025], [height, place], color=colour, lw=0.6, transform=across, clip_on=False
        )
        axes.text(
            1.032, place, printable(name, LETTERS), color=colour, fontsize=7.2, va="center",
            transform=across,
        )  # fmt: skip


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return places at least ``gap`` apart, in the same order, near where they were, and at most 1.

    Examples:
        >>> [round(place, 2) for place in spread([0.5, 0.52, 0.9], 0.1)]
        [0.46, 0.56, 0.9]
    """
    order = sorted(range(len(places)), key=lambda number: places[number])
    blocks: list[tuple[float, list[int]]] = []  # middles, and who is in them
    for number in order:
        blocks.append((places[number], [number]))
        while len(blocks) > 1:
            (one, left), (two, right) = blocks[-2:]
            if two - one >= gap * (len(left) + len(right)) / 2:
                break
            middle = (one * len(left) + two * len(right)) / (len(left) + len(right))
            blocks[-2:] = [(middle, left + right)]
    result = [0.0] * len(places)
    for middle, members in blocks:
        for rank, number in enumerate(members):
            result[number] = middle + (rank - (len(members) - 1) / 2) * gap
    ceiling = 1.0
    for number in reversed(order):
        result[number] = min(result[number], ceiling)
        ceiling = result[number] - gap
    return result


def name_points(axes: Axes, points: Sequence[Point], taken: list[Box]) -> None:
    """Write names beside points where nothing else is; those without room go without."""
    inside = axes.bbox
    scale = inside.width / (axes.get_position().width * WIDTH * 72)  # pixels of a point
    for point in points:
        name = printable(point.name, 22)
        x, y = axes.transData.transform((point.x, point.y))
        width, height = 4.1 * len(name) * scale, 8.5 * scale
        for dx, dy, side in _NEAR:
            left = (
                x
                + dx * scale
                - (width if side == "right" else width / 2 if side == "center" else 0)
            )
            bottom = y + dy * scale - height / 2
            box = (left, bottom, left + width, bottom + height)
            if box[0] < inside.x0 or box[2] > inside.x1 or box[1] < inside.y0 or box[3] > inside.y1:
                continue
            if any(_overlap(box, other) for other in taken):
                continue
            taken.append(box)
            axes.annotate(
                name, (point.x, point.y), (dx, dy), textcoords="offset points", ha=side,
                va="center", fontsize=7, color=COLOURS["ink"],
                arrowprops=_LEADER if abs(dy) > 10 else None,
            )  # fmt: skip
            break


def boxes_of(axes: Axes, trails: Sequence[Trail], levels: Sequence[Level]) -> list[Box]:
    """Return where names would cover points, their spread, the lines between them or levels."""
    boxes: list[Box] = []
    for trail in trails:
        boxes += [box_around(axes, p.x, p.y, p.y, 4) for p in trail.points]
        boxes += [box_around(axes, p.x, p.low, p.high, 2) for p in trail.points]
        for one, two in pairwise(trail.points):
            for share in np.linspace(0, 1, 40).tolist():
                x = one.x ** (1 - share) * two.x**share
                y = one.y * (1 - share) + two.y * share
                boxes.append(box_around(axes, x, y, y, 1))
    low, high = axes.get_xlim()
    for level in levels:
        left, right = (box_around(axes, x, level.value, level.value, 1) for x in (low, high))
        boxes.append((left[0], left[1], right[2], right[3]))
    return boxes


def box_around(axes: Axes, x: float, low: float, high: float, room: float) -> Box:
    """Return a box around an upright line, ``room`` pixels wider to all sides."""
    left, bottom = axes.transData.transform((x, low))
    _, top = axes.transData.transform((x, high))
    return left - room, bottom - room, left + room, top + room


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
