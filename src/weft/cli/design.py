"""``weft design``: candidate networks for a job, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import Progress, check_chart, check_count, deliver_chart
from weft.cli.outcome import Output, report
from weft.errors import NothingFeasible
from weft.verbs.design import USAGE, DesignOptions
from weft.verbs.design import design as designed
from weft.verbs.options import option


@dataclass(frozen=True, kw_only=True)
class DesignOutput(Output):
    """What is made of a study."""

    chart: str | None = option(None, "Also draw cost against time (.svg, .png, .pdf, .html).", metavar="FILE")


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@takes(options=DesignOptions, out=DesignOutput)
def design(names: tuple[str, ...], options: DesignOptions, out: DesignOutput) -> None:
    """Compare networks for MODEL on CLUSTER: cost, power, speed, spine traffic, failures.

    MODEL and CLUSTER as for weft plan; with --plan they are those of the plan.
    """
    from weft.views.design import design_view

    check_chart(out.chart)
    check_count(names, 2, "design", USAGE)
    model, cluster = (*names, None, None)[:2]
    with Progress("simulating networks") as progress:
        found = designed(model, cluster, options, progress=progress)
    report(found, out, design_view(found))
    if not found.designs:
        raise NothingFeasible("; ".join(f"{one.kind}: {one.reason}" for one in found.rejected))
    if out.chart is not None:
        from weft.views.charts.designs import design_chart

        deliver_chart(design_chart(found), out.chart)
