"""``weft simulate``: flow by flow, a scenario file or one iteration of a job on a fabric."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import check_count, check_folder, deliver
from weft.cli.outcome import Output, report
from weft.errors import BadInput
from weft.verbs.options import option
from weft.verbs.simulate import USAGE, SimulateOptions
from weft.verbs.simulate import simulate as simulated


@dataclass(frozen=True, kw_only=True)
class SimulateOutput(Output):
    """What is made of a simulation."""

    timeline: str | None = option(None, "Also write a timeline for ui.perfetto.dev.", metavar="FILE")
    picture: str | None = option(None, "Also draw the fabric.", metavar="FILE.svg")


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@takes(options=SimulateOptions, out=SimulateOutput)
def simulate(names: tuple[str, ...], options: SimulateOptions, out: SimulateOutput) -> None:
    """Simulate flows, or one iteration of MODEL on CLUSTER's network.

    With --plan the job, the cluster and the layout are those of a plan. With --flows a scenario file is run:
    line 1 "hosts links flows bytes_per_second", then a flow a line "src dst bytes n l1 .. ln", then a link a
    line "from to".
    """
    check_count(names, 2, "simulate", USAGE)
    if options.flows is not None and (out.timeline or out.picture):
        raise BadInput("--flows goes with --mode, --format and -o only", where="simulate", remedy=USAGE)
    check_folder(out.timeline, "--timeline")
    check_folder(out.picture, "--picture")
    model, cluster = (*names, None, None)[:2]
    found = simulated(model, cluster, options=options)
    from weft.simulation.flows.report import ScenarioReport
    from weft.views.simulation import iteration_view, scenario_view

    if isinstance(found, ScenarioReport):
        report(found, out, scenario_view(found))
        return
    report(found, out, iteration_view(found))
    if out.timeline is not None:
        from weft.views.simulation import write_timeline

        write_timeline(out.timeline, found.result)
    if out.picture is not None:
        from weft.views.charts.fabric import fabric_svg
        from weft.views.charts.palette import alone

        deliver(alone(fabric_svg(found.fabric)), out.picture)
