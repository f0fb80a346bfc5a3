"""The view and the chart of each result, for Python and notebooks: what the command line prints and draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    from weft.views.charts import Chart

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
CHARTS = {
    "Arrangement": "arrangement.arrangement_chart",
    "Comparison": "comparison.comparison_chart",
    "DesignStudy": "design.design_chart",
    "EstimateReport": "breakdown.estimate_chart",
    "Plan": "ranking.plan_chart",
    "ScheduleResult": "collective.schedule_chart",
    "Sweep": "study.study_chart",
    "Validation": "validation.validation_chart",
}
"""The function of ``weft.views`` that draws a result, by the result's class."""


def view_of(result: Result, **options: Any) -> Iterator[Block]:
    """What the command line prints of a result; ``options`` are those of its view."""
    yield from (_function_of(result, VIEWS) or _rows_view)(result, **options)


def _function_of(result: Result, table: Mapping[str, str]) -> Callable[..., Any] | None:
    """The function that a table names for a result's class, or for a base of it."""
    for kind in type(result).__mro__:
        if kind.__name__ in table:
            module, function = table[kind.__name__].split(".")
            chosen: Callable[..., Any] = getattr(import_module(f"weft.views.{module}"), function)
            return chosen
    return None


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
    draw = _function_of(result, CHARTS)
    if draw is None:
        raise BadInput(f"a {type(result).__name__} has no chart", where="chart", remedy="use to_dataframe()")
    chart: Chart = draw(result, **options)
    return chart
