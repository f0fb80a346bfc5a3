"""A timeline of a collective: its chunks on the dimensions, and how busy these are."""

from __future__ import annotations

from weft.collectives.schedules.timing import TimedSchedule, activity
from weft.collectives.stages import STAGE_KINDS
from weft.views.files.perfetto import Counter, Slice, write_trace


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
