"""Scheduled collectives, for people and as timelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.collectives.schedules.policies import beside
from weft.collectives.schedules.result import Provision
from weft.collectives.schedules.timing import TimedSchedule, per_dimension
from weft.collectives.stages import STAGE_KINDS
from weft.units import counted, format_bytes, format_si
from weft.views.blocks import Block, Column, Heading, Paragraph, Table, headline, notes
from weft.views.charts import COLOURS, GRID, INK, MUTED, PAPER, Chart, alt, colours, data, finished, linear, tooltip
from weft.views.files import Slice

if TYPE_CHECKING:
    from weft.collectives.schedules.result import ScheduleResult
    from weft.collectives.schedules.timing import TimedSchedule


def schedule_view(outcome: ScheduleResult, *, verbose: bool = False) -> Iterator[Block]:
    """A schedule: its time beside the baseline and the bound, and the table that shows it.

    Args:
        verbose: add every policy, the dimensions, and what the bandwidths are worth.
    """
    timed = outcome.timed
    yield from headline(schedule_verdict(outcome))
    if outcome.others is not None:
        yield from _comparison(outcome, outcome.others, verbose=verbose)
    if verbose and outcome.others is not None:
        yield Heading("Dimensions, inner to outer")
    if verbose or outcome.others is None:
        yield Table(*_dimension_columns(outcome))
    if outcome.provision.too_slow and not verbose:
        yield Paragraph(_bottleneck(outcome.provision), indent=2)
    yield from notes((_setting(timed), *(f"Assumed: {note}" for note in outcome.every_assumption)), style="dim")
    if verbose:
        yield Heading("Schedule")
        yield Paragraph(
            f"{policy_words(timed)}; {timed.utilization:.1%} of the bandwidth used; ideal"
            f" {time_words(outcome.ideal_s)} (every dimension always busy, without latency)",
            indent=2,
        )
        if outcome.provision.pairs:
            yield Heading("Bandwidths")
            yield from (Paragraph(line, indent=2) for line in provision_words(outcome.provision))


def schedule_verdict(outcome: ScheduleResult) -> str:
    """The time of a schedule, against the baseline and the bound."""
    timed, baseline = outcome.timed, outcome.baseline
    time, usual, least = times_words([timed.time_s, baseline.time_s, outcome.bound_s])
    gain = ""
    if timed is not baseline:
        ratio = round(baseline.time_s / timed.time_s, 2)
        gain = f", {f'{ratio:.2f}x faster than' if ratio != 1 else 'as fast as'} the baseline's {usual}"
    name = timed.schedule.policy
    return f"{name[0].upper()}{name[1:]}: {time}{gain}; no schedule can be below {least}."


def _setting(timed: TimedSchedule) -> str:
    """The collective, and how it is cut."""
    request = timed.schedule.request
    shape = " x ".join(f"{dimension.size:,}" for dimension in request.dimensions)
    total = f" = {request.accelerators:,}" if len(request.dimensions) > 1 else ""
    return f"{request.kind} of {bytes_words(request.bytes)} on {shape}{total} accelerators, {_chunks(timed)}"


def policy_words(timed: TimedSchedule) -> str:
    """The policy, the order where it is a rule, the chunks and how they share a dimension."""
    rule = "" if timed.rule == "fixed" else f", {timed.rule}"
    working = "latencies overlap" if timed.active is None else f"{timed.active} active per dimension"
    return f"{timed.schedule.policy}{rule}, {_chunks(timed)}, {working}"


def _chunks(timed: TimedSchedule) -> str:
    return counted(len(timed.schedule), "chunk")


def times_words(seconds: Sequence[float]) -> list[str]:
    """Seconds of a column in the same unit."""
    most = max(seconds)
    for scale, unit, digits in ((1e-6, "us", 1), (1e-3, "ms", 3), (1.0, "s", 3)):
        if most < 1e4 * scale or unit == "s":
            return [f"{value / scale:,.{digits}f} {unit}" for value in seconds]
    raise AssertionError


def time_words(seconds: float) -> str:
    """Seconds in the unit that schedules are read in: "1,043.5 us", "12.503 ms"."""
    return times_words([seconds])[0]


def bytes_words(value: float) -> str:
    """Bytes in the largest unit of which there is one."""
    return format_bytes(value, least=1.0)


USUAL = ("baseline", "themis fifo", "themis scf", "weft")
"""Policies that a comparison shows; the others repeat the figures of Themis and of ASTRA-sim."""


def _comparison(outcome: ScheduleResult, others: Mapping[str, TimedSchedule], *, verbose: bool) -> Iterator[Block]:
    first_s = outcome.baseline.time_s
    shown = {name: run for name, run in others.items() if verbose or name in USUAL}
    limits = {"bound": outcome.bound_s} | ({"ideal": outcome.ideal_s} if verbose else {})
    seconds = [*(run.time_s for run in shown.values()), *limits.values()]
    blank = [""] * len(limits)
    yield Table(
        Column("policy", [*shown, *limits], values=[*shown, *blank], left=True),
        Column("chunks", [*(f"{len(run.schedule):,}" for run in shown.values()), *blank], drop=3),
        Column("time", times_words(seconds), front=True),
        Column("speedup", [f"{first_s / value:.2f}x" for value in seconds], drop=2),
        Column("utilization", [*(f"{run.utilization:.1%}" for run in shown.values()), *blank], drop=1),
        Column("over the bound", [f"{round(value / outcome.bound_s - 1, 3) + 0.0:+.1%}" for value in seconds]),
    )
    yield Paragraph("bound: no schedule of chunks over these dimensions is faster", indent=2)


def _dimension_columns(outcome: ScheduleResult) -> list[Column]:
    timed = outcome.timed
    dimensions, stages = timed.schedule.request.dimensions, timed.stages
    count = len(dimensions)
    sent, busy = per_dimension(stages, stages.sent_bytes, count), timed.dimension_utilization
    return [
        Column("#", [str(i + 1) for i in range(count)]),
        Column("kind", [dimension.kind for dimension in dimensions], left=True),
        Column("size", [f"{dimension.size:,}" for dimension in dimensions]),
        Column("bandwidth", [format_si(dimension.bandwidth_Bps, "B/s") for dimension in dimensions]),
        Column("step", [f"{dimension.latency_s * 1e6:.3g} us" for dimension in dimensions], drop=2),
        Column("algorithm", outcome.algorithms(), left=True),
        Column("sent", [bytes_words(value) for value in sent]),
        Column("busy", [f"{share:.1%}" for share in busy]),
        Column("idle", times_words(timed.idle_s.tolist()), drop=1),
    ]


def provision_words(result: Provision) -> tuple[str, ...]:
    """Sentences on how the bandwidths of dimensions fit each other; none for a single dimension."""
    if not result.pairs:
        return ()
    lines = [
        f"Dimension {pair.outer} is {pair.verdict} for dimension {pair.inner}: it has"
        f" {format_si(pair.Bps, 'B/s')}, the baseline's order needs {format_si(pair.needed_Bps, 'B/s')}."
        for pair in result.pairs
    ]
    split = ", ".join(format_si(value, "B/s") for value in result.just_enough_Bps)
    lines.append(f"Split of the same total that suits the baseline: {split}.")
    if result.too_slow:
        lines.append(_bottleneck(result))
    return tuple(lines)


def _bottleneck(result: Provision) -> str:
    """Which dimensions are too slow for the others to be always busy, and the bandwidths that would do."""
    slow = " and ".join(f"dimension {i}" for i in result.too_slow)
    words = f"Bottleneck: {slow}; every schedule leaves others idle"
    if result.enough_Bps is None:
        return f"{words}."
    enough = " and ".join(format_si(float(result.enough_Bps[i - 1]), "B/s") for i in result.too_slow)
    return f"{words}. With {enough} none would be."


def schedule_timeline(timed: TimedSchedule) -> list[Slice]:
    """Every stage of every chunk on its dimension, for ui.perfetto.dev."""
    stages, chart, dimensions = timed.stages, timed.chart, timed.schedule.request.dimensions
    names = [f"dimension {i + 1} ({dimension.kind} {dimension.size})" for i, dimension in enumerate(dimensions)]
    columns = (stages.dimension, stages.kind, stages.chunk, chart.admitted_s, chart.end_s)
    return [
        Slice(
            process=names[dimension],
            thread="chunks",
            name=f"{STAGE_KINDS[kind]} chunk {chunk}",
            begin_s=begin_s,
            end_s=end_s,
        )
        for dimension, kind, chunk, begin_s, end_s in zip(*(column.tolist() for column in columns), strict=True)
    ]


# Chart ---------------------------------------------------------------------------------------------------------

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
