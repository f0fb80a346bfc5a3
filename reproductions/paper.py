"""What the scripts of this folder share: printing a paper's claims beside Weft's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

Row = Mapping[str, str]


def show(
    title: str, source: str, conditions: Sequence[str], rows: Sequence[Row], findings: Sequence[str] = ()
) -> None:
    """Print a claim: what it is, where it stands, what is assumed, the figures, and what they say."""
    console = Console(highlight=False, width=119)
    console.print(f"[bold]{title}[/]\nSource: {source}")
    for condition in conditions:
        console.print(f"Assumed: {condition}")
    table = Table(box=None, header_style="bold")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == next(iter(rows[0])) else "right")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    for finding in findings:
        console.print(finding)
    console.print()
