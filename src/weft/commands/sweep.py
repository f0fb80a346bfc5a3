"""``weft.sweep``: a study over axes, on the cores of this machine or on many machines."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cluster.calibration import stack_names
from weft.cluster.catalogue import MOST_OVERSUBSCRIBED, oversubscribed, resized, with_latency
from weft.cluster.files import parameters, parse_latency, parse_parameter, with_parameters
from weft.codec import encode, table_of
from weft.commands.arrange import ArrangeOptions, arrange
from weft.commands.command_line import DefaultGroup, command
from weft.commands.design import DesignOptions, design
from weft.commands.estimate import EstimateOptions, estimate
from weft.commands.networks import is_file
from weft.commands.options import Option, Options, given_options, option, options_of, verb
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
from weft.commands.plan import PlanOptions, plan
from weft.commands.route import RouteOptions, route
from weft.commands.schedule import ScheduleOptions, schedule
from weft.commands.shared import ModelOptions, cluster_of, job_of
from weft.commands.simulate import SimulateOptions, simulate
from weft.documents import parse_json
from weft.errors import BadInput, MissingExtra, NothingFeasible, UnknownName, Unsupported
from weft.fabric.catalogue import check_kinds
from weft.files import writing
from weft.layout.text import format_layout, parse_layout
from weft.model.job import PRECISIONS
from weft.studies.study import AxisKind, Computation, Value
from weft.units import parse_bytes, parse_count, parse_whole

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.model import Job
    from weft.studies.result import Sweep
    from weft.studies.run import Counts, Forecast, StudyRun
    from weft.studies.study import Study


# What can be computed ------------------------------------------------------------------------------------------

Row = dict[str, Any]
PLANNED = "planned"
"""As a layout: the best one of a plan."""
_COUNT = re.compile(r"(?P<family>.+)-[0-9]{1,9}")
_RECIPE = tuple(known.name for known in options_of(ModelOptions))
_CACHED = 512
"""Jobs, clusters and planned layouts that a worker caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOptions:
    """The values of a point.

    Attributes:
        options: those that are options of the command.
        values: all of them.
    """

    options: dict[str, Any]
    values: Mapping[str, Value]

    @property
    def model(self) -> Job:
        return job_at(self.values, self.cluster.count)

    @property
    def cluster(self) -> Cluster:
        return cluster_at(self.values)

    @property
    def layout(self) -> Any:
        """The layout, planned where the point does not say."""
        written = self.values.get("layout", PLANNED)
        if written != PLANNED:
            return str(written)
        return _planned(_some(self.values, ("model", *_RECIPE, "stack", *_cluster_columns())))

    def without(self, *names: str) -> dict[str, Any]:
        """The options except those named."""
        return {name: value for name, value in self.options.items() if name not in names}


@dataclass(frozen=True, slots=True)
class _Verb:
    """A command that studies compute.

    Attributes:
        record: its options, each an axis except those in ``without``.
        needed: axes that a study must have.
        row: the figures of a point.
        more: further axes.
    """

    record: type[Options]
    needed: tuple[str, ...]
    row: Callable[[PointOptions], Row]
    without: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


def _plan(options: PointOptions) -> Row:
    result = plan(options.model, options.cluster, top=1, **options.without(*_RECIPE))
    return _estimate_row(result.best, result.ranked[0].run, result.ranked[0].simulated_s)


def _estimate_row(best: Any, run: Any, simulated_s: float | None = None) -> Row:
    """The figures of an estimate, of the training run with ``tokens``, and the simulated time on a network."""
    row: Row = {"layout_text": format_layout(best.layout)} | best.row()
    if run is not None:
        row |= {f"run_{name}": value for name, value in _scalars(encode(run)).items()}
        row |= {"days": run.days, "expected_days": run.expected_days, "goodput": run.training_s / run.expected_s}
    if simulated_s is not None:
        row["simulated_s"] = simulated_s
    return row


def _scalars(document: Mapping[str, Any]) -> Row:
    """The single values of a document."""
    plain = (str, int, float, type(None))
    return {name: value for name, value in document.items() if isinstance(value, plain) and name != "schema"}


def _estimate(options: PointOptions) -> Row:
    given = options.without("layout", *_RECIPE)
    result = estimate(options.model, options.cluster, options.layout, **given)
    return _estimate_row(result.estimate, result.run)


def _simulate(options: PointOptions) -> Row:
    job = options.model
    result: Any = simulate(job, options.cluster, options.layout, **options.without("layout", *_RECIPE))
    tokens = job.recipe.global_batch * job.recipe.sequence
    speed = {"tokens_per_s": tokens / result.iteration_s}
    return {"layout_text": format_layout(result.layout)} | _scalars(result.to_dict()) | speed


def _design(options: PointOptions) -> Row:
    given = options.without("layout", *_RECIPE) | {
        "fabrics": str(options.values["fabric"]),
        "oversubscription": "none",
    }
    if "layout" in options.values:
        given["layout"] = options.layout
    result = design(options.model, options.cluster, **given)
    if result.rejected:
        raise NothingFeasible(result.rejected[0].reason)
    row = result.to_dicts()[0]
    failures = result.designs[0].failures
    worst = max((failure.slowdown or float("inf") for failure in failures), default=None)
    row["worst_slowdown"] = None if worst == float("inf") else worst
    row["stranded"] = max((failure.stranded for failure in failures), default=None)
    row["layout_text"] = row.pop("layout")
    del row["pareto"]
    return row


def _schedule(options: PointOptions) -> Row:
    given = options.without("cluster")
    if "cluster" in options.values:
        given["cluster"] = options.cluster
    result = schedule(str(options.values["collective"]), float(options.values["bytes"]), **given)
    return _scalars(result.to_dict())


def _route(options: PointOptions) -> Row:
    cut = options.layout
    layout = cut if isinstance(cut, str) else format_layout(cut)
    job = f"{options.values['model']} {layout}"
    result = route(cluster=options.cluster, job=job, **options.without("cluster", "job"))
    return {"layout_text": layout} | _scalars(result.to_dict())


def _arrange(options: PointOptions) -> Row:
    result = arrange(str(options.values["site"]), **options.without())
    worst = float(result.best.slowdown.max())
    figures: Row = {"objective": result.objective, "bound": result.bound, "gap": result.gap, "worst_slowdown": worst}
    return figures | {f"policy_{name}": result.policy(name) for name in result.policies}


_PLANS = ("rank", "plan")
VERBS: dict[str, _Verb] = {
    "plan": _Verb(PlanOptions, ("model", "cluster"), _plan, without=("top", "variants")),
    "estimate": _Verb(EstimateOptions, ("model", "cluster"), _estimate, without=("run", "vocab", *_PLANS)),
    "simulate": _Verb(SimulateOptions, ("model", "cluster"), _simulate, without=("arrangement", "job", *_PLANS)),
    "design": _Verb(
        DesignOptions,
        ("model", "cluster", "fabric"),
        _design,
        without=("fabrics", "oversubscription", "sizes", "batches", *_PLANS),
    ),
    "schedule": _Verb(
        ScheduleOptions,
        ("collective", "size"),
        _schedule,
        without=("plan", "layout", "workload", "groups", "compare", "calibration"),
    ),
    "route": _Verb(
        RouteOptions,
        ("model", "cluster"),
        _route,
        more=("layout",),
        without=("plan", "job", "generate", "flows", "arrangement", "compare", "paths"),
    ),
    "arrange": _Verb(ArrangeOptions, ("site",), _arrange),
}
"""What studies compute, by name."""


def compute(name: str, values: Mapping[str, Value]) -> Row:
    """The row of a point."""
    verb = VERBS[name]
    several = {
        known.name: known.kind in ("texts", "integers")
        for known in options_of(verb.record)
        if known.name not in verb.without
    }
    options = {name: (value,) if several[name] else value for name, value in values.items() if name in several}
    return verb.row(PointOptions(options=options, values=values))


@cache
def computation(name: str, where: str = "compute") -> Computation:
    """What a name computes, and over which axes."""
    if name not in VERBS:
        raise UnknownName("computation", name[:60], VERBS, where=where)
    verb = VERBS[name]
    axes = {axis: _SUBJECTS[axis] for axis in (*verb.needed, *verb.more) if axis in _SUBJECTS}
    for known in options_of(verb.record):
        if known.name not in verb.without and known.name not in axes:
            kind = AxisKind(known.name, partial(_option, known), file="FILE" in (known.metavar or ""))
            axes[known.name] = _SUBJECTS.get(known.name, kind)
    if "cluster" in axes:
        axes = cluster_axes() | axes
    return Computation(name=name, axes=axes, needed=verb.needed)


def job_at(values: Mapping[str, Value], accelerators: int = 1) -> Job:
    """The job of a point; a default batch divides among the accelerators."""
    return _job(_some(values, ("model", *_RECIPE)), accelerators)


def cluster_at(values: Mapping[str, Value]) -> Cluster:
    """The cluster of a point, with its count, oversubscription and figures."""
    return _cluster(_some(values, _cluster_columns()))


_Items = tuple[tuple[str, Value, float], ...]


def _some(values: Mapping[str, Value], names: tuple[str, ...]) -> _Items:
    """Some values of a point as a key of caches, with the times at which files among them were written."""
    return tuple((name, values[name], _written(name, values[name])) for name in names if name in values)


def _written(name: str, value: Value) -> float:
    try:
        return os.path.getmtime(str(value)) if name in ("model", "cluster") else 0.0
    except (OSError, ValueError):
        return 0.0


def _figures(items: _Items) -> dict[str, Any]:
    return {name: value for name, value, _ in items}


@cache
def _cluster_columns() -> tuple[str, ...]:
    return ("cluster", *(kind.column for kind in cluster_axes().values()))


@lru_cache(_CACHED)
def _job(items: _Items, accelerators: int) -> Job:
    values = _figures(items)
    return job_of(values.pop("model"), ModelOptions(**values), accelerators)


@lru_cache(_CACHED)
def _cluster(items: _Items) -> Cluster:
    values = _figures(items)
    name, count = values.pop("cluster"), values.pop("count", None)
    oversubscription = values.pop("oversubscription", None)
    latencies = {name.removesuffix("_latency_s"): values.pop(name, None) for name in _LATENCIES.values()}
    if count is None or is_file(name):
        result = cluster_of(name)
    else:
        match = _COUNT.fullmatch(name)
        result = cluster_of(f"{match['family'] if match else name}-{count}")
    if count is not None and result.count != count:
        result = resized(result, count)
    if values:
        result = with_parameters(result, values)
    if oversubscription is not None and len(result.tiers) > 1:
        result = oversubscribed(result, oversubscription)
    return with_latency(result, **{f"{name}_s": latency_s for name, latency_s in latencies.items()})


@lru_cache(_CACHED)
def _planned(items: _Items) -> Any:
    values = _figures(items)
    software = {"stack": values["stack"]} if "stack" in values else {}
    cluster = cluster_at(values)
    return plan(job_at(values, cluster.count), cluster, top=1, **software).best.layout


def _option(option: Option, value: Any, where: str) -> Value:
    """A value of an option, checked as the command checks it."""
    if option.kind in ("text", "texts") and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    elif option.kind == "number" and isinstance(value, str):
        value = parse_count(value, where)
    elif option.kind == "flag":
        value = {"true": True, "false": False}.get(str(value).lower(), value)
    result = option.checked(value)
    if isinstance(result, tuple):
        result = result[0]
    if not isinstance(result, str | int | float):
        raise BadInput(f"{str(value)[:60]!r} cannot be used", where=where, remedy="give a name or a number")
    return result


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{str(value)[:60]!r} is not a name", where=where, remedy="write it in quotes")
    return value


def _model(value: Any, where: str) -> str:
    with suppress(Unsupported):  # perhaps it is not, with --as; else the row says why
        job_at({"model": _text(value, where)})
    return str(value)


def _cluster_name(value: Any, where: str) -> str:
    name = _text(value, where)
    try:
        cluster_of(name)
    except BadInput as error:
        if isinstance(error, UnknownName) or is_file(name):
            raise
    return name


def _layout(value: Any, where: str) -> str:
    if value != PLANNED:
        parse_layout(_text(value, where))
    return str(value)


def _fabric(value: Any, where: str) -> str:
    if not is_file(_text(value, where)):
        check_kinds((value,))
    return str(value)


def _one_of(kind: str, known: Collection[str], value: Any, where: str) -> str:
    if _text(value, where) not in known:
        raise UnknownName(kind, value[:60], known, where=where)
    return str(value)


def _number(parse: Callable[[Any, str], Value], most: int, value: Any, where: str) -> Value:
    """A number from 1 to ``most``."""
    result = parse(value, where)
    if not 1 <= float(result) <= most:
        raise BadInput(f"{result} is out of range", where=where, remedy=f"give 1 to {most:,}")
    return result


_count = partial(_number, parse_whole, 10**9)


_LATENCIES = {"scale_up_latency": "scale_up_latency_s", "nic_latency": "nic_latency_s"}
"""Axes of a hop's latency, and their columns: of the innermost tier, and of all others."""


@cache
def cluster_axes() -> dict[str, AxisKind]:
    """Axes that change a cluster: its accelerators, and their figures by the names of cluster files."""
    axes = {"count": AxisKind("count", _count)}
    ratio = partial(_number, parse_count, MOST_OVERSUBSCRIBED)
    axes["oversubscription"] = AxisKind("oversubscription", ratio)
    axes |= {name: AxisKind(column, parse_latency) for name, column in _LATENCIES.items()}
    for short, field in parameters().items():
        axes[short] = AxisKind(field, partial(parse_parameter, short))
    return axes


_SUBJECTS = {
    "model": AxisKind("model", _model, file=True),
    "cluster": AxisKind("cluster", _cluster_name, file=True),
    "layout": AxisKind("layout", _layout),
    "fabric": AxisKind("fabric", _fabric, file=True),
    "stack": AxisKind("stack", partial(_one_of, "framework", stack_names())),
    "precision": AxisKind("precision", partial(_one_of, "precision", PRECISIONS)),
    "batch": AxisKind("batch", _count),
    "sequence": AxisKind("sequence", _count),
    "collective": AxisKind("collective", _text),
    "size": AxisKind("bytes", parse_bytes),
    "site": AxisKind("site", _text, file=True),
}
"""Axes with stricter checks than their options, made before anything runs."""


# Sweeps --------------------------------------------------------------------------------------------------------

USAGE = "weft sweep STUDY.toml -o FILE | weft sweep --models a,b --clusters c,d [--axis batch=256,512] -o FILE"
COMPUTE = "weft.commands.sweep:compute"
TIMED = 5
"""Points that a dry run times."""


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
        options = options.changed(state=None)
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


class SweepOutput(TableOutput):
    """Where results go."""

    output: str | None = option(
        None, "Write results there (.csv, .parquet).", "-o", "--output", metavar="FILE", check=_check_table
    )
    dry_run: bool = option(False, "Only count the points and time a few.")


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
