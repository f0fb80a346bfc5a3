"""``weft report``: a plan or an arrangement as one file to hand around."""

from __future__ import annotations

import click

from weft.cli.build import takes
from weft.cli.options import check_folder, deliver
from weft.cli.outcome import FileOutput
from weft.web.report import ReportOptions, make_report


@click.command()
@click.argument("result_file", metavar="PLAN.json|ARRANGEMENT.json")
@takes(options=ReportOptions, out=FileOutput)
def report(result_file: str, options: ReportOptions, out: FileOutput) -> None:
    """Write a plan or an arrangement as a page in one file, to hand around.

    PLAN.json is what weft plan --format json wrote, ARRANGEMENT.json what weft arrange -o wrote. The page opens from
    disk and loads nothing.
    """
    check_folder(out.output, "--output")
    deliver(make_report(result_file, options=options), out.output)
