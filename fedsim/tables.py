"""Tables that are shown on a terminal and on a page, and kept as CSV."""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import rich.table
from rich.box import SIMPLE_HEAD
from rich.text import Text

from fedsim.printable import printable

Cell = str | int | float | None

_BAR_LETTERS = 9
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Column:
    """How the cells of a column are shown.

    Attributes:
        name: Its head.
        digits: Decimals of a fraction.
        bar: Numbers are drawn as bars too.
        longest: The number of a full bar; the default is the column's largest.
    """

    name: str
    digits: int = 0
    bar: bool = False
    longest: float | None = None


@dataclass(frozen=True)
class Table:
    """A table; None is a cell without a value.

    Attributes:
        name: Of its CSV file, and its place on a page: letters, digits, ``-`` and ``_``.
        title: What it tells.
        columns: Heads, from left to right.
        rows: Cells, from left to right; all rows are as long as ``columns``.
        note: What one must know to read it.

    Examples:
        >>> table = Table("pets", "Pets", (Column("pet"), Column("kg", digits=1)), (("cat", 4.25),))
        >>> table.shown(0, 0), table.shown(0, 1), table.is_numeric(0), table.is_numeric(1)
        ('cat', '4.2', False, True)
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def shown(self, row: int, column: int) -> str:
        """Return a cell's text; numbers with commas, a dash for none."""
        value = self.rows[row][column]
        if value is None:
            return "–"
        if isinstance(value, str):
            return printable(value)
        return (
            f"{value:,}" if isinstance(value, int) else f"{value:,.{self.columns[column].digits}f}"
        )

    def is_numeric(self, column: int) -> bool:
        """Tell whether a column holds no text."""
        return self._numeric[column]

    def share(self, row: int, column: int) -> float | None:
        """Return a bar's length over that of a full one; None where there is no bar."""
        value = self.rows[row][column]
        if not self.columns[column].bar or value is None or isinstance(value, str):
            return None
        most = self.columns[column].longest or self._most[column]
        return value / most if most else 0.0

    @cached_property
    def _numeric(self) -> list[bool]:
        return [
            not any(isinstance(row[column], str) for row in self.rows)
            for column in range(len(self.columns))
        ]

    @cached_property
    def _most(self) -> list[float]:
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return [
            max((cell for cell in cells if isinstance(cell, int | float)), default=0)
            for cells in columns
        ]


def terminal_table(table: Table, limit: int | None = None) -> rich.table.Table:
    """Return what a terminal shows; rows after the first ``limit`` are only counted."""
    shown = rich.table.Table(
        title=Text(table.title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),  # a table of a dozen columns fits a terminal of 80 letters
    )
    drawn = range(len(table.rows))[:limit]
    for place, column in enumerate(table.columns):
        numeric = table.is_numeric(place)
        words = [len(word) for word in column.name.split()]
        cells_wide = [len(table.shown(row, place)) for row in drawn] if numeric or not place else []
        shown.add_column(
            Text(column.name),
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=max([*words, *cells_wide], default=0),
        )
        if column.bar:
            shown.add_column("", no_wrap=True)
    for row in drawn:
        cells: list[Text] = []
        for place, column in enumerate(table.columns):
            cells.append(Text(table.shown(row, place)))
            if column.bar:
                cells.append(Text(_bar(table.share(row, place) or 0.0), style="cyan"))
        shown.add_row(*cells)
    hidden = 0 if limit is None else max(len(table.rows) - limit, 0)
    notes = [table.note] if table.note else []
    if hidden:
        notes.append(f"{hidden:,} more rows are not shown here.")
    shown.caption = Text(" ".join(notes)) if notes else None
    shown.caption_justify = "left"
    return shown


def write_csv(table: Table, path: Path) -> None:
    """Write the cells as they are, under the columns' names; no value is an empty cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.name for column in table.columns])
        writer.writerows(table.rows)


def _bar(share: float) -> str:
    eighths = round(share * _BAR_LETTERS * 8)
    if share > 0:
        eighths = max(eighths, 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()
