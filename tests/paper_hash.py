"""The ECMP of the routing paper's code, with which its published figures are checked."""

import numpy as np

from weft.fabric.spec import SCALE_UP
from weft.routing.routers import RouterResult


def java_int(value):
    """Wrap to 32 bits, signed."""
    return (value + 2**31) % 2**32 - 2**31


def jenkins(value):
    """Thomas Wang's mix of 32 bits (version 3.1; "Jenkins" in the code) in Java's arithmetic, then Math.abs."""
    a = java_int(value)
    a = java_int(java_int(a + 0x7ED55D16) + (a << 12))
    a = java_int(java_int(a ^ java_int(0xC761C23C)) ^ (a >> 19))
    a = java_int(java_int(a + 0x165667B1) + (a << 5))
    a = java_int(java_int(a + java_int(0xD3A2646C)) ^ java_int(a << 9))
    a = java_int(java_int(a + java_int(0xFD7046C5)) + (a << 3))
    a = java_int(java_int(a ^ java_int(0xB55A4F09)) ^ (a >> 16))
    return abs(a)


def paper_ecmp(problem):
    """H(source ToR + H(source + H(destination))) modulo the live paths; ToRs are numbered first, then the other
    switches, then hosts."""
    fabric, traffic = problem.fabric, problem.traffic
    switches = int(np.count_nonzero(problem.climbs.level > 0))
    leaves = np.flatnonzero(problem.climbs.level == 1)
    first = np.zeros(fabric.accelerators, dtype=np.int64)
    nics = np.flatnonzero((fabric.tier > SCALE_UP) & (fabric.source < fabric.accelerators))
    first[fabric.source[nics[::-1]]] = np.searchsorted(leaves, fabric.target[nics[::-1]])
    ways, chosen = problem.ways, []
    for flow, (a, b) in enumerate(zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)):
        number = jenkins(int(first[a]) + jenkins(switches + a + jenkins(switches + b)))
        ups, downs = (
            np.arange(begin[flow], end[flow])
            for begin, end in ((ways.up_first, ways.up_end), (ways.down_first, ways.down_end))
        )
        up, down = np.nonzero(ways.top[ups][:, None] == ways.top[downs][None, :])
        chosen.append((ups[up[number % len(up)]], downs[down[number % len(up)]]))
    up, down = np.array(chosen, dtype=np.int64).reshape(-1, 2).T
    return up.copy(), down.copy()


def route_paper_ecmp(problem, seed):
    """It as a router."""
    return RouterResult(routes=problem.routes(*paper_ecmp(problem)))
