"""Where a fabric is narrow: its units, what can leave them, and what jobs must send across.

A unit of a tier is what hangs together by links of that tier and those below: a leaf, or the leaves of a scalable
unit, then a pod.  Links of the next tier out of a unit are its cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FabricCuts:
    """Units of every tier that has several.

    ``unit[t]`` numbers the unit of each host in tier ``t`` (inner first), ``capacity_Bps[t]`` is what can leave or
    enter each unit, whichever is more, over at most ``cables[t]`` links of at most ``cable_Bps``; ``host_Bps`` what
    can leave or enter a host.
    """

    unit: tuple[Ints, ...]
    capacity_Bps: tuple[Floats, ...]
    cables: tuple[Ints, ...]
    cable_Bps: float
    host_Bps: float

    def crossing(self, between: Floats, hosts: Sequence[int] | Ints) -> Floats:
        """Bytes of a job that leave or enter each unit (the larger of both), for all cuts by tier and unit.

        Args:
            between: bytes from each host of the job to each other, in rank order.
            hosts: where these are.
        """
        at_host = np.asarray(hosts, dtype=np.int64)
        crossing = []
        for unit, capacity in zip(self.unit, self.capacity_Bps, strict=True):
            at = unit[at_host]
            # Bytes between hosts of different units leave one and enter another; a link carries both ways at once.
            differs = at[:, None] != at[None, :]
            apart = between * differs
            out = np.bincount(at, apart.sum(axis=1), len(capacity))
            into = np.bincount(at, apart.sum(axis=0), len(capacity))
            crossing.append(np.maximum(out, into))
        return np.concatenate(crossing) if crossing else np.zeros(0)

    @property
    def all_Bps(self) -> Floats:
        """Capacity of all cuts, by tier and unit."""
        return np.concatenate(self.capacity_Bps) if self.capacity_Bps else np.zeros(0)


def cuts_of(fabric: Fabric) -> FabricCuts:
    """The cuts of a fabric, at the speed of its links; without any where no tier lies above another."""
    top = int(fabric.tier.max(initial=0))
    units, capacities, cables, host_Bps, fastest = [], [], [], np.inf, 0.0
    for tier in range(SCALE_UP, top):
        inside = (fabric.tier <= tier) & fabric.up
        label = components(fabric.nodes, fabric.source[inside], fabric.target[inside])
        # Accelerators of a host hang together at the lowest tier, so that any of them names the host's unit.
        of_host = np.zeros(int(fabric.domain.max()) + 1, dtype=np.int64)
        of_host[fabric.domain] = label[: fabric.accelerators]
        names, unit = np.unique(of_host, return_inverse=True)
        if len(names) < 2:
            continue
        number = np.full(fabric.nodes, -1, dtype=np.int64)
        # Switches belong to the unit of the hosts that they hang together with below this tier.
        for at, name in enumerate(names.tolist()):
            number[label == name] = at
        # Links of higher tiers with one end in the unit: out of it and into it apart, of which the wider is its cut.
        above = np.flatnonzero((fabric.tier > tier) & fabric.up)
        ways, links = [], []
        for ends, far_ends in ((fabric.source, fabric.target), (fabric.target, fabric.source)):
            mine = above[(number[ends[above]] >= 0) & (number[ends[above]] != number[far_ends[above]])]
            ways.append(np.bincount(number[ends[mine]], fabric.capacity_Bps[mine], len(names)))
            links.append(np.bincount(number[ends[mine]], minlength=len(names)))
        if tier == SCALE_UP:
            host_Bps = float(np.maximum(*ways).max())
            continue
        fastest = max(fastest, float(fabric.capacity_Bps[above].max(initial=0.0)))
        units.append(unit.reshape(-1))
        capacities.append(np.maximum(*ways))
        cables.append(np.maximum(*links))
    return FabricCuts(
        unit=tuple(units), capacity_Bps=tuple(capacities), cables=tuple(cables), cable_Bps=fastest, host_Bps=host_Bps
    )


def least_cut(between: Floats) -> float:
    """The fewest bytes that cross when hosts of a job lie in two places, however they are divided.

    Of every division into two parts, the larger of both directions is at least half of what goes both ways; the
    least of that is the global minimum cut (Stoer and Wagner, J. ACM 44, 1997).
    """
    undirected = (between + between.T).astype(np.float64)
    np.fill_diagonal(undirected, 0.0)
    count = len(undirected)
    if count < 2:
        return 0.0
    alive = np.ones(count, dtype=bool)
    best = np.inf
    # One phase of Stoer and Wagner: add the place that is tied most to those before; the last one alone is a cut, and
    # is merged with the one before.  The least of all phases is the least cut.
    for _ in range(count - 1):
        reach = np.where(alive, 0.0, -np.inf)
        last = before = -1
        for _ in range(int(alive.sum())):
            before, last = last, int(np.argmax(reach))
            worth = reach[last]
            reach = np.where(np.isneginf(reach), -np.inf, reach + undirected[last])
            reach[last] = -np.inf
        best = min(best, float(worth))
        undirected[before] += undirected[last]
        undirected[:, before] += undirected[:, last]
        undirected[before, before] = 0.0
        alive[last] = False
        undirected[last] = 0.0
        undirected[:, last] = 0.0
    return best / 2
