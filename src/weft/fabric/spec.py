"""The network as a directed multigraph in arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SCALE_UP = 0
"""Tier of the links inside a scale-up domain; scale-out links have tiers 1, 2, ... from the accelerators
outwards."""


def ranks(key: Ints) -> Ints:
    """How many equal keys stand before each."""
    order = np.argsort(key, kind="stable")
    result = np.empty_like(order)
    result[order] = np.arange(len(order)) - np.searchsorted(key[order], key[order])
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fabric:
    """Nodes and directed links.

    Nodes ``0 .. accelerators-1`` are the accelerators in rank order; the rest are switches.  ``roles`` names
    what a node is ("accelerator", "scale-up", "leaf", "rail", "spine", "core", ...), ``role`` is an index
    into it.  A link goes from ``source`` to ``target`` with ``capacity_Bps`` and ``latency_s``; the two
    directions of a cable are two links, and parallel cables are separate links, each hashed and planned apart.
    Only scale-up links, which hardware stripes, bundle ``cables`` (1 elsewhere; ``weft.fabric.lump`` sums them).
    ``tier`` is ``SCALE_UP`` or the tier of the scale-out network.  A link
    between an accelerator and a scale-out switch stands for the NIC.  ``up`` is False for failed links.
    ``domain`` numbers each accelerator's scale-up domain, ``rail`` its position in it.
    """

    name: str
    accelerators: int
    names: tuple[str, ...]
    roles: tuple[str, ...]
    role: Ints
    source: Ints
    target: Ints
    capacity_Bps: Floats
    latency_s: Floats
    cables: Ints
    tier: Ints
    up: Mask
    domain: Ints
    rail: Ints

    @property
    def nodes(self) -> int:
        return len(self.role)

    @property
    def links(self) -> int:
        return len(self.source)

    @property
    def largest_domain(self) -> int:
        """Accelerators of the largest scale-up domain."""
        return int(np.unique(self.domain, return_counts=True)[1].max(initial=1))

    def nodes_of(self, role: str) -> Ints:
        """Nodes with a role, in order; empty where there is none."""
        if role not in self.roles:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(self.role == self.roles.index(role))

    def link_name(self, link: int) -> str:
        """The ends of a link, and of parallel ones its number, from 0: "leaf-0 -> spine-1 (cable 2)"."""
        beside = np.flatnonzero((self.source == self.source[link]) & (self.target == self.target[link]))
        number = f" (cable {np.searchsorted(beside, link)})" if len(beside) > 1 else ""
        return f"{self.names[self.source[link]]} -> {self.names[self.target[link]]}{number}"

    def reaching(self, *, scale_up: float, scale_out: float) -> Fabric:
        """This fabric with links that carry these shares of their capacity, inside domains and beyond them."""
        share = np.where(self.tier == SCALE_UP, scale_up, scale_out)
        return replace(self, capacity_Bps=np.asarray(self.capacity_Bps * share, dtype=np.float64))

    @property
    def reverse(self) -> Ints:
        """The other direction of the same cable: of the k-th link between two nodes on a tier the k-th back, or -1."""
        tiers = int(self.tier.max(initial=0)) + 1
        forth = (self.source * self.nodes + self.target) * tiers + self.tier
        back = (self.target * self.nodes + self.source) * tiers + self.tier
        order = np.argsort(forth, kind="stable")
        at = np.searchsorted(forth[order], back) + ranks(forth)
        paired = at < np.searchsorted(forth[order], back, side="right")
        return np.append(order, -1)[np.where(paired, at, -1)]

    def failed(self, *, nodes: Ints | None = None, links: Ints | None = None) -> Fabric:
        """This fabric with some nodes (all their links) and links down, in both directions."""
        down = ~self.up
        if nodes is not None:
            down = down | np.isin(self.source, nodes) | np.isin(self.target, nodes)
        if links is not None:
            back = self.reverse[links]
            down[links], down[back[back >= 0]] = True, True
        return replace(self, up=~down)
