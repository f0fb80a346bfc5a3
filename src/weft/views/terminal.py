"""Blocks on a terminal: grids keep within its width, columns of less importance left out where there is no room."""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from weft.errors import printable
from weft.views.blocks import Blank, Block, Column, Copied, Fact, Heading, Paragraph, Table

GAP, INDENT = 2, 2
"""Blanks between columns, and before the first."""
MIN_WIDTH = 40
PIPED_WIDTH = 110
FILE_WIDTH = 110
BAR = 40
"""Widest bar, in characters."""
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
        super().print(*(printable(text) if isinstance(text, str) else text for text in objects), **options)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def print_blocks(blocks: Iterable[Block], console: Console | None = None, *, wide: bool | None = None) -> None:
    """Print blocks to a console, that of standard output by default; ``wide`` hides no column (None: the command has
    no such option)."""
    console = console or terminal()
    for block in blocks:
        match block:
            case Paragraph():
                _print_paragraph(console, block)
            case Heading():
                console.print()
                _print_paragraph(console, Paragraph(block.text, style="bold"))
            case Table():
                _print_grid(console, block, wide)
            case Blank():
                console.print()
            case Fact(name=name, text=text, width=width):
                shown = Paragraph(name.ljust(width) + text, indent=block.indent, hang=width, style=block.style)
                _print_paragraph(console, shown)
            case Copied() if "\n" not in block.text:
                _print_raw(console, f"  {block.label}: {block.text}")
            case Copied():
                console.out(block.text.rstrip("\n"), highlight=False)


def to_text(blocks: Iterable[Block], *, wide: bool | None = None) -> str:
    """Blocks as the text of a file, without colours."""
    text = io.StringIO()
    print_blocks(blocks, Console(file=text, width=FILE_WIDTH, highlight=False), wide=wide)
    return text.getvalue()


def _print_grid(console: Console, grid: Table, wide: bool | None) -> None:
    """The columns that fit (``wide``: all), each row on one line; the longest texts are shortened where the rest does
    not fit."""
    columns = [_drawn(console, column) if column.shares else column for column in grid.columns]
    room = console.width - INDENT
    fitting = columns if wide else _fitting(columns, room)
    shown = columns if wide else _shortened(fitting, room)
    if any(column.heading for column in shown):
        _print_row(console, shown, [column.heading for column in shown], "bold")
    for row in zip(*(column.cells for column in shown), strict=True):
        _print_row(console, shown, row)
    if hidden := [column.heading for column in columns if column.heading and column not in fitting]:
        remedy = "a wider terminal shows them" if wide is None else "use --wide"
        text = f"Hidden columns: {', '.join(hidden)} ({remedy})"
        _print_paragraph(console, Paragraph(text, indent=2, style="dim"))
    if meanings := [f"{column.heading}: {column.meaning}" for column in fitting if column.meaning]:
        _print_paragraph(console, Paragraph("; ".join(meanings), indent=2))


def _drawn(console: Console, column: Column) -> Column:
    """A column of bars as texts, of block characters where the console has them."""
    width = max(0, min(BAR, console.width - column.room))
    block = "#" if console.options.ascii_only else "\u2588"
    bars = [block * max(round(share * width), 1 if share > 0.002 else 0) for share in column.shares]
    return replace(column, cells=bars, shares=())


def _print_row(console: Console, columns: Sequence[Column], cells: Sequence[str], style: str = "") -> None:
    padded = [
        cell.ljust(column.width) if column.left else cell.rjust(column.width)
        for column, cell in zip(columns, cells, strict=True)
    ]
    _print_raw(console, (" " * INDENT + (" " * GAP).join(padded)).rstrip(), style)


def _shortened(columns: list[Column], width: int) -> list[Column]:
    """The columns with texts of at most the length at which all of them fit."""
    longest = max((column.width for column in columns), default=0)
    while longest > _SHORTEST and sum(min(column.width, longest) + GAP for column in columns) - GAP > width:
        longest -= 1

    def short(text: str) -> str:
        begin, end = (longest - 2) // 2, (longest - len(_MARK)) // 2
        return text if len(text) <= longest else f"{text[:begin]}{_MARK}{text[-end:]}"

    return [
        replace(column, heading=short(column.heading), cells=[short(text) for text in column.cells])
        for column in columns
    ]


def _print_raw(console: Console, line: str, style: str = "") -> None:
    """One line as it is: no markup, no highlighting, no wrapping, however long."""
    line = line.replace("\u00b1", "+-") if console.options.ascii_only else line
    console.print(Text(printable(line), style=style), no_wrap=True, soft_wrap=True)


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns left when those of the highest ``drop`` are taken out until the rest fits ``width``."""
    kept = list(columns)
    while sum(column.width + GAP for column in kept) - GAP > width:
        droppable = [column for column in kept if column.drop]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda column: column.drop))
    return kept


def _print_paragraph(console: Console, block: Paragraph) -> None:
    lines = textwrap.wrap(
        _UNIT.sub(_FIXED_BLANK, block.text),
        width=max(MIN_WIDTH, console.width),
        initial_indent=" " * block.indent,
        subsequent_indent=" " * (block.indent + block.hang),
        break_on_hyphens=False,
    )
    for line in lines:
        _print_raw(console, line.replace(_FIXED_BLANK, " "), block.style)
