"""``weft estimate``: one layout in full, by hand, from a plan or from a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from weft.cli.build import takes
from weft.cli.options import check_chart, check_count, check_folder, deliver_chart
from weft.cli.outcome import LayoutOutput, print_launch, report
from weft.errors import BadInput
from weft.verbs.estimate import USAGE, EstimateOptions, memory_timeline
from weft.verbs.estimate import estimate as estimated
from weft.verbs.launch import launch_arguments
from weft.verbs.options import option

if TYPE_CHECKING:
    from rich.console import Console

    from weft.estimation.report import EstimateReport
    from weft.simulation.iteration.memory import MemoryTimeline


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
    report(found, out, lambda screen: _print(found, out, timeline, screen))
    if timeline is not None and out.timeline is not None:
        from weft.report.formats.memory import write_memory

        write_memory(out.timeline, timeline)
    if out.chart is not None:
        from weft.report.pictures.layouts import estimate_chart

        title = f"{found.job.model.name} on {found.cluster.name}"
        deliver_chart(estimate_chart(found.estimate, title), out.chart)


def _print(found: EstimateReport, out: EstimateOutput, timeline: MemoryTimeline | None, screen: Console) -> None:
    from weft.report.tables.breakdown import estimate_table, peak_table
    from weft.report.tables.training import training_table

    estimate_table(found, screen)
    if timeline is not None:
        peak_table(timeline, screen)
    if found.run is not None:
        training_table(found.run, screen)
    if out.launch:
        print_launch(launch_arguments(out.launch, found.job, found.cluster, found.layout), screen)
