"""``weft reproduce``: published claims beside Weft's figures."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import check_chart, deliver_chart
from weft.cli.outcome import RowsOutput, report
from weft.errors import BadInput
from weft.verbs.options import option
from weft.verbs.reproduce import ReproduceOptions
from weft.verbs.reproduce import reproduce as reproduced


@dataclass(frozen=True, kw_only=True)
class ReproduceOutput(RowsOutput):
    """What is made of a study."""

    chart: str | None = option(None, "Also draw it, where it has a picture (.svg, .png, .pdf, .html).", metavar="FILE")


@click.command()
@click.argument("study", required=False)
@takes(options=ReproduceOptions, out=ReproduceOutput)
def reproduce(study: str | None, options: ReproduceOptions, out: ReproduceOutput) -> None:
    """Compute a published claim under printed conditions, beside what its paper says.

    Without STUDY: the list of studies.
    """
    check_chart(out.chart)
    if study is None:
        from weft.reproductions.catalogue import STUDIES

        width = max(map(len, STUDIES))
        for name, entry in STUDIES.items():
            click.echo(f"{name:{width}}  {entry.shows}")
        return
    from weft.report.tables.reproduction import reproduction_table

    found = reproduced(study, options=options)
    if out.chart is not None and found.drawn is None:
        raise BadInput(f"{study} has no picture", where="--chart", remedy="leave it out")
    report(found, out, lambda screen: reproduction_table(found, screen))
    if out.chart is not None:
        from weft.report.pictures.reproduction import reproduction_chart

        deliver_chart(reproduction_chart(found), out.chart)
