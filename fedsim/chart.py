"""Figures with what is said of them, as files and as elements of a page.

As files, figures stand on white paper. On a page their colours are variables of the page's style
sheet, so that they follow light and dark. The same values give the same bytes under the same
matplotlib.
"""

import html
import io
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from fedsim.figures import COLOURS, drawing
from fedsim.printable import printable

_DPI = 200
_WHITE, _NO_PAPER = 'style="fill: #ffffff"', 'style="fill: none"'  # of the first path, the paper


@dataclass(frozen=True, eq=False)
class Chart:
    """A figure and what is said of it.

    Attributes:
        name: Of its files, and its place on a page: letters, digits, ``-`` and ``_``.
        title: What it shows; it stands in the figure too.
        caption: How to read it, and how it was made.
        figure: The figure.
        is_wide: It holds small things, and scrolls where a page is too narrow for them.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    is_wide: bool = False

    @cached_property
    def svg(self) -> str:
        """The figure on white paper; the page's version is made of the same text."""
        buffer = io.StringIO()
        unnamed = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with drawing():
            self.figure.savefig(buffer, format="svg", facecolor="white", metadata=unnamed)
        return buffer.getvalue()


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write a chart as ``<name>.png`` and ``<name>.svg``; return both paths."""
    png, svg = folder / f"{chart.name}.png", folder / f"{chart.name}.svg"
    with drawing():
        chart.figure.savefig(png, dpi=_DPI, facecolor="white", metadata={"Software": None})
    svg.write_text(chart.svg, encoding="utf-8")
    return [png, svg]


def inline_svg(chart: Chart) -> str:
    """Return a chart as an element of a page, with the page's colours and ids of its own."""
    svg = chart.svg[chart.svg.index("<svg") :].replace(_WHITE, _NO_PAPER, 1)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would hold for all the page
    svg = re.sub(r"<[^>]*>", lambda tag: _of_page(tag[0], chart.name), svg)
    _, viewbox, rest = re.split(r'(viewBox="[^"]*")[^>]*>', svg, maxsplit=1)
    label = html.escape(printable(chart.title))
    return f'<svg {viewbox} role="img" aria-label="{label}">{rest}'


def _of_page(tag: str, name: str) -> str:
    """Make a tag's ids unique on the page, and its colours those of the page."""
    tag = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", tag)
    for colour, value in COLOURS.items():
        tag = tag.replace(f": {value}", f": var(--{colour})")
    return tag.replace("xlink:href", "href")
