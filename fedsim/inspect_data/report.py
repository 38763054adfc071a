"""Puts tables and figures of a collection together, for a terminal and for a folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fedsim import __version__
from fedsim.chart import save
from fedsim.data.index import LABEL_SETS, StoredImages
from fedsim.errors import DataError
from fedsim.inspect_data.charts import label_charts, sheet_chart, user_chart
from fedsim.inspect_data.measure import measure_labels
from fedsim.inspect_data.tables import facts_of, label_tables, overview_tables, user_tables
from fedsim.page.render import Section, render_page
from fedsim.printable import printable
from fedsim.tables import terminal_table, write_csv

_ROWS_SHOWN = 20  # of a table on a terminal


@dataclass(frozen=True, eq=False)
class Inspection:
    """What there is to see of a collection.

    Attributes:
        facts: What it is, as names and values.
        sections: Tables and figures, from the general to the particular.
    """

    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def inspect_images(
    images: StoredImages,
    label_sets: Sequence[str] = LABEL_SETS,
    *,
    seed: int = 0,
    with_charts: bool = True,
    more_facts: Sequence[tuple[str, str]] = (),
) -> Inspection:
    """Look at a collection; of its images, only a few are read, and those for a figure.

    Args:
        images: The collection, dealt to users in whatever way.
        label_sets: Whose labels are looked at closely; at least one of "coarse" and "fine".
        seed: Draws the control of the divergence, and the images that are shown.
        with_charts: Draw figures too.
        more_facts: Names and values that stand beside the collection's own.

    Raises:
        DataError: There are no images, or one that is shown can't be decoded.
    """
    index = images.index
    if not len(index):
        raise DataError(f"{images.place}: expected images, found none; give another collection")
    chart = (user_chart(index),) if with_charts else ()
    sections = [
        Section("Overview", tables=overview_tables(index)),
        Section("Users", tables=user_tables(index), charts=chart),
    ]
    for label_set in label_sets:
        measures = measure_labels(index, label_set, seed)
        sections.append(
            Section(
                f"{label_set.capitalize()} labels",
                tables=label_tables(measures, index),
                charts=label_charts(measures, index) if with_charts else (),
            )
        )
    if with_charts:
        sections.append(Section("Images", charts=(sheet_chart(images, label_sets[0], seed),)))
    return Inspection([*facts_of(images), *more_facts], sections)


def show(inspection: Inspection, console: Console) -> None:
    """Print facts and tables; the rows of long tables are cut, and counted."""
    for name, value in inspection.facts:
        line = Text(f"{name:<15}", style="dim").append(printable(value), style="default not dim")
        console.print(line, soft_wrap=True)
    for section in inspection.sections:
        for table in section.tables:
            console.print()
            console.print(terminal_table(table, _ROWS_SHOWN))


def write(inspection: Inspection, folder: Path) -> Path:
    """Write ``index.html``, every figure as PNG and SVG, and every table as CSV.

    Args:
        inspection: What to write.
        folder: Where to; it is made, and files of these names in it are replaced.

    Returns:
        The page's path.

    Raises:
        DataError: The folder can't be made or written to.
    """
    page = folder / "index.html"
    name = dict(inspection.facts)["name"]
    text = render_page(
        f"{name}: what is in it",
        inspection.facts,
        inspection.sections,
        footer=f"Made by fedsim data inspect, fedsim {__version__}.",
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section in inspection.sections:
            for table in section.tables:
                write_csv(table, folder / f"{table.name}.csv")
            for chart in section.charts:
                save(chart, folder)
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"{folder}: expected a folder to write to, found {error.strerror}; choose another"
        ) from error
    return page
