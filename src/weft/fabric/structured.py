"""Routes that follow the structure of a network: dimension-order on tori, UGAL on dragonflies.

Dimension-order (Dally and Seitz 1987): along the first dimension, then the second, the shorter way around; a flow
between rails first crosses the sender's domain.  UGAL (Kim et al., ISCA 2008; Shpiner et al. 2017): flow by flow, the
minimal path (at most one global cable, drawn by hash from those between the two groups), or Valiant's by way of a
group drawn by hash where flows on its busiest link for its capacity, times links of the path, are fewer.  Each flow
has one path.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from weft.errors import BadInput
from weft.fabric.checks import components
from weft.fabric.dimension import pairs
from weft.fabric.families.dragonfly import GLOBAL_TIER
from weft.fabric.families.torus import lines_of
from weft.fabric.lump import mixed
from weft.fabric.spec import SCALE_UP, Fabric, Ints, Mask
from weft.fabric.traffic import Routes, joined, spans

if TYPE_CHECKING:
    from weft.fabric.paths import Paths

Structure = Literal["dimension-order", "ugal"]
STRUCTURES: tuple[Structure, ...] = get_args(Structure)
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


def _single(fabric: Fabric, table: Ints) -> Routes:
    """Routes of single paths from a row of links each; -1 is none."""
    links = table[table >= 0]
    indptr = np.concatenate([[0], np.cumsum((table >= 0).sum(axis=1))]).astype(np.int64)
    return _routes(fabric, indptr, links)


def _routes(fabric: Fabric, indptr: Ints, links: Ints) -> Routes:
    total = np.concatenate([[0.0], np.cumsum(fabric.latency_s[links])])
    return Routes(
        indptr=indptr, links=links, usage=np.ones(len(links)), latency_s=total[indptr[1:]] - total[indptr[:-1]]
    )


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
    indptr = np.concatenate([[0], np.cumsum(count.sum(axis=1))]).astype(np.int64)
    good = np.setdiff1d(np.arange(len(source)), flow[links < 0])
    along = _routes(fabric, indptr, links).of(good)
    return _after(fabric, _crossing(paths, source[good], first[good]), along), good


def _crossing(paths: Paths, source: Ints, first: Ints) -> Routes:
    """Routes from senders to the accelerator of their domain that is on the rail; empty where they are."""
    moved = np.flatnonzero(source != first)
    inside = paths.routes(source[moved], first[moved])
    lengths = np.zeros(len(source), dtype=np.int64)
    lengths[moved] = np.diff(inside.indptr)
    return _routes(paths.fabric, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), inside.links)


def _after(fabric: Fabric, first: Routes, second: Routes) -> Routes:
    """Paths of one behind those of the other."""
    both = joined([first, second]).of(np.arange(2 * len(first)).reshape(2, -1).T.ravel())
    return _routes(fabric, both.indptr[::2], both.links)


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
    shortest = _single(fabric, least)
    if groups.count < 3 or not len(source):
        return shortest, good
    many = groups.count - 1 - (a != b)
    other = draw[:, 5] % many
    low, high = np.minimum(a, b), np.maximum(a, b)
    other += other >= low
    other += (other >= high) & (a != b)
    table, joins = _by_way(groups, source, target, [other], draw)
    least = np.pad(least, ((0, 0), (0, table.shape[1] - least.shape[1])), constant_values=-1)
    roundabout = _single(fabric, np.where((joins & (a != b))[:, None], table, least))
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
