"""Routers: each gives every flow of some traffic its links on a fabric, under one contract.

``route(problem, seed) -> RouterResult``: the same problem and seed give the same routes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.errors import Unsupported
from weft.fabric.paths import Paths
from weft.fabric.spec import SCALE_UP, Floats, Ints, ranks
from weft.fabric.traffic import Routes
from weft.routing.bound import MOST_COLUMNS, CommodityPaths, closed_bound, least_congestion, paths_of
from weft.routing.choice import ENOUGH, PathChoice, ordered
from weft.routing.colouring import coloured
from weft.routing.problem import Problem
from weft.routing.traffic import JobTraffic


def _key(traffic: JobTraffic) -> Ints:
    """What tells the flows of a pair apart: queue pair, and collective by order of appearance."""
    return ranks(traffic.source * (int(traffic.target.max(initial=0)) + 1) + traffic.target)


PASSES = 40
"""Rounds of single moves."""
CHAINS = (12, 50, 400)
"""Moves in a chain, tried in turn."""
FINE = 0.005
"""Step to which congestion of unequal flows is brought down: a share of the bound, or of what is reached
where no bound is known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RouterResult:
    """Routes; the ways taken, where each flow has one; and a bound on congestion that the router proved."""

    routes: Routes
    ways: tuple[Ints, Ints] | None = None
    bound: float = 0.0


def route_hashed(problem: Problem, seed: int) -> RouterResult:
    """ECMP: a hash of source, destination and queue pair at every hop."""
    traffic = problem.traffic
    routes = Paths(problem.fabric).routes(traffic.source, traffic.target, seed=seed, key=_key(traffic))
    return RouterResult(routes=routes)


def route_sprayed(problem: Problem, seed: int) -> RouterResult:
    """Packet spraying: every flow over all its paths."""
    traffic = problem.traffic
    return RouterResult(routes=Paths(problem.fabric).routes(traffic.source, traffic.target, mode="spray", seed=seed))


def route_greedy(problem: Problem, seed: int) -> RouterResult:
    """The paper's greedy: flows by the busiest leaves, each on its path with the least highest load."""
    choice = PathChoice(problem)
    choice.place(by_leaves(problem), smooth=False)
    return _result(problem, choice.up, choice.down)


def route_coloured(problem: Problem, seed: int) -> RouterResult:
    """Edge colouring, exact for equal flows on a Clos; what failed links leave is repaired.

    Raises:
        Unsupported: flows of unequal demand, links of unequal capacity, or no Clos.
    """
    if problem.unit is None and len(problem.demand_Bps):
        raise Unsupported(
            "edge colouring is for equal flows; these differ in demand, or links in capacity",
            where="--router edge-coloring",
            remedy="use repair, which takes any demands",
        )
    choice = _started(problem, None)
    improve(choice, closed_bound(problem))
    return _result(problem, choice.up, choice.down)


def route_repaired(problem: Problem, seed: int) -> RouterResult:
    """Greedy by falling demand, then local search: single moves, and chains of displaced flows.

    Where that stays above the bound on a Clos, it is tried again from an edge colouring.
    """
    low = closed_bound(problem)
    choice = PathChoice(problem)
    choice.place(ordered(problem) if problem.unit is None else by_leaves(problem), smooth=True)
    # Step 2: single moves.  Step 3, where these do not reach the bound: begin from an edge colouring, whose flows
    # are spread evenly over the switches above the leaves; the better start goes on to chains of moves.
    choice.relax(low, PASSES)
    if choice.congestion > low * (1 + ENOUGH):
        try:
            coloured_start = _started(problem, ordered(problem))
        except Unsupported:
            coloured_start = choice
        coloured_start.relax(low, PASSES)
        if coloured_start.congestion < choice.congestion:
            choice = coloured_start
        improve(choice, low)
    return _result(problem, choice.up, choice.down)


def _started(problem: Problem, order: Ints | None) -> PathChoice:
    """The choice of an edge colouring; flows that found no colour are placed where they are best."""
    choice = PathChoice(problem, *coloured(problem, order))
    choice.place(np.arange(len(choice.up)), smooth=True)
    return choice


def route_exact(
    problem: Problem, seed: int, seconds: float = 60.0, first: tuple[Ints, Ints] | None = None
) -> RouterResult:
    """Integer program: flows with the same ends and demand are one variable per path, how many of them take it.

    Args:
        seconds: limit; the best choice until then is returned.
        first: the choice to begin with; repaired routes by default.

    Raises:
        Unsupported: too many variables.
    """
    ways = route_repaired(problem, seed).ways if first is None else first
    assert ways is not None
    paths = paths_of(problem)
    if paths is None:
        remedy = "use repair, which has a bound too"
        raise Unsupported(f"more than {MOST_COLUMNS:,} flows times paths", where="--router ilp", remedy=remedy)
    # The first choice is an incumbent: the solver never returns anything worse.
    result = least_congestion(
        problem,
        paths,
        integer=[True] * len(paths.owner) + [False],
        start=_taken(problem, paths, *ways),
        seconds=float(seconds),
        seed=seed,
        gap=0.0,
    )
    # Without any solution in time the first choice stands, and nothing is proved.
    if not len(result.values):
        return _result(problem, *ways)
    # A bound over some of the paths is not a bound over all.
    proved = 0.0 if problem.limited else result.bound
    return _result(problem, *_dealt(paths, np.round(result.values[:-1]).astype(np.int64)), proved)


def route_best(problem: Problem, seed: int) -> RouterResult:
    """Edge colouring where it applies, otherwise repair."""
    try:
        return route_coloured(problem, seed)
    except Unsupported:
        return route_repaired(problem, seed)


Router = Callable[[Problem, int], RouterResult]
ROUTERS: dict[str, Router] = {
    "auto": route_best,
    "ecmp": route_hashed,
    "greedy": route_greedy,
    "edge-coloring": route_coloured,
    "repair": route_repaired,
    "ilp": route_exact,
    "split": route_repaired,
    "spray": route_sprayed,
}
"""``split`` routes the flows of a split traffic."""


def improve(choice: PathChoice, low: float) -> None:
    """Bring congestion down to ``low``, or as far as local search can.

    Short chains come first, so that few flows move.  If they do not get there, targets between the bound and
    the present congestion are halved.
    """
    choice.relax(low, PASSES)
    if choice.congestion <= low * (1 + ENOUGH) or any(choice.reach(low, steps=steps) for steps in CHAINS):
        return
    unit, high, floor = choice.problem.unit, choice.congestion, low
    # Bisection: `high` is reached, `floor` is the bound or was not reached.  Loads of equal flows are multiples of
    # `unit`, so that the middle is one too, and the loop ends when no multiple is left between.
    while high - floor > (unit or FINE * (low or high)) * (1 + ENOUGH):
        middle = (floor + high) / 2
        if unit is not None:
            middle = max(unit * float(np.floor(middle / unit + ENOUGH)), floor + unit)
        if choice.reach(middle):
            high = choice.congestion
        else:
            floor, high = middle, choice.congestion


def by_leaves(problem: Problem) -> Ints:
    """The paper's order: the flows into and out of the leaf with most of them first, then of the next.

    Among equals, sets that leave (key "a_<leaf>") come before sets that arrive ("b_<leaf>"), by the text of the
    key; flows in a set keep their order.
    """
    fabric = problem.fabric
    leaves = np.flatnonzero(problem.climbs.level == 1)
    outer = np.flatnonzero(fabric.tier > SCALE_UP)
    # Set 0 leaves or enters hosts without a leaf, set n leaf n - 1.
    below = np.zeros(fabric.accelerators, dtype=np.int64)
    mine = outer[fabric.source[outer] < fabric.accelerators][::-1]
    below[fabric.source[mine]] = 1 + np.searchsorted(leaves, np.minimum(fabric.target[mine], fabric.nodes - 1))
    count = int(below.max(initial=0)) + 1
    sets = np.stack([below[problem.traffic.source], count + below[problem.traffic.target]])
    size = np.bincount(sets.ravel(), minlength=2 * count)
    order = sorted(range(2 * count), key=lambda at: (-size[at], f"{'ab'[at // count]}_{at % count - 1}"))
    place = np.empty(2 * count, dtype=np.int64)
    place[order] = np.arange(2 * count)
    # A flow is in the set of its source's leaf and in that of its target's: its first place counts.
    return np.argsort(place[sets].min(axis=0), kind="stable")


def _result(problem: Problem, up: Ints, down: Ints, bound: float = 0.0) -> RouterResult:
    return RouterResult(routes=problem.routes(up, down), ways=(up.copy(), down.copy()), bound=bound)


def _taken(problem: Problem, paths: CommodityPaths, up: Ints, down: Ints) -> Floats:
    """How many flows of each commodity take each path in a choice, and its congestion."""
    column = {
        key: i for i, key in enumerate(zip(paths.owner.tolist(), paths.up.tolist(), paths.down.tolist(), strict=True))
    }
    values = np.zeros(len(paths.owner) + 1)
    for key in zip(paths.commodity.tolist(), up.tolist(), down.tolist(), strict=True):
        values[column[key]] += 1
    values[-1] = float(problem.loads(problem.routes(up, down)).max(initial=0.0))
    return values


def _dealt(paths: CommodityPaths, many: Ints) -> tuple[Ints, Ints]:
    """Paths of the flows of each commodity, in order."""
    # Flows of a commodity are exchangeable: in order they take its columns as often as the program says.
    column = np.repeat(np.arange(len(many)), many)
    order = np.argsort(paths.commodity, kind="stable")
    up, down = np.zeros(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
    up[order], down[order] = paths.up[column], paths.down[column]
    return up, down
