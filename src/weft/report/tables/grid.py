"""Tables that keep within the console: columns in order of importance, dropped where there is no room."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from weft.errors import printable

GAP = 2
"""Blanks between columns."""
MIN_WIDTH = 40
PIPED_WIDTH = 110
_SHORTEST, _MARK = 5, "..."
_FIXED_BLANK = "\u00a0"
_UNIT = re.compile(r"(?<=[0-9]) (?=(?:[um]?s|h|d|[kMGT]?B(?:/s)?|TFLOP/s|x|tokens)\b)")
"""The blank between a number and its unit, where no line may break."""


def terminal(*, error: bool = False) -> Console:
    """The console of standard output or of standard error, which has ``PIPED_WIDTH`` columns when piped, or
    more where ``COLUMNS`` asks for them."""
    stream = sys.stderr if error else sys.stdout
    asked = os.environ.get("COLUMNS", "")
    width = max(PIPED_WIDTH, int(asked) if asked.isdecimal() and len(asked) < 5 else 0)
    return Screen(stderr=error, width=None if stream.isatty() else width, highlight=False, soft_wrap=False)


class Screen(Console):
    """A console on which names from files do nothing but stand there, and whose reader may leave."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(one) if isinstance(one, str) else one for one in objects), **options)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


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


def print_grid(console: Console, columns: Sequence[Column], *, indent: int = 2) -> list[Column]:
    """Print the columns that fit, each row on one line, and return those that were left out.

    Where those that may not be left out do not fit, the longest texts are shortened in their middle.
    """
    kept = fitting(columns, console.width - indent)
    hidden = [column for column in columns if column not in kept]
    kept = _shortened(kept, console.width - indent)
    if any(column.heading for column in kept):
        _print_line(console, kept, [column.heading for column in kept], indent, "bold")
    for row in zip(*(column.cells for column in kept), strict=True):
        _print_line(console, kept, row, indent, "")
    if hidden:
        width = indent + sum(column.width for column in columns) + GAP * (len(columns) - 1)
        names = ", ".join(column.heading for column in hidden)
        paragraph(console, f"No room for: {names} (COLUMNS={width} makes room).", indent=2)
    return hidden


def _print_line(console: Console, columns: Sequence[Column], cells: Sequence[str], indent: int, style: str) -> None:
    padded = [
        cell.ljust(column.width) if column.left else cell.rjust(column.width)
        for column, cell in zip(columns, cells, strict=True)
    ]
    line = " " * indent + (" " * GAP).join(padded)
    print_raw(console, line.rstrip(), style)


def _shortened(columns: list[Column], width: int) -> list[Column]:
    """The columns with texts of at most the length at which all of them fit."""
    longest = max((column.width for column in columns), default=0)
    while longest > _SHORTEST and sum(min(column.width, longest) + GAP for column in columns) - GAP > width:
        longest -= 1

    def short(text: str) -> str:
        begin, end = (longest - 2) // 2, (longest - len(_MARK)) // 2
        return text if len(text) <= longest else f"{text[:begin]}{_MARK}{text[-end:]}"

    return [replace(one, heading=short(one.heading), cells=[short(text) for text in one.cells]) for one in columns]


def print_raw(console: Console, line: str, style: str = "") -> None:
    """Print one line as it is: no markup, no highlighting, no wrapping, however long."""
    console.print(Text(printable(line), style=style), no_wrap=True, soft_wrap=True)


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
    paragraph(console, text, style="bold")


def paragraph(console: Console, text: str, *, indent: int = 0, hang: int = 0, style: str = "") -> None:
    """Print text wrapped at the console's width, ``indent`` blanks in and further lines ``hang`` more."""
    lines = textwrap.wrap(
        _UNIT.sub(_FIXED_BLANK, text),
        width=max(MIN_WIDTH, console.width),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
    )
    for line in lines:
        print_raw(console, line.replace(_FIXED_BLANK, " "), style)


def bar(console: Console, share: float, width: int) -> str:
    """A bar of up to ``width`` cells, of block characters where the console has them."""
    block = "#" if console.options.ascii_only else "\u2588"
    return block * max(round(share * width), 1 if share > 0.002 else 0)
