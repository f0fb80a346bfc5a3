"""Scheduled collectives, those of an arranged job too, for people and as timelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.collectives.schedules.per_rank import RankTimes
from weft.collectives.schedules.provision import Provision
from weft.collectives.schedules.timing import TimedSchedule, activity, per_dimension
from weft.collectives.stages import STAGE_KINDS
from weft.units import counted, format_bytes, format_seconds, format_si
from weft.views.blocks import Blank, Block, Column, Fact, Grid, Heading, Paragraph
from weft.views.files.timeline import Counter, Slice, write_trace

if TYPE_CHECKING:
    from weft.arrangement.collectives import JobSchedules
    from weft.collectives.schedules.chunks import Schedule
    from weft.collectives.schedules.result import ScheduleResult

ORDERS_SHOWN = 6


def schedule_view(outcome: ScheduleResult) -> Iterator[Block]:
    """A schedule: its time beside the bounds, its dimensions, its orders, and what to change."""
    timed = outcome.timed
    yield from _request(outcome)
    if outcome.others is not None:
        yield from _comparison(outcome, outcome.others)
    if outcome.counts:
        yield from _counts(outcome)
    yield Paragraph(
        f"{policy_words(timed)}: {time_words(timed.time_s)}, {timed.utilization:.1%} of the bandwidth used;"
        f" bound {time_words(outcome.shares.bound_s)} ({over_words(timed.time_s, outcome.shares.bound_s)}),"
        f" ideal {time_words(outcome.ideal_s)}"
    )
    if outcome.ranks is not None:
        yield from _ranks(outcome.ranks)
    yield Heading("Dimensions, inner to outer")
    yield Grid(_dimension_columns(outcome))
    yield Heading(f"Orders of {_chunks(timed)}")
    yield Grid(_order_columns(timed.schedule))
    yield from _provision(outcome.provision)


def _request(outcome: ScheduleResult) -> Iterator[Block]:
    asked = outcome.timed.schedule.request
    shape = " x ".join(f"{one.size:,}" for one in asked.dimensions)
    whole = f" = {asked.accelerators:,}" if len(asked.dimensions) > 1 else ""
    yield Paragraph(f"{asked.kind} of {bytes_words(asked.bytes)} on {shape}{whole} accelerators")
    for note in (*asked.notes, *outcome.assumptions):
        yield Fact("Assumed:", note)
    yield Blank()


def policy_words(timed: TimedSchedule) -> str:
    """The policy, the order where it is a rule, the chunks and how they share a dimension."""
    rule = "" if timed.rule == "fixed" else f", {timed.rule}"
    working = "latencies overlap" if timed.active is None else f"{timed.active} active per dimension"
    return f"{timed.schedule.policy}{rule}, {_chunks(timed)}, {working}"


def _chunks(timed: TimedSchedule) -> str:
    return counted(len(timed.schedule), "chunk")


def over_words(seconds: float, other_s: float) -> str:
    """How much longer than another, as people read it; equal times give +0.0%."""
    return f"{round(seconds / other_s - 1, 3) + 0.0:+.1%}"


def times_words(seconds: Sequence[float]) -> list[str]:
    """Seconds of one column in one unit."""
    most = max(seconds)
    for scale, unit, digits in ((1e-6, "us", 1), (1e-3, "ms", 3), (1.0, "s", 3)):
        if most < 1e4 * scale or unit == "s":
            return [f"{one / scale:,.{digits}f} {unit}" for one in seconds]
    raise AssertionError


def time_words(seconds: float) -> str:
    """Seconds in the unit that schedules are read in: "1,043.5 us", "12.503 ms"."""
    return times_words([seconds])[0]


def bytes_words(value: float) -> str:
    """Bytes in the largest unit of which there is one."""
    return format_bytes(value, least=1.0)


def _comparison(outcome: ScheduleResult, others: Mapping[str, TimedSchedule]) -> Iterator[Block]:
    first = next(iter(others.values()))
    names = [*others, "bound", "ideal"]
    seconds = [*(one.time_s for one in others.values()), outcome.shares.bound_s, outcome.ideal_s]
    used = [f"{one.utilization:.1%}" for one in others.values()]
    chunks = [f"{len(one.schedule):,}" for one in others.values()]
    yield Grid(
        [
            Column(heading="policy", cells=names, values=[*others, "", ""], left=True),
            Column(heading="chunks", cells=[*chunks, "", ""], drop=3),
            Column(heading="time", cells=times_words(seconds)),
            Column(heading="speedup", cells=[f"{first.time_s / one:.2f}x" for one in seconds], drop=2),
            Column(heading="utilization", cells=[*used, "", ""], drop=1),
            Column(heading="over the bound", cells=[over_words(one, outcome.shares.bound_s) for one in seconds]),
        ]
    )
    yield Paragraph(
        "bound: no schedule of chunks over these dimensions is faster (bandwidth, latency, filling); ideal:"
        " every dimension busy all the time, without latency.",
        indent=2,
    )
    yield Blank()


def _counts(outcome: ScheduleResult) -> Iterator[Block]:
    result = list(outcome.counts.values())
    rows = [(name, [policies[name] for policies in result]) for name in result[0]]
    columns = [Column(heading="policy", cells=[name for name, _ in rows], left=True)]
    for i, count in enumerate(outcome.counts):
        cells = [f"{one[i].utilization:.1%}" for _, one in rows]
        columns.append(Column(heading=counted(count, "chunk"), cells=cells, drop=i))
    yield Grid(columns)
    yield Paragraph("share of the bandwidth that each policy uses, by the number of chunks.", indent=2)
    yield Blank()


def _ranks(ranks: RankTimes) -> Iterator[Block]:
    last = int(np.argmax(ranks.finish_s))
    yield Paragraph(
        f"Rank by rank: {time_words(ranks.time_s)} ({over_words(ranks.time_s, ranks.alike_s)} against ranks all"
        f" alike); rank {last} is last, the first is done after {time_words(float(ranks.finish_s.min()))}."
    )


def _dimension_columns(outcome: ScheduleResult) -> list[Column]:
    timed = outcome.timed
    asked, stages = timed.schedule.request, timed.stages
    count = len(asked.dimensions)
    sent, busy = per_dimension(stages, stages.sent_bytes, count), timed.dimension_utilization
    return [
        Column(heading="#", cells=[str(i + 1) for i in range(count)]),
        Column(heading="kind", cells=[one.kind for one in asked.dimensions], left=True),
        Column(heading="size", cells=[f"{one.size:,}" for one in asked.dimensions]),
        Column(heading="bandwidth", cells=[format_si(one.bandwidth_Bps, "B/s") for one in asked.dimensions]),
        Column(heading="step", cells=[f"{one.latency_s * 1e6:.3g} us" for one in asked.dimensions], drop=2),
        Column(heading="algorithm", cells=outcome.algorithms(), left=True),
        Column(heading="sent", cells=[bytes_words(one) for one in sent]),
        Column(heading="busy", cells=[f"{one:.1%}" for one in busy]),
        Column(heading="idle", cells=times_words(timed.idle_s.tolist()), drop=1),
    ]


def order_groups(schedule: Schedule) -> list[tuple[list[int], list[int] | None, int, float]]:
    """Orders in use (dimensions from 0; all-gather orders where there are any), with the number of chunks and
    the share of the bytes of each, the largest first."""
    rows = schedule.orders if schedule.gathers is None else np.hstack([schedule.orders, schedule.gathers])
    unique, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.ravel()
    counts = np.bincount(which, minlength=len(unique))
    shares = np.bincount(which, weights=schedule.chunk_bytes, minlength=len(unique)) / schedule.request.bytes
    width = schedule.orders.shape[1]
    result = []
    for i in np.argsort(-shares, kind="stable"):
        gather = None if schedule.gathers is None else unique[i][width:].tolist()
        result.append((unique[i][:width].tolist(), gather, int(counts[i]), float(shares[i])))
    return result


def _order_columns(schedule: Schedule) -> list[Column]:
    groups = order_groups(schedule)
    shown, rest = groups[:ORDERS_SHOWN], groups[ORDERS_SHOWN:]
    words = [order_words(order, gather) for order, gather, _, _ in shown]
    chunks = [f"{count:,}" for _, _, count, _ in shown]
    shares = [f"{share:.1%}" for *_, share in shown]
    if rest:
        words.append(f"{len(rest)} more")
        chunks.append(f"{sum(count for _, _, count, _ in rest):,}")
        shares.append(f"{sum(share for *_, share in rest):.1%}")
    return [
        Column(heading="dimensions in turn", cells=words, left=True),
        Column(heading="chunks", cells=chunks),
        Column(heading="bytes", cells=shares),
    ]


def order_words(order: Sequence[int], gather: Sequence[int] | None) -> str:
    """Dimensions in turn, from 1: "1 2 | 2 1" where an all-gather follows."""
    there = " ".join(str(i + 1) for i in order)
    return there if gather is None else f"{there} | {' '.join(str(i + 1) for i in gather)}"


def _provision(result: Provision) -> Iterator[Block]:
    if result.pairs:
        yield Heading("Bandwidths")
    for line in provision_words(result):
        yield Paragraph(line, indent=2)


def provision_words(result: Provision) -> tuple[str, ...]:
    """What the bandwidths of dimensions are worth beside each other, in sentences; none for one dimension."""
    if not result.pairs:
        return ()
    lines = [
        f"dimension {pair.outer + 1} is {pair.verdict} for {pair.inner + 1}: it has"
        f" {format_si(pair.Bps, 'B/s')}, the baseline's order needs {format_si(pair.needed_Bps, 'B/s')}."
        for pair in result.pairs
    ]
    split = ", ".join(format_si(one, "B/s") for one in result.just_enough_Bps)
    lines.append(f"Just enough for the baseline, of the same total: {split}.")
    if result.slow:
        lines.append(f"No mix of orders keeps all dimensions busy{_remedy(result)}.")
    return tuple(lines)


def _remedy(result: Provision) -> str:
    if result.enough_Bps is None:
        return ""
    faster = [f"dimension {i + 1} at {format_si(float(result.enough_Bps[i]), 'B/s')}" for i in result.slow]
    return f"; one could with {' and '.join(faster)}"


def write_schedule_timeline(path: str, timed: TimedSchedule) -> None:
    """Every stage of every chunk on its dimension, and how busy the dimensions are, for ui.perfetto.dev."""
    stages, chart, dimensions = timed.stages, timed.chart, timed.schedule.request.dimensions
    names = [f"dimension {i + 1} ({dimension.kind} {dimension.size})" for i, dimension in enumerate(dimensions)]
    columns = (stages.dimension, stages.kind, stages.chunk, chart.admitted_s, chart.end_s)
    slices = [
        Slice(
            process=names[dimension],
            thread="chunks",
            name=f"{STAGE_KINDS[kind]} chunk {chunk}",
            begin_s=begin_s,
            end_s=end_s,
        )
        for dimension, kind, chunk, begin_s, end_s in zip(*(column.tolist() for column in columns), strict=True)
    ]
    shares = activity(timed)
    step_s = timed.time_s / shares.shape[1]
    counters = [
        Counter(process=name, name="busy (share)", time_s=at * step_s, values={"share": float(share)})
        for name, row in zip(names, shares, strict=True)
        for at, share in enumerate(row)
    ]
    write_trace(path, slices, counters)


def schedules_view(result: JobSchedules) -> Iterator[Block]:
    """Every collective: what the prediction takes for a call, and the best that is known, with its bound."""
    rows = result.collectives
    yield Heading(f"Collectives of {result.job}, most bytes first (seconds of one call)")
    between = ["-" if one.reached_Bps is None else f"{one.reached_Bps / 1e9:.3g} GB/s" for one in rows]
    yield Grid(
        [
            Column(heading="collective", cells=[one.name for one in rows], left=True),
            Column(heading="ranks", cells=[f"{one.ranks:,}" for one in rows]),
            Column(heading="hosts", cells=[f"{one.hosts:,}" for one in rows]),
            Column(heading="size", cells=[format_si(one.bytes, "B") for one in rows]),
            Column(heading="calls", cells=[f"{one.calls:,.0f}" for one in rows], drop=1),
            Column(heading="between hosts", cells=between, drop=2),
            Column(heading="predicted", cells=[format_seconds(one.assumed[1]) for one in rows]),
            Column(heading="best", cells=[format_seconds(one.best[1]) for one in rows]),
            Column(heading="by", cells=[one.best[0] for one in rows], left=True),
            Column(heading="bound", cells=[format_seconds(one.bound_s) for one in rows]),
        ]
    )
    yield Paragraph(
        "predicted: what the iteration is predicted with; best: the fastest of NCCL's algorithms, or a schedule over"
        " hosts and network that beats them all; bound: bytes over the ports' peak bandwidth.",
        indent=2,
    )
