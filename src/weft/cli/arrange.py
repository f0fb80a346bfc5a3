"""``weft arrange``: where the jobs of a site run, when they send, and by which routes."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import check_chart, check_folder, console, deliver, deliver_chart
from weft.cli.outcome import Output
from weft.verbs.arrange import ArrangeOptions
from weft.verbs.arrange import arrange as arranged
from weft.verbs.options import option


@dataclass(frozen=True, kw_only=True)
class ArrangeOutput(Output):
    """What is made of an arrangement."""

    output: str | None = option(None, "Also write the arrangement (JSON).", "-o", "--output", metavar="FILE")
    chart: str | None = option(
        None, "Also draw seats, link loads and a timeline (.svg, .png, .pdf, .html).", metavar="FILE"
    )
    draw: str = option("all", "What --chart draws.", choices=("all", "seats", "loads", "timeline"))


@click.command()
@click.argument("site", metavar="SITE.toml")
@takes(options=ArrangeOptions, out=ArrangeOutput)
def arrange(site: str, options: ArrangeOptions, out: ArrangeOutput) -> None:
    """Arrange the jobs of a site: hosts, layouts, routes, times and classes together, with a bound.

    SITE.toml names the fabric, the hosts, what its switches can do, and the jobs. An interrupt (Ctrl-C) ends the
    search with the best so far. What -o writes, weft simulate, route, schedule, launch and train read
    (--arrangement).
    """
    check_folder(out.output, "-o")
    check_chart(out.chart)
    screen = console(error=True)

    def progress(value: float, bound: float) -> None:
        if screen.is_terminal:
            screen.print(f"objective {value:.6g}, bound {bound:.6g}", style="dim")

    found = arranged(site, options, progress=progress)
    if out.output is not None:
        deliver(found.to_json(), out.output)
    if out.form == "json":
        if out.output is None:
            deliver(found.to_json(), None)
    else:
        from weft.views.arrangement import arrangement_view
        from weft.views.terminal import print_blocks

        print_blocks(arrangement_view(found))
    if out.chart is not None:
        from weft.views.charts.arrangement import CHARTS

        deliver_chart(CHARTS[out.draw](found), out.chart)
