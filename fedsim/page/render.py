"""Renders a page from sections of tables and figures."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsim.chart import Chart, inline_svg
from fedsim.printable import printable
from fedsim.tables import Table


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading.
        text: A sentence or two under the heading.
        tables: Shown after the figures.
        charts: Figures.
    """

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()


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
    script = _file("sort.js")
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
    return environment


def _file(name: str) -> str:
    return (resources.files("fedsim.page") / name).read_text(encoding="utf-8")
