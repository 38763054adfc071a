"""Renders a page from sections of tables and figures."""

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsim.chart import Chart, inline_svg
from fedsim.printable import printable
from fedsim.tables import Table

_SCRIPTS = ("sort.js", "pairs.js")


@dataclass(frozen=True)
class Card:
    """A finding in large letters.

    Attributes:
        title: What it is about.
        value: The finding: a few words.
        text: What is to be made of it.
        facts: Names and values that it rests on.
    """

    title: str
    value: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Details:
    """Something that is folded away until it is asked for.

    Attributes:
        title: What is in it.
        facts: Names and values.
        text: Shown with its line breaks, in letters of one width.
    """

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    text: str = ""


@dataclass(frozen=True, eq=False)
class Pairs:
    """A figure in which the reader chooses the two series that are compared.

    Without scripts its chart is shown as it is.

    Attributes:
        chart: Two of the series.
        names: Of the points.
        x: Of the points, positive; the axis is logarithmic.
        series: Each series' values at the points, by its name; None where there is none.
        chosen: The two series that are shown first.
        axes: Names and units of the x and the y axis.
    """

    chart: Chart
    names: tuple[str, ...]
    x: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]]
    chosen: tuple[str, str]
    axes: tuple[str, str]

    def as_json(self) -> Markup:
        """Return what the page's script draws from; it can't end the element that it stands in."""
        content = {
            "names": [printable(name) for name in self.names],
            "x": self.x,
            "series": [[printable(name), values] for name, values in self.series.items()],
            "chosen": [list(self.series).index(name) for name in self.chosen],
            "axes": self.axes,
        }
        text = json.dumps(content, allow_nan=False)
        return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        text: A sentence or two under the heading; an empty line begins a new paragraph.
        tables: Shown after the figures.
        charts: Figures.
        cards: Findings, shown before the figures.
        pairs: Figures in which two series are chosen, shown after the others.
        details: What is folded away, shown last.
    """

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    cards: tuple[Card, ...] = ()
    pairs: tuple[Pairs, ...] = ()
    details: tuple[Details, ...] = ()


def render_page(
    title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section], *, footer: str
) -> str:
    """Return a whole HTML page.

    Everything is inline, and the page's own policy forbids it to load or send anything. Text is
    escaped, whoever wrote it.

    Args:
        title: Of the page.
        facts: Names and values, shown at the top.
        sections: From the top down.
        footer: How the page was made.
    """
    template = _environment().get_template("template.html")
    script = "".join(map(_file, _SCRIPTS))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template.render(
        title=title,
        facts=facts,
        sections=sections,
        footer=footer,
        style=Markup(_file("style.css")),
        script=Markup(script),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'",
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedsim.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = lambda chart: Markup(inline_svg(chart))
    environment.filters["printable"] = printable
    environment.filters["printable_lines"] = lambda text: "\n".join(
        map(printable, text.split("\n"))
    )
    environment.filters["number"] = _number
    return environment


def _number(value: float | None) -> str:
    """Return a cell as scripts read numbers."""
    if value is None:
        return ""
    return ("-" if value < 0 else "") + "Infinity" if math.isinf(value) else str(value)


def _file(name: str) -> str:
    return (resources.files("fedsim.page") / name).read_text(encoding="utf-8")
