"""Simulations for people and as timelines: flows, an iteration, and a workload under several policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.units import counted, format_bytes, format_seconds, format_si
from weft.views.blocks import Blank, Block, Column, Fact, Grid, Heading, Paragraph

if TYPE_CHECKING:
    from weft.simulation.flows.scenario import ScenarioReport
    from weft.simulation.iteration.result import CollectiveRow, IterationReport, IterationSimulation
    from weft.simulation.workload import Iteration, WorkloadResult

SHOWN = 8
"""Slowest flows and busiest links that a table shows."""


def scenario_view(report: ScenarioReport) -> Iterator[Block]:
    """Makespan, the slowest flows and the busiest links of a scenario."""
    result, traffic, busy = report.result, report.traffic, report.utilization
    yield Paragraph(
        f"{counted(len(traffic), 'flow')} over {counted(len(report.capacity_Bps), 'link')} end after"
        f" {format_seconds(result.makespan_s)} (makespan {result.makespan_s:.6f} s)"
    )
    late = np.argsort(-result.completion_s, kind="stable")[:SHOWN]
    yield Heading("Slowest flows")
    yield Grid(
        [
            Column(heading="flow", cells=[str(flow) for flow in late]),
            Column(heading="from", cells=[str(traffic.source[flow]) for flow in late]),
            Column(heading="to", cells=[str(traffic.target[flow]) for flow in late]),
            Column(heading="bytes", cells=[format_si(traffic.bytes[flow], "B") for flow in late]),
            Column(heading="ends", cells=[f"{result.completion_s[flow]:.6f} s" for flow in late]),
            Column(heading="last held by link", cells=[str(result.bottleneck[flow]) for flow in late]),
        ]
    )
    most = np.argsort(-busy, kind="stable")[:SHOWN]
    yield Heading("Busiest links (share of capacity x makespan)")
    yield Grid(
        [
            Column(heading="link", cells=[str(link) for link in most]),
            Column(heading="carried", cells=[format_si(result.link_bytes[link], "B") for link in most]),
            Column(heading="utilization", cells=[f"{busy[link]:.1%}" for link in most]),
        ]
    )


def iteration_view(report: IterationReport) -> Iterator[Block]:
    """The iteration beside the closed form, its collectives, and where bytes go."""
    from weft.fabric.transport import crossing  # these load the estimator, which scenarios do without
    from weft.layout.text import format_layout
    from weft.views.breakdown import subject
    from weft.views.fabric import tier_name

    result, fabric = report.result, report.fabric
    yield from subject(report.job, report.cluster, routing=crossing(result.routing))
    yield Fact("Layout:", format_layout(report.layout, whole=True))
    domains = len(fabric.nodes_of("scale-up"))
    switches = fabric.nodes - fabric.accelerators - domains
    inside = f" and {domains:,} of scale-up domains" if domains else ""
    yield Paragraph(f"Fabric:  {fabric.name}: {counted(switches, 'switch')}{inside}, {counted(fabric.links, 'link')}")
    yield Blank()
    yield Paragraph(
        f"Iteration {format_seconds(result.iteration_s)} at flow level; closed form"
        f" {format_seconds(result.closed_form_s)}; the same schedule with the closed form's collectives"
        f" {format_seconds(result.scheduled_s)}; lower bound {format_seconds(result.lower_bound_s)}"
    )
    if report.slow:
        yield Paragraph(f"Slow: {', '.join(report.slow)}; all but the closed form and the bound wait for them")
    if report.failed:
        yield Paragraph(f"Failed: {', '.join(report.failed)}; the closed form and the bound know nothing of it")
    how = "every flow simulated" if result.exact else "identical groups of flows solved once"
    yield Paragraph(f"{how}; {format_si(result.cross_rail_bytes, 'B')} between different rails of different domains")
    if result.collectives:
        yield Heading("Collectives, all groups of an axis at once")
        yield Grid(_collective_columns(result.collectives))
        yield Paragraph(
            "calls: per rank of the busiest stage; alone: transfer of one group with the fabric to itself;"
            " together: with all groups of the axis; slowdown: contention between them",
            indent=2,
        )
    yield Heading("Bytes by tier")
    yield Grid(
        [
            Column(heading="tier", cells=[tier_name(tier.tier) for tier in result.tiers], left=True),
            Column(heading="links", cells=[f"{tier.links:,}" for tier in result.tiers]),
            Column(heading="carried", cells=[format_si(tier.bytes, "B") for tier in result.tiers]),
            Column(heading="reached", cells=[f"{tier.reached:.1%}" for tier in result.tiers]),
        ]
    )
    yield Paragraph(
        "reached: of the links' speed, by measured collectives or by what the transport leaves, whichever is less",
        indent=2,
    )
    if result.busiest:
        yield Heading("Busiest links")
        yield Grid(
            [
                Column(heading="link", cells=[link.name for link in result.busiest[:SHOWN]], left=True),
                Column(heading="carried", cells=[format_si(link.bytes, "B") for link in result.busiest[:SHOWN]]),
                Column(heading="busy", cells=[f"{link.utilization:.1%}" for link in result.busiest[:SHOWN]]),
            ]
        )


def _collective_columns(rows: Sequence[CollectiveRow]) -> list[Column]:
    return [
        Column(heading="axis", cells=[row.axes for row in rows], left=True),
        Column(heading="collective", cells=[f"{row.kind} ({row.algorithm})" for row in rows], left=True),
        Column(heading="bytes", cells=[format_si(row.bytes, "B") for row in rows]),
        Column(heading="calls", cells=[f"{row.calls:,.0f}" for row in rows], drop=2),
        Column(heading="groups", cells=[f"{row.groups:,} x {row.size:,}" for row in rows], drop=1),
        Column(heading="alone", cells=[format_seconds(row.alone_s) for row in rows]),
        Column(heading="together", cells=[format_seconds(row.everybody_s) for row in rows]),
        Column(heading="slowdown", cells=[f"x{row.slowdown:.2f}" for row in rows]),
        Column(heading="closed form", cells=[format_seconds(row.closed_form_s) for row in rows], drop=3),
        Column(heading="held by", cells=[", ".join(row.bottlenecks[:1]) or "-" for row in rows], drop=4, left=True),
    ]


def write_timeline(path: str, result: IterationSimulation) -> None:
    """The stages' timeline as a trace for ui.perfetto.dev."""
    from weft.views.files.timeline import Slice, write_trace

    slices = [
        Slice(process=f"stage {span.stage}", thread=span.track, name=span.name, begin_s=span.begin_s, end_s=span.end_s)
        for span in result.timeline
    ]
    write_trace(path, slices)


def workload_view(found: WorkloadResult) -> Iterator[Block]:
    """Each policy's iteration, split into computation and waiting for communication."""
    from weft.simulation.workload import ratio

    runs, dimensions, first = found.runs, found.dimensions, found.first
    workload = first.workload
    calls = [task.communication for task in workload.tasks if task.communication is not None]
    sent = format_bytes(sum(call.bytes for call in calls), least=1.0)
    shape = " x ".join(str(one.size) for one in dimensions)
    yield Paragraph(
        f"{workload.name} over {shape}: {format_seconds(workload.compute_s)} of computation,"
        f" {len(calls):,} {'collective' if len(calls) == 1 else 'collectives'} of {sent} in all"
    )
    for note in (*workload.assumptions, *found.assumptions):
        yield Fact("Assumed:", note)
    yield Heading("One iteration")
    yield Grid(
        [
            Column(heading="policy", cells=list(runs), left=True),
            Column(heading="iteration", cells=[format_seconds(one.iteration_s) for one in runs.values()]),
            Column(heading="computation", cells=[format_seconds(one.compute_s) for one in runs.values()]),
            Column(heading="exposed communication", cells=[format_seconds(one.exposed_s) for one in runs.values()]),
            Column(
                heading="speedup", cells=[f"{ratio(first.iteration_s, one.iteration_s):.3f}x" for one in runs.values()]
            ),
        ]
    )
    yield Paragraph("ideal: every collective has all bandwidth of its dimensions, without latency.", indent=2)
    yield Heading("Dimensions, busy share of the iteration")
    columns = [
        Column(heading="#", cells=[str(i + 1) for i in range(len(dimensions))]),
        Column(heading="kind", cells=[one.kind for one in dimensions], left=True),
        Column(heading="size", cells=[f"{one.size:,}" for one in dimensions]),
        Column(heading="bandwidth", cells=[format_si(one.bandwidth_Bps, "B/s") for one in dimensions]),
    ]
    for name, one in runs.items():
        if name != "ideal":
            columns.append(
                Column(heading=name, cells=[f"{ratio(busy, one.iteration_s, 0.0):.1%}" for busy in one.busy_s])
            )
    yield Grid(columns)


def write_workload_timeline(path: str, run: Iteration) -> None:
    """Computations and collectives of an iteration, for ui.perfetto.dev."""
    from weft.views.files.timeline import Slice, write_trace

    slices = [
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
    write_trace(path, slices)
