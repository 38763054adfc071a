"""Findings as a table."""

from rich.table import Table
from rich.text import Text

from fedsim.audit.findings import Finding

_COLORS = {"pass": "green", "FAIL": "bold red", "not applicable": "dim"}


def findings_table(title: str, findings: list[Finding]) -> Table:
    """Make a table with a row per check, and the explanation where there is one."""
    table = Table(title=title, title_justify="left")
    for name in ("check", "claimed", "measured", "verdict"):
        table.add_column(name, overflow="fold")
    before = ""
    for finding in findings:
        told, explanation = str(finding.verdict), finding.explanation
        if explanation:
            told += f": {'as above' if explanation == before else explanation}"
        before = explanation
        cells = (finding.name, finding.claimed, finding.measured)
        table.add_row(*map(Text, cells), Text(told, style=_COLORS[finding.verdict]))
    return table
