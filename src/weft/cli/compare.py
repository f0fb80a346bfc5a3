"""``weft compare``: layouts, clusters, softwares, networks or plans side by side, and why they differ."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import check_chart, deliver_chart
from weft.cli.outcome import RowsOutput, report
from weft.verbs.compare import CompareOptions
from weft.verbs.compare import compare as compared
from weft.verbs.options import option


@dataclass(frozen=True, kw_only=True)
class CompareOutput(RowsOutput):
    """What is made of a comparison."""

    chart: str | None = option(None, "Also draw what makes the difference (.svg, .png, .pdf, .html).", metavar="FILE")


@click.command()
@click.argument("names", nargs=-1, metavar="MODEL CLUSTER... | PLAN.json...")
@takes(options=CompareOptions, out=CompareOutput)
def compare(names: tuple[str, ...], options: CompareOptions, out: CompareOutput) -> None:
    """Hold layouts, clusters, softwares, networks or plans side by side, and say why they differ.

    MODEL and each CLUSTER as for weft plan; a side without --layout has the best one of a plan. Or plans and
    estimates that --format json wrote. The first side is the one that the others are held against.
    """
    check_chart(out.chart)
    found = compared(*names, options=options)

    from weft.views.comparison import comparison_view

    report(found, out, comparison_view(found))
    if out.chart is not None:
        from weft.views.charts.comparison import comparison_chart

        deliver_chart(comparison_chart(found), out.chart)
