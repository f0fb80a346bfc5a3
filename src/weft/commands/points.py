"""What a study computes at a point: a verb, whose options are the axes, and the figures that make its row."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

from weft.cluster.catalogue import MOST_OVERSUBSCRIBED, oversubscribed, resized, with_latency
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
from weft.layout.text import format_layout
from weft.studies.study import AxisKind, Computation, Value
from weft.units import parse_bytes, parse_count, parse_whole

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.model import Job

Row = dict[str, Any]
PLANNED = "planned"
"""The layout of a point that is to have the best one of a plan."""
_COUNT = re.compile(r"(?P<family>.+)-[0-9]{1,9}")
_RECIPE = tuple(one.name for one in options_of(ModelOptions))
_KEPT = 512
"""Jobs, clusters and planned layouts that a worker keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The values of a point, each where its verb takes it.

    Attributes:
        options: those that the verb's record has.
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

    def given(self, *without: str) -> dict[str, Any]:
        """The options, but for some."""
        return {name: value for name, value in self.options.items() if name not in without}


@dataclass(frozen=True, slots=True)
class _Verb:
    """A verb that studies compute.

    Attributes:
        record: its options, each an axis but for ``without``.
        needed: axes that there must be.
        row: the figures of a point.
        more: axes beside the options.
    """

    record: type[Options]
    needed: tuple[str, ...]
    row: Callable[[Asked], Row]
    without: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


def _plan(options: Asked) -> Row:
    result = plan(options.model, options.cluster, top=1, **options.given(*_RECIPE))
    return _estimate_row(result, result.best, result.runs[0] if result.runs else None)


def _estimate_row(result: Any, best: Any, run: Any) -> Row:
    """The figures of an estimate, of the whole run where one was asked for, and what the network adds."""

    row: Row = {"layout_text": format_layout(best.layout)} | best.row()
    if run is not None:
        row |= {f"run_{name}": value for name, value in _figures(encode(run)).items()}
        row |= {"days": run.days, "expected_days": run.expected_days, "goodput": run.training_s / run.expected_s}
    if getattr(result, "simulated_s", ()):
        row["simulated_s"] = result.simulated_s[0]
    return row


def _figures(document: Mapping[str, Any]) -> Row:
    """What of a document is a single value."""
    plain = (str, int, float, type(None))
    return {name: one for name, one in document.items() if isinstance(one, plain) and name != "schema"}


def _estimate(options: Asked) -> Row:
    given = options.given("layout", *_RECIPE)
    result = estimate(options.model, options.cluster, options.layout, **given)
    return _estimate_row(result, result.estimate, result.run)


def _simulate(options: Asked) -> Row:
    job = options.model
    result: Any = simulate(job, options.cluster, options.layout, **options.given("layout", *_RECIPE))
    tokens = job.recipe.global_batch * job.recipe.sequence
    speed = {"tokens_per_s": tokens / result.iteration_s}
    return {"layout_text": format_layout(result.layout)} | _figures(result.to_dict()) | speed


def _design(options: Asked) -> Row:
    given = options.given("layout", *_RECIPE) | {"fabrics": str(options.values["fabric"]), "oversubscription": "none"}
    if "layout" in options.values:
        given["layout"] = options.layout
    result = design(options.model, options.cluster, **given)
    if result.rejected:
        raise NothingFeasible(result.rejected[0].reason)
    row = result.to_dicts()[0]
    worst = max((one.slowdown or float("inf") for one in result.designs[0].failures), default=None)
    row["worst_slowdown"] = None if worst == float("inf") else worst
    row["stranded"] = max((one.stranded for one in result.designs[0].failures), default=None)
    row["layout_text"] = row.pop("layout")
    del row["pareto"]
    return row


def _schedule(options: Asked) -> Row:
    given = options.given("cluster")
    if "cluster" in options.values:
        given["cluster"] = options.cluster
    result = schedule(str(options.values["collective"]), float(options.values["bytes"]), **given)
    return _figures(result.to_dict())


def _route(options: Asked) -> Row:
    cut = options.layout
    layout = cut if isinstance(cut, str) else format_layout(cut)
    job = f"{options.values['model']} {layout}"
    result = route(cluster=options.cluster, job=job, **options.given("cluster", "job"))
    return {"layout_text": layout} | _figures(result.to_dict())


def _arrange(options: Asked) -> Row:
    result = arrange(str(options.values["site"]), **options.given())
    worst = float(result.best.slowdown.max())
    figures: Row = {"objective": result.objective, "bound": result.bound, "gap": result.gap, "worst_slowdown": worst}
    return figures | {f"policy_{name}": result.policy(name) for name in result.policies}


_PLANS = ("rank", "plan")
VERBS: dict[str, _Verb] = {
    "plan": _Verb(PlanOptions, ("model", "cluster"), _plan, without=("top", "variants")),
    "estimate": _Verb(EstimateOptions, ("model", "cluster"), _estimate, without=("run", "vocab", *_PLANS)),
    "simulate": _Verb(
        SimulateOptions, ("model", "cluster"), _simulate, without=("flows", "mode", "arrangement", "job", *_PLANS)
    ),
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
        without=(
            *("plan", "layout", "arrangement", "job", "workload", "groups", "compare", "chunk_counts"),
            *("late", "slow", "calibration"),
        ),
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
    known = {one.name: one for one in options_of(verb.record) if one.name not in verb.without}
    options = {column: _as_option(known[column], value) for column, value in values.items() if column in known}
    return verb.row(Asked(options=options, values=values))


def _as_option(option: Option, value: Value) -> Any:
    return (value,) if option.kind in ("texts", "integers") else value


@cache
def computation(name: str, where: str = "compute") -> Computation:
    """What a name computes, and over which axes."""
    if name not in VERBS:
        raise UnknownName("computation", name[:60], VERBS, where=where)
    verb = VERBS[name]
    axes = {one: _SUBJECTS[one] for one in (*verb.needed, *verb.more) if one in _SUBJECTS}
    for one in options_of(verb.record):
        if one.name not in verb.without and one.name not in axes:
            files = "FILE" in (one.metavar or "")
            axes[one.name] = _SUBJECTS.get(one.name) or AxisKind(one.name, partial(_option, one), _form(one), files)
    if "cluster" in axes:
        for axis, kind in cluster_axes().items():
            axes.setdefault(axis, kind)
    if "stack" in axes:
        axes["software"] = axes["stack"]
    return Computation(name=name, axes=axes, needed=verb.needed)


def job_at(values: Mapping[str, Value], accelerators: int = 1) -> Job:
    """The job of a point; a batch that it does not say divides among the accelerators."""
    return _job(_some(values, ("model", *_RECIPE)), accelerators)


def cluster_at(values: Mapping[str, Value]) -> Cluster:
    """The cluster of a point, with its own count, oversubscription and figures."""
    return _cluster(_some(values, _cluster_columns()))


_Items = tuple[tuple[str, Value], ...]


def _some(values: Mapping[str, Value], names: tuple[str, ...]) -> _Items:
    """Some values of a point, and of the files among them when they were written: what is kept in memory follows."""
    result = tuple((name, values[name]) for name in names if name in values)
    stamps = ((f"{name} written", _written(str(value))) for name, value in result if name in ("model", "cluster"))
    return result + tuple((name, stamp) for name, stamp in stamps if stamp)


def _written(name: str) -> int:
    try:
        return os.stat(name).st_mtime_ns
    except (OSError, ValueError):
        return 0


def _without_stamps(items: _Items) -> dict[str, Any]:
    return {name: value for name, value in items if not name.endswith(" written")}


@cache
def _cluster_columns() -> tuple[str, ...]:
    return ("cluster", *(kind.column for kind in cluster_axes().values()))


@lru_cache(_KEPT)
def _job(items: _Items, accelerators: int) -> Job:
    values = _without_stamps(items)
    return job_of(values.pop("model"), ModelOptions(**values), accelerators)


@lru_cache(_KEPT)
def _cluster(items: _Items) -> Cluster:
    from weft.cluster.files import with_parameters

    values = _without_stamps(items)
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
    return with_latency(result, **{f"{name}_s": one for name, one in latencies.items()})


@lru_cache(_KEPT)
def _planned(items: _Items) -> Any:
    values = _without_stamps(items)
    software = {"stack": values["stack"]} if "stack" in values else {}
    cluster = cluster_at(values)
    return plan(job_at(values, cluster.count), cluster, top=1, **software).best.layout


def _form(one: Option) -> Any:
    return {"integer": "whole", "number": "number", "integers": "whole"}.get(one.kind, "text")


def _option(one: Option, value: Any, where: str) -> Value:
    """A value of an option, checked as the verb checks it."""
    if one.kind in ("text", "texts") and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    elif one.kind == "number" and isinstance(value, str):
        value = parse_count(value, where)
    elif one.kind == "flag":
        value = {"true": True, "false": False}.get(str(value).lower(), value)
    result = _placed(one.checked, value, where)
    if isinstance(result, tuple):
        result = result[0]
    if not isinstance(result, str | int | float):
        raise BadInput(f"{str(value)[:60]!r} cannot be used", where=where, remedy="give a name or a number")
    return result


def _placed(read: Callable[[Any], Any], value: Any, where: str) -> Any:
    """What ``read`` makes of a value; its messages name the place in the study."""
    try:
        return read(value)
    except BadInput as error:
        error.where = where
        raise


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{str(value)[:60]!r} is no name", where=where, remedy="write it in quotes")
    return value


def _model(value: Any, where: str) -> str:
    try:
        _placed(lambda name: job_at({"model": name}), _text(value, where), where)
    except Unsupported:
        return str(value)  # perhaps with --as; else the row says why
    return str(value)


def _cluster_name(value: Any, where: str) -> str:
    name = _text(value, where)
    try:
        _placed(cluster_of, name, where)
    except BadInput as error:
        if isinstance(error, UnknownName) or is_file(name):
            raise
    return name


def _layout(value: Any, where: str) -> str:
    from weft.layout.text import parse_layout

    if value != PLANNED:
        _placed(parse_layout, _text(value, where), where)
    return str(value)


def _fabric(value: Any, where: str) -> str:
    from weft.fabric.catalogue import check_kinds

    if not is_file(_text(value, where)):
        _placed(check_kinds, (value,), where)
    return str(value)


def _stack(value: Any, where: str) -> str:
    from weft.cluster.calibration import stack_names

    if _text(value, where) not in stack_names():
        raise UnknownName("software", value[:60], stack_names(), where=where, listed="weft info frameworks")
    return str(value)


def _precision(value: Any, where: str) -> str:
    from weft.model.job import PRECISIONS

    if _text(value, where) not in PRECISIONS:
        raise UnknownName("precision", value[:60], PRECISIONS, where=where)
    return str(value)


def _bytes(value: Any, where: str) -> float:
    return parse_bytes(value, where)


def _count(value: Any, where: str) -> int:
    result = parse_whole(value, where)
    if not 1 <= result <= 10**9:
        raise BadInput(f"{result} is out of range", where=where, remedy="give 1 to 1,000,000,000")
    return result


def _ratio(value: Any, where: str) -> float:
    result = parse_count(value, where)
    if not 1 <= result <= MOST_OVERSUBSCRIBED:
        raise BadInput(f"{result:g} is out of range", where=where, remedy=f"give 1 to {MOST_OVERSUBSCRIBED}")
    return result


_LATENCIES = {"scale_up_latency": "scale_up_latency_s", "nic_latency": "nic_latency_s"}
"""Axes of a hop's latency, and their columns: of the innermost tier, and of all others."""


@cache
def cluster_axes() -> dict[str, AxisKind]:
    """Axes that change a cluster: its accelerators, and their figures by the names of cluster files."""
    from weft.cluster.files import parameters, parse_latency, parse_parameter

    axes = {"count": AxisKind("count", _count, "whole")}
    axes["oversubscription"] = AxisKind("oversubscription", _ratio, "number")
    axes |= {name: AxisKind(column, parse_latency, "number") for name, column in _LATENCIES.items()}
    for short, field in parameters().items():
        form: Any = "whole" if field == "scale_up_size" else "number"
        axes[short] = AxisKind(field, partial(parse_parameter, short), form)
    return axes


_SUBJECTS = {
    "model": AxisKind("model", _model, file=True),
    "cluster": AxisKind("cluster", _cluster_name, file=True),
    "layout": AxisKind("layout", _layout),
    "fabric": AxisKind("fabric", _fabric, file=True),
    "stack": AxisKind("stack", _stack),
    "precision": AxisKind("precision", _precision),
    "batch": AxisKind("batch", _count, "whole"),
    "sequence": AxisKind("sequence", _count, "whole"),
    "collective": AxisKind("collective", _text),
    "size": AxisKind("bytes", _bytes, "number"),
    "site": AxisKind("site", _text, file=True),
}
"""Axes whose values are checked beyond what the options of verbs say, before anything runs."""
