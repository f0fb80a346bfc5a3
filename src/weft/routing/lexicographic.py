"""Beyond the slowest group: how good the sorted list of paces can be, and routes that come near it.

For equal flows on equal links.  In units of one flow, let no link carry more than ``top`` flows (the best possible),
and ``room`` be what a link carries at full pace.  Then every flow has a pace of at least room / top; a flow on a link
with s flows leaves the others that much and has at most room * (1 - (s - 1) / top).  Of D flows that share n links,
at least D - (s - 1) * x are on links with s or more, where x, the links with fewer, are at most
(top * n - D) / (top - s + 1).  How few groups can own so many flows at every cut is a covering problem: what it needs
bounds how many groups are slow, under any routes that are best for the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import fsum

import numpy as np

from weft.fabric.spec import Floats, Ints
from weft.routing.bound import CommodityPaths, cuts_of, paths_of
from weft.routing.choice import Choice
from weft.routing.problem import Problem
from weft.solvers.highs import silent_highs

MOST_TRIES = 300_000
"""Moves that are looked at."""
SECONDS = 5.0
"""For one covering problem; what it has proved until then counts."""
ROUNDING = 1e-6


def paces_bound(asked: Problem, alpha: float, group: Ints, groups: int, *, ceiling: float = 1.0) -> Floats:
    """The most that the sorted paces of the groups can be, entry by entry, where the slowest is as fast as can be.

    Args:
        alpha: the least congestion of any routes.
        group: of every flow.
        groups: how many there are.
        ceiling: what no group exceeds.

    Returns:
        ``groups`` paces, slowest first; for unequal flows only the first is below ``ceiling``.
    """
    found = np.full(groups, ceiling)
    slowest = 1.0 / max(1.0, alpha)
    found[:1] = np.minimum(found[:1], slowest)
    unit = asked.unit
    if unit is None or alpha <= 1.0 + ROUNDING:
        return found
    top, room = round(alpha / unit), 1.0 / unit
    if abs(top * unit - alpha) > ROUNDING * alpha:
        return found
    cuts = list(cuts_of(asked))
    for least in range(top, 1, -1):
        pace = room * (1.0 - (least - 1) / top)
        if pace >= ceiling - ROUNDING:
            break
        slow = _covering(cuts, least, top, group)
        found[:slow] = np.minimum(found[:slow], max(pace, slowest))
    return found


def _covering(cuts: list[tuple[Ints, int]], least: int, top: int, group: Ints) -> int:
    """How few groups can own all flows that are on links with ``least`` flows or more."""
    rows = []
    for flows, links in cuts:
        fewer = min(links, (top * links - len(flows)) // (top - least + 1))
        needed = len(flows) - (least - 1) * fewer
        if needed > 0:
            owners, counts = np.unique(group[flows], return_counts=True)
            rows.append((owners, np.minimum(counts, needed).astype(np.float64), float(needed)))
    if not rows:
        return 0
    names = np.unique(np.concatenate([owners for owners, _, _ in rows]))
    highspy, highs = silent_highs()
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(names), len(rows)
    model.col_cost_ = np.ones(len(names))
    model.col_lower_, model.col_upper_ = np.zeros(len(names)), np.ones(len(names))
    model.row_lower_ = np.array([needed for _, _, needed in rows])
    model.row_upper_ = np.full(len(rows), highspy.kHighsInf)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.cumsum([0, *(len(owners) for owners, _, _ in rows)]).astype(np.int32)
    model.a_matrix_.index_ = np.searchsorted(names, np.concatenate([row[0] for row in rows])).astype(np.int32)
    model.a_matrix_.value_ = np.concatenate([row[1] for row in rows])
    model.integrality_ = [highspy.HighsVarType.kInteger] * len(names)
    highs.passModel(model)
    highs.setOptionValue("time_limit", SECONDS)
    highs.run()
    return max(1, int(np.ceil(highs.getInfo().mip_dual_bound - ROUNDING)))


def sharpen(choice: Choice, group: Ints) -> None:
    """Let as few groups as possible meet the busiest links, then the next busy ones, and so on.

    No link gets more than the choice's congestion.  Nothing is done for unequal flows or too many paths.
    """
    asked = choice.problem
    unit = asked.unit
    paths = None if unit is None else paths_of(asked)
    if paths is None or unit is None or not len(group):
        return
    full = int(np.floor(1.0 / unit + ROUNDING))
    tries = MOST_TRIES
    for level in range(round(choice.congestion / unit), full, -1):
        choice.reach((level - 1) * unit)
        search = _Level(choice, group, paths, level)
        tries = search.improve(tries)
        choice.move(search.up, search.down)


class _Level:
    """Moves that let fewer groups meet links with at least ``level`` flows.

    The potential is the sum over groups of the square root of their flows there: it falls when such flows come
    together in few groups.
    """

    def __init__(self, choice: Choice, group: Ints, paths: CommodityPaths, level: int) -> None:
        asked = choice.problem
        self.level, self.group = level, group.tolist()
        self.up, self.down = choice.up.copy(), choice.down.copy()
        ends = np.searchsorted(paths.entry, np.arange(len(paths.owner) + 1))
        self.crossed = [paths.links[a:b].tolist() for a, b in pairwise(ends.tolist())]
        bounds = np.searchsorted(paths.owner, np.arange(len(paths.demand_Bps) + 1))
        self.columns = [range(a, b) for a, b in pairwise(bounds.tolist())]
        self.commodity = paths.commodity.tolist()
        where = {
            (own, *key): at
            for at, (own, *key) in enumerate(
                zip(paths.owner.tolist(), paths.up.tolist(), paths.down.tolist(), strict=True)
            )
        }
        keys = zip(self.commodity, self.up.tolist(), self.down.tolist(), strict=True)
        self.at = [where[key] for key in keys]
        self.ways = paths.up.tolist(), paths.down.tolist()
        self.on: list[set[int]] = [set() for _ in range(asked.fabric.links)]
        for flow, column in enumerate(self.at):
            for link in self.crossed[column]:
                self.on[link].add(flow)
        self.beside: dict[int, list[int]] = {}
        for flow, own in enumerate(self.commodity):
            self.beside.setdefault(own, []).append(flow)
        self.hot = [sum(len(self.on[link]) >= level for link in self.crossed[column]) for column in self.at]
        self.met = [0] * (int(group.max(initial=0)) + 1)
        always = np.zeros(len(self.at), dtype=bool)
        for links in (asked.ways.first, asked.ways.last):
            always |= (links >= 0) & (asked.fixed[links] >= level * (asked.unit or 0.0) - ROUNDING)
        for flow, hot in enumerate(self.hot):
            self.met[self.group[flow]] += int(hot > 0) + int(always[flow])

    def improve(self, tries: int) -> int:
        """Make moves until none helps; how many tries are left."""
        better = True
        while better and tries > 0:
            better = False
            for flow in self._rare():
                for change in self._changes(flow):
                    tries -= 1
                    if self._gain(change) < -ROUNDING:
                        self._make(change)
                        better = True
                        break
                    if tries <= 0:
                        return 0
        return tries

    def _rare(self) -> list[int]:
        """The flows on busy links, those of groups with fewest of them first."""
        return sorted(
            (flow for flow, hot in enumerate(self.hot) if hot), key=lambda flow: (self.met[self.group[flow]], flow)
        )

    def _changes(self, flow: int) -> Iterator[list[tuple[int, int]]]:
        """Flows with new columns: this flow on another path, or on that of a flow with the same ends."""
        if not self.hot[flow]:
            return
        for other in self.beside[self.commodity[flow]]:
            if not self.hot[other] and self.group[other] != self.group[flow]:
                yield [(flow, self.at[other]), (other, self.at[flow])]
        here = set(self.crossed[self.at[flow]])
        for column in self.columns[self.commodity[flow]]:
            fresh = [link for link in self.crossed[column] if link not in here]
            if fresh and all(len(self.on[link]) < self.level for link in fresh):
                yield [(flow, column)]

    def _gain(self, change: list[tuple[int, int]]) -> float:
        """What a change does to the potential."""
        before = {flow: self.hot[flow] for flow in self._near(change)}
        old = [(flow, self.at[flow]) for flow, _ in change]
        self._put(change)
        near = before.keys() | self._near(change)
        after = {flow: self._count(flow) for flow in near}
        self._put(old)
        moved: dict[int, int] = {}
        for flow in near:
            step = (after[flow] > 0) - (self.hot[flow] > 0)
            if step:
                moved[self.group[flow]] = moved.get(self.group[flow], 0) + step
        return float(
            fsum((self.met[each] + step) ** 0.5 - self.met[each] ** 0.5 for each, step in sorted(moved.items()))
        )

    def _near(self, change: list[tuple[int, int]]) -> set[int]:
        """The flows that share a link with those that change, before or after."""
        found = {flow for flow, _ in change}
        for flow, column in change:
            for link in (*self.crossed[self.at[flow]], *self.crossed[column]):
                found |= self.on[link]
        return found

    def _count(self, flow: int) -> int:
        return sum(len(self.on[link]) >= self.level for link in self.crossed[self.at[flow]])

    def _put(self, change: list[tuple[int, int]]) -> None:
        for flow, _ in change:
            for link in self.crossed[self.at[flow]]:
                self.on[link].discard(flow)
        for flow, column in change:
            self.at[flow] = column
            for link in self.crossed[column]:
                self.on[link].add(flow)

    def _make(self, change: list[tuple[int, int]]) -> None:
        near = self._near(change)
        self._put(change)
        for flow in near | self._near(change):
            hot = self._count(flow)
            self.met[self.group[flow]] += (hot > 0) - (self.hot[flow] > 0)
            self.hot[flow] = hot
        for flow, column in change:
            self.up[flow], self.down[flow] = self.ways[0][column], self.ways[1][column]
