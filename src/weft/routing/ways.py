"""The paths that a flow may take, of which a router chooses one.

In a folded Clos a shortest path goes up from the source's switch and down to the destination's; where it
turns (its *top*) decides it.  So one table of the ways up serves all flows: a way is a list of links to a
top, read backwards it is a way down, and a path is a way up and a way down with the same top.  Flows for
which that does not hold (inside a scale-up domain, over relays, on a torus) get up to ``MOST_PATHS`` of all
their shortest paths (``weft.fabric.paths``) as ways up, with empty ways down.

The first link of a flow from a host with one NIC, and the last to such a host, leave no choice and are kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.errors import Unsupported
from weft.fabric.checks import cables_apart
from weft.fabric.paths import Paths
from weft.fabric.spec import SCALE_UP, Fabric, Ints, Mask
from weft.fabric.traffic import Routes, single_paths, spans
from weft.routing import _kernels

Small = npt.NDArray[np.int32]
MOST_PATHS = 256
"""Paths of a flow that are listed one by one where no table serves, at most."""
MOST_WAYS = 60_000_000
"""Entries of the table."""


class Ways(NamedTuple):
    """Ways up (``up``: links from the source on) and the same backwards (``down``), sorted by top; -1 is no
    link.  Flow ``f`` may go up by ``up_first[f]`` .. ``up_end[f]`` and down by ``down_first[f]`` ..
    ``down_end[f]``; ``first`` and ``last`` are the links that leave no choice."""

    top: Small
    up: Small
    down: Small
    up_first: Ints
    up_end: Ints
    down_first: Ints
    down_end: Ints
    first: Ints
    last: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Climbs:
    """Ways up from every switch and every host with several NICs, level by level.

    ``slices[h]`` has the bounds of the ways of each node that end at level ``h``; ``nic`` is the only usable
    NIC of a host (-1: several, or none).  ``upward`` links lead one level up.  ``sound`` is False where links do not
    join adjacent levels.
    """

    level: Ints
    reverse: Ints
    usable: Mask
    upward: Ints
    nic: Ints
    slices: tuple[Ints, ...]
    top: Small
    up: Small
    down: Small
    sound: bool


def climbs(fabric: Fabric) -> Climbs:
    """The ways up of a fabric; links that are down, in either direction, are left out.

    Raises:
        BadInput: a link bundles cables.
        Unsupported: there are too many.
    """
    cables_apart(fabric)
    out = fabric.tier > SCALE_UP
    level = _levels(fabric, out)
    reverse = fabric.reverse
    usable = out & fabric.up & (reverse >= 0) & fabric.up[reverse]
    # A Clos: every scale-out link joins adjacent levels.  Elsewhere no table serves, and paths are listed by pair.
    rise = level[fabric.target] - level[fabric.source]
    sound = bool(np.all(np.abs(rise[out]) == 1)) and bool(out.any())
    upward = np.flatnonzero(usable & (rise == 1)) if sound else np.zeros(0, dtype=np.int64)
    upward = upward[np.lexsort((fabric.target[upward], fabric.source[upward]))]
    bounds = np.searchsorted(fabric.source[upward], np.arange(fabric.nodes + 1))
    nics = np.diff(bounds)[: fabric.accelerators]
    nic = np.full(fabric.nodes, -1, dtype=np.int64)
    single = np.flatnonzero(nics == 1)
    nic[single] = upward[bounds[single]]
    starts = np.concatenate([np.flatnonzero(level == 1), np.flatnonzero(nics > 1)]) if sound else single[:0]
    return _grown(fabric, level, reverse, usable, nic, starts, upward, bounds, sound)


def _grown(
    fabric: Fabric,
    level: Ints,
    reverse: Ints,
    usable: Mask,
    nic: Ints,
    starts: Ints,
    upward: Ints,
    bounds: Ints,
    sound: bool,
) -> Climbs:
    """Ways from ``starts``, one more link at a time until nothing leads further up."""
    width = max(int(level.max(initial=0)), 1)
    node, top = starts, starts
    links = np.full((len(starts), width), -1, dtype=np.int32)
    done: list[tuple[Ints, Ints, Small, Ints]] = []
    total = 0
    # Breadth first: each round prolongs every way by each link up from its top; ways that end at any level count.
    while len(node):
        done.append((node, top, links, level[top]))
        total += len(node)
        count = bounds[top + 1] - bounds[top]
        more = int(count.sum())
        if total + more > MOST_WAYS:
            raise Unsupported(
                f"{fabric.name} has more than {MOST_WAYS:,} ways up", where="routing", remedy="route a part of it"
            )
        way = np.repeat(np.arange(len(node)), count)
        step = upward[spans(bounds[top], count)]
        node, top, links = node[way], fabric.target[step], links[way]
        filled = np.count_nonzero(links >= 0, axis=1)
        links[np.arange(len(step)), filled] = step
    nodes = np.concatenate([starts[:0], *(part[0] for part in done)])
    tops = np.concatenate([starts[:0], *(part[1] for part in done)])
    ends = np.concatenate([starts[:0], *(part[3] for part in done)])
    up = np.concatenate([np.zeros((0, width), dtype=np.int32), *(part[2] for part in done)])
    # Sorted by level, node and top: the ways of a node to one level are a slice, as `Climbs.slices` has it.
    order = np.lexsort((tops, nodes, ends))
    nodes, tops, ends, up = nodes[order], tops[order], ends[order], up[order]
    slices = []
    for height in range(width + 1):
        low, high = np.searchsorted(ends, (height, height + 1))
        slices.append(low + np.searchsorted(nodes[low:high], np.arange(fabric.nodes + 1)))
    back = np.where(up >= 0, reverse[up], -1)[:, ::-1].astype(np.int32)
    return Climbs(
        level=level,
        reverse=reverse,
        usable=usable,
        upward=np.sort(upward),
        nic=nic,
        slices=tuple(slices),
        top=tops.astype(np.int32),
        up=up,
        down=back,
        sound=sound,
    )


def ways_of(fabric: Fabric, source: Ints, target: Ints, table: Climbs | None = None) -> Ways:
    """The ways of flows between accelerators.

    Args:
        table: ``climbs(fabric)``, if known already.
    """
    ways, apart = table_ways(fabric, source, target, table or climbs(fabric))
    return _listed(fabric, source, target, ways, apart) if len(apart) else ways


def table_ways(fabric: Fabric, source: Ints, target: Ints, result: Climbs) -> tuple[Ways, Ints]:
    """The ways of flows in a table, and the flows that have none there."""
    # Flows between accelerators of one domain stay on its scale-up links, where it has any.
    inside = (fabric.tier == SCALE_UP) & fabric.up & (fabric.source < fabric.accelerators)
    joined = np.isin(np.arange(int(fabric.domain.max(initial=0)) + 1), fabric.domain[fabric.source[inside]])
    one_domain = (fabric.domain[source] == fabric.domain[target]) & joined[fabric.domain[source]]
    a, b = _attached(result, fabric, source), _attached(result, fabric, target)
    bounds = np.zeros((4, len(source)), dtype=np.int64)
    open_ = result.sound & ~one_domain & (a >= 0) & (b >= 0)
    # Shortest paths meet on the lowest level where a way up of one end has the same top as one of the other: heights
    # are tried from below, and a pair that has met is left out above.
    for height, slices in enumerate(result.slices):
        at = np.flatnonzero(open_)
        if height == 0 or not len(at):
            continue
        limits = np.stack([slices[a[at]], slices[a[at] + 1], slices[b[at]], slices[b[at] + 1]])
        met = np.zeros(len(at), dtype=bool)
        _kernels.meet(result.top, limits, met)
        bounds[:, at[met]] = limits[:, met]
        open_[at[met]] = False
    apart = np.flatnonzero(bounds[1] == 0)
    first, last = result.nic[source].copy(), result.reverse[result.nic[target]].copy()
    last[result.nic[target] < 0] = -1
    first[apart], last[apart] = -1, -1
    return Ways(result.top, result.up, result.down, bounds[0], bounds[1], bounds[2], bounds[3], first, last), apart


def routes_of(fabric: Fabric, ways: Ways, up: Ints, down: Ints) -> Routes:
    """Routes of flows that go up by ``up[f]`` and down by ``down[f]``."""
    # First link, way up, way down, last link; -1 where a part is missing.
    table = np.concatenate(
        [ways.first[:, None], ways.up[up].astype(np.int64), ways.down[down], ways.last[:, None]], axis=1
    )
    return single_paths(fabric, table)


def _levels(fabric: Fabric, out: Mask) -> Ints:
    """Hops from the nearest accelerator over scale-out links, up or not; accelerators are at 0."""
    far = fabric.nodes + 1
    level = np.full(fabric.nodes, far, dtype=np.int64)
    level[: fabric.accelerators] = 0
    source, target = fabric.source[out], fabric.target[out]
    # Breadth-first search from all accelerators at once.
    for height in range(1, fabric.nodes + 1):
        fresh = target[(level[source] == height - 1) & (level[target] == far)]
        if not len(fresh):
            break
        level[fresh] = height
    return np.where(level == far, -1, level)


def _attached(table: Climbs, fabric: Fabric, hosts: Ints) -> Ints:
    """Where the ways of hosts begin: at their only switch, at themselves if there are several; -1:
    nowhere.
    """
    nic = table.nic[hosts]
    many = table.slices[1][hosts + 1] > table.slices[1][hosts] if len(table.slices) > 1 else np.zeros(len(hosts), bool)
    return np.where(nic >= 0, fabric.target[nic], np.where(many, hosts, -1))


def _listed(fabric: Fabric, source: Ints, target: Ints, ways: Ways, apart: Ints) -> Ways:
    """``ways`` with all paths of the flows ``apart`` behind, listed."""
    every = Paths(fabric).every
    # A listed path is a way up to a top with its number, with an empty way down from there, so that the kernels need
    # no second case.
    pairs, pair = np.unique(np.stack([source[apart], target[apart]]), axis=1, return_inverse=True)
    lists = [every(a, b, MOST_PATHS) for a, b in pairs.T.tolist()]
    counts = np.array([len(each) for each in lists], dtype=np.int64)
    width = max(ways.up.shape[1], *(len(path) for each in lists for path in each))
    flat = np.full((int(counts.sum()), width), -1, dtype=np.int32)
    for row, path in enumerate(path for each in lists for path in each):
        flat[row, : len(path)] = path
    empty = np.full((int(counts.max()), width), -1, dtype=np.int32)
    before = len(ways.top)

    def wide(old: Small, on_the_left: bool) -> Small:
        side = np.full((len(old), width - old.shape[1]), -1, dtype=np.int32)
        return np.concatenate([side, old] if on_the_left else [old, side], axis=1)

    begin = np.cumsum(counts) - counts
    turn = np.arange(len(flat)) - np.repeat(begin, counts)
    up_first, up_end, down_first, down_end = (each.copy() for each in ways[3:7])
    at = pair.reshape(-1)
    up_first[apart], up_end[apart] = before + begin[at], before + begin[at] + counts[at]
    down_first[apart], down_end[apart] = before + len(flat), before + len(flat) + counts[at]
    return Ways(
        np.concatenate([ways.top, turn.astype(np.int32), np.arange(len(empty), dtype=np.int32)]),
        np.concatenate([wide(ways.up, False), flat, empty]),
        np.concatenate([wide(ways.down, True), np.full_like(flat, -1), empty]),
        up_first,
        up_end,
        down_first,
        down_end,
        ways.first,
        ways.last,
    )
