"""Where results go, what is checked before anything runs, and progress."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from weft.commands.options import Options, option
from weft.errors import BadInput, MissingExtra, NothingFeasible
from weft.files import write_text, writing
from weft.results import Result, columns_of

if TYPE_CHECKING:
    from weft.views.blocks import Block
    from weft.views.charts import Chart

CHARTS = (".svg", ".png", ".pdf")


def deliver(text: str, output: str | None) -> None:
    """Text to the terminal or, whole or not at all, to a file."""
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    write_text(output, text)


def tell_of_compiling() -> None:
    """Let people know why a first run takes longer."""
    from weft import solvers

    solvers.listener = partial(click.echo, err=True)


def check_chart(path: str, option: str) -> None:
    """Refuse a chart that cannot be drawn or written before anything runs."""
    check_named(path, option, CHARTS, "chart.svg")
    if find_spec("altair") is None or find_spec("vl_convert") is None:
        raise MissingExtra(option, "plot")


def deliver_chart(chart: Chart, path: str) -> None:
    """A chart to a file, in the form that the ending of its name says."""
    from weft.views.charts import rendered

    with writing(path) as file:
        file.write(rendered(chart, Path(path).suffix))


def check_file(path: str, option: str) -> None:
    """Refuse a file that cannot be written before anything runs."""
    where = f"{option} {path}"
    if not os.path.isdir(Path(path).absolute().parent):
        raise BadInput("its folder does not exist", where=where, remedy="make the folder first")
    try:
        folder = stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=where) from None
    if folder:
        raise BadInput("is a folder", where=where, remedy="name a file in it")


def check_named(path: str, option: str, endings: Sequence[str], example: str) -> str:
    """Refuse a file whose name does not end in one of ``endings``, or that cannot be written; the ending."""
    ending = Path(path).suffix.lower()
    if ending not in endings:
        known = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
        raise BadInput(f"{path!r} does not end in {known}", where=option, remedy=f"name it like {example}")
    check_file(path, option)
    return ending


def check_picture(path: str, option: str) -> None:
    """Refuse a picture that is no SVG, or has no folder, before anything runs."""
    check_named(path, option, (".svg",), "picture.svg")


def chart_option(what: str, *flags: str) -> Any:
    """The option that also draws a result."""
    text = f"Also draw {what} (.svg, .png, .pdf)."
    return option(None, text, *flags, metavar="FILE", check=check_chart)


def file_option(text: str, *flags: str, metavar: str = "FILE") -> Any:
    """The option that names a file to write."""
    return option(None, text, *flags, metavar=metavar, check=check_file)


class Progress:
    """A bar on the terminal for what takes more than a moment, with ``fields`` of text; silent when piped."""

    def __init__(self, words: str, *fields: str) -> None:
        self.words, self.fields = words, fields

    def __enter__(self) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from weft.views.terminal import terminal

        shown = terminal(error=True)
        self.bar = Progress(
            TextColumn(self.words),
            BarColumn(),
            MofNCompleteColumn(),
            *(TextColumn(f"{{task.fields[{name}]}}") for name in self.fields),
            TimeRemainingColumn(),
            console=shown,
            transient=True,
            disable=not shown.is_terminal,
        )
        empty: dict[str, Any] = dict.fromkeys(self.fields, "")
        self.task = self.bar.add_task("", total=None, **empty)
        self.bar.start()
        return self

    def __call__(self, done: int, total: int, **fields: Any) -> None:
        self.bar.update(self.task, completed=done, total=total, **fields)

    def __exit__(self, *unused: object) -> None:
        self.bar.stop()


class FileOutput(Options):
    """Where a result goes."""

    group = "Output"
    output: str | None = file_option("Write there instead of to the terminal.", "-o", "--output")


class TableOutput(FileOutput):
    """How tables are shown."""

    wide: bool = option(False, "Show all columns, however wide.")


class Output(TableOutput):
    """How and where a result goes: a table, or its document."""

    form: Literal["table", "json"] = option("table", "Output.", "--format")


class RowsOutput(TableOutput):
    """How and where a result with rows goes."""

    form: Literal["table", "json", "csv"] = option("table", "Output.", "--format")


class VerboseOutput(Options):
    """How much of a result is shown."""

    group = "Output"
    verbose: bool = option(False, "Also show all parts and where assumptions come from.")


class LayoutOutput(VerboseOutput, RowsOutput):
    """How and where layouts go, and what is drawn of them."""

    chart: str | None = chart_option("where time and memory go")


def nothing_fits(problem: str, out: Output | RowsOutput) -> NoReturn:
    """Exit with code 3; a table on the terminal has said why already."""
    if out.form == "table" and out.output is None:
        raise click.exceptions.Exit(NothingFeasible.exit_code)
    raise NothingFeasible(problem)


def report(
    result: Result,
    out: Output | RowsOutput,
    view: Iterable[Block] | None = None,
    *,
    chart: Callable[[], Chart] | None = None,
    drawn: bool = True,
    **words: Any,
) -> None:
    """Print or write a result in the form that was asked for, and draw it; beside a JSON file the
    verdict goes to standard error.

    Args:
        view: what people see, the verdict first, where it is not the result's own view, which takes ``words``.
        chart: what is drawn, where it is not the result's own chart.
        drawn: whether there is anything to draw.
    """
    if out.form == "json":
        deliver(result.to_json(), out.output)
    elif out.form == "csv":
        from weft.views.files import rows_to_csv

        rows = result.to_dicts()
        deliver(rows_to_csv(rows, columns_of(result, rows)), out.output)
    if out.form == "table" or (out.form == "json" and out.output is not None):
        from weft.views import view_of

        words |= {"verbose": out.verbose} if hasattr(out, "verbose") else {}
        view = view_of(result, **words) if view is None else view
        if out.form == "table":
            show(view, out.output, wide=out.wide)
        else:
            from weft.views.terminal import print_blocks, terminal

            print_blocks(islice(view, 1), terminal(error=True))
    if drawn and (path := getattr(out, "chart", None)) is not None:
        deliver_chart((chart or result.chart)(), path)


def show(view: Iterable[Block], output: str | None, *, wide: bool | None = None) -> None:
    """Blocks to the terminal, or to a file without colours; ``wide`` shows all columns of tables."""
    from weft.views.terminal import print_blocks, to_text

    if output is None:
        print_blocks(view, wide=wide)
    else:
        deliver(to_text(view, wide=wide), output)
