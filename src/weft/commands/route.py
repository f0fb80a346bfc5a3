"""``weft.route``: routes for all flows of all jobs on a fabric."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import DefaultGroup, takes
from weft.commands.networks import SubnetOptions
from weft.commands.options import given_options, option, verb
from weft.commands.output import RowsOutput, check_picture, deliver, report
from weft.commands.traffic import TrafficOptions, failed, names_traffic, network_of, traffic_of
from weft.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from weft.fabric import Fabric
    from weft.fabric.traffic import Routes
    from weft.routing import JobTraffic
    from weft.routing.audit import RouteAudit
    from weft.routing.report import RouteReport

ROUTERS = ("auto", "ecmp", "greedy", "edge-coloring", "repair", "ilp", "split", "spray", "rail")


@dataclass(frozen=True, kw_only=True)
class RouteOptions(TrafficOptions):
    """Who routes which flows, and how the routes are judged."""

    group = "Search"
    router: str = option("auto", "Who chooses the paths.", choices=ROUTERS)
    split: int = option(2, "Parts, for split.", least=1, most=64)
    objective: str = option("collective", "Groups that count.", choices=("flow", "collective", "job"))
    compare: str | None = option(None, "Also show what these routers reach.", metavar="ROUTER,...")
    paths: bool = option(False, "With --format json: every flow's path.")

    def others(self) -> list[str]:
        """The routers of ``compare``."""
        names = [name.strip() for name in self.compare.split(",")] if self.compare else []
        for name in names:
            if name not in ROUTERS:
                raise UnknownName("router", name, ROUTERS, where="--compare")
        return names


@verb(RouteOptions)
def route(
    fabric: Fabric | str | None = None,
    traffic: JobTraffic | None = None,
    options: RouteOptions | None = None,
    **given: Any,
) -> RouteReport:
    """Route all flows at once; say how good the routes are, and how good any could be.

    >>> import weft
    >>> found = weft.route(cluster="h100-64", fabric="fat-tree", radix=8, job="llama-3.1-8b tp=8,dp=8")
    >>> found.plan.alpha, found.plan.alpha_bound
    (1.0, 1.0)

    Args:
        fabric: a fabric, a fabric file, or a kind of network of ``cluster``.
        traffic: flows, beside those that the options name.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: no traffic, flows that cannot be routed, or an option that cannot be used.
        Unsupported: a router that does not apply.
    """
    options = given_options(RouteOptions, options, given | ({} if fabric is None else {"fabric": fabric}))
    from weft.routing.plan import plan
    from weft.routing.report import RouteReport

    names = [*options.others(), options.router]
    network, flows = traffic_of(options, *(() if traffic is None else (traffic,)))
    *others, result = (
        plan(network, flows, router=name, seed=options.seed, split=options.split, objective=options.objective)
        for name in names
    )
    return RouteReport(plan=result, compared=tuple(others), paths=options.paths)


PATH_BITS = "path_bits.csv"
"""The file of LIDs that flows are sent to, beside OpenSM's tables."""
PINNED = ("auto", "greedy", "edge-coloring", "repair", "ilp")
"""Routers that give every flow one path."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions(TrafficOptions, SubnetOptions):
    """Which routes are installed, and what they are held against."""

    routes: str | None = option(
        None,
        "Installed routes: weft.routes/1, a CSV of paths or OpenSM's tables (with path_bits.csv of weft route export"
        " opensm beside them).",
        metavar="PATH",
    )


@verb(AuditOptions)
def audit_routes(options: AuditOptions | None = None, **given: Any) -> RouteAudit:
    """Say how good installed routes are, how good any could be, and what moving flows would gain.

    >>> import tempfile, weft
    >>> asked = {"cluster": "h100-64", "fabric": "fat-tree", "radix": 8, "job": "llama-3.1-8b tp=8,dp=8"}
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     weft.route(router="ecmp", paths=True, **asked).save(file.name)
    ...     found = weft.audit_routes(routes=file.name, **asked)
    >>> found.installed.efficiency.value <= found.repaired.efficiency.value <= found.installed.efficiency.bound
    True

    Args:
        options: the options as a record instead of keywords.

    Raises:
        BadInput: no routes, routes of another fabric, flows without a path, or tables without traffic.
    """
    options = given_options(AuditOptions, options, given)
    from weft.routing.audit import audit

    if options.routes is None:
        raise BadInput(
            "are not given", where="--routes", remedy="give weft.routes/1, a CSV of paths or OpenSM's tables"
        )
    return audit(*installed(options, options.routes), seed=options.seed)


def installed(options: TrafficOptions, path: str) -> tuple[Fabric, JobTraffic, Routes]:
    """The fabric, the flows of a file of installed routes or those that the options name, and the ways they have."""
    from weft.files import read_text
    from weft.interop.routes_json import read_paths

    flows: JobTraffic | None = None
    if names_traffic(options):
        fabric, flows = traffic_of(options)
    else:
        fabric = failed(network_of(options).fabric, options.failed)
    text = read_text(path, where=path)
    if "Unicast lids" not in text:
        return fabric, *read_paths(text, fabric, flows, where=path)
    if flows is None:
        raise BadInput("hold no flows", where=path, remedy="say which: --plan, --flows, --generate ...")
    from weft.interop.opensm import read_tables
    from weft.interop.subnet import read_subnet

    given = options.fabric
    if not isinstance(given, str) or options.cluster is not None:
        raise BadInput("need GUIDs and ports", where=path, remedy="give ibnetdiscover's output as --fabric FILE")
    subnet = read_subnet(read_text(given, where=given), where=given)
    beside = Path(path).with_name(PATH_BITS)
    bits = read_text(beside, where=str(beside)) if beside.is_file() else ""
    return fabric, flows, read_tables(text, subnet, fabric, flows, path_bits=bits, where=path)


_MODULES = {"evaluate": "route_evaluate", "watch": "route_watch", "export": "route_export"}


@click.group(cls=DefaultGroup, default="plan", modules=_MODULES)
def route_command() -> None:
    """Find routes for all flows of all jobs on a fabric that do not collide, and keep them so.

    \b
    weft route --plan plan.json                      the flows of a planned job on its cluster's network
    weft route --generate BLOOM:4,GPT_3:4            routes of the paper's workload, how good they are
    weft route --cluster h100-1024 --job 'llama-3.1-8b tp=8,dp=32'
    weft route evaluate --jobs DIR                   routers compared over epochs in the simulator
    weft route audit --routes FILE                   installed routes: how good, and what moves would gain
    weft route watch --state DIR --events FILE       the controller: jobs and links come and go
    weft route export frr --generate BLOOM:4 -o DIR  what real networks take

    Options without a verb are those of plan: weft route plan --help.
    """


@dataclass(frozen=True, kw_only=True)
class RouteOutput(RowsOutput):
    """Output options of ``weft route``."""

    picture: str | None = option(None, "Also draw how busy links are, under every router.", metavar="FILE.svg")


@route_command.command()
@takes(options=RouteOptions, out=RouteOutput)
def plan(options: RouteOptions, out: RouteOutput) -> None:
    """Route all flows at once; say how good the routes are, and how good any could be.

    Routers: auto (edge-coloring where it applies, otherwise repair), ecmp (hash of the flow at every hop),
    greedy (the paper's), edge-coloring (exact for equal flows on a Clos), repair (greedy and local search: any
    fabric and demands), ilp (exact, small), split (k parts of each flow), spray (every packet its own path),
    rail (any rail, forwarding inside scale-up domains).
    """
    from weft.views.route import plan_view

    check_picture(out.picture)
    result = route(options=options)
    report(result, out, plan_view(result))
    if out.picture is not None:
        from weft.views.charts.fabric import routes_svg
        from weft.views.charts.palette import alone

        deliver(alone(routes_svg([*result.compared, result.plan])), out.picture)


@route_command.command()
@takes(options=AuditOptions, out=RowsOutput)
def audit(options: AuditOptions, out: RowsOutput) -> None:
    """Say how good installed routes are, how good any could be, and what moving flows would gain.

    \b
    --routes FILE  weft.routes/1 (weft route --format json --paths), with its flows or for those named here
                   CSV with source, target and path (names of nodes), as measured by traceroute
                   forwarding tables of dump_fts or weft route export opensm; --fabric: ibnetdiscover's output

    Network-wide efficiency is the pace of the slowest collective against its pace alone, then of the next, and so on.
    The repair moves few flows until the busiest link is as good as can be; --format json and csv list its moves.
    """
    from weft.views.route import audit_view

    result = audit_routes(options=options)
    report(result, out, audit_view(result))
