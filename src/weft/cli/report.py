"""``weft report``: a plan, an arrangement or a study as one file to hand around."""

from __future__ import annotations

import click

from weft.cli.build import takes
from weft.cli.options import check_folder, deliver
from weft.cli.outcome import FileOutput
from weft.verbs.report import ReportOptions, make_report


@click.command()
@click.argument("subject", metavar="PLAN.json|ARRANGEMENT.json|STUDY")
@takes(options=ReportOptions, out=FileOutput)
def report(subject: str, options: ReportOptions, out: FileOutput) -> None:
    """Write a plan, an arrangement or a study as a page in one file, to hand around.

    PLAN.json is what weft plan --format json wrote, ARRANGEMENT.json what weft arrange -o wrote, STUDY the folder of
    weft sweep --state. The page opens from disk and loads nothing.
    """
    check_folder(out.output, "--output")
    deliver(make_report(subject, options=options), out.output)
