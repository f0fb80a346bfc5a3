"""Simulations for people and as timelines: flows, an iteration, and a workload under several policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.layout.text import format_layout
from weft.units import counted, format_bytes, format_seconds, format_si
from weft.views.blocks import Blank, Block, Column, Heading, Paragraph, Table, headline, notes, rows_grid
from weft.views.files import Slice

if TYPE_CHECKING:
    from weft.simulation.flows.scenario import ScenarioReport
    from weft.simulation.iteration.result import CollectiveRow, IterationReport, IterationSimulation
    from weft.simulation.workload import Iteration, WorkloadResult

SHOWN = 8
"""Slowest flows and busiest links that a table shows."""
NOTICEABLE = 0.005
"""Shares of time below this are not worth a word."""


def scenario_view(report: ScenarioReport, *, verbose: bool = False) -> Iterator[Block]:
    """When a scenario ends, its slowest flows, and with ``verbose`` its busiest links."""
    result, traffic, busy = report.result, report.traffic, report.utilization
    order = np.argsort(-busy, kind="stable")[:SHOWN]
    yield from headline(
        f"{counted(len(traffic), 'flow')} over {counted(len(report.capacity_Bps), 'link')} end after"
        f" {format_seconds(result.makespan_s)}; link {order[0]} is the busiest, {busy[order[0]]:.0%} of the time."
    )
    late = np.argsort(-result.completion_s, kind="stable")[:SHOWN]
    yield Table(
        Column("flow", [str(flow) for flow in late]),
        Column("from", [str(traffic.source[flow]) for flow in late]),
        Column("to", [str(traffic.target[flow]) for flow in late]),
        Column("bytes", [format_si(traffic.bytes[flow], "B") for flow in late]),
        Column("ends", [f"{result.completion_s[flow]:.6f} s" for flow in late]),
        Column("bottleneck link", [str(result.bottleneck[flow]) for flow in late]),
    )
    if len(traffic) > SHOWN:
        yield Paragraph(f"the slowest {SHOWN} flows (--format json lists all)", indent=2, style="dim")
    if verbose:
        yield Heading("Busiest links")
        yield Table(
            Column("link", [str(link) for link in order]),
            Column("carried", [format_si(result.link_bytes[link], "B") for link in order]),
            Column("busy", [f"{busy[link]:.1%}" for link in order]),
        )


def iteration_view(report: IterationReport, *, verbose: bool = False) -> Iterator[Block]:
    """The iteration beside the closed form, and its collectives.

    Args:
        verbose: add the collectives that are only shown for comparison, other times, and where bytes go.
    """
    from weft.fabric.transport import crossing  # these load the estimator, which scenarios do without
    from weft.views.words import setting

    result = report.result
    yield from headline(iteration_verdict(report))
    if rows := [row for row in result.collectives if row.used or verbose]:
        yield Table(*_collective_columns(rows, grid=report.layout.y > 1))
    if report.slow:
        yield Paragraph(f"Slow: {', '.join(report.slow)} (the closed form has no slow ranks)", indent=2, hang=2)
    if report.failed:
        yield Paragraph(f"Failed: {', '.join(report.failed)} (the closed form has no failures)", indent=2, hang=2)
    where = f"{report.fabric.name}, {crossing(result.routing)}; layout {format_layout(report.layout)}"
    yield from notes((f"On {where}", *setting(report.job, report.cluster)), style="dim")
    if verbose:
        yield from _details(report)


def iteration_verdict(report: IterationReport) -> str:
    """The time of a step against the closed form, and the collective that causes most of the difference."""
    result = report.result
    extra = result.iteration_s / result.closed_form_s - 1
    planned = f"With the planned layout {format_layout(report.layout)}: " if report.planned else ""
    step = f"{planned}{format_seconds(result.iteration_s)} per step"
    closed = f"the closed form ({format_seconds(result.closed_form_s)})"
    if abs(extra) < NOTICEABLE:
        return f"{step}, as in {closed}."
    start = f"{step}, {abs(extra):.1%} {'above' if extra > 0 else 'below'} {closed}"
    used = [row for row in result.collectives if row.used and row.simulated_s > row.closed_form_s]
    if not used or result.iteration_s < result.scheduled_s * (1 + NOTICEABLE):
        return f"{start}."
    worst = max(used, key=lambda row: row.calls * (row.simulated_s - row.closed_form_s))
    name = f"{_axes(worst, grid=report.layout.y > 1)} {worst.kind}"
    return f"{start}: the {name} takes {worst.simulated_s / worst.closed_form_s:.2f}x as long."


def _details(report: IterationReport) -> Iterator[Block]:
    """Other times, the job in full, and where bytes go."""
    from weft.views.breakdown import subject
    from weft.views.fabric import tier_name

    result, fabric = report.result, report.fabric
    yield Heading("Times")
    yield Paragraph(
        f"Same schedule with the closed form's collectives {format_seconds(result.scheduled_s)}; lower bound"
        f" {format_seconds(result.lower_bound_s)}",
        indent=2,
    )
    domains = len(fabric.nodes_of("scale-up"))
    switches = fabric.nodes - fabric.accelerators - domains
    inside = f" and {domains:,} of scale-up domains" if domains else ""
    how = "every flow simulated" if result.exact else "identical groups of flows solved once"
    yield Paragraph(f"{counted(switches, 'switch')}{inside}, {counted(fabric.links, 'link')}; {how}", indent=2)
    yield Blank()
    yield from subject(report.job, report.cluster)
    yield Heading("Bytes by tier")
    yield Table(
        Column("tier", [tier_name(tier.tier) for tier in result.tiers], left=True),
        Column("links", [f"{tier.links:,}" for tier in result.tiers]),
        Column("carried", [format_si(tier.bytes, "B") for tier in result.tiers]),
        Column(
            "reached",
            [f"{tier.reached:.1%}" for tier in result.tiers],
            meaning="share of the links' speed, as measured or as the transport leaves",
        ),
    )
    yield Paragraph(
        f"{format_si(result.cross_rail_bytes, 'B')} between different rails of different domains", indent=2
    )
    if result.busiest:
        yield Heading("Busiest links")
        rows = [(link.name, format_si(link.bytes, "B"), f"{link.utilization:.1%}") for link in result.busiest[:SHOWN]]
        yield rows_grid(("link", "carried", "busy"), rows, left=("link",))


_AXES = {"x": "tp", "z": "fsdp", "context": "cp", "data": "dp", "pipeline": "pp", "expert": "ep"}


def _axes(row: CollectiveRow, *, grid: bool) -> str:
    """The axes of a collective in the user's words; x, y and z stay where AxoNN's ``grid`` is used."""
    return "+".join(axis if grid and axis in "xyz" else _AXES.get(axis, axis) for axis in row.axes.split("+"))


def _collective_columns(rows: Sequence[CollectiveRow], *, grid: bool) -> list[Column]:
    return [
        Column("axis", [_axes(row, grid=grid) for row in rows], left=True),
        Column("collective", [f"{row.kind} ({row.algorithm})" for row in rows], left=True),
        Column("bytes", [format_si(row.bytes, "B") for row in rows]),
        Column("calls", [f"{row.calls:,.0f}" for row in rows], drop=2),
        Column("groups", [f"{row.groups:,} x {row.size:,}" for row in rows], drop=1),
        Column("alone", [format_seconds(row.alone_s) for row in rows], meaning="transfer of one group"),
        Column(
            "together",
            [format_seconds(row.everybody_s) for row in rows],
            meaning="of all groups of the axis at once; both without launch and latency, which the step counts",
        ),
        Column("slowdown", [f"x{row.slowdown:.2f}" for row in rows]),
        Column("closed form", [format_seconds(row.closed_form_s) for row in rows], meaning="with both", drop=3),
        Column("bottleneck", [", ".join(row.bottlenecks[:1]) or "-" for row in rows], drop=4, left=True),
    ]


def timeline(result: IterationSimulation) -> list[Slice]:
    """What the stages do, for ui.perfetto.dev."""
    return [
        Slice(process=f"stage {span.stage}", thread=span.track, name=span.name, begin_s=span.begin_s, end_s=span.end_s)
        for span in result.timeline
    ]


def workload_view(result: WorkloadResult, policy: str = "weft", *, verbose: bool = False) -> Iterator[Block]:
    """Each policy's iteration, split into computation and exposed communication.

    Args:
        policy: the one that the first line is about.
        verbose: add how busy each dimension is.
    """
    from weft.simulation.workload import ratio

    runs, dimensions, baseline = result.runs, result.dimensions, result.first
    workload = baseline.workload
    yield from headline(workload_verdict(result, policy))
    yield Table(
        Column("policy", list(runs), left=True),
        Column("iteration", [format_seconds(run.iteration_s) for run in runs.values()]),
        Column("computation", [format_seconds(run.compute_s) for run in runs.values()]),
        Column("exposed communication", [format_seconds(run.exposed_s) for run in runs.values()]),
        Column("speedup", [f"{ratio(baseline.iteration_s, run.iteration_s):.3f}x" for run in runs.values()]),
    )
    yield Paragraph("ideal: every collective has all bandwidth of its dimensions, without latency", indent=2)
    calls = [task.communication for task in workload.tasks if task.communication is not None]
    sent = format_bytes(sum(call.bytes for call in calls), least=1.0)
    shape = " x ".join(str(dimension.size) for dimension in dimensions)
    setting = f"{workload.name} over {shape}: {counted(len(calls), 'collective')} of {sent} in all"
    yield from notes((setting, *(f"Assumed: {note}" for note in result.every_assumption)), style="dim")
    if not verbose:
        return
    yield Heading("Dimensions, busy share of the iteration")
    columns = [
        Column("#", [str(i + 1) for i in range(len(dimensions))]),
        Column("kind", [dimension.kind for dimension in dimensions], left=True),
        Column("size", [f"{dimension.size:,}" for dimension in dimensions]),
        Column("bandwidth", [format_si(dimension.bandwidth_Bps, "B/s") for dimension in dimensions]),
    ]
    for name, run in runs.items():
        if name != "ideal":
            columns.append(Column(name, [f"{ratio(busy, run.iteration_s, 0.0):.1%}" for busy in run.busy_s]))
    yield Table(*columns)


def workload_verdict(result: WorkloadResult, policy: str) -> str:
    """The iteration under a policy, against the baseline and ideal communication."""
    from weft.simulation.workload import ratio

    run, baseline_s = result.runs[policy], result.first.iteration_s
    verdict = f"{policy[0].upper()}{policy[1:]}: {format_seconds(run.iteration_s)} per iteration"
    if run is not result.first:
        gain = ratio(baseline_s, run.iteration_s)
        faster = f"{gain:.2f}x faster than" if abs(gain - 1) > NOTICEABLE else "as fast as"
        verdict += f", {faster} the baseline ({format_seconds(baseline_s)})"
    exposed = ratio(run.exposed_s, run.iteration_s, 0.0)
    ideal = format_seconds(result.runs["ideal"].iteration_s)
    return f"{verdict}; {exposed:.0%} exposed communication (ideal: {ideal})."


def workload_timeline(run: Iteration) -> list[Slice]:
    """Computations and collectives of an iteration, for ui.perfetto.dev."""
    return [
        Slice(
            process=run.workload.name,
            thread="computation" if task.communication is None else f"{task.communication.kind}",
            name=task.name,
            begin_s=begin,
            end_s=end,
        )
        for task, begin, end in zip(run.workload.tasks, run.begin_s.tolist(), run.end_s.tolist(), strict=True)
        if end > begin
    ]
