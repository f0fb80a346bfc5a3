"""Route all flows of all jobs on a fabric, and say how good the routes are and how good any could be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from weft.errors import BadInput, UnknownName
from weft.fabric.families import clos
from weft.fabric.spec import Fabric, Floats
from weft.fabric.traffic import Routes
from weft.routing import ecmp, routers
from weft.routing.bound import MOST_COLUMNS, closed_bound, lp_bound
from weft.routing.choice import Choice
from weft.routing.objective import Efficiency, JobOutcome, Objective, efficiency, flow_rates, outcomes
from weft.routing.problem import Problem, problem
from weft.routing.rail import rail_paths
from weft.routing.traffic import JobTraffic, job_traffic

BOUNDS = ("auto", "cuts", "lp")
LP_WHEN_AUTO = 60_000
"""Variables up to which the LP is solved without being asked for."""
DIGITS = 9
"""Decimals of congestion; the rest is rounding of sums."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutePlan:
    """Routes of every flow of ``traffic`` (which is split where the router splits).

    ``alpha`` is the congestion: demand over capacity of the busiest link, with equal flows the number of
    flows on it; ``alpha_bound`` is what no routes of these flows stay below, proved by ``bound_by`` (sprayed
    flows count as fluid, others as whole).
    ``load`` is every link's, ``rates_Bps`` the max-min fair rates while all flows send at once.
    """

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
    def gap(self) -> float:
        """How far ``alpha`` is above its bound, as a share of the bound."""
        return max(0.0, self.alpha / self.alpha_bound - 1.0) if self.alpha_bound > 0 else 0.0


def route(fabric: Fabric, traffic: JobTraffic, *, router: str = "auto", seed: int = 0, split: int = 2) -> Routes:
    """The links of every flow; see ``plan``."""
    asked, chosen = _asked(fabric, traffic, router, split)
    return chosen(asked, seed).routes


def plan(
    fabric: Fabric,
    traffic: JobTraffic,
    *,
    router: str = "auto",
    seed: int = 0,
    split: int = 2,
    objective: str | Objective = "collective",
    bound: str = "auto",
    time_limit_s: float = 60.0,
) -> RoutePlan:
    """Route traffic and judge the routes.

    Args:
        router: one of ``weft.routing.routers.ROUTERS``.
        seed: of hashes, draws and searches.
        split: into how many parts "split" cuts each flow.
        objective: see ``weft.routing.objective``.
        bound: "cuts": closed form; "lp": also the fractional optimum; "auto": the LP where the routes are
        above
            the cuts and it is small.
        time_limit_s: of "ilp".

    Raises:
        UnknownName: there is no such router, objective or bound.
        BadInput: flows that cannot be routed.
        Unsupported: a router that does not apply.
    """
    if bound not in BOUNDS:
        raise UnknownName("bound", bound, BOUNDS, where="--bound")
    asked, chosen = _asked(fabric, traffic, router, split, time_limit_s)
    _load_kernels()
    begun = time.perf_counter()
    found = chosen(asked, seed)
    seconds = time.perf_counter() - begun
    load = asked.loads(found.routes)
    alpha = round(float(load.max(initial=0.0)), DIGITS)
    low, proof = _bound(asked, found, alpha, bound)
    rates = flow_rates(fabric, asked.traffic, found.routes)
    return RoutePlan(
        fabric=fabric,
        traffic=asked.traffic,
        router=router,
        seed=seed,
        routes=found.routes,
        alpha=alpha,
        alpha_bound=low,
        bound_by=proof,
        load=load,
        rates_Bps=rates,
        efficiency=efficiency(asked.traffic, rates / asked.demand_Bps, low, objective),
        jobs=outcomes(asked.traffic, asked.demand_Bps, rates),
        solve_s=seconds,
    )


@cache
def _load_kernels() -> None:
    """Run every compiled loop once, so that ``solve_s`` counts no compilation."""
    small = clos.build(16, radix=4, bandwidth_Bps=1.0, tiers=3)
    hosts = np.arange(16)
    asked = problem(small, job_traffic(hosts, np.roll(hosts, 1), np.ones(16)))
    rates = 0.1 + hosts.astype(np.float64) / 17
    uneven = problem(small, job_traffic(hosts, np.roll(hosts, 2), rates, cap_Bps=rates))
    for one in (asked, uneven):
        for name in ("ecmp", "ecmp-paper", "repair"):
            routers.ROUTERS[name](one, 0)
    routers.route_coloured(asked, 0)
    Choice(asked, *ecmp.paper_ecmp(asked)).reach(1.0)


def _asked(
    fabric: Fabric, traffic: JobTraffic, router: str, split: int, time_limit_s: float = 60.0
) -> tuple[Problem, Callable[[Problem, int], routers.Found]]:
    """The problem that a router solves, and the router."""
    if router not in routers.ROUTERS:
        raise UnknownName("router", router, routers.ROUTERS, where="--router")
    if router == "split" and not 1 <= split <= 64:
        raise BadInput(f"{split} parts", where="--split", remedy="give 1 to 64")
    flows = traffic.split(split) if router == "split" else traffic
    asked = problem(fabric, flows, paths=rail_paths(fabric) if router == "rail" else None)
    if router == "ilp":
        return asked, lambda one, seed: routers.route_exact(one, seed, time_limit_s)
    return asked, routers.ROUTERS[router]


def _bound(asked: Problem, found: routers.Found, alpha: float, wanted: str) -> tuple[float, str]:
    """The best bound and what proves it; of whole flows, unless they are sprayed."""
    whole = bool(np.all(found.routes.usage == 1.0))
    low, proof = closed_bound(asked, whole=whole), "cuts"
    if found.bound > low:
        low, proof = found.bound, "ilp"
    above = alpha > low * (1 + 1e-9)
    if wanted == "lp" or (wanted == "auto" and above):
        most = MOST_COLUMNS if wanted == "lp" else LP_WHEN_AUTO
        fluid = lp_bound(asked, most=most, whole=whole)
        if fluid is not None and fluid > low * (1 + 1e-9):
            low, proof = fluid, "lp"
    return round(low, DIGITS), proof


__all__ = ["BOUNDS", "RoutePlan", "plan", "route"]
