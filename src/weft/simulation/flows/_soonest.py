"""The soonest of many completion times: a wide tree of minima, repaired once per event."""

from __future__ import annotations

import numpy as np

from weft.simulation.flows._state import Clock
from weft.solvers._arrays import Records
from weft.solvers._jit import jit


@jit
def touch(clock: Clock, flow: int) -> None:
    """Note that a flow's completion time has changed."""
    node = flow >> 4
    if clock.nodes[node].dirty == 0:
        clock.nodes[node].dirty = 1
        clock.nodes[clock.levels[0].queued].queue = node
        clock.levels[0].queued += 1


@jit
def least(clock: Clock, level: int, node: int) -> float:
    """The soonest completion below a node."""
    best, begin = np.inf, node << 4
    if level == 0:
        for leaf in range(begin, min(begin + 16, len(clock.finish))):
            best = min(best, clock.finish[leaf])
        return best
    below, end = clock.levels[level - 1].first, clock.levels[level].first
    for child in range(below + begin, min(below + begin + 16, end)):
        best = min(best, clock.nodes[child].soonest)
    return best


@jit
def refresh(clock: Clock) -> float:
    """Repair the tree; returns the soonest completion."""
    nodes, last = clock.nodes, len(clock.levels) - 2
    for level in range(last + 1):
        first, above = clock.levels[level].first, clock.levels[level + 1].first
        for queued in range(clock.levels[level].queued):
            node = nodes[first + queued].queue
            nodes[first + node].soonest = least(clock, level, node)
            nodes[first + node].dirty = 0
            parent = node >> 4
            if level < last and nodes[above + parent].dirty == 0:
                nodes[above + parent].dirty = 1
                nodes[above + clock.levels[level + 1].queued].queue = parent
                clock.levels[level + 1].queued += 1
        clock.levels[level].queued = 0
    return float(nodes[len(nodes) - 1].soonest)


@jit
def collect(clock: Clock, flow_list: Records, latest: float) -> int:
    """List the flows that complete by a time as ``due``, in order; returns how many."""
    nodes, levels, last = clock.nodes, clock.levels, len(clock.levels) - 2
    found, node, level = 0, 0, last
    while level <= last:
        if nodes[levels[level].first + node].soonest <= latest:
            if level > 0:
                level, node = level - 1, node << 4
                continue
            for leaf in range(node << 4, min((node << 4) + 16, len(clock.finish))):
                if clock.finish[leaf] <= latest:
                    flow_list[found].due = leaf
                    found += 1
        node += 1
        while level <= last and (node & 15 == 0 or levels[level].first + node >= levels[level + 1].first):
            node = ((node - 1) >> 4) + 1
            level += 1
    return found
