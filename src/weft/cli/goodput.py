"""``weft goodput``: what failures leave of a training run."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import Progress, check_chart, check_count, deliver_chart
from weft.cli.outcome import RowsOutput, report
from weft.verbs.goodput import USAGE, GoodputOptions
from weft.verbs.goodput import goodput as found_goodput
from weft.verbs.options import option


@dataclass(frozen=True, kw_only=True)
class GoodputOutput(RowsOutput):
    """What is made of a run under failures."""

    chart: str | None = option(None, "Also draw what each class costs (.svg, .png, .pdf, .html).", metavar="FILE")


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@takes(options=GoodputOptions, out=GoodputOutput)
def goodput(names: tuple[str, ...], options: GoodputOptions, out: GoodputOutput) -> None:
    """What failures leave of a training run, by class of failure: goodput, days, dollars.

    MODEL and CLUSTER as for weft plan; with --plan they are those of the plan.
    """
    from weft.views.goodput import goodput_view

    check_chart(out.chart)
    check_count(names, 2, "goodput", USAGE)
    model, cluster = (*names, None, None)[:2]
    with Progress("simulating failures") as progress:
        found = found_goodput(model, cluster, options=options, progress=progress)
    report(found, out, goodput_view(found))
    if out.chart is not None:
        from weft.views.charts.goodput import goodput_chart

        deliver_chart(goodput_chart(found), out.chart)
