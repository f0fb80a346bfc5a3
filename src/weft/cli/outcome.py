"""What the verbs print and write once the numbers are there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.cli.options import deliver
from weft.interop.training.launch import TOOLS
from weft.verbs.options import Options, option

if TYPE_CHECKING:
    from weft.results import Result
    from weft.views.blocks import Block


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


def report(found: Result, out: Output | RowsOutput, view: Iterable[Block]) -> None:
    """Print or write a result in the form that was asked for; ``view`` is what people see."""
    if out.form == "json":
        deliver(found.to_json(), out.output)
    elif out.form == "csv":
        from weft.views.files.csv_out import rows_to_csv

        rows = found.to_dicts()
        deliver(rows_to_csv(rows, found.COLUMNS or tuple(rows[0])), out.output)
    else:
        show(view, out.output)


def show(view: Iterable[Block], output: str | None) -> None:
    """Blocks to the terminal, or to a file without colours."""
    from weft.views.terminal import print_blocks, to_text

    if output is None:
        print_blocks(view)
    else:
        deliver(to_text(view), output)
