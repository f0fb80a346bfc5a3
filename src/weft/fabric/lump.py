"""Fabrics in which switches that sprayed traffic cannot tell apart are one.

The classes are the coarsest equitable partition of the nodes in which each accelerator is alone (colour refinement,
Weisfeiler and Leman 1968): two switches of a class have as many links of a kind to each class.  So they are equally
far from every accelerator, and where every node splits what it gets evenly over the cables that lead on, each flow
puts the same load on all links between two classes.  One link of their summed capacity then gives every flow the same
rate, latency and bytes.  This holds for no other way to route.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from weft.fabric.spec import Fabric, Floats, Ints

_Colours = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lump:
    """A fabric whose links stand for classes of links of the ``whole`` one.

    ``first`` is the first link of each class in the whole, ``of`` the class of each of its links (-1: it is down).
    """

    whole: Fabric
    fabric: Fabric
    first: Ints
    of: Ints

    def spread(self, carried: Floats) -> Floats:
        """What each link of the whole carries: an even part of what its class does."""
        even = carried / np.bincount(self.of[self.of >= 0], minlength=len(carried))
        return np.append(even, 0.0)[self.of]


def unlumped(fabric: Fabric) -> Lump:
    """A fabric whose links are their own classes."""
    each = np.arange(fabric.links)
    return Lump(whole=fabric, fabric=fabric, first=each, of=each)


def lumped(fabric: Fabric) -> Lump:
    """A fabric on which sprayed flows fare as on this one, with few switches where it is symmetric.

    Accelerators keep their numbers; a class has the name of its first switch.  Links that are down are left out.
    """
    up = np.flatnonzero(fabric.up)
    source, target, label = fabric.source[up], fabric.target[up], _labels(fabric, up)
    colour = _refined(fabric, source, target, label)
    hosts = fabric.accelerators
    _, first, of = np.unique(colour[hosts:], return_index=True, return_inverse=True)
    if len(first) == fabric.nodes - hosts:
        return unlumped(fabric)
    kept = np.concatenate([np.arange(hosts), hosts + np.sort(first)])
    node = np.concatenate([np.arange(hosts), hosts + np.argsort(np.argsort(first))[of.reshape(-1)]])
    pair = (node[source] * len(kept) + node[target]) * (int(label.max(initial=0)) + 1) + label
    _, example, link = np.unique(pair, return_index=True, return_inverse=True)
    link, links = np.argsort(np.argsort(example))[link.reshape(-1)], np.sort(example)
    of = np.full(fabric.links, -1)
    of[up] = link
    few = replace(
        fabric,
        names=tuple(fabric.names[each] for each in kept.tolist()),
        role=fabric.role[kept],
        source=node[source[links]],
        target=node[target[links]],
        capacity_Bps=_summed(link, fabric.capacity_Bps[up]),
        latency_s=fabric.latency_s[up][links],
        cables=_summed(link, fabric.cables[up]).astype(np.int64),
        tier=fabric.tier[up][links],
        up=np.ones(len(links), dtype=bool),
    )
    return Lump(whole=fabric, fabric=few, first=up[links], of=of)


def _summed(link: Ints, values: Ints | Floats) -> Floats:
    return np.bincount(link, values).astype(np.float64)


def _labels(fabric: Fabric, up: Ints) -> Ints:
    """A number for each link that is up: equal where they carry the same."""
    label = np.zeros(len(up), dtype=np.int64)
    for column in (fabric.capacity_Bps, fabric.latency_s, fabric.cables, fabric.tier):
        values, number = np.unique(column[up], return_inverse=True)
        label = label * len(values) + number.reshape(-1)
    return label


def _refined(fabric: Fabric, source: Ints, target: Ints, label: Ints) -> _Colours:
    """Colours of the nodes: equal for those of a class (classes by hash: one in 10^11 fabrics may merge two)."""
    colour = mixed(np.arange(fabric.nodes).astype(np.uint64))
    switch = np.arange(fabric.nodes) >= fabric.accelerators
    colour[switch] = mixed((fabric.nodes + fabric.role[switch]).astype(np.uint64))
    out, into = (mixed((2 * label + way).astype(np.uint64)) for way in (0, 1))
    classes = 0
    while True:
        around = np.zeros(fabric.nodes, dtype=np.uint64)
        np.add.at(around, source, mixed(colour[target] ^ out))
        np.add.at(around, target, mixed(colour[source] ^ into))
        colour[switch] = mixed(mixed(colour[switch]) + around[switch])
        found = len(np.unique(colour[switch]))
        if found == classes:
            return colour
        classes = found


def mixed(values: _Colours) -> _Colours:
    """The finalizer of splitmix64 (``weft.fabric._walk.mix``), for arrays."""
    found = values + np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))
