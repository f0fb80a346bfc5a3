"""Policies of one collective one under the other: every chunk on its dimension, on one axis of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import altair as alt

from weft.collectives.schedules.policies import beside
from weft.collectives.stages import STAGE_KINDS
from weft.units import counted, format_si
from weft.views.charts.charts import Chart, colours, data, finished, linear, tooltip
from weft.views.charts.palette import COLOURS, GRID, INK, MUTED, PAPER
from weft.views.collective import bytes_words, policy_words, time_words

if TYPE_CHECKING:
    from weft.collectives.schedules.result import ScheduleResult
    from weft.collectives.schedules.timing import TimedSchedule

_WIDTH, _LANE, _BAR, _HEAD, _GAP = 760, 26, 20, 32, 12
"""Pixels: of the longest time, from lane to lane, of a lane's bar, of a policy's heading, and under its lanes."""
_FINEST = 3.0
"""Pixels of a chunk, in the mean, from which on its edges are drawn; narrower ones of a kind join."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def schedule_chart(result: ScheduleResult, *, chunks: int | None = None) -> Chart:
    """A schedule beside other policies, of as many ``chunks``."""
    return policies_chart(beside(result.timed, chunks=chunks), result.bound_s)


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
    colour = colours("kind", [*kinds, "idle"], shades, orient="top")
    across = {"x": x, "x2": "end:Q", "y": y, "y2": "y2:Q", "color": colour}
    lane, head = alt.Chart(data(lanes)).encode(y=y), alt.Chart(data(heads)).encode(y=y)
    told = tooltip(chunk="chunk", kind="kind", time="time")
    drawn = [(fine, [row for row in bars if row["fine"] == fine]) for fine in (True, False)]
    layers = [
        alt.Chart(data(lanes)).mark_rect().encode(**across),
        *(
            alt.Chart(data(rows))
            .mark_rect(stroke=None if fine else PAPER, strokeWidth=0.6)
            .encode(**across, tooltip=told)
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
    words = (
        f"dimensions' use over time, its share at the right; dashed: no schedule is faster than {time_words(bound_s)}"
    )
    return finished(chart, _title(timed), words)


def _title(timed: TimedSchedule) -> str:
    request = timed.schedule.request
    title = f"{request.kind} of {bytes_words(request.bytes)} on {counted(request.accelerators, 'accelerator')}"
    return title[0].upper() + title[1:]


def _bars(timed: TimedSchedule, dimension: int, pixel_s: float, unit_s: float, unit: str) -> list[dict[str, Any]]:
    """Bars of a dimension's lane: one for each chunk's stage where that can be seen."""
    stages = timed.stages
    here = stages.dimension == dimension
    latency = stages.latency_s[here] if timed.active is None else 0.0
    columns = (timed.chart.moving_s[here], timed.chart.end_s[here] - latency, stages.kind[here], stages.chunk[here])
    # When the dimension moves bytes: chunks that share its bandwidth stand one after the other.
    spans: list[dict[str, Any]] = []
    reached_s = 0.0
    for begin, end, kind, chunk in sorted(zip(*(column.tolist() for column in columns), strict=True)):
        if end > max(begin, reached_s):
            span = {"begin": max(begin, reached_s), "end": end, "kind": kind, "chunk": f"{chunk + 1}", "chunks": 1}
            spans.append(span)
            reached_s = end
    fine = bool(sum(span["end"] - span["begin"] for span in spans) < _FINEST * pixel_s * len(spans))
    bars: list[dict[str, Any]] = []
    for span in spans:  # too fine to be told apart: spans of one kind that all but touch are drawn as one
        last = bars[-1] if bars else span
        if fine and bars and last["kind"] == span["kind"] and span["begin"] - last["end"] < pixel_s / 4:
            chunks = last["chunks"] + 1
            last |= {"end": span["end"], "chunks": chunks, "chunk": counted(chunks, "chunk")}
        else:
            bars.append(span)
    for bar in bars:
        begin, end = bar["begin"] / unit_s, bar["end"] / unit_s
        bar |= {"begin": begin, "end": end, "kind": STAGE_KINDS[bar["kind"]], "fine": fine}
        bar["time"] = f"{begin:.4g} to {end:.4g} {unit}"
    return bars
