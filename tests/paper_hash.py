"""The ECMP of the routing paper's code, with which its published figures are checked."""

import numpy as np

from weft.fabric.spec import SCALE_UP
from weft.routing.routers import RouterResult


def mixed(value):
    """Thomas Wang's mix of 32 bits (version 3.1, which the code calls Jenkins') in Java's signed arithmetic, as its
    absolute value."""
    a = value.astype(np.int64).astype(np.int32)
    c1, c2, c3, c4, c5, c6 = np.array(
        [0x7ED55D16, 0xC761C23C, 0x165667B1, 0xD3A2646C, 0xFD7046C5, 0xB55A4F09], dtype=np.uint32
    ).astype(np.int32)
    with np.errstate(over="ignore"):
        a = (a + c1) + (a << np.int32(12))
        a = (a ^ c2) ^ (a >> np.int32(19))
        a = (a + c3) + (a << np.int32(5))
        a = (a + c4) ^ (a << np.int32(9))
        a = (a + c5) + (a << np.int32(3))
        a = (a ^ c6) ^ (a >> np.int32(16))
    return np.minimum(np.abs(a.astype(np.int64)), 2**31 - 1)


def picked(problem, turn):
    """Every flow's path with number ``turn``, modulo the count of its paths, as ways up and down."""
    ways, chosen = problem.ways, []
    for flow, number in enumerate(turn.tolist()):
        ups, downs = (
            np.arange(first[flow], end[flow])
            for first, end in ((ways.up_first, ways.up_end), (ways.down_first, ways.down_end))
        )
        a, b = np.nonzero(ways.top[ups][:, None] == ways.top[downs][None, :])
        chosen.append((ups[a[number % len(a)]], downs[b[number % len(b)]]))
    up, down = np.array(chosen, dtype=np.int64).reshape(-1, 2).T
    return up.copy(), down.copy()


def paper_ecmp(problem):
    """H(source ToR + H(source + H(destination))) modulo the live paths; ToRs are numbered first, then the other
    switches, then hosts."""
    fabric, traffic = problem.fabric, problem.traffic
    switches = int(np.count_nonzero(problem.climbs.level > 0))
    leaves = np.flatnonzero(problem.climbs.level == 1)
    first = np.zeros(fabric.accelerators, dtype=np.int64)
    nics = np.flatnonzero((fabric.tier > SCALE_UP) & (fabric.source < fabric.accelerators))
    first[fabric.source[nics[::-1]]] = np.searchsorted(leaves, fabric.target[nics[::-1]])
    return picked(
        problem, mixed(first[traffic.source] + mixed(switches + traffic.source + mixed(switches + traffic.target)))
    )


def route_paper_ecmp(problem, seed):
    """It as a router."""
    return RouterResult(routes=problem.routes(*paper_ecmp(problem)))
