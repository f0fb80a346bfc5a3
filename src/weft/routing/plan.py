"""Route all flows of all jobs on a fabric, and say how good the routes are and how good any could be.

The network-wide efficiency of routes is two layers of max-min fairness.  Inner layer: for fixed routes,
congestion control gives every flow its max-min fair rate.  Outer layer: a group of flows moves at the pace of
its slowest one; the better routes are those whose sorted list of paces is lexicographically larger.  A pace is
a rate over the flow's demand: 1 is as if alone.  With equal flows the lowest pace is 1 / congestion.  (The
paper's definition could not be read; this reconstruction fits its name, its code and its baselines, see
docs/routing.md.)

The groups are collectives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from weft.codec import Document
from weft.errors import BadInput, UnknownName
from weft.fabric.families import clos
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import Routes
from weft.routing import _kernels, routers
from weft.routing.bound import MOST_COLUMNS, closed_bound, lp_bound
from weft.routing.choice import links_of, on_links
from weft.routing.problem import Problem, routing_problem
from weft.routing.traffic import JobTraffic, job_traffic
from weft.solvers import maxmin

BOUNDS = ("auto", "cuts", "lp")
LP_WHEN_AUTO = 60_000
"""Variables up to which the LP is solved without being asked for."""
DIGITS = 9
"""Decimals of congestion; the rest is rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutePlan(Document):
    """Routes of every flow of ``traffic`` (which is split where the router splits).

    ``alpha`` is the congestion: demand over capacity of the busiest link, with equal flows the number of flows on
    it; no routes of these flows have less than ``alpha_bound``, as ``bound_by`` proves (sprayed flows count
    as fluid, others as whole).  ``load`` is every link's, ``rates_Bps`` the max-min fair rates while all flows
    send at once.
    """

    DOCUMENT = """
        fabric=fabric.name router seed flows alpha alpha_bound bound_by gap objective=efficiency jobs"""

    fabric: Fabric
    traffic: JobTraffic
    router: str
    seed: int
    routes: Routes
    alpha: float
    alpha_bound: float
    bound_by: str
    load: Floats
    rates_Bps: Floats
    efficiency: Efficiency
    jobs: tuple[JobOutcome, ...]
    solve_s: float

    @property
    def flows(self) -> int:
        return len(self.traffic)

    @property
    def gap(self) -> float:
        """How far ``alpha`` is above its bound, as a share of the bound."""
        return max(0.0, self.alpha / self.alpha_bound - 1.0) if self.alpha_bound > 0 else 0.0


def route(fabric: Fabric, traffic: JobTraffic, *, router: str = "auto", seed: int = 0, split: int = 2) -> Routes:
    """The links of every flow; see ``plan``."""
    problem, chosen = _asked(fabric, traffic, router, split)
    return chosen(problem, seed).routes


def plan(
    fabric: Fabric, traffic: JobTraffic, *, router: str = "auto", seed: int = 0, split: int = 2, bound: str = "auto"
) -> RoutePlan:
    """Route traffic and judge the routes.

    Args:
        router: one of ``weft.routing.routers.ROUTERS``.
        seed: of hashes, draws and searches.
        split: into how many parts "split" cuts each flow.
        bound: "cuts": closed form; "lp": also the fractional optimum; "auto": the LP where the routes are above
            the cuts and it is small.

    Raises:
        UnknownName: there is no such router or bound.
        BadInput: flows that cannot be routed.
        Unsupported: a router that does not apply.
    """
    if bound not in BOUNDS:
        raise UnknownName("bound", bound, BOUNDS, where="bound")
    problem, chosen = _asked(fabric, traffic, router, split)
    _load_kernels()
    begun = time.perf_counter()
    result = chosen(problem, seed)
    seconds = time.perf_counter() - begun
    return judged(problem, result, router=router, seed=seed, bound=bound, solve_s=seconds)


def judged(
    problem: Problem,
    result: routers.RouterResult,
    *,
    router: str,
    seed: int = 0,
    bound: str = "auto",
    solve_s: float = 0.0,
) -> RoutePlan:
    """How good some routes are, whoever chose them; see ``plan``."""
    load = problem.loads(result.routes)
    alpha = round(float(load.max(initial=0.0)), DIGITS)
    low, proof = _bound(problem, result, alpha, bound)
    rates = flow_rates(problem.fabric, problem.traffic, result.routes)
    reached = efficiency(problem.traffic, rates / problem.demand_Bps, low)
    return RoutePlan(
        fabric=problem.fabric,
        traffic=problem.traffic,
        router=router,
        seed=seed,
        routes=result.routes,
        alpha=alpha,
        alpha_bound=low,
        bound_by=proof,
        load=load,
        rates_Bps=rates,
        efficiency=reached,
        jobs=outcomes(problem.traffic, problem.demand_Bps, rates),
        solve_s=solve_s,
    )


@cache
def _load_kernels() -> None:
    """Run every compiled loop once, so that ``solve_s`` counts no compilation."""
    small = clos.build(16, radix=4, bandwidth_Bps=1.0, tiers=3)
    hosts = np.arange(16)
    problem = routing_problem(small, job_traffic(hosts, np.roll(hosts, 1), np.ones(16)))
    # Unequal demands, which repair treats in another order and with finer targets than equal ones.
    rates = 0.1 + hosts.astype(np.float64) / 17
    uneven = routing_problem(small, job_traffic(hosts, np.roll(hosts, 2), rates, cap_Bps=rates))
    for example in (problem, uneven):
        for name in ("ecmp", "repair"):
            routers.ROUTERS[name](example, 0)
    routers.route_coloured(problem, 0)
    hashed = links_of(routers.route_hashed(problem, 0).routes, 2 * problem.ways.up.shape[1] + 2)
    on_links(problem, hashed, hosts).reach(1.0)


def _asked(
    fabric: Fabric, traffic: JobTraffic, router: str, split: int
) -> tuple[Problem, Callable[[Problem, int], routers.RouterResult]]:
    """The problem that a router solves, and the router."""
    if router not in routers.ROUTERS:
        raise UnknownName("router", router, routers.ROUTERS, where="--router")
    if router == "split" and not 1 <= split <= 64:
        raise BadInput(f"{split} parts", where="--split", remedy="give 1 to 64")
    flows = traffic.split(split) if router == "split" else traffic
    return routing_problem(fabric, flows), routers.ROUTERS[router]


def _bound(problem: Problem, result: routers.RouterResult, alpha: float, wanted: str) -> tuple[float, str]:
    """The best bound and what proves it; of whole flows, unless they are sprayed."""
    whole = bool(np.all(result.routes.usage == 1.0))
    # Cheapest proof first: cuts, what the router itself proved, and an LP only where routes are above both.
    low, proof = closed_bound(problem, whole=whole), "cuts"
    if result.bound > low:
        low, proof = result.bound, "ilp"
    above = alpha > low * (1 + 1e-9)
    if wanted == "lp" or (wanted == "auto" and above):
        most = MOST_COLUMNS if wanted == "lp" else LP_WHEN_AUTO
        fluid = lp_bound(problem, most=most, whole=whole)
        if fluid is not None and fluid > low * (1 + 1e-9):
            low, proof = fluid, "lp"
    return round(low, DIGITS), proof


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Efficiency(Document):
    """Paces of all collectives, slowest first, and the most that the slowest could have."""

    DOCUMENT = "name value bound gap"

    paces: Floats
    bound: float

    @property
    def name(self) -> str:
        return "collective"

    @property
    def value(self) -> float:
        """The pace of the slowest group; 1 without any."""
        return float(self.paces[0]) if len(self.paces) else 1.0

    @property
    def mean(self) -> float:
        """The mean pace of the groups; 1 without any."""
        return float(self.paces.mean()) if len(self.paces) else 1.0

    @property
    def gap(self) -> float:
        """How far the slowest group is from its bound, as a share of the bound; 0 is optimal."""
        return max(0.0, 1.0 - self.value / self.bound)


def flow_rates(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> Floats:
    """Max-min fair rates in bytes/s while all flows send at once."""
    capacity = np.where(fabric.up, fabric.capacity_Bps, 0.0)
    return maxmin.solve(capacity, routes.indptr, routes.links, routes.usage, np.ones(len(traffic)), traffic.cap_Bps)


def path_rates(fabric: Fabric, traffic: JobTraffic, links: Ints) -> Floats:
    """``flow_rates`` of flows with a path each over links that are up: rows of ``links``, -1 behind.

    A link with one flow is a cap on that flow, so that only links with several are left to share.
    """
    number, rates = np.zeros(fabric.links, dtype=np.int32), traffic.cap_Bps.copy()
    left, places = np.zeros(fabric.links), np.zeros(links.size, dtype=np.int64)
    ends = np.zeros(len(links) + 1, dtype=np.int64)
    used, shared = _kernels.capped(links, fabric.capacity_Bps, number, left, rates, places, ends[1:])
    crowd = np.flatnonzero(np.diff(ends))
    if len(crowd):
        indptr = np.append(0, ends[1:][crowd])
        usage, weight = np.ones(used), np.ones(len(crowd))
        rates[crowd] = maxmin.solve(left[:shared], indptr, places[:used], usage, weight, rates[crowd])
    return rates


def efficiency(traffic: JobTraffic, pace: Floats, congestion_bound: float) -> Efficiency:
    """The efficiency of flows with given paces.

    On a link with congestion A the slowest flow has a pace of at most 1 / A, which bounds the slowest group.
    """
    paces = np.sort(_least(pace, traffic.collective, len(traffic.job)))
    return Efficiency(paces=paces, bound=1.0 / max(1.0, congestion_bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What routes mean for one job, while all jobs send at once.

    ``slowdown`` is the time of a round against that without collisions; ``all_reduce_s`` the time of all
    rounds of the slowest collective, ``iteration_s`` with the job's compute pause, and the same ``alone``.
    """

    job: str
    flows: int
    slowdown: float
    all_reduce_s: float
    alone_s: float
    iteration_s: float
    alone_iteration_s: float


def outcomes(traffic: JobTraffic, demand_Bps: Floats, rates: Floats) -> tuple[JobOutcome, ...]:
    """What comes of every job, in order."""
    # Demand is the rate alone: the inverse of the slowest pace is how much longer a round lasts.
    slowest = 1.0 / _least(rates / demand_Bps, traffic.flow_job, len(traffic.jobs))
    flows = np.bincount(traffic.flow_job, minlength=len(traffic.jobs))
    all_reduce_s, alone_s = _all_reduce_s(traffic, rates), _all_reduce_s(traffic, demand_Bps)
    columns = flows, np.maximum(slowest, 0.0), all_reduce_s, alone_s, traffic.pause_s
    return tuple(
        JobOutcome(
            job=name,
            flows=count,
            slowdown=slowdown,
            all_reduce_s=now_s,
            alone_s=without_others_s,
            iteration_s=now_s + pause_s,
            alone_iteration_s=without_others_s + pause_s,
        )
        for name, count, slowdown, now_s, without_others_s, pause_s in zip(
            traffic.jobs, *(column.tolist() for column in columns), strict=True
        )
    )


def _all_reduce_s(traffic: JobTraffic, rates: Floats) -> Floats:
    """Rounds times the slowest flow of a round, of the slowest collective of each job."""
    round_s = np.zeros(len(traffic.job))
    # All flows of a round end before the next begins: a round is as long as its slowest flow.
    np.maximum.at(round_s, traffic.collective, traffic.bytes / rates)
    result = np.zeros(len(traffic.jobs))
    np.maximum.at(result, traffic.job, round_s * traffic.rounds)
    return result


def _least(pace: Floats, group: Ints, count: int) -> Floats:
    """The pace of the slowest flow of every group."""
    # A group without flows is as fast as alone.
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, group, pace)
    return np.where(np.isfinite(lowest), lowest, 1.0)
