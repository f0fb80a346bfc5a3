"""Flows that start together, solved once for every set of equal ones that share no link.

Flows belong together when a chain of shared links joins them.  Two such sets that agree in bytes, in which
links their flows share, and in what those links can carry complete at the same times, whatever they are
called: only one of each is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.fabric.checks import components
from weft.fabric.lump import mixed
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
    # Sets of flows that share no link cannot influence each other, so that one run of each kind of set gives the times
    # of all.  Latency only shifts times and is left out.
    still = routes.without_latency()
    twin = _twins(capacity_Bps, bytes_, still) if symmetry else np.arange(len(source))
    chosen = np.unique(twin)
    few = still.of(chosen)
    result = run(capacity_Bps, at_once(source[chosen], target[chosen], bytes_[chosen]), few)
    place = np.searchsorted(chosen, twin)
    bottleneck = _counterparts(still, twin, result.bottleneck[place])
    return Transfer(end_s=result.completion_s[place], bottleneck=bottleneck, simulated=len(chosen))


def _twins(capacity_Bps: Floats, bytes_: Floats, routes: Routes) -> Ints:
    """For each flow its counterpart in the first equal set."""
    flows = len(bytes_)
    # Flows and links are the nodes of a graph; the smallest node that a flow is joined with is a flow.
    flow = np.repeat(np.arange(flows), np.diff(routes.indptr))
    label = components(flows + len(capacity_Bps), flow, flows + routes.links)[:flows]
    order = np.argsort(label, kind="stable")
    sets = np.flatnonzero(np.diff(label[order], prepend=-1))
    parts = _parts(capacity_Bps, bytes_, routes, order, sets)
    like = _first_alike(parts)
    lengths = parts[0]
    twin = np.empty(len(label), dtype=np.int64)
    twin[order] = order[sets[like][lengths.owner] + lengths.place]
    return twin


class _SetFigures(NamedTuple):
    """Figures of sets, set after set: of which set each is, its place in it, where sets begin."""

    values: npt.NDArray[np.uint64]
    owner: Ints
    place: Ints
    begin: Ints


def _part(values: Ints | Floats, begin: Ints) -> _SetFigures:
    owner = np.repeat(np.arange(len(begin)), np.diff(begin, append=len(values)))
    figures = np.ascontiguousarray(values).view(np.uint64)
    return _SetFigures(figures, owner, np.arange(len(values)) - begin[owner], begin)


def _parts(capacity_Bps: Floats, bytes_: Floats, routes: Routes, order: Ints, sets: Ints) -> list[_SetFigures]:
    """What decides the times of each set of flows: links by order of appearance in the set, not by number.

    ``order`` has the flows set after set; sets begin at ``sets``.
    """
    sorted_ = routes.of(order)
    lengths = np.diff(sorted_.indptr)
    number = np.repeat(np.arange(len(sets)), np.diff(sets, append=len(order)))
    _, appears, inverse = np.unique(sorted_.links, return_index=True, return_inverse=True)
    # No two sets share a link, so that the links of a set appear behind those of the sets before it.
    place = np.argsort(np.argsort(appears))
    links = sorted_.links[np.sort(appears)]
    until = np.searchsorted(np.repeat(number, lengths)[np.sort(appears)], np.arange(len(sets)))
    rank = place[inverse] - np.repeat(until[number], lengths)
    entries = sorted_.indptr[sets]
    return [
        *(_part(values, sets) for values in (lengths, bytes_[order])),
        *(_part(values, entries) for values in (rank, sorted_.usage)),
        _part(capacity_Bps[links], until),
    ]


def _first_alike(parts: list[_SetFigures]) -> Ints:
    """For each set the first one of the same hash, or itself where that one differs."""
    sets = len(parts[0].begin)
    # Hashes find candidates; every value is compared afterwards.  A collision costs a set that is simulated for
    # itself, never a wrong time.
    hashes = np.zeros(sets, dtype=np.uint64)
    for number, part in enumerate(parts):
        seat = mixed((len(parts) * part.place + number).astype(np.uint64))
        np.add.at(hashes, part.owner, mixed(part.values ^ seat))
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    like: Ints = first[inverse.reshape(-1)]
    differs = np.zeros(sets, dtype=bool)
    for part in parts:
        sizes = np.diff(part.begin, append=len(part.values))
        differs |= sizes != sizes[like]
        partner = part.begin[like][part.owner] + np.minimum(part.place, sizes[like][part.owner] - 1)
        differs[part.owner[part.values != part.values[partner]]] = True
    return np.where(differs, np.arange(sets), like)


def _counterparts(routes: Routes, twin: Ints, bottleneck: Ints) -> Ints:
    """The link of each flow at the place where its twin's bottleneck stands on the twin's path."""
    lengths = np.diff(routes.indptr)
    flow = np.repeat(np.arange(len(twin)), lengths)
    place = np.arange(len(flow)) - np.repeat(routes.indptr[:-1], lengths)
    limits = routes.links[routes.indptr[twin[flow]] + place] == bottleneck[flow]
    links = np.full(len(twin), -1)
    links[flow[limits]] = routes.links[limits]
    return links
