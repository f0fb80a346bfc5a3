"""A workload's iteration under several policies: for people, and as a timeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.simulation.workload.run import ratio
from weft.units import format_bytes, format_seconds, format_si
from weft.views.blocks import Block, Column, Fact, Grid, Heading, Paragraph
from weft.views.files.timeline import Slice, write_trace

if TYPE_CHECKING:
    from weft.simulation.workload.run import Iteration, WorkloadResult


def workload_view(found: WorkloadResult) -> Iterator[Block]:
    """Each policy's iteration, split into computation and waiting for communication."""
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
