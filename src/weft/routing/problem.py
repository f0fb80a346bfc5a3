"""A routing problem in arrays: flows with demands, their ways, and what every link carries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.fabric.traffic import Routes
from weft.routing import _kernels
from weft.routing.traffic import JobTraffic, check_traffic
from weft.routing.ways import MOST_PATHS, Climbs, Ways, climbs, routes_of, ways_of

SAME = 1e-9
"""Relative difference of equal demands."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Flows to route.

    ``demand_Bps`` is the rate that each would have alone (``demands``).  The load of a link is the sum of the
    demands on it over its capacity; the highest is the *congestion* (alpha).
    """

    fabric: Fabric
    traffic: JobTraffic
    climbs: Climbs
    ways: Ways
    demand_Bps: Floats
    beside: Floats | None = None
    """What links carry besides, over their capacity."""

    @cached_property
    def limited(self) -> bool:
        """Whether some flow has paths that are not listed, so that nothing follows from those that are."""
        listed = self.ways.up_end > len(self.climbs.top)
        counts = (self.ways.up_end - self.ways.up_first)[listed]
        return bool(np.any(counts >= MOST_PATHS))

    @cached_property
    def inverse(self) -> Floats:
        """1 / capacity of every link."""
        return _inverse(self.fabric)

    @cached_property
    def fixed(self) -> Floats:
        """What links carry whatever the choice."""
        load = np.zeros(self.fabric.links) if self.beside is None else self.beside.copy()
        links = np.stack([self.ways.first, self.ways.last], axis=1)
        _kernels.weigh.sized(links.size)(load, self.inverse, self.demand_Bps, links)
        return load

    @cached_property
    def unit(self) -> float | None:
        """What one flow adds to any link on its way, where that is the same for all; otherwise None."""
        used = np.zeros(self.fabric.links, dtype=bool)
        for links in (self.ways.up, self.ways.down):
            used[links[links >= 0]] = True
        if not used.any() or not len(self.demand_Bps):
            return None
        capacity, demand = self.fabric.capacity_Bps[used], self.demand_Bps
        same = np.ptp(capacity) <= SAME * capacity.max() and np.ptp(demand) <= SAME * demand.max()
        return float(demand[0] / capacity[0]) if same else None

    def loads(self, routes: Routes) -> Floats:
        """What every link carries under some routes."""
        flow = np.repeat(np.arange(len(self.demand_Bps)), np.diff(routes.indptr))
        carried = np.bincount(routes.links, self.demand_Bps[flow] * routes.usage, self.fabric.links)
        return np.asarray(np.multiply(carried, self.inverse, out=np.zeros(len(carried)), where=carried > 0))

    def select(self, flows: Ints) -> Problem:
        """The problem of some flows; ways keep their numbers."""
        bounds = (each[flows] for each in self.ways[3:])
        ways = Ways(*self.ways[:3], *bounds)
        traffic = self.traffic.select(flows)
        return replace(self, traffic=traffic, ways=ways, demand_Bps=self.demand_Bps[flows])

    def routes(self, up: Ints, down: Ints) -> Routes:
        """Routes from chosen ways."""
        return routes_of(self.fabric, self.ways, up, down)


def routing_problem(
    fabric: Fabric,
    traffic: JobTraffic,
    *,
    table: Climbs | None = None,
    checked: bool = False,
    demand_Bps: Floats | None = None,
) -> Problem:
    """The problem of routing some traffic on a fabric.

    Args:
        table: ``climbs(fabric)``, if known already.
        checked: the flows have passed ``check_traffic`` on this fabric.
        demand_Bps: of the flows, where it is not ``demands``.

    Raises:
        BadInput: flows that cannot be routed (``check_traffic``), or have no path.
        Unsupported: a fabric with too many paths.
    """
    if not checked:
        check_traffic(fabric, traffic)
    result = table or climbs(fabric)
    return Problem(
        fabric=fabric,
        traffic=traffic,
        climbs=result,
        ways=ways_of(fabric, traffic.source, traffic.target, result),
        demand_Bps=demands(fabric, traffic) if demand_Bps is None else demand_Bps,
    )


def demands(fabric: Fabric, traffic: JobTraffic) -> Floats:
    """The rate of every flow, in bytes/s, when its collective has the network for itself.

    The busiest port sends or receives all the time; flows are as fast as their bytes say, so that all of a
    round end together.  No flow is faster than its cap.  Flows that stay in a scale-up domain use the domain's ports.
    """
    seconds = np.zeros(len(traffic.job))
    # Seconds of a collective alone: its bytes through its busiest port, at the sending or at the receiving end.
    for port, capacity in _ports(fabric, traffic.source, traffic.target):
        key, at = np.unique(traffic.collective * len(capacity) + port, return_inverse=True)
        crossing = np.bincount(at, traffic.bytes, len(key)) / capacity[key % len(capacity)]
        np.maximum.at(seconds, key // len(capacity), crossing)
    return np.minimum(traffic.bytes / seconds[traffic.collective], traffic.cap_Bps)


def sharing_ports(fabric: Fabric, traffic: JobTraffic) -> JobTraffic:
    """The same flows when all collectives of a job share its ports: as if they were one, the busiest port always sends
    or receives, and no flow is faster than its share of that."""
    whole = replace(
        traffic,
        collective=traffic.flow_job,
        job=np.arange(len(traffic.jobs)),
        bytes=traffic.bytes * traffic.rounds[traffic.collective],
    )
    return replace(traffic, cap_Bps=demands(fabric, whole))


def port_Bps(fabric: Fabric, source: Ints, target: Ints) -> Floats:
    """What the ends of each flow let through."""
    sends, receives = (capacity[port] for port, capacity in _ports(fabric, source, target))
    return np.minimum(sends, receives)


def _ports(fabric: Fabric, source: Ints, target: Ints) -> Iterator[tuple[Ints, Floats]]:
    """Port of each flow at its source, then at its target, and what all ports let through: NICs, then the links of
    accelerators in their domains (for flows that stay there), then single links that join two accelerators."""
    hosts = fabric.accelerators
    inner = np.flatnonzero((fabric.tier <= SCALE_UP) & fabric.up & (np.maximum(fabric.source, fabric.target) < hosts))
    pairs = fabric.source[inner] * hosts + fabric.target[inner]
    order = np.argsort(pairs, kind="stable")
    at = np.minimum(np.searchsorted(pairs[order], source * hosts + target), max(len(pairs) - 1, 0))
    direct = pairs[order][at] == source * hosts + target if len(pairs) else np.zeros(len(source), dtype=bool)
    same = fabric.domain[source] == fabric.domain[target]
    # A flow uses its accelerator's NICs, or its links in the domain where both ends are in one, or the one link that
    # joins just these two.
    for (nic, domain), ends in zip(_capacities(fabric), (source, target), strict=True):
        inside = (same & (domain[ends] > 0)) | (nic[ends] == 0)
        port = np.where(inside, hosts + ends, ends)
        if len(pairs):
            port = np.where(inside & direct, 2 * hosts + inner[order][at], port)
        yield port, np.maximum(np.concatenate([nic, domain, fabric.capacity_Bps]), 1e-300)


@lru_cache(maxsize=2)
def _inverse(fabric: Fabric) -> Floats:
    # A link that is down has infinite cost, so that any path over it is worse than all others.
    return np.where(fabric.up, 1.0 / np.maximum(fabric.capacity_Bps, 1e-300), np.inf)


@lru_cache(maxsize=4)
def _capacities(fabric: Fabric) -> list[list[Floats]]:
    """What the NICs of every accelerator let through, and its links in the domain; out of it, then into it."""
    outer = fabric.tier > SCALE_UP
    result = []
    for ends in (fabric.source, fabric.target):
        kinds = [np.flatnonzero((ends < fabric.accelerators) & kind) for kind in (outer, ~outer)]
        sums = (np.bincount(ends[each], fabric.capacity_Bps[each], fabric.accelerators) for each in kinds)
        result.append([np.asarray(each, dtype=np.float64) for each in sums])
    return result
