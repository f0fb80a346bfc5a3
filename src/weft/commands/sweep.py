"""``weft.sweep``: a study over axes, on the cores of this machine or on many machines."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.codec import table_of
from weft.commands.command_line import DefaultGroup, command
from weft.commands.options import Options, given_options, option, verb
from weft.commands.output import (
    Progress,
    RowsOutput,
    TableOutput,
    chart_option,
    check_named,
    deliver,
    deliver_chart,
    show,
)
from weft.documents import parse_json
from weft.errors import BadInput, MissingExtra
from weft.files import writing

if TYPE_CHECKING:
    from weft.studies.result import Sweep
    from weft.studies.run import Counts, Forecast, StudyRun
    from weft.studies.study import Study

USAGE = "weft sweep STUDY.toml -o FILE | weft sweep --models a,b --clusters c,d [--axis batch=256,512] -o FILE"
COMPUTE = "weft.commands.points:compute"
TIMED = 5
"""Points that a dry run times."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Options):
    """A small study, and where and how a study runs."""

    group = "Job"
    models: str | None = option(None, "Models, as weft plan takes them.", metavar="A,B")
    clusters: str | None = option(None, "Clusters, as weft plan takes them.", metavar="A,B")
    axis: tuple[str, ...] = option(
        (), "Another axis, as batch=256,512 or 'layout=tp=8,sp;tp=4' (repeats).", metavar="NAME=V,V"
    )
    compute: str | None = option(None, "Command to compute at each point (default: plan).", metavar="NAME")
    workers: str | int | None = option(
        None, "Processes (default: one per core), ray or ray://HOST:PORT.", metavar="N|ray"
    )
    state: str | None = option(None, "Folder that keeps results; the same command resumes.", metavar="DIR")


@verb(SweepOptions)
def sweep(
    study: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    options: SweepOptions | None = None,
    *,
    progress: Callable[[Counts], object] | None = None,
    **given: Any,
) -> Sweep:
    """Compute a study at all its points, on many cores or machines; ``state`` keeps results between calls.

    >>> import weft
    >>> with weft.sweep(models="gpt2-124m", clusters="a100-8,a100-16", axis=("batch=32,64",), workers=1) as results:
    ...     [(row["cluster"], row["batch"], row["failure"]) for row in results.rows()]
    [('a100-8', 32, None), ('a100-8', 64, None), ('a100-16', 32, None), ('a100-16', 64, None)]

    Args:
        study: a study file (weft.study/1), or a mapping with its fields; None where options name the axes.
        options: the options as a record instead of keywords.
        progress: called with the counts after each batch of points.

    Raises:
        BadInput: the study, an option or the state cannot be used.
        MissingExtra: Ray is not installed.
    """
    options = given_options(SweepOptions, options, given)
    from weft.studies.result import Sweep
    from weft.studies.runners import runner

    with ExitStack() as stack:
        run, temporary = _run(study, options, stack, progress)
        if len(run.missing):
            ray = str(options.workers).startswith("ray")
            with closing(runner(options.workers if len(run.missing) > 1 or ray else 1)) as chosen:
                run.go(chosen)
        stack.pop_all()
        return Sweep(run.points, run.kept, run.keys, run.counts, temporary)


def forecast(study: str | os.PathLike[str] | Mapping[str, Any] | None, options: SweepOptions) -> Forecast:
    """Count the points of a study and time a few of them; nothing is kept."""
    from weft.studies.run import Forecast
    from weft.studies.runners import answer

    if options.state is not None and not os.path.isdir(options.state):
        options = replace(options, state=None)
    with ExitStack() as stack:
        run, _ = _run(study, options, stack, None)
        # Points far apart, as neighbours take similar times.
        count = min(TIMED, len(run.missing))
        chosen = [int(run.missing[i * (len(run.missing) - 1) // max(count - 1, 1)]) for i in range(count)]
        if chosen:
            answer(run.task(chosen[:1]))  # loads what all points need
        begin = time.perf_counter()
        result = answer(run.task(chosen)) if chosen else None
        taken = time.perf_counter() - begin
        if result is not None and result.problem:
            raise BadInput(result.problem, where="sweep", remedy="run the command again")
        return Forecast(
            study=run.points.study.name,
            points=run.counts.points,
            known=run.counts.known,
            missing=len(run.missing),
            timed=len(chosen),
            point_s=taken / len(chosen) if chosen else 0.0,
        )


def open_sweep(folder: str | os.PathLike[str]) -> Sweep:
    """The results so far in a state folder, of the study that last used it."""
    from weft.commands.points import computation
    from weft.studies.result import Sweep
    from weft.studies.run import FILE, Counts, StudyState
    from weft.studies.study import Points, study_from_dict

    where = os.fspath(folder)
    if not os.path.isfile(Path(folder, FILE)):
        raise BadInput("is not the state of a sweep", where=where, remedy="give the folder of --state")
    kept = StudyState(folder)
    try:
        noted, stamp = kept.noted("last"), kept.noted("version")
        if noted is None or stamp is None:
            raise BadInput("holds no study yet", where=where, remedy="run weft sweep with --state first")
        last = table_of(parse_json(noted, where), where)
        study = study_from_dict(table_of(last.get("study"), where), computation, where=where)
        files = {str(name): str(digest) for name, digest in table_of(last.get("files"), where).items()}
        points = Points(study, files=files)
        keys = points.keys(stamp)
        return Sweep(points, kept, keys, Counts.of(keys, kept)[0])
    except BaseException:
        kept.close()
        raise


def _run(
    study: Any, options: SweepOptions, stack: ExitStack, progress: Callable[[Counts], object] | None
) -> tuple[StudyRun, str | None]:
    """The run with its state, which ``stack`` closes, and the folder to remove afterwards."""
    from weft.studies.run import StudyRun, StudyState
    from weft.studies.runners import version
    from weft.studies.study import Points

    read = _study(study, options)
    points, temporary = Points(read), None
    if options.state is None:
        temporary = tempfile.mkdtemp(prefix="weft-sweep-")
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
    stamps = {"study": read.name, "computation": read.computation.name, "version": version()}
    kept = stack.enter_context(closing(StudyState(options.state or str(temporary), stamps)))
    kept.note("last", json.dumps({"study": read.document, "files": points.files}))
    return StudyRun(points=points, kept=kept, compute=COMPUTE, progress=progress), temporary


def _study(study: Any, options: SweepOptions) -> Study:
    """The study of a file or of a mapping, or that of the options."""
    from weft.commands.points import computation
    from weft.studies.study import SCHEMA, read_study, study_from_dict

    axes: dict[str, Any] = {
        name: _values(getattr(options, name), ",") for name in ("models", "clusters") if getattr(options, name)
    }
    for text in options.axis:
        name, sign, values = text.partition("=")
        if not sign or not values.strip():
            raise BadInput(f"{text[:60]!r} is not an axis", where="--axis", remedy="write it like radix=32,64")
        if name.strip() in axes:
            raise BadInput(f"{name.strip()[:60]} is given twice", where="--axis", remedy="give it once")
        axes[name.strip()] = _values(values, ";" if ";" in values or name.strip() in ("layout", "layouts") else ",")
    if study is not None and (axes or options.compute):
        problem = "a study file has its own axes; --models, --clusters, --axis and --compute do not go with it"
        raise BadInput(problem, where="sweep", remedy=USAGE)
    if study is None:
        if not (axes or options.compute):
            problem = "a study file is needed, or --models and --clusters"
            example = "for example: weft sweep --models llama-3.1-8b --clusters h100-64,h200-64 -o r.csv"
            raise BadInput(problem, where="sweep", remedy=example)
        document: dict[str, Any] = {"schema": SCHEMA, "axes": axes}
        return study_from_dict(document | {"compute": options.compute or "plan"}, computation, where="sweep")
    if isinstance(study, Mapping):
        return study_from_dict({"schema": SCHEMA} | dict(study), computation)
    from weft.commands.shared import path_of

    return read_study(path_of(study, "STUDY"), computation)


def _values(text: str, between: str) -> list[str]:
    return [value.strip() for value in text.split(between) if value.strip()]


def _check_table(path: str, where: str) -> None:
    """Refuse a file that cannot be written before anything runs."""
    if check_named(path, where, (".csv", ".parquet"), "r.csv") == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtra(f"{where} FILE.parquet", "parquet")


@dataclass(frozen=True, kw_only=True)
class SweepOutput(TableOutput):
    """Where results go."""

    output: str | None = option(
        None, "Write results there (.csv, .parquet).", "-o", "--output", metavar="FILE", check=_check_table
    )
    dry_run: bool = option(False, "Only count the points and time a few.")


@dataclass(frozen=True, kw_only=True)
class ShowOptions(RowsOutput):
    """Which results are shown, and how."""

    where: tuple[str, ...] = option((), "Only rows with this value (repeats).", metavar="COLUMN=VALUE")
    chart: str | None = chart_option("--y over --x")
    x: str | None = option(None, "Column of the horizontal axis.", metavar="COLUMN")
    y: str | None = option(None, "Column of the vertical axis.", metavar="COLUMN")
    colour: str | None = option(None, "Column with a colour for each value.", metavar="COLUMN")
    facet: str | None = option(None, "Column with a panel for each value.", metavar="COLUMN")

    needs = {"chart": "x", "x": "y", "y": "chart", "colour": "chart", "facet": "chart"}


@click.group(cls=DefaultGroup, default="run")
def sweep_command() -> None:
    """Compute a command over many settings, on one machine or many, and show the results.

    \b
    weft sweep --models llama-3.1-8b,llama-3.1-70b --clusters h100-64,h100-128 --axis batch=256,512 -o r.csv
    weft sweep STUDY.toml -o r.csv               a study file (docs/sweep.md)
    weft sweep STUDY.toml --state DIR -o r.csv   keep results; the same command resumes
    weft sweep STUDY.toml --dry-run              how many points, how long
    weft sweep show DIR --where count=1024

    Without the word run or show, arguments are those of run: weft sweep run --help.
    """


@command("[STUDY.toml]", into=sweep_command, options=SweepOptions, out=SweepOutput)
def run_command(study: str | None, options: SweepOptions, out: SweepOutput) -> None:
    """Compute a study at all its points; results in --state are not computed again.

    The result has one row a point, in the order of the axes. A point that fails has its failure and message.
    """
    if out.dry_run:
        from weft.views.study import forecast_view

        show(forecast_view(forecast(study, options), options.workers), None)
        return
    from weft.views.study import sweep_view

    with Progress("points", "rate", "failures") as bar:

        def tell(counts: Counts) -> None:
            speed = bar.bar.tasks[0].speed
            rate = f"{speed:,.1f}/s" if speed else ""
            failures = f"{counts.failed:,} failed" if counts.failed else ""
            bar(counts.computed, counts.computed + counts.left, rate=rate, failures=failures)

        computed = sweep(study, options, progress=tell)
    with computed as result:
        if out.output is not None:
            _write(result, out.output)
        show(sweep_view(result, written=out.output), None, wide=out.wide)


@command("DIR", into=sweep_command, options=ShowOptions)
def show_command(folder: str, options: ShowOptions) -> None:
    """Show the results in the folder of --state."""
    from weft.studies.result import column_of, filtered
    from weft.views.files import rows_to_csv
    from weft.views.study import show_view, telling

    with open_sweep(folder) as result:
        columns = result.columns()
        rows = filtered(result.rows(), options.where, columns)
        names = list(columns)
        if options.form == "table":
            names = telling(rows, result.points.columns)
            show(show_view(rows, names, result), options.output, wide=options.wide)
        else:
            plain = [{name: row.get(name) for name in names} for row in rows]
            text = rows_to_csv(rows, names) if options.form == "csv" else json.dumps(plain, indent=1) + "\n"
            deliver(text, options.output)
        if options.chart is not None:
            from weft.views.study import sweep_chart

            given = {place: getattr(options, place) for place in ("x", "y", "colour", "facet")}
            places: dict[str, Any] = {
                place: name and column_of(name, columns, f"--{place}") for place, name in given.items()
            }
            chart = sweep_chart(rows, columns, result.points.columns, **places, title=result.study)
            deliver_chart(chart, options.chart)


def _write(result: Sweep, path: str) -> None:
    """The rows as a file, as they come from the disk."""
    from weft.views.files import write_csv, write_parquet

    with writing(path) as file:
        if Path(path).suffix.lower() == ".parquet":
            write_parquet(file, result.rows(), result.columns())
            return
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        write_csv(text, result.rows(), list(result.columns()))
        text.flush()
        text.detach()
