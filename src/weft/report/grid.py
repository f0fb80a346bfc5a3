"""Tables that keep within the console: columns in order of importance, dropped where there is no room."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = 2
"""Blanks between columns."""
MIN_WIDTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Heading and cells; a higher ``drop`` goes first where the table is too wide, 0 never."""

    heading: str
    cells: Sequence[str]
    drop: int = 0
    left: bool = False

    @property
    def width(self) -> int:
        return max(len(text) for text in (self.heading, *self.cells))


def print_grid(console: Console, columns: Sequence[Column], *, indent: int = 2) -> None:
    """Print the columns that fit, each row on one line."""
    kept = fitting(columns, console.width - indent)
    headed = any(column.heading for column in kept)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_header=headed)
    for column in kept:
        table.add_column(
            Text(column.heading),
            justify="left" if column.left else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in zip(*(column.cells for column in kept), strict=True):
        table.add_row(*(Text(cell) for cell in row))
    console.print(Padding(table, (0, 0, 0, indent)))


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns left when those of the highest ``drop`` are taken out until the rest fits ``width``."""
    kept = list(columns)
    while sum(column.width + GAP for column in kept) - GAP > width:
        droppable = [column for column in kept if column.drop]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda column: column.drop))
    return kept


def heading(console: Console, text: str) -> None:
    """A blank line and a section's heading."""
    console.print()
    console.print(Text(text, style="bold"))


def paragraph(console: Console, text: str, *, indent: int = 0, hang: int = 0, style: str = "") -> None:
    """Print text wrapped at the console's width: all lines ``indent`` blanks in, further ones ``hang`` more."""
    lines = textwrap.wrap(
        text,
        width=max(MIN_WIDTH, console.width),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
    )
    for line in lines:
        console.print(Text(line, style=style), no_wrap=True, soft_wrap=True)


def bar(console: Console, share: float, width: int) -> str:
    """A bar of up to ``width`` cells, of block characters where the console has them."""
    block = "#" if console.options.ascii_only else "\u2588"
    return block * max(round(share * width), 1 if share > 0.002 else 0)
