"""Inputs of a simulation that fit together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Routes, Traffic
from weft.simulation.flows.records import LinkEvent


def check_inputs(capacity: Floats, traffic: Traffic, routes: Routes, events: Sequence[LinkEvent]) -> None:
    """Refuse what the event loop cannot run.

    Raises:
        BadInput: lengths, indices or values that are out of range, by name.
    """
    nphases, nlinks = len(traffic.phases), len(capacity)
    check_lengths(traffic, routes)
    _values("capacity_Bps", capacity)
    _values("traffic: bytes", traffic.bytes)
    _values("traffic: weight", traffic.weight, positive=True)
    _values("traffic: cap_Bps", traffic.cap_Bps, positive=True, infinite=True)
    _indices("traffic: phase", traffic.phase, nphases)
    _indices("phases: waits", traffic.phases.waits, nphases)
    _values("routes: latency_s", routes.latency_s)
    _indices("routes: links", routes.links, nlinks)
    _values("routes: usage", routes.usage, positive=True)
    if 4 * (len(routes.links) + nlinks) >= 2**31:
        raise BadInput(
            f"{len(routes.links)} places on paths are too many", where="routes", remedy="at most 500 million"
        )
    for number, event in enumerate(events):
        where = f"events[{number}]"
        _values(f"{where}: time_s", np.array([event.time_s]))
        _values(f"{where}: capacity_Bps", np.array([event.capacity_Bps]))
        _indices(f"{where}: link", np.array([event.link]), nlinks)


def check_distinct_links(routes: Routes, nlinks: int, first_flow: int) -> None:
    """Each path lists a link once; serving flows in turn takes a link's room path by path.

    Raises:
        BadInput: by the first flow whose path lists a link again.
    """
    flow = np.repeat(np.arange(len(routes.indptr) - 1), np.diff(routes.indptr))
    order = np.argsort(flow * nlinks + routes.links, kind="stable")
    again = (np.diff(flow[order]) == 0) & (np.diff(routes.links[order]) == 0)
    if again.any():
        place = order[int(np.argmax(again))]
        raise BadInput(
            f"the path of flow {first_flow + flow[place]} lists link {routes.links[place]} more than once",
            where="routes: links",
            remedy="with shortest-remaining list it once, with the sum of its usages",
        )


def check_lengths(traffic: Traffic, routes: Routes) -> None:
    """Arrays with as many entries as there are flows, phases and places, and times of phases.

    Raises:
        BadInput: by the name of the first array that does not fit.
    """
    nflows, phases = len(traffic), traffic.phases
    for name, array in (
        ("traffic: target", traffic.target),
        ("traffic: bytes", traffic.bytes),
        ("traffic: phase", traffic.phase),
        ("traffic: weight", traffic.weight),
        ("traffic: cap_Bps", traffic.cap_Bps),
        ("routes: latency_s", routes.latency_s),
    ):
        _length(name, array, nflows)
    _length("phases: start_s", phases.start_s, len(phases))
    _length("routes: usage", routes.usage, len(routes.links))
    _values("phases: delay_s", phases.delay_s)
    _values("phases: start_s", phases.start_s)
    _csr("phases", phases.indptr, phases.waits, len(phases))
    _csr("routes", routes.indptr, routes.links, nflows)


def _length(where: str, array: Floats | Ints, count: int) -> None:
    if array.ndim != 1 or len(array) != count:
        raise BadInput(f"{array.size} values for {count}", where=where, remedy="give one each")


def _values(where: str, array: Floats, *, positive: bool = False, infinite: bool = False) -> None:
    if len(array) == 0:
        return
    low, high = float(array.min()), float(array.max())
    good = (low > 0 if positive else low >= 0) and (infinite or high < np.inf)
    if not good:
        bad = ~(array > 0 if positive else array >= 0) | (False if infinite else ~(array < np.inf))
        place = int(np.flatnonzero(bad)[0])
        wanted = ("positive" if positive else "zero or more") + ("" if infinite else " and finite")
        raise BadInput(f"number {place} is {array[place]}", where=where, remedy=f"give a value that is {wanted}")


def _indices(where: str, array: Ints, limit: int) -> None:
    if len(array) and not (int(array.min()) >= 0 and int(array.max()) < limit):
        place = int(np.flatnonzero((array < 0) | (array >= limit))[0])
        raise BadInput(f"number {place} is {array[place]}", where=where, remedy=f"give 0 to {limit - 1}")


def _csr(where: str, indptr: Ints, items: Ints, count: int) -> None:
    _length(f"{where}: indptr", indptr, count + 1)
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(items) or bool(np.any(indptr[1:] < indptr[:-1])):
        raise BadInput(
            f"indptr does not divide {len(items)} places", where=where, remedy="let it rise from 0 to their number"
        )
