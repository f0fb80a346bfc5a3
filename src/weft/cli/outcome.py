"""What the verbs print and write once the numbers are there."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.cli.options import console, deliver
from weft.verbs.launch import TOOLS
from weft.verbs.options import Options, option

if TYPE_CHECKING:
    from rich.console import Console

    from weft.interop.training.launchers import LaunchArguments
    from weft.results import Result


@dataclass(frozen=True, kw_only=True)
class FileOutput(Options):
    """Where a result goes."""

    output: str | None = option(None, "Write there instead of to the terminal.", "-o", "--output", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class Output(FileOutput):
    """How and where a result goes: a table, or its document."""

    form: str = option("table", "Output.", "--format", choices=("table", "json"))


@dataclass(frozen=True, kw_only=True)
class RowsOutput(FileOutput):
    """How and where a result with rows goes."""

    form: str = option("table", "Output.", "--format", choices=("table", "json", "csv"))


@dataclass(frozen=True, kw_only=True)
class LayoutOutput(RowsOutput):
    """How and where layouts go, and what is made of them."""

    chart: str | None = option(None, "Also draw where time and memory go (.svg, .png, .pdf, .html).", metavar="FILE")
    launch: str | None = option(None, "Also print launch arguments of the best for a tool.", choices=TOOLS)


def report(found: Result, out: Output | RowsOutput, table: Callable[[Console], None]) -> None:
    """Print or write a result in the form that was asked for; ``table`` prints it for people."""
    if out.form == "json":
        deliver(found.to_json(), out.output)
    elif out.form == "csv":
        from weft.report.formats.csv_out import rows_to_csv

        rows = found.to_dicts()
        deliver(rows_to_csv(rows, found.COLUMNS or tuple(rows[0])), out.output)
    else:
        show(table, out.output)


def print_launch(arguments: LaunchArguments, screen: Console) -> None:
    """Launch arguments as they are to be copied: file, command, notes."""
    screen.print(f"\nLaunch with {arguments.tool}: save this as {arguments.file}", style="bold", markup=False)
    screen.out(arguments.text.rstrip(), highlight=False)
    screen.out(f"\n{arguments.command}", highlight=False)
    for note in arguments.notes:
        screen.print(f"note: {note}", markup=False)


def show(render: Callable[[Console], None], output: str | None) -> None:
    """Render to the terminal, or to a file without colours."""
    if output is None:
        render(console())
        return
    from rich.console import Console

    text = io.StringIO()
    render(Console(file=text, width=110, highlight=False))
    deliver(text.getvalue(), output)
