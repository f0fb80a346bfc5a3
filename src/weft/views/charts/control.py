"""The route controller's decisions over time: efficiency before, after and at best, with the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from weft.errors import BadInput
from weft.views.charts.charts import Chart, colours, data, finished, linear, tooltip
from weft.views.charts.palette import MUTED

_SIDE = 640, 260
_LINES = ("best possible", "after the decision")
_SHADES = ("#59636e", "#0072b2", "#009e73", "#d55e00", "#e69f00")
_KINDS = ("jobs", "failures and repairs", "measurements")


def efficiency_chart(decisions: Sequence[dict[str, Any]]) -> Chart:
    """One chart of decisions as ``weft.route-decision/1`` has them.

    Lines say how things stand between events; a point is the efficiency that an event left before its decision, with
    its kind as colour.
    """
    if not decisions:
        raise BadInput("there is no decision to draw", where="--chart", remedy="give events")
    first_s = decisions[0]["time_s"]  # clocks may start anywhere
    unit, name = next(
        (seconds, word)
        for seconds, word in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
        if decisions[-1]["time_s"] - first_s > 5 * seconds or seconds == 1.0
    )
    lines, points = [], []
    for each in decisions:
        at, gain = (each["time_s"] - first_s) / unit, each["efficiency"]
        lines += [
            {"time": at, "pace": gain[key], "line": line} for key, line in zip(("bound", "after"), _LINES, strict=True)
        ]
        if gain["before"] is not None:
            more = {
                "pace": gain["before"],
                "event": f"{each['event']} {each.get('about', '')}",
                "reason": each.get("reason", ""),
            }
            points.append({"time": at, "line": f"before: {_kind(each['event'])}"} | more)
    x = alt.X("time:Q", title=f"time since the first decision ({name})", axis=alt.Axis(grid=False))
    y = alt.Y("pace:Q", title="pace of the slowest collective", scale=linear(0, 1.05), axis=alt.Axis(format=".0%"))
    names = [*_LINES, *(f"before: {kind}" for kind in _KINDS)]
    look = {"x": x, "y": y, "color": colours("line", names, _SHADES, orient="bottom", columns=5, symbolOpacity=1)}
    # The best possible lies as a wide band below what was reached, which mostly hides a thin line.
    wide, thin = (
        alt.Chart(data(row for row in lines if row["line"] == line))
        .mark_line(interpolate="step-after", strokeWidth=width, opacity=opacity)
        .encode(**look)
        for line, width, opacity in zip(_LINES, (8, 2), (0.4, 1), strict=True)
    )
    told = tooltip(event="event", reason="decision", pace="before")
    marks = alt.Chart(data(points)).mark_point(filled=True, size=45, opacity=1).encode(tooltip=told, **look)
    rules = alt.Chart(data(points)).mark_rule(color=MUTED, opacity=0.25, strokeWidth=1).encode(x=x)
    plot = alt.layer(rules, wide, thin, marks).properties(width=_SIDE[0], height=_SIDE[1])
    last = decisions[-1]["efficiency"]
    words = (
        f"{len(decisions):,} decisions; at the end {last['after']:.1%} of the pace alone, at best {last['bound']:.1%}"
    )
    return finished(plot, "Efficiency of the routes over time", words)


def _kind(event: str) -> str:
    """The colour of an event."""
    if event.startswith(("link", "switch")):
        return _KINDS[1]
    return _KINDS[0] if event.startswith("job") or event == "installed" else _KINDS[2]
