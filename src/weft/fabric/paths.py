"""Equal-cost shortest paths, and routes of flows over them.

Paths use links that are up, and are shortest in links.  An accelerator passes traffic on (a relay) only where
no switch does; the first rule that joins a pair of accelerators holds:

1. within a scale-up domain, over its own links alone;
2. over scale-out links and switches, with no relay;
3. through the sender's domain to peers of it that reach the destination as in 2 (on a rail-only network: to
   the accelerator on the destination's rail, then over that rail; arXiv 2307.12169);
4. over all links with the fewest relays, of those with the fewest that arrive over scale-out links (torus,
   and what failures leave).

Sprayed flows from or to an accelerator whose scale-out links are all down are striped in equal shares over its peers:
over the domain's scale-up links to each that has scale-out links up, as its counterpart in the other domain has, from
there to the counterpart, and over the other domain's links to the destination.  Where more of a fabric fails, such
flows are no faster.

Parallel cables are separate links: a flow is hashed to one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.errors import BadInput, UnknownName
from weft.fabric.checks import cables_apart, components, some
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints, Mask
from weft.fabric.structured import STRUCTURES, structured
from weft.fabric.traffic import Routes, spans

Mode = Literal["ecmp", "spray", "random", "dimension-order", "ugal"]
MODES: tuple[Mode, ...] = ("ecmp", "spray", "random", *STRUCTURES)


class UpLinks(NamedTuple):
    """Links that are up, by the nodes that they leave and enter, as the compiled loops read them.

    Links out of node ``v`` are ``out_links[out_first[v]:out_first[v+1]]``, and ``in_`` alike, with their far ends
    and other figures beside; ``from_`` and ``into_`` are those between scale-out ``switches`` alone, by the node that
    they leave and enter.  ``members`` lists the accelerators of each domain, ``scope`` all nodes on the scale-up
    links of the ``scope_of`` a domain.
    """

    accelerators: int
    top: int
    source: Ints
    target: Ints
    tier: Ints
    cables: Ints
    relay: Ints
    in_first: Ints
    in_links: Ints
    in_source: Ints
    in_tier: Ints
    in_relay: Ints
    out_first: Ints
    out_links: Ints
    switches: Ints
    from_first: Ints
    from_links: Ints
    from_target: Ints
    into_first: Ints
    into_source: Ints
    domain: Ints
    member_first: Ints
    members: Ints
    scope_of: Ints
    scope_first: Ints
    scope: Ints


class WalkState(NamedTuple):
    """Room for the compiled loops, one entry per node (``ahead``: per link)."""

    dist: Ints
    base: Ints
    share: Floats
    queue: Ints
    waiting: Mask
    ahead_first: Ints
    ahead: Ints


class Flows(NamedTuple):
    """Flows sorted by group, and what the compiled loops find for them."""

    source: Ints
    target: Ints
    salt: npt.NDArray[np.uint64]
    group: Ints
    end: Ints
    joined: Mask


class Keys(NamedTuple):
    """Sets of switches that join destinations: set ``k`` is ``switches[first[k]:first[k+1]]``."""

    first: Ints
    switches: Ints


def _work(nodes: int, links: int) -> WalkState:
    return WalkState(
        dist=np.zeros(nodes, dtype=np.int64),
        base=np.zeros(nodes, dtype=np.int64),
        share=np.zeros(nodes),
        queue=np.zeros(nodes + 1, dtype=np.int64),
        waiting=np.zeros(nodes + 1, dtype=bool),
        ahead_first=np.zeros(nodes + 1, dtype=np.int64),
        ahead=np.zeros(links, dtype=np.int64),
    )


def _grouped(label: Ints, count: int) -> tuple[Ints, Ints]:
    """Where each label's items begin, and the items by label."""
    first = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(label, minlength=count), out=first[1:])
    return first, np.argsort(label, kind="stable").astype(np.int64)


def _net(fabric: Fabric) -> UpLinks:
    up = np.flatnonzero(fabric.up)
    source, target, hosts = fabric.source, fabric.target, fabric.accelerators
    out_first, out_order = _grouped(source[up], fabric.nodes)
    in_first, in_order = _grouped(target[up], fabric.nodes)
    out_links, in_links = up[out_order], up[in_order]
    between = up[(fabric.tier[up] > SCALE_UP) & (np.minimum(source[up], target[up]) >= hosts)]
    from_first, from_order = _grouped(source[between], fabric.nodes)
    into_first, into_order = _grouped(target[between], fabric.nodes)
    outside = up[fabric.tier[up] > SCALE_UP]
    ends = np.unique(np.concatenate([source[outside], target[outside]]))
    domains, domain = np.unique(fabric.domain, return_inverse=True)
    member_first, members = _grouped(domain, len(domains))
    scope_of, scope_first, scope = _scopes(fabric, members[member_first[:-1]], domain)
    weight = fabric.nodes + 1
    relay = np.where(target < hosts, weight * weight + weight * (fabric.tier > SCALE_UP), 0)
    return UpLinks(
        accelerators=hosts,
        top=int(fabric.tier.max(initial=0)),
        source=source,
        target=target,
        tier=fabric.tier,
        cables=fabric.cables,
        relay=relay,
        in_first=in_first,
        in_links=in_links,
        in_source=source[in_links],
        in_tier=fabric.tier[in_links],
        in_relay=relay[in_links],
        out_first=out_first,
        out_links=out_links,
        switches=ends[ends >= hosts],
        from_first=from_first,
        from_links=between[from_order],
        from_target=target[between[from_order]],
        into_first=into_first,
        into_source=source[between[into_order]],
        domain=domain.astype(np.int64),
        member_first=member_first,
        members=members,
        scope_of=scope_of,
        scope_first=scope_first,
        scope=scope,
    )


def _scopes(fabric: Fabric, leaders: Ints, domain: Ints) -> tuple[Ints, Ints, Ints]:
    """Sets of nodes that scale-up links hold together: which one a domain is in, and their nodes."""
    inside = fabric.tier == SCALE_UP
    accelerators = np.arange(fabric.accelerators, dtype=np.int64)
    source = np.concatenate([fabric.source[inside], accelerators])
    target = np.concatenate([fabric.target[inside], leaders[domain]])
    _, label = np.unique(components(fabric.nodes, source, target), return_inverse=True)
    first, nodes = _grouped(label, int(label.max(initial=-1)) + 1)
    return label[leaders].astype(np.int64), first, nodes


_Part = tuple[Ints, Ints, Ints, Floats]
"""Numbers of some flows, how many links each has, the links and their usage."""


class Paths:
    """Equal-cost shortest paths of a fabric (see the module for what is shortest)."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._net = _net(fabric)
        self._work = _work(fabric.nodes, fabric.links)
        self._above, self._keys = self._attached()

    def each(self, source: int, target: int) -> Iterator[tuple[int, ...]]:
        """The paths one by one, as links in order."""
        follow = self._follow(source, target)
        branches = [iter(follow(source))]
        path: list[int] = []
        while branches:
            link = next(branches[-1], None)
            if link is None:
                branches.pop()
                del path[len(branches) - 1 :]
                continue
            del path[len(branches) - 1 :]
            path.append(link)
            if self._net.target[link] == target:
                yield tuple(path)
            else:
                branches.append(iter(follow(int(self._net.target[link]))))

    def every(self, source: int, target: int, limit: int = 4096) -> list[tuple[int, ...]]:
        """The first ``limit`` paths, as links in order."""
        return list(islice(self.each(source, target), limit))

    def routes(
        self, source: Ints, target: Ints, *, mode: Mode = "ecmp", seed: int = 0, key: Ints | None = None
    ) -> Routes:
        """Links of each flow.

        Args:
            mode: "ecmp": one path by a hash of source, target, ``key`` and hop; "random": one path drawn per
                flow; "spray": all paths, each node splitting what it gets evenly over the cables that lead
                on; or one of ``weft.fabric.structured``.
            seed: of the hash and the draws.
            key: what else tells flows of a pair apart (a port, a queue pair); 0 by default.
        """
        if mode not in MODES:
            raise UnknownName("mode of routing", str(mode), MODES)
        if mode != "spray":
            cables_apart(self.fabric)
        source, target = self._ends(source), self._ends(target)
        if len(source) != len(target):
            raise BadInput(f"{len(source)} sources for {len(target)} targets", where=self._where)
        same = np.flatnonzero(source == target)
        if len(same):
            raise BadInput(f"flows to themselves: {self._pairs(source, target, same)}", where=self._where)
        if mode == "random" or key is None:
            key = np.arange(len(source)) if mode == "random" else np.zeros(len(source), dtype=np.int64)
        key = np.asarray(key, dtype=np.int64)
        if len(key) != len(source):
            raise BadInput(f"{len(key)} keys for {len(source)} flows", where=self._where)
        if mode in STRUCTURES:
            return structured(self, source, target, mode, seed, key)
        if mode == "spray" and not self.fabric.up.all() and (stripes := self._stripes(source, target)) is not None:
            return self._striped(stripes, len(source), seed)
        return self._routed(source, target, key, seed, mode)

    def _stripes(self, source: Ints, target: Ints) -> tuple[Ints, Ints, Ints, Floats] | None:
        """Source, target, flow and share of the legs of all flows, where some are striped."""
        net, fabric = self._net, self.fabric
        leaves = (fabric.tier > SCALE_UP) & (fabric.source < fabric.accelerators)
        wired, live = (
            np.bincount(fabric.source[some_of], minlength=fabric.accelerators)[: fabric.accelerators] > 0
            for some_of in (leaves, leaves & fabric.up)
        )
        lost, sizes = wired & ~live, np.diff(net.member_first)
        striped = (lost[source] | lost[target]) & (net.domain[source] != net.domain[target])
        if not striped.any() or np.ptp(sizes):
            return None
        members = net.members.reshape(len(sizes), -1)
        senders, receivers = (members[net.domain[ends]] for ends in (source, target))
        shared = live[senders] & live[receivers] & striped[:, None]
        stripes = shared.sum(axis=1)
        flow, peer = np.nonzero(shared)
        sender, receiver, share = senders[flow, peer], receivers[flow, peer], 1.0 / stripes[flow]
        direct = np.flatnonzero(stripes == 0)
        begin = np.concatenate([source[direct], source[flow], sender, receiver])
        end = np.concatenate([target[direct], sender, receiver, target[flow]])
        legs = np.concatenate([direct, flow, flow, flow]), np.concatenate([np.ones(len(direct)), share, share, share])
        moves = begin != end
        return begin[moves], end[moves], legs[0][moves], legs[1][moves]

    def _striped(self, stripes: tuple[Ints, Ints, Ints, Floats], flows: int, seed: int) -> Routes:
        """Sprayed routes of flows from those of their legs."""
        source, target, flow, share = stripes
        result = self._routed(source, target, np.zeros(len(source), dtype=np.int64), seed, "spray")
        legs = np.repeat(np.arange(len(source)), np.diff(result.indptr))
        pair, at = np.unique(flow[legs] * self.fabric.links + result.links, return_inverse=True)
        counts = np.bincount(pair // self.fabric.links, minlength=flows)
        return Routes(
            indptr=np.concatenate([[0], np.cumsum(counts)]),
            links=pair % self.fabric.links,
            usage=np.bincount(at.reshape(-1), result.usage * share[legs]).astype(np.float64),
            latency_s=np.bincount(flow, result.latency_s * share, minlength=flows).astype(np.float64),
        )

    @property
    def _where(self) -> str:
        return f"fabric {self.fabric.name}"

    def _ends(self, nodes: Ints) -> Ints:
        nodes = np.asarray(nodes, dtype=np.int64)
        bad = nodes[(nodes < 0) | (nodes >= self.fabric.accelerators)]
        if len(bad):
            count = self.fabric.accelerators
            raise BadInput(f"{bad[0]} is not one of {count:,} accelerators", where=self._where)
        return nodes

    def _pairs(self, source: Ints, target: Ints, flows: Ints) -> str:
        ends = zip(source[flows].tolist(), target[flows].tolist(), strict=True)
        return some([f"{self.fabric.names[a]} -> {self.fabric.names[b]}" for a, b in ends])

    def _no_path(self, source: Ints, target: Ints, flows: Ints) -> BadInput:
        down = int(np.count_nonzero(~self.fabric.up)) // 2
        return BadInput(
            f"no path: {self._pairs(source, target, flows)}",
            where=self._where,
            remedy=f"{down:,} links are down; restore some" if down else "join the parts of the fabric",
        )

    def _attached(self) -> tuple[Ints, Keys]:
        """Which set of scale-out switches joins each accelerator, and the sets."""
        net, hosts = self._net, self.fabric.accelerators
        links = net.in_links[: net.in_first[hosts]]
        owner = np.repeat(np.arange(hosts), np.diff(net.in_first[: hosts + 1]))
        uplink = (net.tier[links] > SCALE_UP) & (net.source[links] >= hosts)
        owner, switch = owner[uplink], net.source[links[uplink]]
        order = np.lexsort((switch, owner))
        owner, switch = owner[order], switch[order]
        sizes = np.bincount(owner, minlength=hosts)
        table = np.full((hosts, int(sizes.max(initial=0))), -1, dtype=np.int64)
        begin = np.cumsum(sizes) - sizes
        table[owner, np.arange(len(owner)) - begin[owner]] = switch
        sets, which = np.unique(table, axis=0, return_inverse=True)
        lengths = np.count_nonzero(sets >= 0, axis=1)
        keys = Keys(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), sets[sets >= 0])
        return which.reshape(-1).astype(np.int64), keys

    def _routed(self, source: Ints, target: Ints, key: Ints, seed: int, mode: Mode) -> Routes:
        from weft.fabric import _walk

        salt = np.empty(len(source), dtype=np.uint64)
        _walk.salts.sized(20 * len(source))(source, target, key, seed % 2**63, salt)
        group, keys = self._above[target], self._keys
        parts: list[_Part] = []
        numbers = np.lexsort((target, group))
        for relaying in (False, True):
            flows = Flows(
                source=source[numbers],
                target=target[numbers],
                salt=salt[numbers],
                group=(target if relaying else group)[numbers],
                end=np.zeros_like(numbers),
                joined=np.ones(len(numbers), dtype=bool),
            )
            self._assign(flows, keys, mode, relaying, numbers, parts)
            numbers = numbers[~flows.joined]
            if not len(numbers):
                return self._gathered(len(source), parts)
            numbers = numbers[np.argsort(target[numbers], kind="stable")]
        raise self._no_path(source, target, np.sort(numbers))

    def _assign(self, flows: Flows, keys: Keys, mode: Mode, relaying: bool, numbers: Ints, parts: list[_Part]) -> None:
        """Append the links of the flows that can be joined to ``parts``, as many at a time as fit."""
        from weft.fabric import _walk

        spray = mode == "spray"
        how = _walk.SPRAYED if spray else _walk.HASHED
        # Each group's distances spread once over the links; then each flow walks down.
        groups = 1 + int(np.count_nonzero(np.diff(flows.group)))
        steps = 5 * groups * len(self._net.in_source) + 30 * len(numbers)
        begin, room = 0, (64 if spray else 8) * len(numbers) + 64
        while begin < len(numbers):
            links, usage = np.empty(room, dtype=np.int64), np.empty(room if spray else 0)
            stop = int(
                _walk.assign.sized(steps)(self._net, self._work, flows, keys, how, relaying, begin, links, usage)
            )
            if stop == begin:
                room *= 2
                continue
            used, joined = int(flows.end[stop - 1]), flows.joined[begin:stop]
            counts = np.diff(flows.end[begin:stop], prepend=0)
            parts.append((numbers[begin:stop][joined], counts[joined], links[:used], usage[:used]))
            begin = stop

    def _gathered(self, flows: int, parts: list[_Part]) -> Routes:
        """Routes in the order of the flows, from parts that each hold some of them."""
        begins = [np.cumsum(counts) - counts for _, counts, _, _ in parts]
        offsets = np.cumsum([0] + [len(links) for _, _, links, _ in parts])
        begin, count = np.zeros(flows, dtype=np.int64), np.zeros(flows, dtype=np.int64)
        for (numbers, counts, _, _), start, offset in zip(parts, begins, offsets, strict=False):
            begin[numbers], count[numbers] = start + offset, counts
        indptr = np.concatenate([[0], np.cumsum(count)])
        taken = spans(begin, count)
        nothing = np.zeros(0, dtype=np.int64)
        links = np.concatenate([nothing, *(links for _, _, links, _ in parts)])[taken]
        usage = np.concatenate([np.zeros(0), *(usage for _, _, _, usage in parts)])
        usage = usage[taken] if len(usage) else np.ones(len(links))
        crossed = usage * self.fabric.latency_s[links]
        latency = np.add.reduceat(crossed, indptr[:-1]) if flows else np.zeros(0)
        return Routes(indptr=indptr, links=links, usage=usage, latency_s=latency)

    def _follow(self, source: int, target: int) -> Any:
        """A function from a node to the links that lead on from it."""
        from weft.fabric import _walk

        first, last = self._ends(np.array([source, target])).tolist()
        if first == last:
            raise BadInput(f"a path to itself: {self.fabric.names[first]}", where=self._where)
        net = self._net
        pair = np.array([first]), np.array([last])
        kind = _walk.distances(net, self._work, first, last, self._keys, self._above[last])
        if kind == _walk.NONE:
            raise self._no_path(*pair, np.array([0]))
        dist = self._work.dist.copy()

        def follow(node: int) -> list[int]:
            links: list[int] = net.out_links[net.out_first[node] : net.out_first[node + 1]].tolist()
            return [link for link in links if _walk.leads(net, dist, link, last, kind)]

        return follow


def routes(
    fabric: Fabric, source: Ints, target: Ints, *, mode: Mode = "ecmp", seed: int = 0, key: Ints | None = None
) -> Routes:
    """Links of each flow; see ``Paths.routes``."""
    return Paths(fabric).routes(source, target, mode=mode, seed=seed, key=key)
