"""Paths over rails, with forwarding inside the scale-up domains (rail-only networks, arXiv 2307.12169).

A flow between domains may take any rail that both reach: inside the source's domain to the accelerator on
that rail, over the rail's network, and inside the destination's domain to the destination.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.paths import Paths
from weft.fabric.spec import SCALE_UP, Fabric

PER_RAIL = 32
"""Paths over one rail's own network that are listed."""


def rail_paths(fabric: Fabric) -> Callable[[int, int], list[tuple[int, ...]]]:
    """A function that lists the paths between two accelerators rail by rail, the destination's own rail
    first.

    Raises:
        Unsupported: the accelerators share no scale-up domain over which they could forward.
    """
    domains = np.bincount(fabric.domain)
    if domains.max(initial=0) < 2 or not np.any(fabric.tier == SCALE_UP):
        raise Unsupported(
            f"{fabric.name} has no scale-up domains", where="--router rail", remedy="use repair, or a rail network"
        )
    inside = Paths(fabric)
    peers = {
        int(domain): {int(fabric.rail[at]): int(at) for at in np.flatnonzero(fabric.domain == domain)}
        for domain in np.unique(fabric.domain)
    }
    outer = Paths(_without_scale_up(fabric))

    @cache
    def over(a: int, b: int) -> tuple[tuple[int, ...], ...]:
        try:
            found = outer.every(a, b, PER_RAIL**2)
        except BadInput:
            return ()
        # Some from each part of the list, and of parallel cables not the first at every switch.
        step = -(-len(found) // PER_RAIL)
        return tuple(found[low + low // step % step] for low in range(0, len(found) - step + 1, step))

    def within(a: int, b: int) -> tuple[int, ...]:
        return () if a == b else inside.every(a, b, 1)[0]

    def paths(source: int, target: int) -> list[tuple[int, ...]]:
        here, there = peers[int(fabric.domain[source])], peers[int(fabric.domain[target])]
        if fabric.domain[source] == fabric.domain[target]:
            return inside.every(source, target, PER_RAIL)
        own = int(fabric.rail[target])
        found = [
            within(source, here[rail]) + middle + within(there[rail], target)
            for rail in sorted(here.keys() & there.keys(), key=lambda r: (r != own, r))
            for middle in over(here[rail], there[rail])
        ]
        return found or inside.every(source, target, PER_RAIL)

    return paths


def _without_scale_up(fabric: Fabric) -> Fabric:
    return fabric.failed(links=np.flatnonzero(fabric.tier == SCALE_UP))
