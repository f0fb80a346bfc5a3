"""The cost of networks against the speed that they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from weft.errors import BadInput
from weft.report.pictures.charts import COLOURS, Chart, data, finished, linear, point_labels
from weft.units import format_seconds

if TYPE_CHECKING:
    from weft.search.design import DesignStudy

_WIDTH, _HEIGHT = 760, 420
_FRONTIER, _OTHERS = "no other is both cheaper and faster", "another is cheaper or faster, and in neither worse"


def design_chart(study: DesignStudy) -> Chart:
    """Cost of the network against iteration time, one point a design.

    Raises:
        BadInput: there is no design to draw.
    """
    if not study.designs:
        raise BadInput("there is no design to draw", where="chart")
    seconds = [one.closed_form_s if one.simulated_s is None else one.simulated_s for one in study.designs]
    dearest = max(one.total_usd for one in study.designs)
    unit, words = (1e6, "million $") if dearest >= 1e6 else (1e3, "thousand $")
    rows: dict[tuple[float, float], dict[str, Any]] = {}
    for i, (one, time_s) in enumerate(zip(study.designs, seconds, strict=True)):
        row = rows.setdefault(
            (one.total_usd, time_s),
            {
                "cost": one.total_usd / unit,
                "seconds": time_s,
                "names": [],
                "money": f"${one.total_usd:,.0f}",
                "time": format_seconds(time_s),
                "group": _FRONTIER if i in study.pareto else _OTHERS,
            },
        )
        row["names"].append(f"{one.kind} {one.domain}")
    points = [row | {"names": ", ".join(row["names"])} for row in rows.values()]
    points.sort(key=lambda row: row["group"] != _FRONTIER)
    highest = 1.2 * dearest / unit or 1.0
    room = 0.12 * (max(seconds) - min(seconds)) or 0.1 * max(seconds)
    low, high = min(seconds) - room, max(seconds) + room
    x = alt.X(
        "cost:Q",
        title=f"cost of scale-out network and scale-up domains ({words})",
        scale=linear(0, highest),
        axis=alt.Axis(tickCount=8),
    )
    y = alt.Y("seconds:Q", title="time of an iteration (s)", scale=linear(low, high), axis=alt.Axis(tickCount=8))
    groups = list(dict.fromkeys(row["group"] for row in points))
    colour = alt.Color(
        "group:N",
        scale=alt.Scale(domain=groups, range=[COLOURS[0], COLOURS[-1]][: len(groups)]),
        legend=alt.Legend(orient="top", symbolType="circle"),
    )
    tooltip = [
        alt.Tooltip("names:N", title="network"),
        alt.Tooltip("money:N", title="cost"),
        alt.Tooltip("time:N", title="time"),
    ]
    marks = (
        alt.Chart(data(points[::-1])).mark_circle(size=80, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip)
    )
    labels = point_labels(
        points,
        [(row["cost"] / highest * _WIDTH, (high - row["seconds"]) / (high - low) * _HEIGHT) for row in points],
        [row["names"] for row in points],
        _WIDTH,
        x="cost:Q",
        y="seconds:Q",
    )
    chart = alt.layer(marks, *labels).properties(width=_WIDTH, height=_HEIGHT)
    title = f"{study.job.model.name} on {study.cluster.count:,} {study.cluster.accelerator.name}"
    simulated = all(one.simulated_s is not None for one in study.designs)
    source = "simulated times" if simulated else "times of the closed form where none was simulated"
    subtitle = f"network and size of its scale-up domain; {source}"
    return finished(chart, f"{title}: cost of the network against time", subtitle)
