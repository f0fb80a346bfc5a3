"""How busy a network's dimensions are while a collective runs: a picture, and a timeline."""

from __future__ import annotations

from collections.abc import Sequence

from weft.collectives.schedules.timing import Timed, activity
from weft.collectives.stages import STAGE_KINDS
from weft.report.formats.perfetto import Counter, Slice, write_trace
from weft.report.pictures.svg import INK, document, grid_line, text
from weft.report.tables.collective import bytes_words, policy_words, time_words
from weft.units import format_si

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933")
_LEFT, _RIGHT, _TOP, _LANE, _GAP = 150.0, 860.0, 70.0, 64.0, 22.0


def activity_svg(timed: Timed) -> str:
    """How busy each dimension is over the time of the collective, as areas one above the other."""
    asked = timed.schedule.request
    shares = activity(timed)
    bottom = _TOP + len(shares) * (_LANE + _GAP)
    title = f"{asked.kind} of {bytes_words(asked.bytes)}: {policy_words(timed)}"
    items = [text(_LEFT, 34, title, size=15, bold=True)]
    for i, share in enumerate(shares):
        floor = _TOP + i * (_LANE + _GAP) + _LANE
        items += _lane(floor, share, COLOURS[i % len(COLOURS)])
        one = asked.dimensions[i]
        items.append(text(_LEFT - 10, floor - _LANE / 2 - 2, f"{i + 1}: {one.kind}", anchor="end"))
        words = f"{one.size} x {format_si(one.bandwidth_Bps, 'B/s')}"
        items.append(text(_LEFT - 10, floor - _LANE / 2 + 13, words, anchor="end", size=11))
        items.append(text(_RIGHT + 8, floor - _LANE / 2 + 4, f"{timed.dimension_utilization[i]:.0%}"))
    for part in range(6):
        at = _LEFT + (_RIGHT - _LEFT) * part / 5
        items.append(text(at, bottom + 6, time_words(timed.time_s * part / 5), anchor="middle", size=11))
    items.append(text((_LEFT + _RIGHT) / 2, bottom + 28, "time", anchor="middle", bold=True))
    return document(_RIGHT + 70, bottom + 46, items, title)


def _lane(floor: float, share: Sequence[float], colour: str) -> list[str]:
    width = (_RIGHT - _LEFT) / len(share)
    points = [f"{_LEFT:.1f},{floor:.1f}"]
    for i, value in enumerate(share):
        height = floor - min(value, 1.0) * _LANE
        points += [f"{_LEFT + i * width:.1f},{height:.1f}", f"{_LEFT + (i + 1) * width:.1f},{height:.1f}"]
    points.append(f"{_RIGHT:.1f},{floor:.1f}")
    return [
        grid_line(_LEFT, floor - _LANE, _RIGHT, floor - _LANE),
        f'<polygon points="{" ".join(points)}" fill="{colour}"/>',
        f'<line x1="{_LEFT}" y1="{floor:.1f}" x2="{_RIGHT}" y2="{floor:.1f}" stroke="{INK}"/>',
    ]


def write_schedule_timeline(path: str, timed: Timed) -> None:
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
