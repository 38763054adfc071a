"""What figures of results are made of."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.figures import COLOURS, DASHES, SERIES, Dashes
from fedsim.over_seeds import Interval

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pen:
    """How a setting is drawn in every figure."""

    colour: str
    dashes: Dashes = "-"
    width: float = 1.5


REFERENCE_PEN = Pen(COLOURS["ink"], width=2.0)
MUTED_PEN = Pen(COLOURS["muted"], width=0.7)
PENS = tuple(Pen(colour, dashes) for colour, dashes in zip(SERIES, DASHES, strict=True))


@dataclass(frozen=True, eq=False)
class Curve:
    """A line, named at its end or in a legend.

    Attributes:
        name: Its name; empty for none.
        pen: How it is drawn.
        x: Places.
        y: Values.
        band: Lower and upper bounds around it; None for none.
    """

    name: str
    pen: Pen
    x: Floats
    y: Floats
    band: tuple[Floats, Floats] | None = None


@dataclass(frozen=True)
class Level:
    """A value that does not depend on x, drawn across."""

    name: str
    value: float


@dataclass(frozen=True)
class Span:
    """A difference and its intervals; None where one is unknown."""

    name: str
    value: float
    seeds: Interval | None
    users: Interval | None


@dataclass(frozen=True)
class Point:
    """A named value at x with a spread; ``low`` and ``high`` are its ends."""

    name: str
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Trail:
    """Points of settings that differ in x alone; they are joined.

    Attributes:
        series: What x is, in the legend; trails of one series look alike.
        points: From left to right.
        is_named: Whether points are named.
    """

    series: str
    points: tuple[Point, ...]
    is_named: bool = True
