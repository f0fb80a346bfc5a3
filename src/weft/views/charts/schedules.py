"""Policies of one collective one under the other: every chunk on its dimension, on one axis of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt

from weft.collectives.stages import STAGE_KINDS
from weft.units import counted, format_si
from weft.views.charts.charts import Chart, data, finished, linear
from weft.views.charts.palette import COLOURS, GRID, INK, MUTED, PAPER
from weft.views.collective import bytes_words, policy_words, time_words

if TYPE_CHECKING:
    from weft.collectives.schedules.timing import TimedSchedule

_WIDTH, _LANE, _BAR, _HEAD, _GAP = 760, 26, 20, 32, 12
"""Pixels: of the longest time, from lane to lane, of a lane's bar, of a policy's heading, and under its lanes."""
_FINEST = 3.0
"""Pixels of a chunk, in the mean, from which on its edges are drawn; narrower ones of a kind join."""
_MOST_TICKS = 12
"""Numbers of chunks that are all marked on an axis."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


class _Span(NamedTuple):
    """Seconds in which a dimension moves the bytes of one chunk, or of several of one kind."""

    begin: float
    end: float
    kind: int
    chunk: int
    chunks: int


def policies_chart(policies: Mapping[str, TimedSchedule], bound_s: float) -> Chart:
    """The chunks of every policy in the lanes of its dimensions; pale: the dimension is idle.

    Args:
        policies: schedules of one request, in the order in which they are drawn.
        bound_s: time that no schedule can beat, drawn through the lanes.
    """
    asked = next(iter(policies.values())).schedule.request
    longest = max(one.time_s for one in policies.values())
    unit_s, unit = next((one for one in _UNITS if longest >= one[0]), _UNITS[-1])
    lanes: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    heads: list[dict[str, Any]] = []
    bounds: list[dict[str, Any]] = []
    top = 0.0
    for timed in policies.values():
        ratio = f", {timed.time_s / bound_s:.2f} x the bound" if bound_s > 0 else ""
        words = f"{time_words(timed.time_s)}{ratio}, {timed.utilization:.0%} of the bandwidth used"
        heads.append({"y": top, "name": policy_words(timed), "words": words})
        top += _HEAD
        bounds.append({"begin": bound_s / unit_s, "y": top - 5})
        for i in asked.used:
            one, place = asked.dimensions[i], {"y": top, "y2": top + _BAR, "begin": 0.0}
            name = f"{i + 1}: {one.kind} {one.size:,} x {format_si(one.bandwidth_Bps, 'B/s')}"
            used = f"{timed.dimension_utilization[i]:.0%}"
            lanes.append(place | {"end": timed.time_s / unit_s, "name": name, "used": used, "kind": "idle"})
            bars += [place | row for row in _bars(timed, i, longest / _WIDTH, unit_s, unit)]
            top += _LANE
        bounds[-1]["y2"] = top - _LANE + _BAR + 5
        top += _GAP
    height = top - _GAP
    x = alt.X(
        "begin:Q", title=f"time ({unit})", scale=linear(0, longest / unit_s), axis=alt.Axis(grid=False, tickCount=8)
    )
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, height], range=[0, height], nice=False))
    kinds = [kind for kind in STAGE_KINDS if any(row["kind"] == kind for row in bars)]
    shades = [*(COLOURS[STAGE_KINDS.index(kind)] for kind in kinds), GRID]
    colour = alt.Color(
        "kind:N", scale=alt.Scale(domain=[*kinds, "idle"], range=shades), legend=alt.Legend(orient="top")
    )
    across = {"x": x, "x2": "end:Q", "y": y, "y2": "y2:Q", "color": colour}
    lane, head = alt.Chart(data(lanes)).encode(y=y), alt.Chart(data(heads)).encode(y=y)
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("chunk", "kind", "time")]
    drawn = [(fine, [row for row in bars if row["fine"] == fine]) for fine in (True, False)]
    layers = [
        alt.Chart(data(lanes)).mark_rect().encode(**across),
        *(
            alt.Chart(data(rows))
            .mark_rect(stroke=None if fine else PAPER, strokeWidth=0.6)
            .encode(**across, tooltip=tooltip)
            for fine, rows in drawn
            if rows
        ),
        alt.Chart(data(bounds)).mark_rule(color=INK, strokeDash=[5, 3]).encode(x=x, y=y, y2="y2:Q"),
        lane.mark_text(align="right", dx=-8, dy=_BAR / 2).encode(x=alt.value(0), text="name:N"),
        lane.mark_text(align="left", dx=8, dy=_BAR / 2).encode(x=alt.value(_WIDTH), text="used:N"),
        head.mark_text(align="left", fontSize=12, fontWeight=600, dy=18).encode(x=alt.value(0), text="name:N"),
        head.mark_text(align="right", color=MUTED, dy=18).encode(x=alt.value(_WIDTH), text="words:N"),
    ]
    chart = alt.layer(*layers).properties(width=_WIDTH, height=height)
    title = f"{asked.kind} of {bytes_words(asked.bytes)} on {counted(asked.accelerators, 'accelerator')}"
    words = (
        f"dimensions' use over time, its share at the right; dashed: no schedule is faster than {time_words(bound_s)}"
    )
    return finished(chart, title[0].upper() + title[1:], words)


def counts_chart(counts: Mapping[int, Mapping[str, TimedSchedule]], bound_s: float) -> Chart:
    """What share of the bandwidth every policy uses over the number of chunks (Themis, figure 10).

    Args:
        counts: policies by name for each number of chunks, in ascending order.
        bound_s: time that no schedule can beat; the share of the bandwidth that it would use is drawn.
    """
    rows: list[dict[str, Any]] = [
        {
            "chunks": count,
            "policy": name,
            "share": one.utilization,
            "used": f"{one.utilization:.1%}",
            "time": time_words(one.time_s),
            "ratio": f"{one.time_s / bound_s:.3f}" if bound_s > 0 else "",
        }
        for count, policies in counts.items()
        for name, one in policies.items()
    ]
    best = min((one for policies in counts.values() for one in policies.values()), key=lambda one: one.time_s)
    asked, ceiling = best.schedule.request, best.utilization * best.time_s / bound_s if bound_s > 0 else 1.0
    names = list(dict.fromkeys(row["policy"] for row in rows))
    shades = [*(COLOURS[-1], *COLOURS[1:])[: len(names) - 1], COLOURS[0]]
    few = len(counts) <= _MOST_TICKS
    low, high = min(counts), max(counts)
    x = alt.X(
        "chunks:Q",
        title="chunks",
        scale=alt.Scale(type="log", base=2, domain=[low / 1.1, high * 1.1], nice=False),
        axis=alt.Axis(format=",d", grid=False, **({"values": list(counts)} if few else {"tickCount": _MOST_TICKS})),
    )
    y = alt.Y(
        "share:Q", title="share of the bandwidth used", scale=linear(0, 1.02), axis=alt.Axis(format=".0%", tickCount=6)
    )
    colour = alt.Color(
        "policy:N", scale=alt.Scale(domain=names, range=shades), legend=alt.Legend(orient="right", symbolType="circle")
    )
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("policy", "time")]
    tooltip += [alt.Tooltip("chunks:Q"), alt.Tooltip("used:N"), alt.Tooltip("ratio:N", title="of the bound's time")]
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=colour)
    layers = [
        alt.Chart(data([{"share": ceiling}])).mark_rule(color=INK, strokeDash=[5, 3]).encode(y=y),
        base.mark_line(strokeWidth=2),
        base.mark_circle(size=60, opacity=1).encode(tooltip=tooltip),
    ]
    title = f"{asked.kind} of {bytes_words(asked.bytes)} on {counted(asked.accelerators, 'accelerator')}, by chunks"
    words = f"dashed: what the bound allows, {time_words(bound_s)}"
    chart = alt.layer(*layers).properties(width=620, height=380)
    return finished(chart, title[0].upper() + title[1:], words)


def _bars(timed: TimedSchedule, dimension: int, pixel_s: float, unit_s: float, unit: str) -> list[dict[str, Any]]:
    """Bars of a dimension's lane: one for each chunk's stage where that can be seen."""
    spans = _spans(timed, dimension)
    fine = sum(one.end - one.begin for one in spans) < _FINEST * pixel_s * len(spans)
    return [
        {
            "begin": one.begin / unit_s,
            "end": one.end / unit_s,
            "kind": STAGE_KINDS[one.kind],
            "chunk": f"{one.chunk + 1}" if one.chunks == 1 else counted(one.chunks, "chunk"),
            "time": f"{one.begin / unit_s:.4g} to {one.end / unit_s:.4g} {unit}",
            "fine": fine,
        }
        for one in (_joined(spans, pixel_s / 4) if fine else spans)
    ]


def _spans(timed: TimedSchedule, dimension: int) -> list[_Span]:
    """When a dimension moves bytes, in order; chunks that share its bandwidth stand one after the other."""
    stages = timed.stages
    here = stages.dimension == dimension
    latency = stages.latency_s[here] if timed.active is None else 0.0
    columns = (timed.chart.moving_s[here], timed.chart.end_s[here] - latency, stages.kind[here], stages.chunk[here])
    found: list[_Span] = []
    reached = 0.0
    for begin, end, kind, chunk in sorted(zip(*(one.tolist() for one in columns), strict=True)):
        if end > max(begin, reached):
            found.append(_Span(max(begin, reached), end, kind, chunk, 1))
            reached = end
    return found


def _joined(spans: list[_Span], near_s: float) -> list[_Span]:
    """Spans of one kind that lie nearer to each other than can be seen, as one."""
    found: list[_Span] = []
    for one in spans:
        last = found[-1] if found else None
        if last is not None and last.kind == one.kind and one.begin - last.end < near_s:
            found[-1] = last._replace(end=one.end, chunks=last.chunks + 1)
        else:
            found.append(one)
    return found
