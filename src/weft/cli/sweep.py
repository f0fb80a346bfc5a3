"""``weft sweep``: run a study, and look at its results."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.build import takes
from weft.cli.options import check_chart, check_folder, console, deliver_chart
from weft.cli.outcome import FileOutput, show
from weft.errors import BadInput
from weft.files import writing
from weft.verbs.options import Options, option
from weft.verbs.sweep import SweepOptions, forecast, open_sweep
from weft.verbs.sweep import sweep as swept

if TYPE_CHECKING:
    from weft.studies.result import Sweep

TABLES = (".csv", ".parquet")


@dataclass(frozen=True, kw_only=True)
class ChartOptions(Options):
    """Which columns are drawn."""

    chart: str | None = option(None, "Draw two columns (.svg, .png, .pdf, .html).", metavar="FILE")
    x: str | None = option(None, "Column of --chart from left to right.", metavar="COLUMN")
    y: str | None = option(None, "Column of --chart from below.", metavar="COLUMN")
    colour: str | None = option(None, "Column that colours tell apart.", metavar="COLUMN")
    facet: str | None = option(None, "Column with a picture for each value.", metavar="COLUMN")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.chart is None) != (self.x is None) or (self.chart is None) != (self.y is None):
            raise BadInput("go together", where="--chart, --x and --y", remedy="give all three, or none")
        if self.chart is None and (self.colour or self.facet):
            raise BadInput("go with --chart", where="--colour and --facet", remedy="add it, or drop them")


@dataclass(frozen=True, kw_only=True)
class SweepOutput(FileOutput, ChartOptions):
    """Where results go."""

    output: str | None = option(
        None, "Write the results there, as CSV or Parquet (extra parquet).", "-o", "--output", metavar="FILE"
    )
    dry_run: bool = option(False, "Only count the points, and time a few of them.")


@dataclass(frozen=True, kw_only=True)
class ShowOptions(FileOutput, ChartOptions):
    """Which results are shown, and how."""

    where: tuple[str, ...] = option((), "Rows with this value (repeats).", metavar="COLUMN=VALUE")
    columns: str | None = option(None, "Columns to show.", metavar="A,B,...")
    form: str = option("table", "Output.", "--format", choices=("table", "json", "csv"))


class RunByDefault(click.Group):
    """A group that takes anything but the name of a verb for the arguments of ``run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in ("-h", "--help", *self.commands):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=RunByDefault)
def sweep() -> None:
    """Compute a study over axes, on one machine or many, and look at its results.

    \b
    weft sweep STUDY.toml -o results.csv         all points of a study (docs/sweep.md)
    weft sweep STUDY.toml --state DIR -o r.csv   the same command goes on after a kill
    weft sweep STUDY.toml --dry-run              how many points, how long
    weft sweep --models llama-3.1-8b,llama-3.1-70b --clusters h100-64,h100-128 --batches 256,512 -o r.csv
    weft sweep STUDY.toml --workers ray -o r.csv on a Ray cluster
    weft sweep show DIR --where count=1024 --columns layout,mfu

    Arguments without a verb are those of run: weft sweep run --help.
    """


@sweep.command()
@click.argument("study", required=False, metavar="[STUDY.toml]")
@takes(options=SweepOptions, out=SweepOutput)
def run(study: str | None, options: SweepOptions, out: SweepOutput) -> None:
    """Compute a study at all its points; what --state has is not computed again.

    The result has a row for each point in the order of the axes, the same bytes for any number of workers and
    after any kill. A point that fails is a row with its failure and message.
    """
    check_chart(out.chart)
    _check_output(out.output)
    if out.dry_run:
        from weft.views.sweep import forecast_view

        show(forecast_view(forecast(study, options), options.workers), None)
        return
    from weft.views.sweep import sweep_view

    with _Progress() as progress, swept(study, options, progress=progress) as found:
        progress.stop()
        if out.output is not None:
            _write(found, out.output)
        show(sweep_view(found, written=out.output), None)
        if out.chart is not None:
            _draw(found, list(found.rows()), out, out.chart)


@sweep.command(name="show")
@click.argument("folder", metavar="DIR")
@takes(options=ShowOptions)
def show_results(folder: str, options: ShowOptions) -> None:
    """Show results that --state kept: all of them, or those with given values."""
    from weft.studies.view import chosen, filtered
    from weft.views.sweep import rows_view, telling

    check_chart(options.chart)
    with open_sweep(folder) as found:
        columns = found.columns()
        rows = filtered(found.rows(), options.where, columns)
        names = list(columns)
        if options.columns is not None:
            names = chosen(options.columns, columns, "--columns")
        elif options.form == "table":
            names = telling(rows, found.points.columns)
        if options.form == "table":
            show(rows_view(rows, names), options.output)
        else:
            _deliver_rows(rows, names, options)
        if options.chart is not None:
            _draw(found, rows, options, options.chart)


def _deliver_rows(rows: list[dict[str, Any]], names: list[str], options: ShowOptions) -> None:
    import json

    from weft.cli.options import deliver
    from weft.views.files.csv_out import write_csv

    if options.form == "json":
        plain = [{name: row.get(name) for name in names} for row in rows]
        deliver(json.dumps(plain, indent=1) + "\n", options.output)
        return
    text = io.StringIO()
    write_csv(text, rows, names)
    deliver(text.getvalue(), options.output)


def _check_output(path: str | None) -> None:
    """Refuse a file that cannot be written before anything runs."""
    if path is None:
        return
    suffix = Path(path).suffix.lower()
    if suffix not in TABLES:
        raise BadInput(
            f"{path!r} does not end in {' or '.join(TABLES)}", where="--output", remedy="name it like r.csv"
        )
    check_folder(path, "--output")
    if suffix == ".parquet":
        from weft.views.files.parquet_out import check_parquet

        check_parquet("--output")


def _write(found: Sweep, path: str) -> None:
    """The rows as a file, as they come from the disk."""
    from weft.views.files.csv_out import write_csv
    from weft.views.files.parquet_out import write_parquet

    with writing(path) as file:
        if Path(path).suffix.lower() == ".parquet":
            write_parquet(file, found.rows(), found.columns())
            return
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        write_csv(text, found.rows(), list(found.columns()))
        text.flush()
        text.detach()


def _draw(found: Sweep, rows: list[dict[str, Any]], asked: ChartOptions, path: str) -> None:
    """The chart of some rows."""
    from weft.studies.view import chosen
    from weft.views.charts.sweep import sweep_chart

    columns, points = found.columns(), found.points
    named = {"x": asked.x, "y": asked.y, "colour": asked.colour, "facet": asked.facet}
    places: dict[str, Any] = {
        place: None if name is None else chosen(name, columns, f"--{place}")[0] for place, name in named.items()
    }
    deliver_chart(sweep_chart(rows, columns, points.columns, **places, title=points.study.name), path)


class _Progress:
    """A bar on the terminal with rate, failures and time left; silent when piped."""

    def __enter__(self) -> _Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        shown = console(error=True)
        self._bar = Progress(
            TextColumn("points"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[failures]}"),
            TimeRemainingColumn(),
            console=shown,
            transient=True,
            disable=not shown.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, rate="", failures="")
        self._bar.start()
        return self

    def __call__(self, counts: Any) -> None:
        speed = self._bar.tasks[0].speed
        self._bar.update(
            self._task,
            completed=counts.computed,
            total=counts.computed + counts.left,
            rate=f"{speed:,.1f}/s" if speed else "",
            failures=f"{counts.failed:,} failed" if counts.failed else "",
        )

    def stop(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def __exit__(self, *unused: object) -> None:
        self.stop()
