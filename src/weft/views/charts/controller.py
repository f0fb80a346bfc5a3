"""The route controller over time: efficiency before and after its decisions and at most, and flows that move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from weft.errors import BadInput
from weft.units import counted
from weft.views.charts.charts import COLOURS, INK, Chart, data, finished, linear

_WIDTH, _HIGH, _LOW = 760, 260, 90
"""Pixels: width of the plots, height of the upper and the lower one."""
_LINES = ("at most", "with the decisions", "just before each")
_DRAWN = (("bound", _LINES[0]), ("after", _LINES[1]))
_DAY_S = 86400.0


def controller_chart(decisions: Sequence[dict[str, Any]], fabric: str) -> Chart:
    """A line of the slowest group's pace between decisions, one of its bound, points before each; bars of flows.

    Args:
        decisions: documents of ``weft.route-decision/1`` in order.

    Raises:
        BadInput: there is nothing to draw.
    """
    rows = [one for one in decisions if "efficiency" in one]
    if not rows:
        raise BadInput("there is no decision to draw", where="chart")
    begin = float(rows[0]["time_s"])
    unit, seconds = _unit(float(rows[-1]["time_s"]) - begin)
    times = [(float(one["time_s"]) - begin) / seconds for one in rows]
    span = max(times[-1], 1e-9) * 1.04
    lines = []
    for at, one in zip([*times, span], [*rows, rows[-1]], strict=True):
        found = one["efficiency"]
        lines += [{"at": at, "pace": found[key], "line": name} for key, name in _DRAWN]
    before = [
        {"at": at, "pace": one["efficiency"]["before"], "line": _LINES[2], "event": one["event"]}
        for at, one in zip(times, rows, strict=True)
        if one["efficiency"]["before"] is not None
    ]
    x = alt.X("at:Q", title=f"time ({unit})", scale=alt.Scale(domain=[0, span], nice=False, zero=False, padding=0))
    y = alt.Y(
        "pace:Q",
        title="pace of the slowest group, of its pace alone",
        scale=linear(0, 1.04),
        axis=alt.Axis(format="%"),
    )
    colour = alt.Color(
        "line:N",
        scale=alt.Scale(domain=list(_LINES), range=[INK, COLOURS[0], COLOURS[1]]),
        legend=alt.Legend(orient="top"),
    )
    steps = alt.Chart(data(lines)).encode(x=x, y=y, color=colour)
    upper = alt.layer(
        steps.transform_filter("datum.line != 'at most'").mark_line(interpolate="step-after", strokeWidth=3.5),
        steps.transform_filter("datum.line == 'at most'").mark_line(
            interpolate="step-after", strokeDash=[5, 4], strokeWidth=1.5
        ),
        alt.Chart(data(before))
        .mark_point(filled=True, size=60, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=["event:N", alt.Tooltip("pace:Q", format=".1%")]),
    ).properties(width=_WIDTH, height=_HIGH)
    flows = [
        {"at": at, "flows": one[kind], "kind": name}
        for at, one in zip(times, rows, strict=True)
        for kind, name in (("moved", "moved"), ("placed", "placed"))
        if one[kind]
    ]
    most = max([row["flows"] for row in flows], default=1)
    lower = (
        alt.Chart(data(flows))
        .mark_bar(size=5)
        .encode(
            x=x,
            y=alt.Y("flows:Q", title="flows", scale=linear(0, 1.08 * most), stack=True, axis=alt.Axis(tickCount=4)),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=["moved", "placed"], range=[COLOURS[1], COLOURS[2]]),
                legend=alt.Legend(orient="top"),
            ),
            tooltip=["kind:N", "flows:Q"],
        )
        .properties(width=_WIDTH, height=_LOW)
    )
    chart = alt.vconcat(upper, lower, spacing=12).resolve_scale(color="independent", x="shared")
    moved = sum(one["moved"] for one in rows)
    subtitle = f"{fabric}: {counted(len(rows), 'decision')}, {counted(moved, 'flow')} moved"
    return finished(chart, "Network-wide efficiency under the controller", subtitle)


def _unit(seconds: float) -> tuple[str, float]:
    """The unit of a span of time, and its seconds."""
    if seconds >= 2 * _DAY_S:
        return "days", _DAY_S
    return ("hours", 3600.0) if seconds >= 7200 else ("minutes", 60.0) if seconds >= 300 else ("s", 1.0)
