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

    Accelerators keep their numbers; a class has the name of its first switch.  Of the links that are down, only
    those of accelerators are left, which decide how their flows are striped.
    """
    hosts = fabric.accelerators
    links = np.flatnonzero(fabric.up | (np.minimum(fabric.source, fabric.target) < hosts))
    label = _labels(fabric, links)
    colour = _refined(fabric, fabric.source[links], fabric.target[links], label)
    _, first, of = np.unique(colour[hosts:], return_index=True, return_inverse=True)
    kept = np.concatenate([np.arange(hosts), hosts + np.sort(first)])
    node = np.concatenate([np.arange(hosts), hosts + np.argsort(np.argsort(first))[of.reshape(-1)]])
    return _summed_up(fabric, links, label, kept, node)


def trunked(fabric: Fabric) -> Lump:
    """A fabric on which sprayed flows fare as on this one, with one link for equal parallel cables."""
    links, nodes = np.arange(fabric.links), np.arange(fabric.nodes)
    return _summed_up(fabric, links, _labels(fabric, links), nodes, nodes)


def _summed_up(fabric: Fabric, chosen: Ints, label: Ints, kept: Ints, node: Ints) -> Lump:
    """The fabric of the nodes ``kept``, with one link for all of a label; node v is ``node[v]`` there."""
    source, target = fabric.source[chosen], fabric.target[chosen]
    pair = (node[source] * len(kept) + node[target]) * (int(label.max(initial=0)) + 1) + label
    _, example, link = np.unique(pair, return_index=True, return_inverse=True)
    if len(example) == fabric.links:
        return unlumped(fabric)
    link, first = np.argsort(np.argsort(example))[link.reshape(-1)], chosen[np.sort(example)]
    of = np.full(fabric.links, -1)
    of[chosen] = link
    few = replace(
        fabric,
        names=tuple(fabric.names[each] for each in kept.tolist()),
        role=fabric.role[kept],
        source=node[fabric.source[first]],
        target=node[fabric.target[first]],
        capacity_Bps=_summed(link, fabric.capacity_Bps[chosen]),
        latency_s=fabric.latency_s[first],
        cables=_summed(link, fabric.cables[chosen]).astype(np.int64),
        tier=fabric.tier[first],
        up=fabric.up[first],
    )
    return Lump(whole=fabric, fabric=few, first=first, of=of)


def _summed(link: Ints, values: Ints | Floats) -> Floats:
    return np.bincount(link, values).astype(np.float64)


def _labels(fabric: Fabric, links: Ints) -> Ints:
    """A number for each of some links: equal where they carry the same."""
    label = np.zeros(len(links), dtype=np.int64)
    for column in (fabric.capacity_Bps, fabric.latency_s, fabric.cables, fabric.tier, fabric.up):
        values, number = np.unique(column[links], return_inverse=True)
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
        result = len(np.unique(colour[switch]))
        if result == classes:
            return colour
        classes = result


def mixed(values: _Colours) -> _Colours:
    """The finalizer of splitmix64 (``weft.fabric._walk.mix``), for arrays."""
    result = values + np.uint64(0x9E3779B97F4A7C15)
    result = (result ^ (result >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    result = (result ^ (result >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return result ^ (result >> np.uint64(31))
