"""All-reduces that switches add up (SHARP: Graham et al., COMHPC 2016; NVLink SHARP), as flows over trees of switches.

A buffer is reduced on its way up to one switch and copied on its way down, piece after piece, so that all links of a
tree move at one rate, that of the slowest: a tree is one flow that takes each of its links once up and once down.
Within one scale-up domain all of a group is one flow over its switch.  Where a group has several ranks in each of
several domains, each rank adds up a slice inside its domain first, and has its own tree beyond: slice ``j`` joins the
``j``-th ranks of all domains.

What switches can hold at a time, and how many trees they serve, is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.errors import Unsupported
from weft.fabric.lump import mixed
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.fabric.traffic import Routes, spans


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reductions:
    """Slices of all-reduces: the group of each, its bytes for each byte of the buffer, its first and last rank, and
    the links that it takes, more than once where its owner's sums pass too."""

    group: Ints
    bytes: Floats
    source: Ints
    target: Ints
    routes: Routes


class Trees:
    """Trees of switches over a fabric.

    Args:
        spread: each slice takes all equal roots at once, an even part over each, as sprayed flows take all paths;
            otherwise one, by a hash of its number and ``seed``.
    """

    def __init__(self, fabric: Fabric, *, spread: bool = False, seed: int = 0) -> None:
        self.fabric, self.spread, self.seed = fabric, spread, seed
        order = np.argsort(fabric.source, kind="stable")
        self._out = order[fabric.up[order]]
        self._first = np.searchsorted(fabric.source[self._out], np.arange(fabric.nodes + 1))
        keys = fabric.source * fabric.nodes + fabric.target
        order = np.argsort(keys, kind="stable")
        self._by_key = order[fabric.up[order]]
        self._keys = keys[self._by_key]
        self._known: dict[int, Ints] = {}
        self._above_all: dict[bytes, Ints] = {}
        self._trees: dict[tuple[int, bytes], Ints] = {}

    def reductions(self, groups: Ints, domains: int) -> Reductions:
        """All-reduces of groups, one a row, whose ranks lie in ``domains`` equal blocks, domain after domain.

        Raises:
            Unsupported: no switch joins the ranks of a domain, or the domains; or ranks have several NICs.
        """
        size = groups.shape[1] // domains
        if domains == 1:
            return self._alone(groups)
        rows: list[tuple[int, int, int]] = []
        loads: list[tuple[Ints, Floats]] = []
        for number, group in enumerate(groups):
            ranks = group.reshape(domains, size)
            within = [self._within(members) for members in ranks] if size > 1 else []
            # Each rank sends its part of a slice to be added up and gets the sums; the slice's owner gets them first,
            # and sends them to be copied.
            usage_of = 1.0 + np.concatenate([np.eye(size), np.eye(size)], axis=1)
            for place in range(size):
                parts = [self._tree(ranks[:, place], len(rows))]
                parts += [(links, usage_of[place]) for links in within]
                links = np.concatenate([crossed for crossed, _ in parts])
                unique, at = np.unique(links, return_inverse=True)
                usage = np.bincount(at, weights=np.concatenate([share for _, share in parts]))
                loads.append((unique.astype(np.int64), usage.astype(np.float64)))
                rows.append((number, int(ranks[0, place]), int(ranks[-1, place])))
        group_, source, target = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        lengths = [len(links) for links, _ in loads]
        routes = Routes(
            indptr=np.cumsum([0, *lengths]).astype(np.int64),
            links=np.concatenate([links for links, _ in loads]).astype(np.int64),
            usage=np.concatenate([usage for _, usage in loads]).astype(np.float64),
            latency_s=np.array([2.0 * self.fabric.latency_s[links].max() for links, _ in loads]),
        )
        return Reductions(
            group=group_, bytes=np.full(len(rows), 1.0 / size), source=source, target=target, routes=routes
        )

    def _alone(self, groups: Ints) -> Reductions:
        """Groups that each lie in one domain: (P + 1) / P of the buffer over each port and way, P their size."""
        count, size = groups.shape
        links = self._within(groups).ravel()
        routes = Routes(
            indptr=np.arange(count + 1, dtype=np.int64) * 2 * size,
            links=links,
            usage=np.full(len(links), (size + 1) / size),
            latency_s=2.0 * self.fabric.latency_s[links].reshape(count, -1).max(axis=1),
        )
        number = np.arange(count, dtype=np.int64)
        return Reductions(group=number, bytes=np.ones(count), source=groups[:, 0], target=groups[:, -1], routes=routes)

    def _within(self, members: Ints) -> Ints:
        """Links of the ranks of a domain (the last axis) to its switch, then those back."""
        switches = self._scale_up[members]
        if (switches < 0).any() or (switches != switches[..., :1]).any():
            raise Unsupported("no switch joins the ranks of a scale-up domain", where=f"fabric {self.fabric.name}")
        return np.concatenate([self._link(members, switches), self._link(switches, members)], axis=-1)

    @cached_property
    def _scale_up(self) -> Ints:
        """The switch of each accelerator's domain; -1 where there is none, or several."""
        fabric = self.fabric
        inside = fabric.up & (fabric.tier == SCALE_UP) & (fabric.target >= fabric.accelerators)
        uplinks = np.flatnonzero(inside & (fabric.source < fabric.accelerators))
        result = np.full(fabric.accelerators, -1, dtype=np.int64)
        result[fabric.source[uplinks]] = fabric.target[uplinks]
        result[np.bincount(fabric.source[uplinks], minlength=fabric.accelerators) != 1] = -1
        return result

    def _tree(self, ranks: Ints, number: int) -> tuple[Ints, Floats]:
        """Links of the trees that join ranks of different domains, up and down, and the share that takes each."""
        above = [self._above(int(rank)) for rank in ranks]
        if any(len(switches) != 1 for switches in above):
            raise Unsupported("switches reduce for ranks with one NIC", where=f"fabric {self.fabric.name}")
        leaves = np.array([switches[0] for switches in above])
        ports = np.concatenate([self._link(ranks, leaves), self._link(leaves, ranks)])
        roots = self._roots(np.unique(leaves))
        draw = int(mixed(np.array([number * 0x9E3779B9 + self.seed], dtype=np.uint64))[0] >> np.uint64(2))
        if not self.spread:
            roots = roots[[draw % len(roots)]]
        parts = [self._under(int(root), np.unique(leaves)) for root in roots]
        share = [np.full(len(links), 1.0 / len(roots)) for links in parts]
        return self._members(np.concatenate([ports, *parts]), np.concatenate([np.ones(len(ports)), *share]), draw)

    def _members(self, links: Ints, share: Floats, draw: int) -> tuple[Ints, Floats]:
        """Links beside these: all of them, an even part over each, where trees spread; otherwise one by ``draw``."""
        keys = self.fabric.source[links] * self.fabric.nodes + self.fabric.target[links]
        first, end = (np.searchsorted(self._keys, keys, side=side) for side in ("left", "right"))
        if not self.spread:
            return self._by_key[first + (draw >> 31) % (end - first)], share  # the lower bits chose the root
        return self._by_key[spans(first, end - first)], np.repeat(share / (end - first), end - first)

    def _roots(self, leaves: Ints) -> Ints:
        """The switches from which the farthest of some leaves is nearest."""
        key = leaves.tobytes()
        if key not in self._above_all:
            farthest = np.max([self._distance(int(leaf)) for leaf in leaves], axis=0)
            farthest[: self.fabric.accelerators] = self.fabric.nodes
            if farthest.min() >= self.fabric.nodes:
                raise Unsupported("no switch is above all ranks", where=f"fabric {self.fabric.name}")
            self._above_all[key] = np.flatnonzero(farthest == farthest.min())
        return self._above_all[key]

    def _under(self, root: int, leaves: Ints) -> Ints:
        """Links from leaves up to a root and back, each once; every switch has one way up."""
        key = (root, leaves.tobytes())
        if key not in self._trees:
            self._trees[key] = self._grown(root, leaves)
        return self._trees[key]

    def _grown(self, root: int, leaves: Ints) -> Ints:
        distance, ways = self._distance(root), []
        waiting = set(leaves.tolist()) - {root}
        done: set[int] = set()
        while waiting:
            node = waiting.pop()
            done.add(node)
            nearer = self._neighbours(np.array([node]))
            parent = int(nearer[distance[nearer] == distance[node] - 1].min())
            ways.append((node, parent))
            if parent != root and parent not in done:
                waiting.add(parent)
        if not ways:
            return np.zeros(0, dtype=np.int64)
        below, above = np.array(sorted(ways)).T
        return np.concatenate([self._link(below, above), self._link(above, below)])

    def _distance(self, switch: int) -> Ints:
        """Hops between switches of the scale-out network from one to every node; ``nodes`` where there is no way."""
        if switch not in self._known:
            result = np.full(self.fabric.nodes, self.fabric.nodes, dtype=np.int64)
            result[switch], front = 0, np.array([switch])
            for hops in range(1, self.fabric.nodes):
                near = self._neighbours(front)
                front = np.unique(near[result[near] == self.fabric.nodes])
                if not len(front):
                    break
                result[front] = hops
            self._known[switch] = result
        return self._known[switch]

    def _neighbours(self, nodes: Ints) -> Ints:
        """Switches one scale-out link away."""
        begin = self._first[nodes]
        return self._beyond(self._out[spans(begin, self._first[nodes + 1] - begin)])

    def _above(self, accelerator: int) -> list[int]:
        """Switches beyond its domain that an accelerator hangs on."""
        uplinks = self._out[self._first[accelerator] : self._first[accelerator + 1]]
        return sorted(set(self._beyond(uplinks).tolist()))

    def _beyond(self, links: Ints) -> Ints:
        """Scale-out switches that links lead to."""
        near = self.fabric.target[links]
        switches: Ints = near[(near >= self.fabric.accelerators) & (self.fabric.tier[links] != SCALE_UP)]
        return switches

    def _link(self, source: Ints | int, target: Ints | int) -> Ints:
        """The links between nodes."""
        wanted = np.asarray(source) * self.fabric.nodes + np.asarray(target)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        if (self._keys[at] != wanted).any():
            raise Unsupported("a link of a tree has no way back", where=f"fabric {self.fabric.name}")
        return np.asarray(self._by_key[at], dtype=np.int64)
