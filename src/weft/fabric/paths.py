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

Dimension-order on tori (Dally and Seitz 1987): along the first dimension, then the second, the shorter way around; a
flow between rails first crosses the sender's domain.  UGAL on dragonflies (Kim et al., ISCA 2008; Shpiner et al.
2017): flow by flow, the minimal path (at most one global cable, drawn by hash from those between the two groups), or
Valiant's by way of a group drawn by hash where flows on its busiest link for its capacity, times links of the path,
are fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import prod
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from weft.errors import BadInput, UnknownName
from weft.fabric.checks import cables_apart, components, some
from weft.fabric.dimension import pairs
from weft.fabric.families.dragonfly import GLOBAL_TIER
from weft.fabric.families.torus import lines_of
from weft.fabric.lump import mixed
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints, Mask
from weft.fabric.traffic import Routes, joined, single_paths, spans, whole_paths

Structure = Literal["dimension-order", "ugal"]
STRUCTURES: tuple[Structure, ...] = get_args(Structure)
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
        follow = self.follow(source, target)
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
                on; or one of ``STRUCTURES``.
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

    def follow(self, source: int, target: int) -> Callable[[int], list[int]]:
        """A function from a node to the links that lead on from it, on shortest paths of a pair."""
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


# Routes that follow a network's structure ----------------------------------------------------------

MOST_DIMENSIONS = 22


def structured(paths: Paths, source: Ints, target: Ints, mode: Structure, seed: int, key: Ints) -> Routes:
    """One path a flow; flows inside a domain take its own links, those whose path has failed another shortest one."""
    fabric = paths.fabric
    beyond = np.flatnonzero(fabric.domain[source] != fabric.domain[target])
    draw = _draws(source[beyond], target[beyond], key[beyond], seed)
    if mode == "dimension-order":
        result, good = _dimension_order(paths, source[beyond], target[beyond], draw[:, 0])
    else:
        result, good = _dragonfly(fabric, source[beyond], target[beyond], draw)
    shaped = beyond[good]
    plain = np.setdiff1d(np.arange(len(source)), shaped)
    usual = paths.routes(source[plain], target[plain], seed=seed, key=key[plain])
    return joined([usual, result]).of(np.argsort(np.concatenate([plain, shaped]), kind="stable"))


class _Links:
    """Links that are up by their two ends."""

    def __init__(self, fabric: Fabric) -> None:
        up = np.flatnonzero(fabric.up & (fabric.tier > SCALE_UP))
        key = fabric.source[up] * fabric.nodes + fabric.target[up]
        order = np.argsort(key, kind="stable")
        self._key, self._link, self._nodes = key[order], up[order], fabric.nodes

    def between(self, a: Ints, b: Ints, draw: Ints) -> Ints:
        """A link from each ``a`` to ``b``, of parallel ones by ``draw``; -1 where there is none."""
        first, end = (np.searchsorted(self._key, a * self._nodes + b, side=side) for side in ("left", "right"))
        return np.append(self._link, -1)[np.where(end > first, first + (draw >> 31) % np.maximum(end - first, 1), -1)]


def grid_of(fabric: Fabric) -> tuple[int, ...]:
    """The sizes of the torus that the scale-out links of a fabric make, failed ones included: domains in a grid, the
    first dimension varying fastest, a grid a rail."""
    hosts, outside = fabric.accelerators, fabric.tier > SCALE_UP
    domains = int(fabric.domain.max(initial=0)) + 1
    source, target = fabric.source[outside], fabric.target[outside]
    links = np.unique(source * fabric.nodes + target)
    regular = hosts % domains == 0 and np.array_equal(fabric.domain, np.arange(hosts) // (hosts // domains))
    if regular and (not len(target) or (source.max() < hosts and target.max() < hosts)):
        beside = np.unique(fabric.domain[target[source == 0]]).tolist()
        for dims in _grids(domains, frozenset(beside)):
            if np.array_equal(links, _keys(dims, hosts, fabric.nodes)):
                return dims
    raise BadInput(
        "is not a torus, so that it has no dimensions",
        where=f"fabric {fabric.name}: routing",
        remedy="take ecmp or spray",
    )


def _grids(count: int, beside: frozenset[int], dims: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Sizes of dimensions behind ``dims`` that give node 0 of so many those neighbours."""
    stride = prod(dims)
    if stride == count:
        yield dims or (1,)
    if stride not in beside or len(dims) == MOST_DIMENSIONS:
        return
    for after in sorted({*beside, count}):
        if after > stride and after % stride == 0 and count % after == 0:
            yield from _grids(count, beside, (*dims, after // stride))


def _keys(dims: tuple[int, ...], hosts: int, nodes: int) -> Ints:
    """The links of a grid, as source times ``nodes`` plus target, sorted."""
    keys = [np.zeros(0, dtype=np.int64)]
    for lines in lines_of(hosts, (hosts // prod(dims), *dims))[1:]:
        left, right = pairs("ring", lines.shape[1])
        a, b = lines[:, left].ravel(), lines[:, right].ravel()
        keys += [a * nodes + b, b * nodes + a]
    return np.sort(np.concatenate(keys))


def _dimension_order(paths: Paths, source: Ints, target: Ints, draw: Ints) -> tuple[Routes, Ints]:
    """Routes of the flows whose links are up, and which those are."""
    fabric = paths.fabric
    grid, per_domain = grid_of(fabric), fabric.largest_domain
    first = fabric.domain[source] * per_domain + fabric.rail[target]
    begin, end = (
        np.stack(np.unravel_index(fabric.domain[ends], grid, order="F"), axis=-1).astype(np.int64)
        for ends in (source, target)
    )
    dims = np.array(grid)
    ahead = (end - begin) % dims
    steps = np.where(2 * ahead > dims, ahead - dims, ahead)
    count = np.abs(steps)
    turn = np.repeat(np.arange(count.size), count.ravel())
    flow, axis = np.divmod(turn, max(1, len(dims)))
    step = spans(np.zeros(count.size, dtype=np.int64), count.ravel())
    # On axis k a flow has reached its end in all axes before, and is at its beginning in all behind.
    stride = np.cumprod([1, *grid[:-1]])
    before = np.cumsum((end - begin) * stride, axis=1) - (end - begin) * stride
    base = fabric.domain[source][flow] + before[flow, axis]
    from_, way = begin[flow, axis], np.sign(steps[flow, axis])
    size = dims[axis]
    here, there = (from_ + step * way) % size, (from_ + (step + 1) * way) % size
    rail = fabric.rail[target][flow]
    links = _Links(fabric).between(
        (base + (here - from_) * stride[axis]) * per_domain + rail,
        (base + (there - from_) * stride[axis]) * per_domain + rail,
        draw[flow],
    )
    good = np.setdiff1d(np.arange(len(source)), flow[links < 0])
    along = whole_paths(fabric, count.sum(axis=1), links).of(good)
    # Each path along the rail goes behind the one that crosses the domain.
    both = joined([_crossing(paths, source[good], first[good]), along])
    both = both.of(np.arange(2 * len(along)).reshape(2, -1).T.ravel())
    return whole_paths(fabric, np.diff(both.indptr[::2]), both.links), good


def _crossing(paths: Paths, source: Ints, first: Ints) -> Routes:
    """Routes from senders to the accelerator of their domain that is on the rail; empty where they are."""
    moved = np.flatnonzero(source != first)
    inside = paths.routes(source[moved], first[moved])
    lengths = np.zeros(len(source), dtype=np.int64)
    lengths[moved] = np.diff(inside.indptr)
    return whole_paths(paths.fabric, lengths, inside.links)


class _Groups:
    """The groups of a dragonfly and the global links between them."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.links = fabric, _Links(fabric)
        hosts, outside = fabric.accelerators, fabric.tier > SCALE_UP
        between = outside & (fabric.source >= hosts) & (fabric.target >= hosts)
        nic = outside & (fabric.source < hosts) & (fabric.target >= hosts)
        local = between & (fabric.tier < GLOBAL_TIER)
        self.of, self.count = self._numbered(nic, local)
        self.up_nic = np.full(hosts, -1, dtype=np.int64)
        nics = np.flatnonzero(nic & fabric.up)[::-1]
        self.up_nic[fabric.source[nics]] = nics
        beyond = np.flatnonzero(between & ~local & fabric.up)
        pair = self.of[fabric.source[beyond]] * self.count + self.of[fabric.target[beyond]]
        self.beyond = beyond[np.argsort(pair, kind="stable")]
        self.first = np.searchsorted(np.sort(pair), np.arange(self.count**2 + 1))
        near = np.flatnonzero(local & fabric.up)
        self.near = near[np.argsort(fabric.source[near], kind="stable")]
        self.near_first = np.searchsorted(fabric.source[self.near], np.arange(fabric.nodes + 1))

    def _numbered(self, nic: Mask, local: Mask) -> tuple[Ints, int]:
        """The group of each scale-out switch (-1: none), and how many there are."""
        fabric, hosts = self.fabric, self.fabric.accelerators
        label = components(fabric.nodes, fabric.source[local], fabric.target[local])
        switches = np.zeros(fabric.nodes, dtype=bool)
        switches[fabric.source[fabric.tier > SCALE_UP]] = True
        switches[:hosts] = False
        names, number = np.unique(label[switches], return_inverse=True)
        held = np.unique(label[fabric.target[nic]])
        if len(np.unique(fabric.source[nic])) < hosts or len(held) < len(names):
            raise BadInput(
                "is not a dragonfly: it has no groups of switches that all hold accelerators",
                where=f"fabric {fabric.name}: routing",
                remedy="take ecmp or spray",
            )
        result = np.full(fabric.nodes, -1, dtype=np.int64)
        result[switches] = number.reshape(-1)
        return result, len(names)

    def gateway(self, a: Ints, b: Ints, draw: Ints) -> Ints:
        """A global link from a group to another; -1 where there is none."""
        pair = a * self.count + b
        first, many = self.first[pair], self.first[pair + 1] - self.first[pair]
        return self._drawn(self.beyond, first, many, draw)

    def within(self, a: Ints, b: Ints, draw: Ints) -> tuple[Ints, Mask]:
        """The links of a group from one switch to another, one or two (-1: none), and whether they join them."""
        table = np.full((len(a), 2), -1, dtype=np.int64)
        table[:, 0] = self.links.between(a, b, draw)
        table[a == b, 0] = -1
        far = np.flatnonzero((a != b) & (table[:, 0] < 0))
        first, many = self.near_first[a[far]], self.near_first[a[far] + 1] - self.near_first[a[far]]
        for attempt in range(int(many.max(initial=0))):
            up = self._drawn(self.near, first, many, draw[far] + attempt)
            down = self.links.between(self.fabric.target[up], b[far], draw[far])
            good = (up >= 0) & (down >= 0) & (attempt < many)
            table[far[good], 0], table[far[good], 1] = up[good], down[good]
            far, first, many = far[~good], first[~good], many[~good]
            if not len(far):
                break
        return table, (a == b) | (table[:, 0] >= 0)

    @staticmethod
    def _drawn(links: Ints, first: Ints, many: Ints, draw: Ints) -> Ints:
        if not len(links):
            return np.full(len(first), -1, dtype=np.int64)
        at = np.minimum(first + draw % np.maximum(many, 1), len(links) - 1)
        return np.where(many > 0, links[at], -1)


def _dragonfly(fabric: Fabric, source: Ints, target: Ints, draw: Ints) -> tuple[Routes, Ints]:
    """Routes of the flows that have a minimal path, and which those are."""
    groups = _Groups(fabric)
    least, joins = _by_way(groups, source, target, [], draw)
    good = np.flatnonzero(joins & (groups.up_nic[source] >= 0) & (groups.up_nic[target] >= 0))
    source, target, least, draw = source[good], target[good], least[good], draw[good]
    a, b = (groups.of[fabric.target[groups.up_nic[end]]] for end in (source, target))
    shortest = single_paths(fabric, least)
    if groups.count < 3 or not len(source):
        return shortest, good
    many = groups.count - 1 - (a != b)
    other = draw[:, 5] % many
    low, high = np.minimum(a, b), np.maximum(a, b)
    other += other >= low
    other += (other >= high) & (a != b)
    table, joins = _by_way(groups, source, target, [other], draw)
    least = np.pad(least, ((0, 0), (0, table.shape[1] - least.shape[1])), constant_values=-1)
    roundabout = single_paths(fabric, np.where((joins & (a != b))[:, None], table, least))
    from weft.fabric import _walk

    takes_long = np.zeros(len(source), dtype=np.int64)
    args = (shortest.indptr, shortest.links, roundabout.indptr, roundabout.links)
    _walk.choose_ugal(*args, fabric.capacity_Bps, np.zeros(fabric.links), takes_long)
    return joined([shortest, roundabout]).of(np.arange(len(source)) + takes_long * len(source)), good


def _draws(source: Ints, target: Ints, key: Ints, seed: int) -> Ints:
    """Numbers drawn by hash, a row a flow and six columns."""
    salt = mixed(
        mixed(mixed(np.array([seed % 2**63], dtype=np.uint64)) + source.astype(np.uint64)) + target.astype(np.uint64)
    )
    salt = mixed(salt + key.astype(np.uint64))
    columns = [mixed(salt + np.uint64(i)) >> np.uint64(2) for i in range(6)]
    return np.stack(columns, axis=1).astype(np.int64)


def _by_way(groups: _Groups, source: Ints, target: Ints, through: list[Ints], draw: Ints) -> tuple[Ints, Mask]:
    """Links of paths by way of groups, a row a flow (-1: none), and which of them there are."""
    fabric = groups.fabric
    into = fabric.target
    at, last = into[groups.up_nic[source]], into[groups.up_nic[target]]
    columns, good = [groups.up_nic[source][:, None]], np.ones(len(source), dtype=bool)
    for number, group in enumerate([*through, groups.of[last]]):
        leaving = groups.of[at] != group
        link = np.where(leaving, groups.gateway(groups.of[at], group, draw[:, number]), -1)
        near, joins = groups.within(at, np.where(link >= 0, fabric.source[link], at), draw[:, 2 + number])
        columns += [near, link[:, None]]
        good &= joins & (~leaving | (link >= 0))
        at = np.where(link >= 0, into[link], at)
    near, joins = groups.within(at, last, draw[:, 4])
    columns += [near, groups.links.between(last, target, draw[:, 4])[:, None]]
    return np.concatenate(columns, axis=1), good & joins & (columns[-1][:, 0] >= 0)
