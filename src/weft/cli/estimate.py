"""``weft estimate``: one layout in full, by hand, from a plan or from a run's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.cli.build import takes
from weft.cli.options import check_chart, check_count
from weft.cli.outcome import LayoutOutput, draw, print_launch, report
from weft.verbs.estimate import USAGE, EstimateOptions
from weft.verbs.estimate import estimate as estimated
from weft.verbs.launch import launch_arguments

if TYPE_CHECKING:
    from rich.console import Console

    from weft.estimation.report import EstimateReport


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@takes(options=EstimateOptions, out=LayoutOutput)
def estimate(names: tuple[str, ...], options: EstimateOptions, out: LayoutOutput) -> None:
    """Time, memory and bounds of one layout, and what faster hardware would be worth.

    MODEL and CLUSTER as for weft plan.  With --run MODEL may be left out where the configuration states it, with
    --plan both.
    """
    check_chart(out.chart)
    check_count(names, 2, "estimate", USAGE)
    *model, cluster = names if names else (None,)
    found = estimated(model[0] if model else None, cluster, options=options)
    report(found, out, lambda screen: _print(found, out, screen))
    draw([found.estimate], out.chart, found.job, found.cluster)


def _print(found: EstimateReport, out: LayoutOutput, screen: Console) -> None:
    from weft.report.tables.breakdown import estimate_table
    from weft.report.tables.training import training_table

    estimate_table(found, screen)
    if found.run is not None:
        training_table(found.run, screen)
    if out.launch:
        print_launch(launch_arguments(out.launch, found.job, found.cluster, found.layout), screen)
