"""``weft estimate``: one layout in full, by hand, from a plan or from a run's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from weft.cli.build import takes
from weft.cli.options import check_chart, check_count, check_folder, deliver_chart
from weft.cli.outcome import LayoutOutput, report
from weft.errors import BadInput
from weft.verbs.estimate import USAGE, EstimateOptions, memory_timeline
from weft.verbs.estimate import estimate as estimated
from weft.verbs.launch import launch_arguments
from weft.verbs.options import option

if TYPE_CHECKING:
    from weft.estimation.report import EstimateReport
    from weft.simulation.iteration.memory import MemoryTimeline
    from weft.views.blocks import Block


@dataclass(frozen=True, kw_only=True)
class EstimateOutput(LayoutOutput):
    """What is made of an estimate."""

    timeline: str | None = option(
        None,
        "Also write the memory of a stage over the iteration (.json: Chrome trace, .pickle: for torch's memory_viz,"
        " else for ui.perfetto.dev).",
        metavar="FILE",
    )
    stage: int | None = option(None, "Stage of the timeline, from 0; the fullest by default.", metavar="N")


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@takes(options=EstimateOptions, out=EstimateOutput)
def estimate(names: tuple[str, ...], options: EstimateOptions, out: EstimateOutput) -> None:
    """Time, memory and bounds of one layout, and what faster hardware would be worth.

    MODEL and CLUSTER as for weft plan.  With --run MODEL may be left out where the configuration states it, with
    --plan both.
    """
    check_chart(out.chart)
    check_count(names, 2, "estimate", USAGE)
    if out.stage is not None and out.timeline is None:
        raise BadInput("goes with --timeline", where="--stage", remedy="name a file: --timeline memory.json")
    check_folder(out.timeline, "--timeline")
    *model, cluster = names if names else (None,)
    found = estimated(model[0] if model else None, cluster, options=options)
    timeline = None if out.timeline is None else memory_timeline(found, options, out.stage)
    report(found, out, _view(found, out, timeline))
    if timeline is not None and out.timeline is not None:
        from weft.views.files.memory import write_memory

        write_memory(out.timeline, timeline)
    if out.chart is not None:
        from weft.views.charts.layouts import estimate_chart

        title = f"{found.job.model.name} on {found.cluster.name}"
        deliver_chart(estimate_chart(found.estimate, title), out.chart)


def _view(found: EstimateReport, out: EstimateOutput, timeline: MemoryTimeline | None) -> Iterator[Block]:
    from weft.views.breakdown import estimate_view, peak_view
    from weft.views.launch import launch_view
    from weft.views.training import training_view

    yield from estimate_view(found)
    if timeline is not None:
        yield from peak_view(timeline)
    if found.run is not None:
        yield from training_view(found.run)
    if out.launch:
        yield from launch_view(launch_arguments(out.launch, found.job, found.cluster, found.layout))
