"""The view and the chart of each result, for Python and notebooks: what the command line prints and draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput, MissingExtra
from weft.units import counted
from weft.views.blocks import Block, Fact, Heading, Paragraph, rows_grid
from weft.views.terminal import to_text
from weft.views.words import told

if TYPE_CHECKING:
    from weft.results import Result
    from weft.studies.result import Sweep
    from weft.views.charts.charts import Chart

SHOWN_ROWS = 20
"""Rows shown of a result that has no view."""
VIEWS = {
    "Arrangement": "arrangement.arrangement_view",
    "Bill": "fabric.bill_view",
    "Comparison": "comparison.comparison_view",
    "Described": "validation.described_view",
    "DesignStudy": "design.design_view",
    "DryRun": "training_run.dry_run_view",
    "Estimate": "breakdown.layout_view",
    "EstimateReport": "breakdown.estimate_view",
    "Fitted": "validation.fit_view",
    "GoodputReport": "breakdown.goodput_view",
    "IterationReport": "simulation.iteration_view",
    "NetworkPlan": "ranking.network_plan_view",
    "Plan": "ranking.plan_view",
    "RouteAudit": "route.audit_view",
    "RouteReport": "route.plan_view",
    "ScenarioReport": "simulation.scenario_view",
    "ScheduleResult": "collective.schedule_view",
    "Sweep": "study.sweep_view",
    "Traced": "validation.traced_view",
    "Tuning": "tune.tune_view",
    "Validation": "validation.validation_view",
    "WiringReport": "fabric.wiring_view",
    "WorkloadResult": "simulation.workload_view",
}
"""The function of ``weft.views`` that shows a result, by the result's class."""


def view_of(result: Result, **options: Any) -> Iterator[Block]:
    """What the command line prints of a result; ``options`` are those of its view."""
    for kind in type(result).__mro__:
        if kind.__name__ in VIEWS:
            module, _, function = VIEWS[kind.__name__].rpartition(".")
            view: Iterator[Block] = getattr(import_module(f"weft.views.{module}"), function)(result, **options)
            return view
    return _rows_view(result)


def _rows_view(result: Result) -> Iterator[Block]:
    """The first rows of a result that no command prints as a whole."""
    rows = result.to_dicts()
    yield Paragraph(f"{type(result).__name__} of {counted(len(rows), 'row')}", style="bold")
    if rows:
        names = tuple(rows[0])
        yield rows_grid(names, [[told(name, row[name]) for name in names] for row in islice(rows, SHOWN_ROWS)])


def verdict(result: Result) -> str:
    """The first text of a result's view."""
    for block in view_of(result):
        if isinstance(block, Fact):
            return f"{block.name} {block.text}"
        if isinstance(block, Paragraph | Heading):
            return block.text
    return type(result).__name__


def notebook_html(result: Result) -> str:
    """A result's view as HTML; as it stands on a terminal where the packages of pages are not installed."""
    try:
        from weft.views.html import to_html
    except MissingExtra:
        return f"<pre>{escape(to_text(view_of(result), wide=True))}</pre>"
    return f'<div class="weft-result">{_STYLE}{to_html(view_of(result))}</div>'


_STYLE = (
    "<style>.weft-result .bold {font-weight: 600} .weft-result .dim {opacity: 0.7}"
    " .weft-result .unseen, .weft-result .copied button {display: none}"
    " .weft-result .bar svg {width: 16em; height: 0.8em}</style>"
)


def chart_of(result: Result, **options: Any) -> Chart:
    """What ``--chart`` draws of a result."""
    for kind in type(result).__mro__:
        if kind.__name__ in _CHARTS:
            return _CHARTS[kind.__name__](result, **options)
    raise BadInput(f"a {type(result).__name__} has no chart", where="chart", remedy="use to_dataframe()")


def _drawn_by(module: str, function: str) -> Callable[..., Chart]:
    """A function of ``weft.views.charts``, which is loaded when it draws."""

    def draw(result: Result) -> Chart:
        chart: Chart = getattr(import_module(f"weft.views.charts.{module}"), function)(result)
        return chart

    return draw


def _plan_chart(plan: Any, *, pareto: bool = False) -> Chart:
    from weft.views.charts.layouts import breakdown_chart, pareto_chart

    return (pareto_chart if pareto else breakdown_chart)(plan)


def _estimate_chart(report: Any) -> Chart:
    from weft.views.charts.layouts import breakdown_chart

    return breakdown_chart([report.estimate], title=f"{report.job.model.name} on {report.cluster.name}")


def _schedule_chart(result: Any, *, chunks: int | None = None) -> Chart:
    from weft.collectives.schedules.policies import beside
    from weft.views.charts.schedules import policies_chart

    return policies_chart(beside(result.timed, chunks=chunks), result.bound_s)


def _sweep_chart(sweep: Sweep, *, x: str, y: str, colour: str | None = None, facet: str | None = None) -> Chart:
    from weft.views.charts.sweep import sweep_chart

    columns, points = sweep.columns(), sweep.points
    rows = list(sweep.rows())
    return sweep_chart(rows, columns, points.columns, x=x, y=y, colour=colour, facet=facet, title=points.study.name)


_CHARTS: dict[str, Callable[..., Chart]] = {
    "Arrangement": _drawn_by("arrangement", "arrangement_chart"),
    "Comparison": _drawn_by("layouts", "comparison_chart"),
    "DesignStudy": _drawn_by("designs", "design_chart"),
    "EstimateReport": _estimate_chart,
    "Plan": _plan_chart,
    "ScheduleResult": _schedule_chart,
    "Sweep": _sweep_chart,
    "Validation": _drawn_by("validation", "validation_chart"),
}
"""What draws a result, by the result's class."""
