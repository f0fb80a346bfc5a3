"""The path of every flow of a route plan: checked, as links and nodes in order."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.checks import some
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.routing.traffic import JobTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPath:
    """One flow on one path: ``links`` in order, and the ``nodes`` that they join (one more)."""

    flow: int
    source: int
    target: int
    queue_pair: int
    job: str
    collective: str
    links: tuple[int, ...]
    nodes: tuple[int, ...]

    @property
    def switches(self) -> tuple[int, ...]:
        """The nodes between source and target."""
        return self.nodes[1:-1]


def ipv4(node: int) -> str:
    """The address of a node, the same in every export: 10.0.0.0 + node + 1 (a switch's loopback, a NIC)."""
    return str(IPv4Address("10.0.0.0") + node + 1)


def planned_paths(
    fabric: Fabric, traffic: JobTraffic, routes: Routes, *, where: str = "routes"
) -> tuple[PlannedPath, ...]:
    """The path of every flow, in the order of the flows.

    Raises:
        Unsupported: a flow is split over several paths.
    """
    names = fabric.names
    if len(routes.indptr) != len(traffic) + 1:
        problem = f"{len(routes.indptr) - 1} routes for {len(traffic)} flows"
        raise BadInput(problem, where=where, remedy="give the routes of this traffic")
    strange = routes.links[(routes.links < 0) | (routes.links >= fabric.links)]
    if len(strange):
        raise BadInput(f"there is no link {strange[0]}", where=where, remedy="give the routes of this fabric")
    down = np.unique(routes.links[~fabric.up[routes.links]]).tolist()
    if down:
        links_down = [f"{names[fabric.source[i]]} -> {names[fabric.target[i]]}" for i in down]
        raise BadInput(f"paths take links that are down: {some(links_down)}", where=where, remedy="plan again")
    part = np.flatnonzero(routes.usage < 1 - 1e-9)
    if len(part):
        flow = int(np.searchsorted(routes.indptr, part[0], side="right")) - 1
        raise Unsupported(
            f"{names[traffic.source[flow]]} -> {names[traffic.target[flow]]} is split over several paths",
            where=where,
            remedy="plan with one path per flow (mode ecmp), or split flows over queue pairs first",
        )
    first, links = routes.indptr.tolist(), routes.links.tolist()
    source, target = fabric.source.tolist(), fabric.target.tolist()
    columns = (traffic.source, traffic.target, traffic.queue_pair, traffic.collective, traffic.flow_job)
    paths = []
    for flow, (a, b, pair, group, job) in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
        path = tuple(links[first[flow] : first[flow + 1]])
        nodes = (a, *(target[link] for link in path))
        broken = [source[link] for link in path] != list(nodes[:-1]) or nodes[-1] != b or not path
        if broken or len(set(nodes)) < len(nodes):
            problem = "does not join them" if broken else "comes to a node twice"
            raise BadInput(
                f"the path of {names[a]} -> {names[b]} {problem}",
                where=where,
                remedy="give the routes of this traffic on this fabric",
            )
        paths.append(
            PlannedPath(
                flow=flow,
                source=a,
                target=b,
                queue_pair=pair,
                job=traffic.jobs[job],
                collective=traffic.names[group],
                links=path,
                nodes=nodes,
            )
        )
    return tuple(paths)


def network_paths(
    fabric: Fabric, traffic: JobTraffic, routes: Routes, *, where: str = "routes"
) -> tuple[PlannedPath, ...]:
    """The paths that cross the scale-out network; flows inside a scale-up domain are left out.

    Raises:
        Unsupported: as ``planned_paths``; or a path goes through an accelerator, which no switch can pin.
    """
    inside = (fabric.tier == SCALE_UP).tolist()
    crossing = []
    for path in planned_paths(fabric, traffic, routes, where=where):
        if all(inside[link] for link in path.links):
            continue
        relays = [node for node in path.switches if node < fabric.accelerators]
        if relays or any(inside[link] for link in path.links):
            via = f"accelerator {fabric.names[relays[0]]}" if relays else "a scale-up switch"
            raise Unsupported(
                f"{fabric.names[path.source]} -> {fabric.names[path.target]} passes through {via}",
                where=where,
                remedy="plan as separate flows what software forwards",
            )
        crossing.append(path)
    return tuple(crossing)
