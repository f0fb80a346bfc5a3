"""Flows that start together, solved once for every set of equal ones that share no link.

Flows belong together when a chain of shared links joins them.  Two such sets that agree in bytes, in which
links their flows share, and in what those links can carry complete at the same times, whatever they are
called: only one of each is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Routes, at_once
from weft.simulation.flows.engine import run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfer:
    """When each of some flows that start at 0 ends, the link that limited it last (-1: none), and how many
    flows were simulated for it."""

    end_s: Floats
    bottleneck: Ints
    simulated: int


def transfer(
    capacity_Bps: Floats, source: Ints, target: Ints, bytes_: Floats, routes: Routes, *, symmetry: bool = True
) -> Transfer:
    """Completion of flows that start together, without latency.

    ``symmetry`` False simulates every flow.
    """
    still = routes.without_latency()
    twin = _twins(capacity_Bps, bytes_, still) if symmetry else np.arange(len(source))
    chosen = np.unique(twin)
    few = still.of(chosen)
    result = run(capacity_Bps, at_once(source[chosen], target[chosen], bytes_[chosen]), few)
    place = np.searchsorted(chosen, twin)
    bottleneck = _counterparts(still, twin, result.bottleneck[place])
    return Transfer(end_s=result.completion_s[place], bottleneck=bottleneck, simulated=len(chosen))


def components(routes: Routes, links: int) -> Ints:
    """Number of the first flow that a chain of shared links joins to each flow."""
    lengths = np.diff(routes.indptr)
    label = np.arange(len(lengths))
    flow = np.repeat(label, lengths)
    while True:
        lowest = np.full(links, len(lengths))
        np.minimum.at(lowest, routes.links, label[flow])
        found = label.copy()
        np.minimum.at(found, flow, lowest[routes.links])
        found = found[found]
        if (found == label).all():
            return label
        label = found


def _twins(capacity_Bps: Floats, bytes_: Floats, routes: Routes) -> Ints:
    """For each flow the one in the first equal set that stands in its place."""
    label = components(routes, len(capacity_Bps))
    order = np.argsort(label, kind="stable")
    sets = np.flatnonzero(np.diff(label[order], prepend=-1))
    twin = np.empty(len(label), dtype=np.int64)
    first: dict[tuple[bytes, ...], Ints] = {}
    for begin, signature in zip(sets.tolist(), _signatures(capacity_Bps, bytes_, routes, order, sets), strict=True):
        flows = order[begin : begin + len(signature[0]) // label.itemsize]
        twin[flows] = first.setdefault(signature, flows)
    return twin


def _signatures(
    capacity_Bps: Floats, bytes_: Floats, routes: Routes, order: Ints, sets: Ints
) -> Iterator[tuple[bytes, ...]]:
    """What decides the times of each set of flows: links by order of appearance in the set, not by number.

    The sets stand behind each other in ``order`` and begin at ``sets``.
    """
    sorted_ = routes.of(order)
    lengths = np.diff(sorted_.indptr)
    number = np.repeat(np.arange(len(sets)), np.diff(sets, append=len(order)))
    _, appears, inverse = np.unique(sorted_.links, return_index=True, return_inverse=True)
    # No two sets share a link, so that the links of a set appear behind those of the sets before it.
    place = np.argsort(np.argsort(appears))
    links = sorted_.links[np.sort(appears)]
    until = np.searchsorted(np.repeat(number, lengths)[np.sort(appears)], np.arange(len(sets) + 1))
    rank = place[inverse] - np.repeat(until[number], lengths)
    flows, entries = [*sets.tolist(), len(order)], [*sorted_.indptr[sets].tolist(), len(sorted_.links)]
    parts = (lengths, bytes_[order]), (rank, sorted_.usage), (capacity_Bps[links],)
    bounds = flows, entries, until.tolist()
    for i in range(len(sets)):
        yield tuple(
            part[bound[i] : bound[i + 1]].tobytes() for some, bound in zip(parts, bounds, strict=True) for part in some
        )


def _counterparts(routes: Routes, twin: Ints, bottleneck: Ints) -> Ints:
    """The link of each flow at the place where its twin's bottleneck stands on the twin's path."""
    lengths = np.diff(routes.indptr)
    flow = np.repeat(np.arange(len(twin)), lengths)
    place = np.arange(len(flow)) - np.repeat(routes.indptr[:-1], lengths)
    found = routes.links[routes.indptr[twin[flow]] + place] == bottleneck[flow]
    own = np.full(len(twin), -1)
    own[flow[found]] = routes.links[found]
    return own
