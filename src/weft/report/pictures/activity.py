"""How busy a network's dimensions are while a collective runs: a chart, and a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.collectives.schedules.timing import TimedSchedule, activity
from weft.collectives.stages import STAGE_KINDS
from weft.report.formats.perfetto import Counter, Slice, write_trace
from weft.report.tables.collective import bytes_words, policy_words
from weft.units import format_si

if TYPE_CHECKING:
    from weft.report.pictures.charts import Chart

_LANE, _FULL, _WIDTH = 84, 0.78, 720
"""Pixels of a lane, the share of it that full use takes, and pixels of the whole time."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def activity_chart(timed: TimedSchedule) -> Chart:
    """How busy each dimension is over the time of the collective, as areas one above the other."""
    import altair as alt

    from weft.report.pictures.charts import COLOURS, GRID, MUTED, data, finished, linear

    asked, shares = timed.schedule.request, activity(timed)
    unit_s, unit = next((one for one in _UNITS if timed.time_s >= one[0]), _UNITS[-1])
    end, count = timed.time_s / unit_s, len(shares)
    rows, lanes = [], []
    for i, share in enumerate(shares):
        floor, one = float(count - 1 - i), asked.dimensions[i]
        kind, speed = f"{i + 1}: {one.kind}", f"{one.size} x {format_si(one.bandwidth_Bps, 'B/s')}"
        used = f"{timed.dimension_utilization[i]:.0%}"
        lanes.append({"floor": floor, "full": floor + _FULL, "kind": kind, "speed": speed, "used": used})
        heights = [min(float(height), 1.0) for height in share]
        rows += [
            {"dimension": i, "time": end * at / len(heights), "floor": floor, "top": floor + _FULL * height}
            for at, height in enumerate([*heights, heights[-1]])
        ]
    colour = alt.Color(
        "dimension:O",
        scale=alt.Scale(domain=list(range(count)), range=[COLOURS[i % len(COLOURS)] for i in range(count)]),
        legend=None,
    )
    scale = linear(-0.03, count - 1 + _FULL + 0.03)

    def at(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", axis=None, scale=scale)

    areas = alt.Chart(data(rows)).encode(
        x=alt.X("time:Q", title=f"time ({unit})", scale=linear(0, end), axis=alt.Axis(grid=False, offset=6)),
        y=at("floor"),
        y2="top:Q",
        color=colour,
    )
    names = alt.Chart(data(lanes)).encode(y=at("full"), x=alt.value(0))
    lines = alt.Chart(data(lanes)).mark_rule(color=MUTED)
    middle = _LANE * _FULL / 2
    chart = alt.layer(
        lines.mark_rule(color=GRID).encode(y=at("full")),
        areas.mark_area(interpolate="step-after", opacity=1),
        lines.encode(y=at("floor")),
        names.mark_text(align="right", dx=-10, dy=middle - 8, fontSize=12).encode(text="kind:N"),
        names.mark_text(align="right", dx=-10, dy=middle + 8, color=MUTED).encode(text="speed:N"),
        names.mark_text(align="left", dx=10, dy=middle, fontSize=12).encode(x=alt.value(_WIDTH), text="used:N"),
    ).properties(width=_WIDTH, height=_LANE * count)
    title = f"{asked.kind} of {bytes_words(asked.bytes)}: {policy_words(timed)}"
    words = "height: share of the time in which a dimension moves bytes, up to 100 %; at the right: its utilization"
    return finished(chart, title[0].upper() + title[1:], words)


def write_schedule_timeline(path: str, timed: TimedSchedule) -> None:
    """Every stage of every chunk on its dimension, and how busy the dimensions are, for ui.perfetto.dev."""
    stages, chart, asked = timed.stages, timed.chart, timed.schedule.request
    names = [f"dimension {i + 1} ({one.kind} {one.size})" for i, one in enumerate(asked.dimensions)]
    slices = [
        Slice(track=(names[dimension],), name=f"{STAGE_KINDS[kind]} chunk {chunk}", begin_s=begin, end_s=end)
        for dimension, kind, chunk, begin, end in zip(
            stages.dimension.tolist(),
            stages.kind.tolist(),
            stages.chunk.tolist(),
            chart.admitted_s.tolist(),
            chart.end_s.tolist(),
            strict=True,
        )
    ]
    shares = activity(timed)
    step = timed.time_s / shares.shape[1]
    counters = [
        Counter(track=(f"{name} busy",), time_s=at * step, value=float(value), unit="share")
        for name, row in zip(names, shares, strict=True)
        for at, value in enumerate(row)
    ]
    write_trace(slices, counters, path)
