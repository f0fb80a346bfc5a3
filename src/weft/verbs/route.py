"""``weft.route``: routes for all flows of all jobs on a fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput, UnknownName
from weft.verbs.options import given_options, option, verb
from weft.verbs.traffic import TrafficOptions, failed, names_traffic, network_of, traffic_of

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

    router: str = option("auto", "Who chooses the paths.", choices=ROUTERS)
    split: int = option(2, "Parts, for split.", least=1, most=64)
    objective: str = option("collective", "Groups that count.", choices=("flow", "collective", "job"))
    compare: str | None = option(None, "Also show what these routers reach.", metavar="ROUTER,...")
    paths: bool = option(False, "With --format json: every flow's path.")

    def others(self) -> list[str]:
        """The routers of ``compare``.

        Raises:
            UnknownName: there is no such router.
        """
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
    asked = given_options(RouteOptions, options, given | ({} if fabric is None else {"fabric": fabric}))
    from weft.routing.plan import plan
    from weft.routing.report import RouteReport

    names = [*asked.others(), asked.router]
    network, flows = traffic_of(asked, *(() if traffic is None else (traffic,)))
    *others, found = (
        plan(network, flows, router=name, seed=asked.seed, split=asked.split, objective=asked.objective)
        for name in names
    )
    return RouteReport(plan=found, compared=tuple(others), paths=asked.paths)


PINNED = ("auto", "greedy", "edge-coloring", "repair", "ilp")
"""Routers that give every flow one path."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions(TrafficOptions):
    """Which routes are installed, and what they are held against."""

    routes: str | None = option(
        None, "Installed routes: weft.routes/1, a CSV of paths or OpenSM's tables.", metavar="PATH"
    )
    path_bits: str | None = option(None, "LID of each flow, of weft route export opensm.", metavar="FILE.csv")


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
    asked = given_options(AuditOptions, options, given)
    from weft.routing.audit import audit

    if asked.routes is None:
        raise BadInput(
            "are not given", where="--routes", remedy="give weft.routes/1, a CSV of paths or OpenSM's tables"
        )
    fabric, flows, routes = installed(asked, asked.routes, path_bits=asked.path_bits)
    return audit(fabric, flows, routes, seed=asked.seed)


def installed(asked: TrafficOptions, path: str, *, path_bits: str | None = None) -> tuple[Fabric, JobTraffic, Routes]:
    """The fabric, the flows of a file of installed routes or those that the options name, and the ways they have.

    Raises:
        BadInput: see ``installed_routes``.
    """
    flows: JobTraffic | None = None
    if names_traffic(asked):
        fabric, flows = traffic_of(asked)
    else:
        fabric = failed(network_of(asked).fabric, asked.failed_spines, asked.failed)
    return fabric, *installed_routes(asked, path, fabric, flows, path_bits=path_bits)


def installed_routes(
    asked: TrafficOptions, path: str, fabric: Fabric, flows: JobTraffic | None, *, path_bits: str | None = None
) -> tuple[JobTraffic, Routes]:
    """The flows of a file of installed routes, or the given ones, and the ways that they have.

    Raises:
        BadInput: no routes, routes of another fabric, flows without a path, or tables without traffic.
    """
    from weft.files import read_text
    from weft.interop.netops.installed import read_paths, read_tables

    text = read_text(path, where=path)
    bits = "" if path_bits is None else read_text(path_bits, where="--path-bits")
    if "Unicast lids" not in text:
        if path_bits is not None:
            raise BadInput("goes with forwarding tables", where="--path-bits", remedy="drop it")
        return read_paths(text, fabric, flows, where=path)
    if flows is None:
        raise BadInput("hold no flows", where=path, remedy="say which: --plan, --flows, --jobs, --generate ...")
    from weft.interop.fabrics.ibnetdiscover import read_subnet

    given = asked.fabric
    if not isinstance(given, str) or asked.cluster is not None:
        raise BadInput("need GUIDs and ports", where=path, remedy="give ibnetdiscover's output as --fabric FILE")
    subnet = read_subnet(read_text(given, where=given), where=given)
    return flows, read_tables(text, subnet, fabric, flows, path_bits=bits, where=path)
