"""Routers: each gives every flow of some traffic its links on a fabric, under one contract.

``route(problem, seed) -> Found``: the same problem and seed give the same routes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.errors import Unsupported
from weft.fabric.spec import SCALE_UP, Floats, Ints
from weft.fabric.traffic import Routes
from weft.routing import ecmp
from weft.routing.bound import MOST_COLUMNS, CommodityPaths, closed_bound, least_congestion, paths_of
from weft.routing.choice import ENOUGH, Choice, ordered
from weft.routing.colouring import coloured
from weft.routing.problem import Problem

PASSES = 40
"""Rounds of single moves."""
CHAINS = (12, 50, 400)
"""Moves in a chain, tried in turn."""
FINE = 0.005
"""Step to which congestion of unequal flows is brought down: a share of the bound, or of what is reached
where no bound is known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """Routes; the ways taken, where each flow has one; and a bound on congestion that the router proved."""

    routes: Routes
    ways: tuple[Ints, Ints] | None = None
    bound: float = 0.0


def route_hashed(asked: Problem, seed: int) -> Found:
    """ECMP: a hash of source, destination and queue pair at every hop."""
    return Found(routes=ecmp.hashed(asked.fabric, asked.traffic, seed=seed))


def route_sprayed(asked: Problem, seed: int) -> Found:
    """Packet spraying: every flow over all its paths."""
    return Found(routes=ecmp.hashed(asked.fabric, asked.traffic, seed=seed, mode="spray"))


def route_paper_ecmp(asked: Problem, seed: int) -> Found:
    """The hash of the routing paper's code, for comparisons with its figures."""
    return _found(asked, *ecmp.paper_ecmp(asked))


def route_greedy(asked: Problem, seed: int) -> Found:
    """The paper's greedy: flows by the busiest leaves, each on its path with the least highest load."""
    choice = Choice(asked)
    choice.place(by_leaves(asked), smooth=False)
    return _found(asked, choice.up, choice.down)


def route_coloured(asked: Problem, seed: int) -> Found:
    """Edge colouring, exact for equal flows on a Clos; what failed links leave is repaired.

    Raises:
        Unsupported: flows of unequal demand, links of unequal capacity, or no Clos.
    """
    if asked.unit is None and len(asked.demand_Bps):
        raise Unsupported(
            "edge colouring is for equal flows; these differ in demand, or links in capacity",
            where="--router edge-coloring",
            remedy="use repair, which takes any demands",
        )
    choice = _started(asked, None)
    improve(choice, closed_bound(asked))
    return _found(asked, choice.up, choice.down)


def route_repaired(asked: Problem, seed: int) -> Found:
    """Greedy by falling demand, then local search: single moves, and chains of displaced flows.

    Where that stays above the bound on a Clos, it is tried again from an edge colouring.
    """
    low = closed_bound(asked)
    choice = Choice(asked)
    choice.place(ordered(asked) if asked.unit is None else by_leaves(asked), smooth=True)
    choice.relax(low, PASSES)
    if choice.congestion > low * (1 + ENOUGH):
        try:
            other = _started(asked, ordered(asked))
        except Unsupported:
            other = choice
        other.relax(low, PASSES)
        if other.congestion < choice.congestion:
            choice = other
        improve(choice, low)
    return _found(asked, choice.up, choice.down)


def _started(asked: Problem, order: Ints | None) -> Choice:
    """The choice of an edge colouring; flows that found no colour are placed where they are best."""
    choice = Choice(asked, *coloured(asked, order))
    choice.place(np.arange(len(choice.up)), smooth=True)
    return choice


def route_exact(asked: Problem, seed: int, seconds: float = 60.0) -> Found:
    """Integer program, from the repaired routes on."""
    first = route_repaired(asked, seed).ways
    assert first is not None
    solved = solve_ilp(asked, *first, seconds=seconds, seed=seed)
    return _found(asked, solved.up, solved.down, solved.bound)


def route_best(asked: Problem, seed: int) -> Found:
    """Edge colouring where it applies, otherwise repair."""
    try:
        return route_coloured(asked, seed)
    except Unsupported:
        return route_repaired(asked, seed)


Router = Callable[[Problem, int], Found]
ROUTERS: dict[str, Router] = {
    "auto": route_best,
    "ecmp": route_hashed,
    "ecmp-paper": route_paper_ecmp,
    "greedy": route_greedy,
    "edge-coloring": route_coloured,
    "repair": route_repaired,
    "ilp": route_exact,
    "split": route_repaired,
    "spray": route_sprayed,
    "rail": route_repaired,
}
"""``split`` routes the flows of a split traffic, ``rail`` those of a problem with the paths over rails.

``ecmp-paper`` is for comparisons with the paper's figures; no option offers it."""


def improve(choice: Choice, low: float) -> None:
    """Bring congestion down to ``low``, or as far as local search can.

    Short chains come first, so that few flows move.  If they do not get there, targets between the bound and
    the present congestion are halved.
    """
    choice.relax(low, PASSES)
    if choice.congestion <= low * (1 + ENOUGH) or any(choice.reach(low, steps=steps) for steps in CHAINS):
        return
    unit, high, floor = choice.problem.unit, choice.congestion, low
    while high - floor > (unit or FINE * (low or high)) * (1 + ENOUGH):
        middle = (floor + high) / 2
        if unit is not None:
            middle = max(unit * float(np.floor(middle / unit + ENOUGH)), floor + unit)
        if choice.reach(middle):
            high = choice.congestion
        else:
            floor, high = middle, choice.congestion


def by_leaves(asked: Problem) -> Ints:
    """The paper's order: the flows into and out of the leaf with most of them first, then of the next.

    Among equals, sets that leave (key "a_<leaf>") come before sets that arrive ("b_<leaf>"), by the text of the
    key; flows in a set keep their order.
    """
    fabric = asked.fabric
    leaves = np.flatnonzero(asked.climbs.level == 1)
    outer = np.flatnonzero(fabric.tier > SCALE_UP)
    below = np.full(fabric.accelerators, -1, dtype=np.int64)
    mine = outer[fabric.source[outer] < fabric.accelerators][::-1]
    below[fabric.source[mine]] = np.searchsorted(leaves, np.minimum(fabric.target[mine], fabric.nodes - 1))
    sets = [
        (-len(flows), f"{letter}_{leaf}", flows)
        for letter, ends in (("a", asked.traffic.source), ("b", asked.traffic.target))
        for leaf, flows in _grouped(below[ends])
    ]
    order = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(flows for _, _, flows in sorted(sets, key=lambda s: s[:2]))]
    )
    _, first = np.unique(order, return_index=True)
    return np.asarray(order[np.sort(first)])


def _grouped(label: Ints) -> list[tuple[int, Ints]]:
    order = np.argsort(label, kind="stable")
    values, begin = np.unique(label[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, begin[1:]), strict=True)) if len(values) else []


def _found(asked: Problem, up: Ints, down: Ints, bound: float = 0.0) -> Found:
    return Found(routes=asked.routes(up, down), ways=(up.copy(), down.copy()), bound=bound)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solved:
    """Ways of every flow, and the bound that the solver proved (0 where it had not all paths)."""

    up: Ints
    down: Ints
    bound: float


def solve_ilp(
    asked: Problem, up: Ints, down: Ints, *, seconds: float = 60.0, seed: int = 0, most: int = MOST_COLUMNS
) -> Solved:
    """Choose paths with the least congestion, from a first choice on.

    Flows with the same ends and demand are one integer variable per path: how many of them take it.

    Args:
        up, down: the first choice.
        seconds: limit; the best choice until then is returned.

    Raises:
        Unsupported: more than ``most`` variables.
    """
    paths = paths_of(asked, most=most)
    if paths is None:
        raise Unsupported(
            f"more than {most:,} flows times paths", where="--router ilp", remedy="use repair, which has a bound too"
        )
    found = least_congestion(
        asked,
        paths,
        integer=[True] * len(paths.owner) + [False],
        start=_taken(asked, paths, up, down),
        seconds=float(seconds),
        seed=seed,
        gap=0.0,
    )
    if not len(found.values):
        return Solved(up=up, down=down, bound=0.0)
    chosen_up, chosen_down = _dealt(paths, np.round(found.values[:-1]).astype(np.int64))
    proved = 0.0 if asked.limited else found.bound
    return Solved(up=chosen_up, down=chosen_down, bound=proved)


def _taken(asked: Problem, paths: CommodityPaths, up: Ints, down: Ints) -> Floats:
    """How many flows of each commodity take each path in a choice, and its congestion."""
    column = {
        key: i for i, key in enumerate(zip(paths.owner.tolist(), paths.up.tolist(), paths.down.tolist(), strict=True))
    }
    values = np.zeros(len(paths.owner) + 1)
    for key in zip(paths.commodity.tolist(), up.tolist(), down.tolist(), strict=True):
        values[column[key]] += 1
    values[-1] = float(asked.loads(asked.routes(up, down)).max(initial=0.0))
    return values


def _dealt(paths: CommodityPaths, many: Ints) -> tuple[Ints, Ints]:
    """Paths of the flows of each commodity, in order."""
    column = np.repeat(np.arange(len(many)), many)
    order = np.argsort(paths.commodity, kind="stable")
    up, down = np.zeros(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
    up[order], down[order] = paths.up[column], paths.down[column]
    return up, down
