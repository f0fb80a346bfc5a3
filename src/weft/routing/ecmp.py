"""Routes that nobody plans: hashed or sprayed over equal-cost paths."""

from __future__ import annotations

import numpy as np

from weft.fabric.paths import Mode, Paths
from weft.fabric.spec import SCALE_UP, Fabric, Ints, ranks
from weft.fabric.traffic import Routes
from weft.routing import _choose
from weft.routing.problem import Problem
from weft.routing.traffic import JobTraffic


def hashed(fabric: Fabric, traffic: JobTraffic, *, seed: int, mode: Mode = "ecmp") -> Routes:
    """Paths by a hash of source, destination and queue pair at every hop, or all of them."""
    return Paths(fabric).routes(
        traffic.source, traffic.target, mode=mode, seed=seed, key=_key(traffic) if mode == "ecmp" else None
    )


def _key(traffic: JobTraffic) -> Ints:
    """What tells the flows of a pair apart: queue pair, and collective by order of appearance."""
    return ranks(traffic.source * (int(traffic.target.max(initial=0)) + 1) + traffic.target)


def paper_ecmp(asked: Problem) -> tuple[Ints, Ints]:
    """The ECMP of the routing paper's code: H(source ToR + H(source + H(destination))) modulo the live paths.

    H is Thomas Wang's mix of 32 bits (version 3.1, which the code calls Jenkins') in Java's signed
    arithmetic; ToRs are numbered first, then the other switches, then hosts.
    """
    fabric, traffic = asked.fabric, asked.traffic
    switches = int(np.count_nonzero(asked.climbs.level > 0))
    leaves = np.flatnonzero(asked.climbs.level == 1)
    first = np.full(fabric.accelerators, 0, dtype=np.int64)
    nics = np.flatnonzero((fabric.tier > SCALE_UP) & (fabric.source < fabric.accelerators))
    first[fabric.source[nics[::-1]]] = np.searchsorted(leaves, fabric.target[nics[::-1]])
    mixed = _mixed(switches + traffic.source + _mixed(switches + traffic.target))
    return picked(asked, _mixed(first[traffic.source] + mixed))


def picked(asked: Problem, turn: Ints) -> tuple[Ints, Ints]:
    """Every flow's path with number ``turn``, modulo the count of its paths."""
    up, down = np.full(len(turn), -1, dtype=np.int64), np.full(len(turn), -1, dtype=np.int64)
    _choose.pick(asked.ways, np.asarray(turn, dtype=np.int64), up, down)
    return up, down


def _mixed(value: Ints) -> Ints:
    """The hash of signed 32-bit numbers, as its absolute value."""
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
    return np.asarray(np.minimum(np.abs(a.astype(np.int64)), 2**31 - 1), dtype=np.int64)
