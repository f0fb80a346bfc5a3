"""How low congestion could be: cuts in closed form, and the fractional optimum by an LP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.errors import Unsupported
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import spans
from weft.routing import _kernels
from weft.routing.problem import SAME, Problem
from weft.routing.ways import Climbs
from weft.solvers import lp

MOST_COLUMNS = 400_000
"""Variables of the LP that are still solved."""
ROUNDING = 1e-6
"""Relative error of the solver's optimum."""


def closed_bound(problem: Problem, *, whole: bool = True) -> float:
    """No choice of paths has less congestion than this.

    A link that all paths of a flow take carries it; what leaves or enters a part of the fabric shares the links
    out of it.  HostParts are the hosts and switches up to a level that hang together.  Equal flows come whole:
    ceil(Delta / n) of them on some of n links, unless they are sprayed (not ``whole``).
    """
    # Bound 1: links that leave no choice.  Bound 2: every cut between a part and the rest.
    highest, demand = float(problem.fixed.max(initial=0.0)), problem.demand_Bps
    every = parts(problem.climbs, problem.fabric)
    listed = problem.ways.up_end > len(problem.climbs.top)
    sent, flows = np.zeros((2, len(every.links))), np.zeros((2, len(every.links)), dtype=np.int64)
    levels = every.of.shape[1]
    first, span = np.full(levels, -1), np.stack([np.full(levels, np.inf), np.zeros(levels)])
    crossing = _kernels.crossing.sized(levels * len(demand))
    crossing(every.of, problem.traffic.source, problem.traffic.target, demand, listed, sent, flows, first, span)
    for level in np.flatnonzero(first >= 0).tolist():
        equal = whole and span[1, level] - span[0, level] <= SAME * span[1, level]
        for side, capacity in enumerate(every.capacity_Bps[level]):
            used = np.flatnonzero(flows[side, : every.ends[level]])
            used = used[np.searchsorted(used, every.ends[level - 1] if level else 0) :]
            wide = every.wide_Bps[side, used]
            if equal and capacity:
                # Equal flows on equal links come whole: by the pigeonhole principle one link has ceil(many / links).
                many = flows[side, used] / np.maximum(every.links[used], 1)
                highest = max(highest, float(demand[first[level]] / capacity * np.ceil(many.max())))
            elif not wide.all():
                return float(np.inf)
            else:
                # The mean over the links of a cut is no more than the highest of them; without any it is infinite.
                highest = max(highest, float((sent[side, used] / wide).max()))
    return highest


class HostParts(NamedTuple):
    """What hangs together up to each level: ``of[host, level]`` is a host's part there, those of a level end before
    ``ends[level]``.  ``links`` lead out of a part, ``wide_Bps`` together, out and into it; at each level, out and in,
    all have ``capacity_Bps`` (0: not all the same)."""

    of: npt.NDArray[np.int32]
    ends: list[int]
    links: Ints
    wide_Bps: Floats
    capacity_Bps: list[list[float]]


@lru_cache(maxsize=2)
def parts(table: Climbs, fabric: Fabric) -> HostParts:
    """The parts of every level.

    The controller asks for a bound at every event: what does not depend on flows is kept.
    """
    from weft.fabric._walk import join

    upward = table.upward[table.usable[table.upward]]
    begin, label = table.level[fabric.source[upward]], np.arange(fabric.nodes)
    levels = int(table.level.max(initial=0)) if table.sound else 0
    of, ends, capacity = np.zeros((fabric.accelerators, levels), dtype=np.int32), [0], []
    links, wide = [np.zeros(0, dtype=np.int64)], [np.zeros((2, 0))]
    for height in range(levels):
        out = upward[begin == height]
        roots = label == np.arange(fabric.nodes)
        number = np.cumsum(roots) - 1
        of[:, height] = ends[-1] + number[label[: fabric.accelerators]]
        at, count = number[label[fabric.source[out]]], int(roots.sum())
        each = [fabric.capacity_Bps[side] for side in (out, table.reverse[out])]
        links.append(np.bincount(at, minlength=count))
        wide.append(np.stack([np.bincount(at, side, count) for side in each]))
        same = [len(side) > 0 and np.ptp(side) <= SAME * side.max() for side in each]
        capacity.append([float(side[0]) if equal else 0.0 for side, equal in zip(each, same, strict=True)])
        ends.append(ends[-1] + count)
        # What hangs together up to the next level: the same, and what these links join.
        join.sized(4 * len(out) + fabric.nodes)(fabric.source[out], fabric.target[out], label)
    return HostParts(of, ends[1:], np.concatenate(links), np.concatenate(wide, axis=1), capacity)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommodityPaths:
    """Flows with the same ways and demand as one commodity, and every path of each as a column.

    ``commodity[f]`` is a flow's, ``owner`` and ``up``, ``down`` a column's commodity and ways; ``links`` and
    ``entry`` say which links a column crosses (entry k: column ``entry[k]`` crosses ``links[k]``).
    """

    commodity: Ints
    demand_Bps: Floats
    count: Ints
    owner: Ints
    up: Ints
    down: Ints
    entry: Ints
    links: Ints


def paths_of(problem: Problem, *, most: int | None = None) -> CommodityPaths | None:
    """All paths as columns; None where there are more than ``most``, by default ``MOST_COLUMNS``."""
    most = MOST_COLUMNS if most is None else most
    ways = problem.ways
    # Flows with the same ways and demand are exchangeable: one commodity with a count for all of them.
    share = np.round(problem.demand_Bps / max(problem.demand_Bps.max(initial=0.0), 1e-300), 9)
    table = np.stack([ways.up_first, ways.down_first, share])
    _, first, commodity = np.unique(table, axis=1, return_index=True, return_inverse=True)
    ups, downs = ways.up_end[first] - ways.up_first[first], ways.down_end[first] - ways.down_first[first]
    a, b = spans(ways.up_first[first], ups), spans(ways.down_first[first], downs)
    # A path is a way up and a way down of a commodity with the same top; both are sorted by commodity and top.
    number, tops = np.arange(len(first)), int(ways.top.max(initial=0)) + 1
    top_a, top_b = np.repeat(number, ups) * tops + ways.top[a], np.repeat(number, downs) * tops + ways.top[b]
    begin, end = np.searchsorted(top_b, top_a), np.searchsorted(top_b, top_a, side="right")
    counts = end - begin
    if counts.sum() > most:
        return None
    owner, up, down = np.repeat(np.repeat(number, ups), counts), np.repeat(a, counts), b[spans(begin, counts)]
    crossed = np.concatenate([ways.up[up], ways.down[down]], axis=1).astype(np.int64)
    entry, column = np.nonzero(crossed >= 0)
    return CommodityPaths(
        commodity=commodity.reshape(-1),
        demand_Bps=problem.demand_Bps[first],
        count=np.bincount(commodity.reshape(-1), minlength=len(first)),
        owner=owner,
        up=up,
        down=down,
        entry=entry,
        links=crossed[entry, column],
    )


def lp_bound(problem: Problem, *, most: int = MOST_COLUMNS, whole: bool = True) -> float | None:
    """The least congestion of flows that may split over all their paths; None where the LP is too large, or does
    not have all paths.

    For equal flows it is rounded up to whole flows, unless they are sprayed (not ``whole``), or a link without
    a choice decides it.

    Raises:
        Unsupported: the solver ends without an optimum.
    """
    paths = None if problem.limited else paths_of(problem, most=most)
    if paths is None:
        return None
    value = float(solve(problem, paths)[0])
    # A whole number of equal flows is on each link that is a choice, so that the optimum over whole flows is a
    # multiple of one flow's load; a link without a choice may have any load.
    chosen = value > float(problem.fixed.max(initial=0.0)) * (1 + ROUNDING)
    if whole and chosen and problem.unit is not None:
        value = problem.unit * float(np.ceil(value / problem.unit - ROUNDING))
    return max(value, closed_bound(problem, whole=whole))


def solve(problem: Problem, paths: CommodityPaths) -> tuple[float, Floats]:
    """The least congestion, and the Bps on every path."""
    result = least_congestion(problem, paths)
    if not result.optimal:
        raise Unsupported("HiGHS found no optimum", where="LP bound", remedy="use the closed form: --bound cuts")
    return float(result.values[-1]), result.values[:-1] * paths.demand_Bps[paths.owner]


def least_congestion(problem: Problem, paths: CommodityPaths, **options: Any) -> lp.Solution:
    """Flows of each commodity on each path, then the congestion; ``options`` are those of ``lp.least``."""
    columns, rows = len(paths.owner), len(paths.demand_Bps)
    used, row = np.unique(paths.links, return_inverse=True)
    heavy = paths.demand_Bps[paths.owner[paths.entry]] * problem.inverse[paths.links]
    count = paths.count.astype(np.float64)
    return lp.least(
        np.append(np.zeros(columns), 1.0),
        (np.append(np.zeros(columns), problem.fixed.max(initial=0.0)), np.append(count[paths.owner], np.inf)),
        # All flows of a commodity take paths; no used link carries more than the congestion.
        lp.Rows(
            row=np.concatenate([paths.owner, rows + row.reshape(-1), rows + np.arange(len(used))]),
            column=np.concatenate([np.arange(columns), paths.entry, np.full(len(used), columns)]),
            value=np.concatenate([np.ones(columns), heavy, np.full(len(used), -1.0)]),
            low=np.append(count, np.full(len(used), -np.inf)),
            high=np.append(count, -problem.fixed[used]),
        ),
        **options,
    )
