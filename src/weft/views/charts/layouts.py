"""Charts of layouts: where their time and memory go, the trade between the two, and what makes the difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt

from weft.errors import BadInput
from weft.layout.text import format_degrees
from weft.units import format_bytes, format_count, format_seconds
from weft.views.charts.charts import Chart, colours, data, finished, ink_on, linear, margin_labels, titled, tooltip
from weft.views.charts.palette import GRID, INK, MUTED, PAPER
from weft.views.ranking import thinned
from weft.views.words import PARTS, WORTH, recompute_words, schedule_words

if TYPE_CHECKING:
    from weft.estimation.report import EstimateReport
    from weft.estimation.result import Estimate
    from weft.search.comparison import Comparison, Difference
    from weft.search.ranking import Plan

_STEP, _BAR, _ROOM, _TIME, _MEMORY = 60, 24, 132, 620, 340
"""Pixels: from bar to bar, height of a bar, room for the words behind the longest one, widths of the two panels."""
_NAMED = 12
"""Points of the trade of memory for time that are named."""
_LANE = 26
"""Pixels from step to step of a waterfall."""
WHOLE, SLOWER, FASTER = "#8c959f", "#d55e00", "#0072b2"
CUT = 0.7
"""Share of the longest total that all steps lie above where the axis does not begin at 0."""
_ROWS = alt.Y("row:O", axis=None, scale=alt.Scale(padding=0))


def breakdown_chart(subject: Plan | Sequence[Estimate], *, top: int = 10, title: str = "") -> Chart:
    """Stacked bars of the time and memory of the fastest layouts of a plan, or of estimates in their order.

    Args:
        subject: what to draw.
        top: most bars.
        title: model and cluster of a plan by default."""
    estimates = tuple(subject if isinstance(subject, Sequence) else subject.layouts)[:top]
    if not isinstance(subject, Sequence):
        title = title or f"{subject.job.model.name} on {subject.cluster.name}"
    if not estimates:
        raise BadInput("there is no layout to draw", where="chart")
    names = [(f"{rank}. {format_degrees(one.layout)}", _details(one)) for rank, one in enumerate(estimates, start=1)]
    tied = [] if isinstance(subject, Sequence) else _tied(subject, len(estimates))
    bars = alt.layer(*_band(tied), _time(estimates), _names(names))
    both = alt.hconcat(bars, _memory(estimates, _MEMORY), spacing=28).resolve_scale(color="independent")
    heading = f"{title}: time and memory by layout" if title else "Time and memory by layout"
    words = "communication: its exposed part only; upright line: memory of one accelerator"
    return finished(both, heading, f"{words}; shaded: tie with the fastest" if tied else words)


def estimate_chart(report: EstimateReport) -> Chart:
    """The bars of one estimate."""
    return breakdown_chart([report.estimate], title=f"{report.job.model.name} on {report.cluster.name}")


def plan_chart(plan: Plan, *, pareto: bool = False) -> Chart:
    """The bars of a plan, or its trade of memory for time."""
    return (pareto_chart if pareto else breakdown_chart)(plan)


def _time(estimates: Sequence[Estimate]) -> Chart:
    return _bars(
        parts=[[(part.name, part.value) for part in estimate.time] for estimate in estimates],
        ends=[f"{format_seconds(estimate.iteration_s)}, MFU {estimate.mfu:.0%}" for estimate in estimates],
        marks=(),
        title="time of an iteration (s)",
        unit="s",
        width=_TIME,
    )


def _memory(estimates: Sequence[Estimate], width: int) -> Chart:
    return _bars(
        parts=[[(part.name, part.value / 2**30) for part in estimate.memory] for estimate in estimates],
        ends=[
            f"{estimate.memory_bytes / 2**30:.1f} of {format_bytes(estimate.capacity_bytes)}" for estimate in estimates
        ],
        marks=[estimate.capacity_bytes / 2**30 for estimate in estimates],
        title="memory of the fullest stage (GiB)",
        unit="GiB",
        width=width,
    )


def _tied(plan: Plan, shown: int) -> list[int]:
    """Rows of the layouts that tie with the fastest, where there are several."""
    rows = [i for i, row in enumerate(plan.ranked[:shown]) if row.tied]
    return rows if len(rows) > 1 else []


def _band(rows: Sequence[int]) -> list[alt.Chart]:
    """A pale band behind rows."""
    marks = alt.Chart(data({"row": row} for row in rows)).mark_rect(color=GRID, opacity=0.45)
    return [marks.encode(y=_ROWS, x=alt.value(-8), x2=alt.value(_TIME + 8))] if rows else []


def _details(one: Estimate) -> str:
    layout = one.layout
    pipeline = f", schedule {schedule_words(layout)}" if layout.pipeline > 1 else ""
    return f"micro-batch {layout.micro_batch}{pipeline}, recompute {recompute_words(layout)}"


def _names(names: Sequence[tuple[str, str]]) -> Chart:
    """Name and details of every layout, above its bar."""
    rows = data({"row": i, "name": name, "details": details} for i, (name, details) in enumerate(names))
    chart = alt.Chart(rows).encode(y=_ROWS)
    name = chart.mark_text(align="left", dy=-19, fontWeight=600, fontSize=12).encode(x=alt.value(0), text="name:N")
    details = chart.mark_text(align="right", dy=-19, color=MUTED).encode(x=alt.value(_TIME), text="details:N")
    return alt.layer(name, details)


def _bars(
    *,
    parts: Sequence[Sequence[tuple[str, float]]],
    ends: Sequence[str],
    marks: Sequence[float],
    title: str,
    unit: str,
    width: int,
) -> Chart:
    """Stacked bars of one quantity: parts by bar in order of stacking, with words at the ends of the bars."""
    totals = [sum(value for _, value in bar) for bar in parts]
    lasts = [max(pair) for pair in zip(totals, marks or totals, strict=True)]
    limit = max(lasts) * width / (width - _ROOM)
    rows = []
    for i, bar in enumerate(parts):
        end = 0.0
        for name, value in bar:
            begin, end = end, end + value
            share = f"{value / totals[i]:.0%}"
            wide = value / limit * width > 9 * len(share)
            if value > 0:
                rows.append(
                    {
                        "row": i,
                        "part": PARTS[name].label,
                        "begin": begin,
                        "end": end,
                        "middle": (begin + end) / 2,
                        "share": share,
                        "value": f"{value:.3g} {unit}",
                        "words": share if wide else "",
                        "ink": ink_on(PARTS[name].colour),
                    }
                )
    used = {row["part"] for row in rows}
    order = [name for name, _ in parts[0] if PARTS[name].label in used]
    x = alt.X("begin:Q", title=title, scale=linear(0, limit), axis=alt.Axis(tickCount=5, grid=False))
    names, shades = [PARTS[name].label for name in order], [PARTS[name].colour for name in order]
    colour = colours("part", names, shades, orient="bottom", columns=2, direction="vertical")
    parts_chart = alt.Chart(data(rows))
    told = tooltip(part="part", value="value", share="share")
    bars = parts_chart.mark_bar(height=_BAR, yOffset=6, stroke=PAPER, strokeWidth=0.7).encode(
        x=x, x2="end:Q", y=_ROWS, color=colour, tooltip=told
    )
    shares = parts_chart.mark_text(dy=6).encode(
        x="middle:Q", y=_ROWS, text="words:N", color=alt.Color("ink:N", scale=None)
    )
    points = data({"row": i, "at": lasts[i], "words": ends[i]} for i in range(len(lasts)))
    words = alt.Chart(points).mark_text(align="left", dx=8, dy=6).encode(x="at:Q", y=_ROWS, text="words:N")
    layers: list[alt.Chart] = [bars, shares, words]
    if marks:
        limits = data({"row": i, "at": value} for i, value in enumerate(marks))
        mark = alt.Chart(limits).mark_tick(thickness=2.5, height=_BAR + 10, yOffset=6, color=INK)
        layers.append(mark.encode(x="at:Q", y=_ROWS))
    return alt.layer(*layers).properties(width=width, height=_STEP * len(totals))


def pareto_chart(plan: Plan) -> Chart:
    """Memory against iteration time of the layouts that no other beats in both, up to twice the shortest time."""
    shown = [point for point in plan.pareto if point.iteration_s <= 2 * plan.pareto[0].iteration_s]
    if not shown:
        raise BadInput("there is no layout to draw", where="chart")
    width, height = 640, 420
    first, last = shown[0].iteration_s, max(one.iteration_s for one in shown)
    room = 0.2 * (last - first) or 0.2 * last
    low, high = first - room, last + room
    capacity = max(one.capacity_bytes for one in shown) / 2**30
    tied = [plan.layouts[i].iteration_s for i in _tied(plan, len(plan.layouts))]
    x = alt.X("seconds:Q", title=titled("time of an iteration (s)", low), scale=linear(low, high))
    y = alt.Y("memory:Q", title="memory of the fullest stage (GiB)", scale=linear(0, 1.08 * capacity))
    rows = [
        {
            "seconds": one.iteration_s,
            "memory": one.memory_bytes / 2**30,
            "layout": format_degrees(one.layout),
            "details": _details(one),
            "time": format_seconds(one.iteration_s),
            "MFU": f"{one.mfu:.1%}",
            "held": format_bytes(one.memory_bytes),
        }
        for one in shown
    ]
    named = thinned(rows, _NAMED)
    told = tooltip(layout="layout", details="details", time="time", MFU="MFU", held="memory")
    frontier = alt.Chart(data(rows)).encode(x=x, y=y)
    limit = alt.Chart(data([{"at": capacity}])).encode(y="at:Q")
    layers = [
        *_tied_times(tied, low, high),
        *margin_labels(
            named, [str(row["layout"]) for row in named], "seconds", "memory", (0, 1.08 * capacity, height), width
        ),
        limit.mark_rule(color="#d55e00", strokeDash=[6, 4], strokeWidth=1.5),
        limit.mark_text(align="right", dy=-8, color="#d55e00").encode(
            x=alt.value(width), text=alt.value(f"memory of one accelerator: {format_bytes(capacity * 2**30)}")
        ),
        frontier.mark_line(interpolate="step-after", color="#56b4e9", strokeWidth=1.5),
        frontier.mark_circle(size=70, color="#0072b2", opacity=1).encode(tooltip=told),
    ]
    title = f"{plan.job.model.name} on {plan.cluster.name}: memory against time"
    chart = alt.layer(*layers).properties(width=width, height=height)
    words = "layouts that no other beats in both, up to twice the shortest time"
    return finished(chart, title, f"{words}; shaded: tie with the fastest" if tied else words)


def _tied_times(seconds: Sequence[float], low: float, high: float) -> list[alt.Chart]:
    """A pale band over the times of layouts that tie with the fastest."""
    if not seconds:
        return []
    band = alt.Chart(data([{"begin": max(min(seconds), low), "end": min(max(seconds), high)}]))
    return [band.mark_rect(color=GRID, opacity=0.45).encode(x="begin:Q", x2="end:Q")]


def comparison_chart(result: Comparison) -> Chart:
    """A waterfall for each side held against the first."""
    first = result.sides[0].label
    falls = [_difference(first, difference) for difference in result.differences]
    chart = alt.vconcat(*falls, spacing=34).resolve_scale(x="independent", y="independent")
    tokens = format_count(result.sides[0].job.recipe.tokens)
    title = f"What makes the difference from {first}"
    return finished(
        chart, title, f"seconds for {tokens} tokens; orange: longer, blue: shorter; communication: exposed"
    )


def _difference(first: str, difference: Difference) -> Chart:
    """The bars of one side: the first's time, every part that differs, the side's time."""
    before, after = (sum(getattr(part, name) for part in difference.time) for name in ("before", "after"))
    worth = [part for part in difference.time if abs(part.difference) > WORTH * max(before, after)]
    steps = [(PARTS[one.part].label, one.difference) for one in sorted(worth, key=lambda one: -abs(one.difference))]
    rest = after - before - sum(value for _, value in steps)
    if abs(rest) > 1e-6 * max(before, after):
        steps.append(("all other parts", rest))
    coloured = [_Step(name, seconds, SLOWER if seconds > 0 else FASTER) for name, seconds in steps]
    return _waterfall(_Step(first, before, WHOLE), coloured, difference.label)


class _Step(NamedTuple):
    """What adds to a time, or takes from it."""

    name: str
    seconds: float
    colour: str


def _waterfall(first: _Step, steps: Sequence[_Step], last: str) -> Chart:
    """The first total, every step, and the total that they lead to."""
    rows = [_bar(first.name, 0.0, first.seconds, first.colour, format_seconds(first.seconds))]
    at = first.seconds
    for name, seconds, colour in steps:
        words = f"{'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))}"
        rows.append(_bar(name, at, at + seconds, colour, words))
        at += seconds
    rows.append(_bar(last, 0.0, at, WHOLE, format_seconds(at)))
    for number, row in enumerate(rows):
        row["row"] = number
    changing = [end for row in rows[1:-1] for end in (row["begin"], row["end"])] or [first.seconds]
    least, longest = min(changing), max(*changing, first.seconds, at)
    # Totals begin off the chart where differences are small beside them, so that the differences can be seen.
    low = max(0.0, least - 0.6 * (longest - least)) if least > CUT * longest else 0.0
    for row in (rows[0], rows[-1]):
        row["begin"] = low
    high = longest + 0.14 * (longest - low)
    y = alt.Y("row:O", sort=[row["row"] for row in rows], axis=None)
    x = alt.X("begin:Q", title=titled("seconds", low), scale=linear(low, high), axis=alt.Axis(tickCount=6))
    base = alt.Chart(data(rows))
    bars = base.mark_bar(height=_LANE - 9).encode(
        x=x, x2="end:Q", y=y, color=alt.Color("colour:N", scale=None), tooltip=["name:N", "words:N"]
    )
    names = base.mark_text(align="right", dx=-6).encode(x=alt.value(0), y=y, text="name:N")
    words = base.mark_text(align="left", dx=6).encode(x="right:Q", y=y, text="words:N")
    links = [{"row": i, "next": i + 1, "at": rows[i]["end"]} for i in range(len(rows) - 1)]
    rules = alt.Chart(data(links)).mark_rule(color=MUTED, strokeWidth=0.8)
    layers = [rules.encode(x="at:Q", y=y, y2="next:O"), bars, names, words]
    return alt.layer(*layers).properties(width=_TIME, height=_LANE * len(rows))


def _bar(name: str, begin: float, end: float, colour: str, words: str) -> dict[str, Any]:
    return {"name": name, "begin": begin, "end": end, "right": max(begin, end), "colour": colour, "words": words}
