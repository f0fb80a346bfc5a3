"""What a study computes at a point: a command, whose options are the axes, and the figures of its row."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from weft.cluster.calibration import stack_names
from weft.cluster.catalogue import MOST_OVERSUBSCRIBED, oversubscribed, resized, with_latency
from weft.cluster.files import parameters, parse_latency, parse_parameter, with_parameters
from weft.codec import encode
from weft.commands.arrange import ArrangeOptions, arrange
from weft.commands.design import DesignOptions, design
from weft.commands.estimate import EstimateOptions, estimate
from weft.commands.networks import is_file
from weft.commands.options import Option, Options, options_of
from weft.commands.plan import PlanOptions, plan
from weft.commands.route import RouteOptions, route
from weft.commands.schedule import ScheduleOptions, schedule
from weft.commands.shared import ModelOptions, cluster_of, job_of
from weft.commands.simulate import SimulateOptions, simulate
from weft.errors import BadInput, NothingFeasible, UnknownName, Unsupported
from weft.fabric.catalogue import check_kinds
from weft.layout.text import format_layout, parse_layout
from weft.model.job import PRECISIONS
from weft.studies.study import AxisKind, Computation, Value
from weft.units import parse_bytes, parse_count, parse_whole

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.model import Job

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
        row |= {f"run_{name}": value for name, value in _figures(encode(run)).items()}
        row |= {"days": run.days, "expected_days": run.expected_days, "goodput": run.training_s / run.expected_s}
    if simulated_s is not None:
        row["simulated_s"] = simulated_s
    return row


def _figures(document: Mapping[str, Any]) -> Row:
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
    return {"layout_text": format_layout(result.layout)} | _figures(result.to_dict()) | speed


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
    return _figures(result.to_dict())


def _route(options: PointOptions) -> Row:
    cut = options.layout
    layout = cut if isinstance(cut, str) else format_layout(cut)
    job = f"{options.values['model']} {layout}"
    result = route(cluster=options.cluster, job=job, **options.without("cluster", "job"))
    return {"layout_text": layout} | _figures(result.to_dict())


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


def _values(items: _Items) -> dict[str, Any]:
    return {name: value for name, value, _ in items}


@cache
def _cluster_columns() -> tuple[str, ...]:
    return ("cluster", *(kind.column for kind in cluster_axes().values()))


@lru_cache(_CACHED)
def _job(items: _Items, accelerators: int) -> Job:
    values = _values(items)
    return job_of(values.pop("model"), ModelOptions(**values), accelerators)


@lru_cache(_CACHED)
def _cluster(items: _Items) -> Cluster:
    values = _values(items)
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
    values = _values(items)
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
