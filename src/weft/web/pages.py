"""The pages: plan, tune, network, schedule, arrange and accuracy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

from weft.arrangement.site import Goal, site_of
from weft.cluster import Cluster
from weft.cluster import catalogue as clusters
from weft.cluster.catalogue import Scales, oversubscribed, resized, rewired, scaled, with_domain
from weft.collectives.stages import STAGE_KINDS
from weft.commands.arrange import arrange
from weft.commands.design import DesignOptions, design
from weft.commands.estimate import estimate
from weft.commands.plan import PlanOptions, plan
from weft.commands.report import arrangement_page
from weft.commands.schedule import ScheduleOptions, schedule
from weft.commands.shared import layout_of
from weft.commands.tune import TuneOptions, tune
from weft.commands.validate import validate
from weft.documents import parse_toml
from weft.errors import BadInput, NothingFeasible, UnknownName
from weft.fabric.catalogue import for_cluster
from weft.interop.launch import TOOLS, LaunchArguments, launch_arguments
from weft.layout.text import format_layout
from weft.model import catalogue as models
from weft.search import Plan
from weft.search.comparison import Side, compare
from weft.search.design import DesignStudy
from weft.search.tune import Tuning
from weft.units import format_seconds
from weft.validation.runs import runs_of_text, shipped_runs
from weft.validation.summary import Validation
from weft.views.blocks import Block, Figure, Heading, Paragraph, rows_grid
from weft.views.breakdown import breakdown_chart, estimate_view
from weft.views.collective import policies_chart, schedule_view
from weft.views.comparison import comparison_view
from weft.views.design import design_chart, design_view
from weft.views.fabric import fabric_svg
from weft.views.files import rows_to_csv
from weft.views.html import to_html
from weft.views.ranking import launch_view
from weft.views.reports import arrangement_with_charts, behind_verdict, plan_with_charts
from weft.views.tune import tune_view
from weft.views.validation import validation_chart, validation_view
from weft.web.questions import Field, Group, Page, PageRequest, Progress, cluster_of_text, fields_of, job_of_text

FACTORS = {
    "nic": "NIC bandwidth",
    "scale_up": "Scale-up bandwidth",
    "hbm": "HBM bandwidth",
    "latency": "Network latency",
    "peak": "Matrix peak",
}
"""Fields of what the hardware is multiplied with, and what they are called."""
_LONG_S = 600.0
_MOST_SEARCH_S = 300
_MOST_LAYOUTS, _MOST_HOSTS = 200, 1024
_COUNT = re.compile(r"-\d+$")

_MODEL = Field("model", "Model", choices=tuple(models.names()), placeholder="llama-3.1-8b")
_CLUSTERS = tuple(name.replace("<count>", "64") for name in clusters.names())
_CLUSTER = Field("cluster", "Cluster", choices=_CLUSTERS, placeholder="h100-64")
_ACCELERATORS = Field("count", "Accelerators", "number", help="Instead of the cluster's", slide=(8, 131072, 1))
_PASTED = Group(
    (Field("model_text", "Model: a Hugging Face config.json", "area"), Field("cluster_text", "Cluster: TOML", "area")),
    "Paste a model or a cluster",
)

# Plan ---------------------------------------------------------------------------------------------------------------

_RECIPE = ("batch", "sequence")
_SEARCH = ("fix", "max", "space", "order", "precision", "stack", "top")


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan, and the same on the hardware as it is where the plan is of other hardware."""

    plan: Plan
    as_it_is: Plan | None


def _cluster_of(form: PageRequest) -> Cluster:
    source, count = form.text("cluster"), form.whole("count")
    if count is not None and source.pasted is None:
        source = replace(source, name=f"{_COUNT.sub('', source.name)}-{count}")
    cluster = cluster_of_text(source)
    return resized(cluster, count) if count is not None and cluster.count != count else cluster


def _supposed(form: PageRequest, cluster: Cluster) -> Cluster:
    """The cluster as the what-if fields make it; the same one where all are empty."""
    given = {name: form.number(name, 0.01, 100) for name in FACTORS}
    scales = Scales(**{name: value for name, value in given.items() if value is not None})
    domain, ratio = form.whole("domain"), form.number("oversubscription", 1, 1000)
    words = [scales.words] if scales.words else []
    words += [] if domain is None else [f"domains of {domain}"]
    words += [] if ratio is None else [f"oversubscription {ratio:g}"]
    if not words:
        return cluster
    notes = [f"what if: {', '.join(words)}"]
    if domain is not None:
        other = with_domain(cluster, domain, where="domain")
        notes, cluster = [*notes, rewired(cluster, other)], other
    if ratio is not None:
        cluster = oversubscribed(cluster, ratio)
    cluster = scaled(cluster, scales)
    return replace(cluster, defaults=(*cluster.defaults, "; ".join(filter(None, notes))))


def _plan(form: PageRequest, progress: Progress) -> _Planned:
    cluster = _cluster_of(form)
    top = min(form.whole("top") or 10, _MOST_LAYOUTS)
    options = form.options(PlanOptions, (*_RECIPE, *_SEARCH[:-1]), top=top)
    job = job_of_text(form.text("model"), options.changes(), cluster.count)
    search = replace(options, batch=None, sequence=None, precision=None)  # the job has them
    other = _supposed(form, cluster)
    computed = plan(job, other, search, progress=progress)
    return _Planned(computed, plan(job, cluster, search, progress=progress) if other is not cluster else None)


def _plan_view(computed: _Planned, form: PageRequest, show: str) -> Iterator[Block]:
    ranked = computed.plan
    if computed.as_it_is is not None:
        yield Paragraph(_effect(ranked, computed.as_it_is), style="bold")
    if ranked.layouts and show == "launch":
        try:
            yield from launch_view(_launch(ranked, form))
        except NothingFeasible as error:
            yield Paragraph(str(error), style="bold")
        return
    yield from plan_with_charts(ranked)
    if not form.get("layout"):
        return
    chosen = estimate(ranked.job, ranked.cluster, _chosen(ranked, form), stack=ranked.stack)
    yield Heading(f"The layout: {format_layout(chosen.layout)}")
    yield from estimate_view(chosen, verbose=True)
    if ranked.layouts and chosen.layout != ranked.best.layout:
        pairs = (("best", ranked.best), ("chosen", chosen.estimate))
        sides = [Side.of_plan(ranked, label, one) for label, one in pairs]
        yield Heading("Side by side")
        yield from comparison_view(compare(sides, 1e12), verbose=True)


def _chosen(ranked: Plan, form: PageRequest) -> Any:
    text = form.get("layout")
    return layout_of(text, ranked.job, ranked.cluster) if text else ranked.best.layout


def _effect(ranked: Plan, as_it_is: Plan) -> str:
    """What other hardware changes, in a sentence."""
    if not ranked.layouts or not as_it_is.layouts:
        return f"What if: on the hardware as it is, {'layouts fit' if as_it_is.layouts else 'nothing fits'}"
    best, before = ranked.layouts[0], as_it_is.layouts[0]
    same = "the same layout" if best.layout == before.layout else "another layout"
    change = round(best.iteration_s / before.iteration_s - 1, 3) + 0.0
    return (
        f"What if: {format_seconds(best.iteration_s)} per iteration instead of {format_seconds(before.iteration_s)}"
        f" ({change:+.1%}); on the hardware as it is, {same} is first"
    )


def _launch(ranked: Plan, form: PageRequest) -> LaunchArguments:
    tool = form.get("tool", TOOLS[0])
    if tool not in TOOLS:
        raise UnknownName("tool", tool[:40], TOOLS)
    return launch_arguments(tool, ranked.job, ranked.cluster, _chosen(ranked, form))


def _launch_file(computed: _Planned, form: PageRequest) -> tuple[str, str, str]:
    if not computed.plan.layouts:
        raise NothingFeasible(computed.plan.shortage)
    written = _launch(computed.plan, form)
    return written.file, "text/plain", written.text


_FACTOR_FIELDS = tuple(
    Field(name, f"{label} x", "number", placeholder="1", slide=(0.125, 8, 4)) for name, label in FACTORS.items()
)
PLAN = Page(
    title="Plan",
    groups=(
        Group((_MODEL, _CLUSTER, _ACCELERATORS, *fields_of(PlanOptions, *_RECIPE))),
        Group(fields_of(PlanOptions, *_SEARCH), "Limit the layouts"),
        Group(
            (
                *_FACTOR_FIELDS,
                Field("domain", "Scale-up domain (accelerators)", "number", "", (), "8", (1, 4096, 1)),
                Field(
                    "oversubscription", "Oversubscription", "number", "Of the outermost network", (), "1", (1, 16, 2)
                ),
            ),
            "What if the hardware were different",
        ),
        Group(
            (
                Field("layout", "Layout", help="As tp=8,pp=4; the best by default"),
                Field("tool", "Tool", "choice", choices=TOOLS),
            ),
            "Look at a layout, write its launch file",
        ),
        _PASTED,
    ),
    needed=("model", "cluster"),
    sources={"model": "model", "cluster": "cluster"},
    looks=("layout", "tool"),
    shows=("layouts", "launch"),
    example={"model": "llama-3.1-8b", "cluster": "h100-64"},
    row="layout",
    section="the-layout",
    compute=_plan,
    view=_plan_view,
    saved=lambda computed, form: computed.plan,
    files={"Launch file": _launch_file},
)

# Tune ---------------------------------------------------------------------------------------------------------------

_TUNE = ("layout", "measured", "keep")


def _tune(form: PageRequest, progress: Progress) -> Tuning:
    cluster = _cluster_of(form)
    job = job_of_text(form.text("model"), form.options(TuneOptions, _RECIPE).changes(), cluster.count)
    return tune(job, cluster, options=form.options(TuneOptions, (*_TUNE, "stack")))


def _tune_view(result: Tuning, form: PageRequest, show: str) -> Iterator[Block]:
    estimates = [result.expected, *(change.estimate for change in result.changes)]
    title = f"{result.job.model.name} on {result.cluster.name}, expected (1 is your layout)"
    chart = Figure(partial(breakdown_chart, estimates, top=4, title=title), "Your layout and the best changes")
    yield from behind_verdict(tune_view(result, verbose=True), chart)


TUNE = Page(
    title="Tune",
    groups=(
        Group(
            (
                _MODEL,
                _CLUSTER,
                _ACCELERATORS,
                Field("layout", "Layout of the run", help="As tp=8,pp=16,sp"),
                *fields_of(TuneOptions, "measured"),
            )
        ),
        Group(fields_of(TuneOptions, *_RECIPE, "stack", "keep"), "The job, and what must stay"),
        _PASTED,
    ),
    needed=("model", "cluster", "layout", "measured"),
    sources={"model": "model", "cluster": "cluster"},
    example={"model": "llama-3.1-8b", "cluster": "h100-64", "layout": "tp=8", "measured": "31%"},
    compute=_tune,
    view=_tune_view,
)

# Network ------------------------------------------------------------------------------------------------------------

_DESIGN = ("layout", "radix", "fabrics", "oversubscription", "sizes", "batches", "routing", "batch")


def _design(form: PageRequest, progress: Progress) -> DesignStudy:
    cluster = _cluster_of(form)
    options = form.options(DesignOptions, _DESIGN)
    job = job_of_text(form.text("model"), options.changes(), cluster.count)
    return design(job, cluster, options, progress=progress)


def _design_view(study: DesignStudy, form: PageRequest, show: str) -> Iterator[Block]:
    chart = Figure(partial(design_chart, study), "Cost of the network against the time of an iteration")
    yield from behind_verdict(design_view(study, verbose=True), chart)
    yield Heading("Pictures")
    radix = form.whole("radix") or 64
    for kind in dict.fromkeys(each.kind.partition(" ")[0] for each in study.designs):  # without the oversubscription
        yield Figure(fabric_svg(for_cluster(kind, study.cluster, radix=radix)), kind)


_design_fields = fields_of(DesignOptions, *_DESIGN)
NETWORK = Page(
    title="Network",
    groups=(
        Group((_MODEL, _CLUSTER, _ACCELERATORS, *_design_fields[:2])),
        Group(_design_fields[2:], "Which networks"),
        _PASTED,
    ),
    needed=("model", "cluster"),
    sources={"model": "model", "cluster": "cluster"},
    example={"model": "llama-3.1-8b", "cluster": "h100-64", "layout": "tp=8,dp=8", "radix": "16"},
    compute=_design,
    view=_design_view,
    time_s=_LONG_S,
)

# Schedule -----------------------------------------------------------------------------------------------------------

_SCHEDULE = ("dims", "chunks", "active", "algorithms")
_DRAWN = ("baseline", "themis scf", "weft")
"""Policies that are drawn beside the one that is looked at."""


def _schedule(form: PageRequest, progress: Progress) -> Any:
    more: dict[str, Any] = {"policy": "baseline", "compare": True}
    if form.get("cluster") and not form.get("dims"):
        more["cluster"] = cluster_of_text(form.text("cluster"))
    return schedule(form.get("collective"), form.get("size"), form.options(ScheduleOptions, _SCHEDULE, **more))


def _looked_at(computed: Any, form: PageRequest) -> Any:
    policy = form.get("policy", "weft")
    if policy not in computed.others:
        raise UnknownName("policy", policy[:40], tuple(computed.others))
    return replace(computed, timed=computed.others[policy])


def _schedule_view(computed: Any, form: PageRequest, show: str) -> Iterator[Block]:
    shown = _looked_at(computed, form)
    policy = form.get("policy", "weft")
    drawn = {name: timed for name, timed in computed.others.items() if name in (*_DRAWN, policy)}
    chart = Figure(partial(policies_chart, drawn, computed.bound_s), "Chunks of the policies over time")
    yield from behind_verdict(schedule_view(shown, verbose=True), chart)


SCHEDULE = Page(
    title="Schedule",
    groups=(
        Group(
            (
                Field("collective", "Collective", "choice", choices=tuple(STAGE_KINDS)),
                Field("size", "Size of the full buffer", placeholder="1GiB"),
                replace(
                    *fields_of(ScheduleOptions, "dims"),
                    help="Inner to outer: ring, line, fully-connected or switch, its size, bandwidth and latency",
                ),
                replace(_CLUSTER, help="Dimensions of a cluster instead"),
            )
        ),
        Group(fields_of(ScheduleOptions, *_SCHEDULE[1:]), "Chunks and algorithms"),
    ),
    needed=("collective", "size"),
    sources={"cluster": "cluster"},
    looks=("policy",),
    example={"collective": "all-reduce", "size": "64MiB", "dims": "switch:8:450GB/s:1us,switch:8:50GB/s:5us"},
    row="policy",
    section="dimensions",
    compute=_schedule,
    view=_schedule_view,
    saved=_looked_at,
)

# Arrange ------------------------------------------------------------------------------------------------------------


@cache
def _examples() -> dict[str, str]:
    """Sites to begin with, as TOML by name."""
    folder = Path(__file__).parent / "examples"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml"))}


def _arrange(form: PageRequest, progress: Progress) -> Any:
    source, where = form.text("site"), "the site"
    text = _examples().get(source.name) if source.pasted is None else source.pasted
    if text is None:
        raise UnknownName("site", source.name[:40], tuple(_examples()), where="site")
    table = parse_toml(text, where)
    if goal := form.get("objective"):
        stated = table.get("objective")
        table["objective"] = (stated if isinstance(stated, dict) else {}) | {"kind": goal}
    if (ratio := form.number("oversubscription", 1, 1000)) is not None:
        table["oversubscription"] = [ratio]
    seconds = form.number("seconds", 0.1, _MOST_SEARCH_S) or 10.0
    site = site_of(table, where, None)
    if len(site.host_names) > _MOST_HOSTS:
        problem = f"has {len(site.host_names):,} hosts; the page takes {_MOST_HOSTS:,}"
        raise BadInput(problem, where=where, remedy="use weft arrange SITE.toml")

    def spent(used_s: float, most_s: float) -> None:
        if progress is not None:
            progress(min(round(used_s), round(most_s)), round(most_s))

    return arrange(site, budget=seconds, spent=spent)


ARRANGE = Page(
    title="Arrange",
    groups=(
        Group(
            (
                Field("site", "Site", choices=tuple(_examples()), placeholder="scattered"),
                Field("objective", "Objective", "choice", choices=("", *get_args(Goal))),
                Field("oversubscription", "Oversubscription", "number", help="Instead of the site's"),
                Field("seconds", "Seconds to search", "number", f"Of a processor; {_MOST_SEARCH_S} at most", (), "10"),
            )
        ),
        Group((Field("site_text", "Site: TOML, as weft arrange reads it", "area"),), "Paste a site"),
    ),
    needed=("site",),
    sources={"site": "site"},
    example={"site": "scattered", "seconds": "1"},
    compute=_arrange,
    view=lambda result, form, show: arrangement_with_charts(result),
    files={
        "Report": lambda result, form: (
            *("report.html", "text/html"),
            arrangement_page(result, result.to_dict(), "arranged.json"),
        )
    },
    time_s=2 * _MOST_SEARCH_S + 120,
)

# Accuracy -----------------------------------------------------------------------------------------------------------


def _validate(form: PageRequest, progress: Progress) -> Validation:
    source = form.text("runs")
    if source.name and source.pasted is None:
        raise BadInput(f"there are no runs {source.name[:40]!r}", where="runs", remedy="leave it empty, or paste runs")
    rows = shipped_runs() if source.pasted is None else runs_of_text(source.pasted, "the pasted runs")
    return validate(rows, family=(form.get("family"),) if form.get("family") else ())


def _accuracy_view(computed: Validation, form: PageRequest, show: str) -> Iterator[Block]:
    chart = Figure(partial(validation_chart, computed), "Predicted over measured time of an iteration")
    shipped = form.text("runs").pasted is None
    yield from behind_verdict(validation_view(computed, shipped=shipped), chart)
    if form.get("family"):
        yield Heading("Runs")
        rows = [
            (
                outcome.prepared.run.name,
                format_seconds(outcome.prepared.measured_s),
                format_seconds(outcome.predicted_s),
                f"{outcome.error:+.1%}",
            )
            for outcome in computed.outcomes
        ]
        yield rows_grid(("run", "measured", "predicted", "error"), rows, left=("run",))


_EXAMPLE_RUNS = """\
id,family,model,seq,gpu,gpus,tp,dp,micro_batch,global_batch,precision,iter_s
one,mine,llama-2-7b,4096,a100-80gb,8,8,1,1,16,bf16,2.9
two,mine,llama-2-7b,4096,a100-80gb,8,4,2,1,16,bf16,2.7
"""
ACCURACY = Page(
    title="Accuracy",
    groups=(
        Group(
            (
                Field("family", "Family", help="Only runs of this family"),
                Field("runs", "Runs", help="Published ones that Weft has, or those that you paste"),
            )
        ),
        Group((Field("runs_text", "Runs: CSV", "area", placeholder=_EXAMPLE_RUNS),), "Compare your own runs"),
    ),
    needed=(),
    sources={"runs": "runs"},
    row="family",
    section="runs",
    compute=_validate,
    view=_accuracy_view,
    time_s=_LONG_S,
)

PAGES = {page.path: page for page in (PLAN, TUNE, NETWORK, SCHEDULE, ARRANGE, ACCURACY)}
"""The pages by their paths."""

# Answers ---------------------------------------------------------------------------------------------------------

_KEPT_RESULTS = 16
_kept: dict[PageRequest, Any] = {}


def _result(page: Page, form: PageRequest, progress: Progress) -> Any:
    """The result of a question, whichever view is looked at."""
    core = tuple(pair for pair in form.given if pair[0] not in (*page.looks, "show"))
    question = PageRequest(form.path, core, form.texts)
    if question not in _kept:
        result = page.compute(question, progress)
        while len(_kept) >= _KEPT_RESULTS:
            del _kept[next(iter(_kept))]
        _kept[question] = result
    return _kept[question]


def answer(form: PageRequest, *, progress: Progress = None) -> str:
    """The HTML of what a page shows."""
    page = PAGES[form.path]
    result = _result(page, form, progress)
    given = dict(form.given)

    def link(value: str) -> str:
        return f"{page.address(given, **{page.row: value})}#{page.section}"

    blocks = page.view(result, form, page.shown(given.get("show", "")))
    return to_html(blocks, link if page.row else None)


def file(form: PageRequest, name: str, *, progress: Progress = None) -> tuple[str, str, str]:
    """Name, type and content of a file of a page."""
    page = PAGES[form.path]
    computed = _result(page, form, progress)
    if name in page.files:
        return page.files[name](computed, form)
    result, stem = page.saved(computed, form), page.title.lower()
    if name == "JSON":
        return f"{stem}.json", "application/json", result.to_json()
    rows = result.to_dicts()
    return f"{stem}.csv", "text/csv", rows_to_csv(rows, result.COLUMNS or tuple(rows[0]))
