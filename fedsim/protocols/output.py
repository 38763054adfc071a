"""What a protocol found, as tables on a terminal, and as JSON, CSV and figures in a folder."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fedsim.chart import Chart, save
from fedsim.errors import DataError
from fedsim.tables import Table, terminal_table, write_csv

_SHOWN_ROWS = 20


@dataclass(frozen=True, eq=False)
class Findings:
    """What a protocol found.

    Attributes:
        name: Of its JSON file.
        facts: What JSON can hold; NaN becomes null.
        tables: From the top down.
        remarks: Sentences that stand below the tables.
        charts: Draws the figures; asked only if they are written.
    """

    name: str
    facts: Mapping[str, Any]
    tables: Sequence[Table]
    remarks: Sequence[str]
    charts: Callable[[], Sequence[Chart]]


def present(findings: Findings, out: Path | None, *, as_json: bool) -> None:
    """Print findings, as tables or as JSON, and write them to ``out`` if it is given.

    Raises:
        DataError: The folder can't be written.
    """
    text = json.dumps(_finite(findings.facts), indent=2, ensure_ascii=False, allow_nan=False)
    if as_json:
        print(text)
    else:
        _show(findings)
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{findings.name}.json").write_text(text + "\n", encoding="utf-8")
        for table in findings.tables:
            write_csv(table, out / f"{table.name}.csv")
        for chart in findings.charts():
            save(chart, out)
    except OSError as error:
        raise DataError(
            f"{out}: expected a folder to write to, found {error.strerror}; choose another"
        ) from error
    if not as_json:
        print(f"\nJSON, tables and figures: {out}")


def _show(findings: Findings) -> None:
    console = Console()
    # What does not go to a terminal is not cut to the width of one.
    console = console if console.is_terminal else Console(width=120)
    for table in findings.tables:
        console.print(terminal_table(table, _SHOWN_ROWS))
        console.print()
    for remark in findings.remarks:
        console.print(Text(remark))


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
