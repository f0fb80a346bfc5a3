"""A published claim beside Weft's figures, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from weft.report.tables.grid import Column, paragraph, print_grid
from weft.units import format_seconds, format_si

if TYPE_CHECKING:
    from weft.reproductions.study import Reproduction

_FORMS = {
    "_share": lambda value: f"{value:.1%}",
    "_points": lambda value: f"{value:+.1f}",
    "_times": lambda value: f"{value:.3f}",
    "_Bps": lambda value: format_si(value, "B/s"),
    "_s": format_seconds,
}
"""How figures are told, by the end of their column's name."""
_UNITS = {"_points": ", points", "_times": ", x"}


def reproduction_table(found: Reproduction, console: Console) -> None:
    """Print the source, the conditions, the rows and what follows from them."""
    paragraph(console, found.title, style="bold")
    paragraph(console, f"Source: {found.source}", hang=8)
    for one in found.conditions:
        paragraph(console, f"Assumed: {one}", hang=9)
    console.print()
    columns = [
        Column(
            heading=_heading(name),
            cells=[_cell(name, row[name]) for row in found.rows],
            left=isinstance(found.rows[0][name], str),
            drop=name == "layout",
        )
        for name in found.rows[0]
    ]
    print_grid(console, columns)
    for one in found.findings:
        paragraph(console, one, indent=2)


def _heading(name: str) -> str:
    for suffix in _FORMS:
        if name.endswith(suffix):
            return name.removesuffix(suffix).replace("_", " ") + _UNITS.get(suffix, "")
    return name.replace("_", " ")


def _cell(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    for suffix, form in _FORMS.items():
        if name.endswith(suffix):
            return form(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
