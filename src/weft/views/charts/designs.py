"""The cost of networks against the speed that they give, and both over domain sizes and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from weft.errors import BadInput
from weft.units import format_count, format_seconds
from weft.views.charts.charts import (
    LINE,
    Chart,
    bounds,
    colours,
    data,
    finished,
    linear,
    margin_labels,
    titled,
    tooltip,
)
from weft.views.charts.palette import COLOURS, MUTED

if TYPE_CHECKING:
    from weft.search.design import DesignStudy

_WIDTH, _HEIGHT = 640, 420
_HALF, _LOW = 330, 260
"""Width and height of a plot over sizes or batches."""
_FRONTIER, _OTHERS = "no other is both cheaper and faster", "another is cheaper or faster, and in neither worse"


def design_chart(study: DesignStudy) -> Chart:
    """Cost of the network against iteration time, and where domain sizes or batches vary, both over these.

    Times of different batches do not compare: where several batches were tried, there are only the plots over them."""
    if not study.designs:
        raise BadInput("there is no design to draw", where="chart")
    domains, batches = ({getattr(design, name) for design in study.designs} for name in ("domain", "global_batch"))
    plots: list[Chart] = [] if len(batches) > 1 else [_trade(study)]
    if len(domains) > 1 or len(batches) > 1:
        plots.append(_over("domain" if len(domains) > 1 else "global_batch", study))
    heading = f"{study.job.model.name} on {study.cluster.count:,} {study.cluster.accelerator.name}"
    simulated = all(design.simulated_s is not None for design in study.designs)
    source = "simulated times" if simulated else "times of the closed form where none was simulated"
    if len(plots) > 1:
        chart: Chart = alt.vconcat(*plots, spacing=36).resolve_scale(color="independent")
    else:
        chart = plots[0]
    over = " and ".join(name for name, tried in (("domain sizes", domains), ("batches", batches)) if len(tried) > 1)
    what = "cost of the network against time" if len(batches) == 1 else f"networks over {over}"
    each = f"scale-up domains of {min(domains)}" if len(domains) == 1 else "network and size of its scale-up domain"
    words = f"{each}; " if len(batches) == 1 else ""
    return finished(chart, f"{heading}: {what}", f"{words}{source}")


def _costs(study: DesignStudy) -> tuple[list[float], float, str, str]:
    """Dollars of each design, without the domains where all have the same, so that points stand apart; the unit in
    which they are told, its name, and what is in them."""
    alone = len({each.domain for each in study.designs}) == 1
    usd = [each.bill.usd if alone else each.total_usd for each in study.designs]
    domains = "" if alone else "; and of scale-up domains bought as networks"
    unit, words = (1e6, "million $") if max(usd) >= 1e6 else (1e3, "thousand $")
    return usd, unit, words, f"cost of the scale-out network: {study.prices.contents}{domains}"


def _trade(study: DesignStudy) -> Chart:
    """Cost against time, a point a design, and the line of those that no other beats in both."""
    seconds = [design.iteration_s for design in study.designs]
    costs, unit, words, title = _costs(study)
    rows: dict[tuple[float, float], dict[str, Any]] = {}
    alone = len({design.domain for design in study.designs}) == 1
    for i, (one, time_s, usd) in enumerate(zip(study.designs, seconds, costs, strict=True)):
        row = rows.setdefault(
            (usd, time_s),
            {
                "cost": usd / unit,
                "seconds": time_s,
                "names": [],
                "money": f"${usd:,.0f}",
                "power": f"{one.bill.watts / 1e3:,.1f} kW",
                "time": format_seconds(time_s),
                "told": f"${format_count(usd)}, {one.bill.watts / 1e3:,.0f} kW, {format_seconds(time_s)}",
                "group": _FRONTIER if i in study.pareto else _OTHERS,
            },
        )
        row["names"].append(one.kind if alone else f"{one.kind}, {one.domain}")
    points = [row | {"names": ", ".join(row["names"])} for row in rows.values()]
    points.sort(key=lambda row: row["group"] != _FRONTIER)
    least, most = bounds([row["cost"] for row in points])
    room = 0.12 * (max(seconds) - min(seconds)) or 0.1 * max(seconds)
    low, high = min(seconds) - room, max(seconds) + room
    x = alt.X(
        "cost:Q", title=titled(f"{title} ({words})", least), scale=linear(least, most), axis=alt.Axis(tickCount=8)
    )
    y = alt.Y(
        "seconds:Q", title=titled("time of an iteration (s)", low), scale=linear(low, high), axis=alt.Axis(tickCount=8)
    )
    groups = list(dict.fromkeys(row["group"] for row in points))
    colour = colours("group", groups, [COLOURS[0], COLOURS[-1]], orient="top", symbolType="circle")
    told_of = tooltip(names="network", money="cost", power="power", time="time")
    frontier = sorted((row for row in points if row["group"] == _FRONTIER), key=lambda row: row["cost"])
    line = alt.Chart(data(frontier)).mark_line(interpolate="step-after", color="#56b4e9", strokeWidth=1.5)
    marks = alt.Chart(data(points[::-1])).mark_circle(size=80, opacity=1)
    height = max(_HEIGHT, LINE * len(points))
    labels = [f"{row['names']}: {row['told']}" for row in points]
    layers = margin_labels(points, labels, "cost", "seconds", (low, high, height), _WIDTH)
    drawn = [*layers, line.encode(x=x, y=y), marks.encode(x=x, y=y, color=colour, tooltip=told_of)]
    return alt.layer(*drawn).properties(width=_WIDTH, height=height)


def _over(across: str, study: DesignStudy) -> Chart:
    """Speed and cost over domain sizes or batches: a line a network (and batch)."""
    costs, unit, words, _ = _costs(study)
    several = across == "domain" and len({design.global_batch for design in study.designs}) > 1
    names = [f"{design.kind}, batch {design.global_batch:,}" if several else design.kind for design in study.designs]
    lines = list(dict.fromkeys(names))
    # Lines that coincide are nested: what is drawn later is narrower.
    wide = {line: 2.0 + 1.5 * min(later, 4) for later, line in enumerate(reversed(lines))}
    rows: list[dict[str, Any]] = [
        {
            "at": getattr(one, across),
            "line": name,
            "wide": wide[name],
            "speed": one.tokens_per_s / 1e6,
            "cost": usd / unit,
            "time": format_seconds(one.iteration_s),
            "money": f"${usd:,.0f}",
            "power": f"{one.bill.watts / 1e3:,.1f} kW",
        }
        for one, name, usd in zip(study.designs, names, costs, strict=True)
    ]
    rows.sort(key=lambda row: (lines.index(row["line"]), row["at"]))
    whole = {
        design.global_batch: design.tokens_per_s * design.iteration_s / design.one_domain_s / 1e6
        for design in study.designs
        if design.one_domain_s and across == "domain"
    }
    places = sorted({row["at"] for row in rows})
    x = alt.X(
        "at:Q",
        title="accelerators of a scale-up domain" if across == "domain" else "global batch (sequences)",
        scale=alt.Scale(type="log", base=2, domain=[places[0] / 1.15, places[-1] * 1.15], nice=False),
        axis=alt.Axis(values=places, format=",d", grid=False),
    )
    look: dict[str, Any] = {"color": colours("line", lines, orient="right", symbolType="circle"), "x": x}
    told_of = tooltip(line="network", at=across.replace("_", " "), time="time", money="cost", power="power")
    plots = []
    for name, title in (("speed", "million tokens per second"), ("cost", f"cost of the network ({words})")):
        dashed = list(whole.values()) if name == "speed" else []
        low, high = bounds([row[name] for row in rows] + dashed)
        y = alt.Y(f"{name}:Q", title=titled(title, low), scale=linear(low, high), axis=alt.Axis(tickCount=6))
        base = alt.Chart(data(rows)).encode(y=y, tooltip=told_of, **look)
        marks = [base.mark_line().encode(strokeWidth=alt.StrokeWidth("wide:Q", scale=None))]
        marks += [base.mark_circle(size=60, opacity=1), *(_one_domain(dashed, y) if dashed else [])]
        plots.append(alt.layer(*marks).properties(width=_HALF, height=_LOW))
    return alt.hconcat(*plots, spacing=24)


def _one_domain(speeds: list[float], y: alt.Y) -> list[alt.Chart]:
    """Dashed lines at the speeds that all accelerators in one domain would reach, each batch one."""
    base = alt.Chart(data({"speed": speed, "words": "one domain"} for speed in speeds)).encode(y=y)
    words = base.mark_text(align="left", baseline="bottom", dx=4, dy=-2, color=MUTED)
    return [
        base.mark_rule(strokeDash=[5, 4], color=MUTED, strokeWidth=1.5),
        words.encode(x=alt.value(0), text="words:N"),
    ]
