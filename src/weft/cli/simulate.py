"""``weft simulate``: flow by flow, a scenario file or one iteration of a job on a fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import constants, deliver, load_fabric, recipe_changes, recipe_options
from weft.cli.outcome import show
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.fabric import Fabric

USAGE = "weft simulate MODEL CLUSTER --layout tp=8,pp=4 [--fabric rail-only] | weft simulate --flows FILE"
ROUTINGS = ("ecmp", "spray", "random")
MODES = ("fair", "shortest-remaining")


@click.command()
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@click.option("--flows", metavar="FILE", help="A plain scenario: hosts, links, flows with their paths.")
@click.option("--mode", type=click.Choice(MODES), default="fair", show_default=True, help="How flows share links.")
@click.option("--layout", "layout_text", metavar="TEXT", help="The layout, as tp=8,pp=16,dp=128,sp,mbs=1.")
@click.option("--fabric", "fabric_name", metavar="KIND|FILE", help="Network to build, or a fabric file.")
@click.option("--radix", type=click.IntRange(2, 4096), default=64, show_default=True, help="Switch ports.")
@click.option(
    "--routing", type=click.Choice(ROUTINGS), default="ecmp", show_default=True, help="How paths are chosen."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of hashed and random paths.")
@click.option("--full", is_flag=True, help="Every flow in time instead of equal groups once (small jobs).")
@click.option("--timeline", metavar="FILE", help="Also write a timeline for ui.perfetto.dev.")
@click.option("--picture", metavar="FILE.svg", help="Also draw the fabric.")
@click.option("--calibration", metavar="FILE", help="TOML file of constants for this machine.")
@recipe_options
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output."
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
def simulate(names: tuple[str, ...], **values: Any) -> None:
    """Simulate flows, or one iteration of MODEL on CLUSTER's network.

    With --flows a scenario file is run: line 1 "hosts links flows bytes_per_second", then a flow a line
    "src dst bytes n l1 .. ln", then a link a line "from to".
    """
    if values["flows"] is not None:
        given = [name for name in ("layout_text", "fabric_name", "timeline", "picture") if values[name]]
        if names or given or values["full"]:
            raise BadInput("--flows goes with --mode, --format and -o only", where="simulate", remedy=USAGE)
        _scenario(values)
        return
    if len(names) != 2 or values["layout_text"] is None:
        raise BadInput("MODEL, CLUSTER and --layout are needed", where="simulate", remedy=USAGE)
    if values["mode"] != "fair":
        raise BadInput("--mode goes with --flows only", where="simulate", remedy="drop it")
    _iteration(names, values)


def _scenario(values: dict[str, Any]) -> None:
    from weft.report.tables.simulation import scenario_table, scenario_to_json
    from weft.simulation.flows.engine import run
    from weft.simulation.flows.scenario import read_scenario

    capacity, traffic, routes = read_scenario(values["flows"])
    result = run(capacity, traffic, routes, mode=values["mode"])
    if values["form"] == "json":
        deliver(scenario_to_json(result, capacity), values["output"])
    else:
        show(lambda screen: scenario_table(result, capacity, traffic, screen), values["output"])


def _iteration(names: tuple[str, ...], values: dict[str, Any]) -> None:
    from weft.cluster import resolve
    from weft.layout.check import check_layout
    from weft.layout.text import parse_layout
    from weft.model import resolve_job
    from weft.report.tables.simulation import iteration_table, iteration_to_json
    from weft.simulation.iteration.simulate import simulate_iteration

    job, cluster = resolve_job(names[0], recipe_changes(values)), resolve(names[1])
    layout = parse_layout(values["layout_text"]).complete(cluster.count)
    check_layout(job, cluster.count, layout)
    fabric = load_fabric(values["fabric_name"], cluster, values["radix"])
    result = simulate_iteration(
        job,
        cluster,
        layout,
        fabric,
        routing=values["routing"],
        seed=values["seed"],
        constants=constants(values["calibration"], cluster),
        full=values["full"],
    )
    if values["form"] == "json":
        deliver(iteration_to_json(result, job=job, cluster=cluster, layout=layout, fabric=fabric), values["output"])
    else:
        show(lambda screen: iteration_table(result, job, cluster, layout, fabric, screen), values["output"])
    _extras(values, fabric, result)


def _extras(values: dict[str, Any], fabric: Fabric, result: Any) -> None:
    if values["timeline"] is not None:
        from weft.report.tables.simulation import write_timeline

        write_timeline(values["timeline"], result)
    if values["picture"] is not None:
        from weft.report.pictures.fabric import fabric_svg

        deliver(fabric_svg(fabric), values["picture"])
