"""Routers: each gives every flow of some traffic its links on a fabric, under one contract.

``route(problem, seed) -> RouterResult``: the same problem and seed give the same routes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from weft.errors import Unsupported
from weft.fabric.checks import components
from weft.fabric.paths import Paths
from weft.fabric.spec import SCALE_UP, Floats, Ints, Mask, ranks
from weft.fabric.traffic import Routes
from weft.routing import _kernels
from weft.routing.bound import MOST_COLUMNS, CommodityPaths, closed_bound, least_congestion, paths_of
from weft.routing.choice import ENOUGH, PathChoice, ordered
from weft.routing.problem import Problem
from weft.routing.traffic import JobTraffic
from weft.routing.ways import Ways


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


class ColouredGraph(NamedTuple):
    """Edges with their ends and colours, and the edge of each colour at each vertex (see ``_kernels``)."""

    left: Ints
    right: Ints
    colour: Ints
    out: Ints
    into: Ints


def coloured(problem: Problem, order: Ints | None = None) -> tuple[Ints, Ints]:
    """Flows on a Clos without a collision that can be avoided: edge colouring, layer by layer.

    Flows between the leaves are the edges of a bipartite multigraph, sending leaves left, receiving ones right.
    The switches above the leaves fall into parts that hang together without the leaves: single spines on two
    layers, planes of spines and cores on three; k parallel cables to one part count as k parts.  With n parts,
    one link from each leaf to each, and at most Delta flows in or out of a leaf, ceil(Delta / n) flows on a link
    are unavoidable, and enough: Koenig colours the edges with Delta colours, and colour c goes to part c modulo n.
    Inside a part the flows go on between its lowest switches in the same way.  With equal flows and as many links
    up as down that is optimal on any number of layers.

    Returns ways up and down of every flow; -1 where links are down and all colours left are closed.

    Args:
        order: in which flows are coloured; as given by default.

    Raises:
        Unsupported: the fabric is not a Clos under hosts with one NIC, or a switch reaches a part by several
        switches.
    """
    ways, fabric = problem.ways, problem.fabric
    if not (problem.climbs.sound and np.all(ways.first >= 0) and np.all(ways.last >= 0)):
        raise _unsupported("not every flow goes over one NIC and the switches of a Clos")
    flows = np.arange(len(problem.demand_Bps)) if order is None else order
    left, right = fabric.target[ways.first[flows]], fabric.source[ways.last[flows]]
    width = ways.up.shape[1]
    links = np.full((2, len(flows), width), -1, dtype=np.int64)
    lost = np.zeros(len(flows), dtype=bool)
    # Layer by layer: colour the flows that have not met, take each one link up at both ends, go on above.
    for layer in range(1, width + 1):
        open_ = np.flatnonzero((left != right) & ~lost)
        if not len(open_):
            break
        lost[open_], steps = _layer(problem, layer, left[open_], right[open_])
        going, links[:, open_, layer - 1] = open_[~lost[open_]], steps
        # Both ends are now in the same part of the fabric; they meet where they are on the same switch.
        left[going] = fabric.target[links[0, going, layer - 1]]
        right[going] = fabric.target[links[1, going, layer - 1]]
    lost |= left != right
    up, down = np.full(len(flows), -1, dtype=np.int64), np.full(len(flows), -1, dtype=np.int64)
    result = np.flatnonzero(~lost)
    up[flows[result]] = _numbers(problem, flows[result], left[result], links[0, result], 0)
    down[flows[result]] = _numbers(problem, flows[result], left[result], links[1, result], 1)
    return up, down


def _layer(problem: Problem, layer: int, left: Ints, right: Ints) -> tuple[Mask, Ints]:
    """Colour flows between switches of a layer: which found no part, and the links up at both ends."""
    fabric, table = problem.fabric, problem.climbs
    above = table.usable & (table.level[fabric.source] > layer) & (table.level[fabric.target] > layer)
    part = components(fabric.nodes, fabric.source[above], fabric.target[above])
    low, high = table.level[fabric.source] == layer, table.level[fabric.target] == layer + 1
    upward = np.flatnonzero(table.usable & low & high)
    # Planes: what hangs together from this layer upwards.
    inside = table.usable & (table.level[fabric.source] >= layer) & (table.level[fabric.target] >= layer)
    plane = components(fabric.nodes, fabric.source[inside], fabric.target[inside])
    links = np.full((2, len(left)), -1, dtype=np.int64)
    # Planes share no link above this layer, so that each is a graph by itself.
    for each in np.unique(plane[left]).tolist():
        flows = np.flatnonzero(plane[left] == each)
        mine = upward[plane[fabric.source[upward]] == each]
        # Parallel cables count as parts: the k-th up at one end goes with the k-th at the other.
        member = ranks(fabric.source[mine] * fabric.nodes + fabric.target[mine])
        switches, at = np.unique(fabric.source[mine], return_inverse=True)
        parts, to = np.unique(part[fabric.target[mine]] * (len(mine) + 1) + member, return_inverse=True)
        grid = np.full((len(switches), len(parts)), -1, dtype=np.int64)
        if len(np.unique(at * len(parts) + to)) < len(mine):
            raise _unsupported("a switch reaches the same part of the fabric by several switches")
        grid[at, to] = mine
        ends = [np.searchsorted(switches, side[flows]) for side in (left, right)]
        graph = _graph(grid, *ends)
        _kernels.insert_all(graph, np.arange(len(flows)))
        # Colour c goes to part c modulo n: ceil(Delta / n) flows on a link, the least that is possible.
        colour = np.where(graph.colour >= 0, graph.colour % len(parts), 0)
        for side in (0, 1):
            links[side, flows] = np.where(graph.colour >= 0, grid[ends[side], colour], -1)
    return links[0] < 0, links


def _graph(grid: Ints, left: Ints, right: Ints) -> ColouredGraph:
    """No edge coloured: as many colours for each part as the busiest switch needs, closed where it has
    no link.
    """
    open_ = np.maximum(np.count_nonzero(grid >= 0, axis=1), 1)
    # Koenig needs as many colours as the busiest switch has flows: that many rounds of one colour for each link.
    busiest = [np.bincount(ends, minlength=len(grid)) for ends in (left, right)]
    per_link = max(int(np.ceil(np.max(count / open_, initial=1.0) - 1e-12)) for count in busiest)
    closed = np.tile(grid < 0, (1, per_link))
    places = np.where(closed, _kernels.CLOSED, _kernels.FREE).astype(np.int64)
    return ColouredGraph(left, right, np.full(len(left), -1, dtype=np.int64), places, places.copy())


def _numbers(problem: Problem, flows: Ints, top: Ints, links: Ints, side: int) -> Ints:
    """The number of the way with given links up."""
    ways = problem.ways
    first, end = (ways.up_first, ways.up_end) if side == 0 else (ways.down_first, ways.down_end)
    result = np.full(len(flows), -1, dtype=np.int64)
    _kernels.locate(ways, first[flows], end[flows], top, links, result)
    return result


def _unsupported(why: str) -> Unsupported:
    return Unsupported(
        f"edge colouring is for a Clos; {why}",
        where="--router edge-coloring",
        remedy="use repair, which takes any fabric",
    )


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


def route_by_destination(problem: Problem, seed: int) -> RouterResult:
    """``auto`` within what tables by destination can do: one link out of each switch for each destination.

    Raises:
        Unsupported: no path of a flow follows the links that its destination has already.
    """
    bundles, bundle = bundled(problem)
    result = route_best(bundles, seed).ways
    assert result is not None
    # Bundles meet above, and must go on together from there.
    up, down = (each[bundle] for each in as_trees(bundles, *result, ordered(bundles)))
    return _result(problem, up, down)


def bundled(problem: Problem) -> tuple[Problem, Ints]:
    """The problem whose flows are bundles, and the bundle of every flow: those that enter at one switch for one
    destination, which go the same way where switches look at the destination only."""
    ways, traffic = problem.ways, problem.traffic
    entry = np.where(ways.first >= 0, problem.fabric.target[ways.first], traffic.source)
    key = entry * problem.fabric.nodes + traffic.target
    _, first, bundle = np.unique(key, return_index=True, return_inverse=True)
    if len(first) == len(key):
        return problem, np.arange(len(key))
    # A bundle comes from several hosts, whose links leave no choice; the last link is that of all its flows.
    bounds = {name: getattr(ways, name)[first] for name in (*Ways._fields[3:7], "last")}
    some = ways._replace(**bounds, first=np.full(len(first), -1, dtype=np.int64))
    demand = np.bincount(bundle, problem.demand_Bps).astype(np.float64)
    beside = replace(problem, ways=ways._replace(last=np.full(len(bundle), -1, dtype=np.int64))).fixed
    return replace(problem, traffic=traffic.select(first), ways=some, demand_Bps=demand, beside=beside), bundle


def as_trees(problem: Problem, up: Ints, down: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Ways of which those to one destination leave each switch by one link: by ``order``, a flow that would leave a
    switch otherwise takes, of its paths that do not, the one with the least highest load.

    Raises:
        Unsupported: a flow has none.
    """
    fabric, ways, up, down = problem.fabric, problem.ways, up.copy(), down.copy()
    load = PathChoice(problem, up, down).load.copy()
    leaving: dict[tuple[int, int], int] = {}

    def links_by(flow: int, a: int, b: int) -> list[int]:
        return [link for link in (*ways.up[a].tolist(), *ways.down[b].tolist()) if link >= 0]

    def fits(target: int, path: list[int]) -> bool:
        return all(leaving.get((target, int(fabric.source[link])), link) == link for link in path)

    for flow in order.tolist():
        target, path = int(problem.traffic.target[flow]), links_by(flow, up[flow], down[flow])
        if not fits(target, path):
            add = problem.demand_Bps[flow] * problem.inverse
            load[path] -= add[path]
            ups = np.arange(ways.up_first[flow], ways.up_end[flow])
            downs = np.arange(ways.down_first[flow], ways.down_end[flow])
            pairs = np.argwhere(ways.top[ups][:, None] == ways.top[downs][None, :])
            every = ((int(ups[a]), int(downs[b])) for a, b in pairs.tolist())
            open_ = [
                (links, pair)
                for pair in every
                if fits(target, links := links_by(flow, *pair)) and np.isfinite(problem.inverse[links]).all()
            ]
            if not open_:
                ends = f"{fabric.names[problem.traffic.source[flow]]} -> {fabric.names[target]}"
                raise Unsupported(f"{ends} has no path that joins the others", where="--router destination")
            path, (up[flow], down[flow]) = min(open_, key=lambda each: float((load + add)[each[0]].max(initial=0.0)))
            load[path] += add[path]
        leaving |= {(target, int(fabric.source[link])): link for link in path}
    return up, down


Router = Callable[[Problem, int], RouterResult]
ROUTERS: dict[str, Router] = {
    "auto": route_best,
    "ecmp": route_hashed,
    "greedy": route_greedy,
    "edge-coloring": route_coloured,
    "repair": route_repaired,
    "ilp": route_exact,
    "destination": route_by_destination,
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
