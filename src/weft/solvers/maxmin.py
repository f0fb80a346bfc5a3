"""Weighted max-min fair sharing of links by flows.

Every flow ``f`` has a rate; on each place of its path it loads a link with ``usage`` times its rate.  Rates
are weighted max-min fair: no flow's rate per weight can rise without lowering that of a flow that has no
more (Bertsekas and Gallager, Data Networks, 6.5.2).  A flow's rate never exceeds its ``cap``.

``solve`` is compiled, ``reference`` is the definition in NumPy, ``check`` proves any solution right or
wrong.  All take the same arrays: ``capacity`` per link (bytes/s), ``links[indptr[f]:indptr[f+1]]`` and
``usage`` of them per flow, ``weight`` and ``cap`` per flow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.errors import BadInput

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
TIE = 1e-12
"""Relative difference of two levels that is rounding."""


def solve(capacity: Floats, indptr: Ints, links: Ints, usage: Floats, weight: Floats, cap: Floats) -> Floats:
    """Max-min fair rates in bytes/s, in O(places on paths x log links); infinity where nothing limits a flow.

    Raises:
        BadInput: arrays that do not fit together, negative or infinite values, a link that does not exist.
    """
    _check_arrays(capacity, indptr, links, usage, weight, cap)
    from weft.solvers._filling import OPEN, new_net, share_all

    net = new_net(capacity, indptr, links, usage, weight, cap)
    share_all.sized(75 * (len(links) + len(capacity) + len(weight)))(net)
    level = net.flows["fresh"]
    return np.asarray(np.where(level == OPEN, np.inf, level) * weight)


def reference(capacity: Floats, indptr: Ints, links: Ints, usage: Floats, weight: Floats, cap: Floats) -> Floats:
    """The same by the definition: all levels (rates per weight) rise together until a link or a cap stops
    some.

    Raises:
        BadInput: as ``solve``.
    """
    _check_arrays(capacity, indptr, links, usage, weight, cap)
    flows, nlinks = len(weight), len(capacity)
    flow = np.repeat(np.arange(flows), np.diff(indptr))
    share = usage * weight[flow]
    level, rising, now = np.zeros(flows), np.ones(flows, dtype=bool), 0.0
    while rising.any():
        # At `now` all open flows have the same level.  A link fills when they have risen by what is left over what
        # they take of it together.
        growing = np.bincount(links, share * rising[flow], nlinks)
        left = capacity - np.bincount(links, share * np.where(rising, 0.0, level)[flow], nlinks)
        full = np.full(nlinks, np.inf)
        np.divide(np.maximum(left, 0.0), growing, out=full, where=growing > 0)
        highest = cap / weight
        np.minimum.at(highest, flow, full[links])
        now = max(now, float(highest[rising].min()))
        # A flow that crosses the first link to fill, or reaches its cap, is final: nobody on that link has more.
        stops = rising & (highest <= now * (1 + TIE))
        level[stops] = now
        rising &= ~stops
    return level * weight


def check(
    rates: Floats,
    capacity: Floats,
    indptr: Ints,
    links: Ints,
    usage: Floats,
    weight: Floats,
    cap: Floats,
    tolerance: float = 1e-9,
) -> str | None:
    """What is wrong with rates, or None: they fit, and each flow is at its cap or held by a full link.

    A link holds a flow if it is full and no flow on it has a higher rate per weight; that is necessary and
    sufficient for max-min fairness.
    """
    _check_arrays(capacity, indptr, links, usage, weight, cap)
    flow = np.repeat(np.arange(len(weight)), np.diff(indptr))
    load = np.bincount(links, usage * rates[flow], len(capacity))
    over = np.flatnonzero(~(load <= capacity * (1 + tolerance)))
    if len(over):
        return f"link {over[0]} carries {load[over[0]]:g} of {capacity[over[0]]:g} bytes/s"
    above = np.flatnonzero(~((rates >= 0) & (rates <= cap * (1 + tolerance))))
    if len(above):
        return f"flow {above[0]} has {rates[above[0]]:g} bytes/s, its cap is {cap[above[0]]:g}"
    level, highest = rates / weight, np.zeros(len(capacity))
    np.maximum.at(highest, links, level[flow])
    # A flow is held by a full link on which none has a higher level; each flow needs one such link, or its cap.
    holds = (load >= capacity * (1 - tolerance)) & np.isfinite(capacity)
    limited = rates >= cap * (1 - tolerance)
    limited[flow[holds[links] & (level[flow] >= highest[links] * (1 - tolerance))]] = True
    free = np.flatnonzero(~limited)
    return f"flow {free[0]} could have more than {rates[free[0]]:g} bytes/s" if len(free) else None


def _check_arrays(capacity: Floats, indptr: Ints, links: Ints, usage: Floats, weight: Floats, cap: Floats) -> None:
    if len(indptr) != len(weight) + 1 or len(cap) != len(weight) or len(usage) != len(links):
        raise BadInput(
            f"{len(indptr)} bounds, {len(weight)} weights, {len(cap)} caps, {len(usage)} usages",
            where="max-min problem",
            remedy="give a weight, a cap and a path to each flow, and a usage to each link of a path",
        )
    if indptr[0] != 0 or indptr[-1] != len(links) or np.any(indptr[1:] < indptr[:-1]):
        raise BadInput("indptr does not divide the links", where="max-min problem", remedy="let it rise from 0")
    if len(links) and not (links.min() >= 0 and links.max() < len(capacity)):
        raise BadInput("a path has a link that does not exist", where="max-min problem", remedy="number from 0")
    for name, values in (("capacity", capacity), ("usage", usage), ("weight", weight), ("cap", cap)):
        low, top = (float(values.min()), float(values.max())) if len(values) else (1.0, 1.0)
        zero, infinite = name in ("capacity", "cap"), name in ("capacity", "cap")
        if not ((low >= 0 if zero else low > 0) and (infinite or top < np.inf)):
            raise BadInput(
                f"{name} has {low if not low > 0 else top}", where="max-min problem", remedy="positive numbers"
            )
