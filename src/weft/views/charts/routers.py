"""All-reduce times of routers over failed spines: groups of bars, a plot for every workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt

from weft.errors import BadInput
from weft.units import counted
from weft.views.charts.charts import Chart, data, finished, linear
from weft.views.charts.palette import COLOURS, INK
from weft.views.route_evaluation import workload_words

if TYPE_CHECKING:
    from weft.simulation.routes.replay import Evaluation, Row

_GREY = COLOURS[-1]
_BAR, _GAP, _HIGH, _WIDEST = 30, 24, 220, 1180
"""Pixels: width of a bar and between groups, height of a plot, and width of all plots beside each other."""


def evaluation_chart(evaluation: Evaluation) -> Chart:
    """Groups of bars, one for each number of failed spines; a dashed line is the time without collisions.

    All plots share one scale, and stand beside each other as far as there is room.

    Raises:
        BadInput: there is nothing to draw.
    """
    rows = evaluation.rows
    if not rows:
        raise BadInput("there is no result to draw", where="chart")
    workloads = list(dict.fromkeys(row.workload.name for row in rows))
    routers = list(dict.fromkeys(row.replay.router for row in rows))
    failed = list(dict.fromkeys(row.failed_spines for row in rows))
    width = len(failed) * _step(routers)
    highest = max(float(row.replay.mean_s.mean()) for row in rows)
    scale = linear(0, 1.12 * highest)
    colours = [_GREY, *COLOURS[:-1]]
    colour = alt.Color(
        "router:N",
        scale=alt.Scale(domain=routers, range=[colours[i % len(colours)] for i in range(len(routers))]),
        legend=alt.Legend(orient="top", columns=max(1, _WIDEST // 200)),
    )
    plots = []
    for name in workloads:
        chosen = [row for row in rows if row.workload.name == name]
        bars = _bars(chosen, failed, routers, scale)
        best = alt.Chart(data([{"best": float(chosen[0].replay.alone_s.mean()), "line": "no collision"}]))
        layers = alt.layer(
            bars.mark_bar().encode(
                color=colour,
                tooltip=[
                    *(alt.Tooltip("router:N"), alt.Tooltip("failed:O", title="failed spines")),
                    *(alt.Tooltip("words:N", title="seconds"), alt.Tooltip("ratio:N", title="of the time alone")),
                ],
            ),
            bars.mark_text(baseline="bottom", dy=-4, fontSize=10).encode(text="words:N"),
            best.mark_rule(color=INK, strokeWidth=1.2).encode(
                y="best:Q",
                strokeDash=alt.StrokeDash(
                    "line:N",
                    scale=alt.Scale(domain=["no collision"], range=[[5, 3]]),
                    legend=alt.Legend(orient="top", symbolType="stroke", symbolStrokeWidth=1.5),
                ),
            ),
        )
        heading = alt.Title(workload_words(chosen[0]), fontSize=13, anchor="middle", frame="group", offset=8)
        plots.append(layers.properties(width=width, height=_HIGH, title=heading))
    across = max(1, min(len(plots), _WIDEST // (width + 60)))
    chart = alt.concat(*plots, columns=across, spacing=28).resolve_legend(color="shared", strokeDash="shared")
    subtitle = f"{evaluation.fabric}, mean over {counted(evaluation.epochs, 'epoch')} and all jobs"
    return finished(chart, "All-reduce time by router", subtitle)


def _step(routers: Sequence[str]) -> int:
    """Pixels of a group of bars and the gap beside it."""
    return len(routers) * _BAR + _GAP


def _bars(rows: Sequence[Row], failed: Sequence[int], routers: Sequence[str], scale: alt.Scale) -> alt.Chart:
    """Where the bars of a workload stand, and what they say."""
    points = alt.Chart(
        data(
            {
                "failed": row.failed_spines,
                "router": row.replay.router,
                "seconds": (value := float(row.replay.mean_s.mean())),
                "words": _figure(value),
                "ratio": f"{row.replay.ratio.mean():.3f}",
            }
            for row in rows
        )
    )
    return points.encode(
        x=alt.X(
            "failed:O",
            title="failed spines",
            sort=failed,
            axis=alt.Axis(labelAngle=0),
            scale=alt.Scale(paddingInner=_GAP / _step(routers), paddingOuter=0.1),
        ),
        xOffset=alt.XOffset("router:N", sort=routers, scale=alt.Scale(domain=routers)),
        y=alt.Y("seconds:Q", title="mean all-reduce (s)", scale=scale, axis=alt.Axis(tickCount=6)),
    )


def _figure(seconds: float) -> str:
    return f"{seconds:.{2 if seconds < 1 else 3}g}"
