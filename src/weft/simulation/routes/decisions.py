"""Who routes flows while a simulation runs, when, and what it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.fabric.spec import Fabric, Floats, Ints, Mask
from weft.fabric.traffic import Routes, joined
from weft.routing.bound import closed_bound
from weft.routing.choice import Choice
from weft.routing.plan import RoutePlan
from weft.routing.problem import Problem, routing_problem
from weft.routing.routers import PASSES, ROUTERS, rail_paths

STATIC = ("ecmp", "ecmp-paper", "spray")
"""Routers that nobody runs: switches hash or spray."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside(Problem):
    """Flows to route beside others that stay, which load the links with ``others``."""

    others: Floats

    @cached_property
    def fixed(self) -> Floats:
        """What links carry whatever the choice."""
        return super().fixed + self.others


class Decisions:
    """The present routes of all flows of some jobs.

    ``plan`` is the plan over all pairs at the beginning; ``routes`` those of its traffic now; ``seconds`` has
    the time that each decision took, ``moved`` how many flows of running jobs were given another path.
    """

    def __init__(self, first: RoutePlan, *, replans: bool) -> None:
        self.plan = first
        self.fabric = first.fabric
        self.replans = replans and first.router not in STATIC
        self.routes = first.routes
        self.seconds = [] if self.replans or first.router in STATIC else [first.solve_s]
        self.moved = 0

    def replan(self, jobs: Sequence[int], staying: Sequence[int]) -> None:
        """Route all flows of some jobs anew; those of ``staying`` jobs are under way."""
        traffic = self.plan.traffic
        problem = self._problem(jobs)
        begun = time.perf_counter()
        found = ROUTERS[self.plan.router](problem, self.plan.seed).routes
        self.seconds.append(time.perf_counter() - begun)
        self._take(np.flatnonzero(np.isin(traffic.flow_job, jobs)), found, staying)

    def change(self, fabric: Fabric, jobs: Sequence[int]) -> None:
        """Links went down or came up while some jobs run.

        A controller that plans again does so.  Otherwise flows whose first path is up take it.  For the
        rest, hashes choose among the paths that are left; a plan is mended, and its other flows stay.
        """
        self.fabric = fabric
        if self.replans:
            if jobs:
                self.replan(jobs, jobs)
            return
        first, traffic = self.plan.routes, self.plan.traffic
        flow = np.repeat(np.arange(len(traffic)), np.diff(first.indptr))
        cut = np.flatnonzero(np.bincount(flow, ~fabric.up[first.links], len(traffic)) > 0)
        found = first
        if len(cut):
            found = replaced(first, cut, self._around(cut))
        self._take(np.arange(len(traffic)), found, jobs)

    def _around(self, cut: Ints) -> Routes:
        """Routes of flows that have lost theirs."""
        every = range(len(self.plan.traffic.jobs))
        problem = self._problem(every)
        if self.plan.router in STATIC:
            return ROUTERS[self.plan.router](problem, self.plan.seed).routes.of(cut)
        begun = time.perf_counter()
        staying = np.setdiff1d(np.arange(len(problem.demand_Bps)), cut)
        kept = self.plan.routes.of(staying)
        part = self._some(problem, cut, kept, staying)
        choice = Choice(part)
        choice.place(np.argsort(-part.demand_Bps, kind="stable"), smooth=True)
        choice.relax(closed_bound(problem), PASSES)
        self.seconds.append(time.perf_counter() - begun)
        return part.routes(choice.up, choice.down)

    def _some(self, problem: Problem, flows: Ints, kept: Routes, staying: Ints) -> Beside:
        """The problem of some flows beside those that stay on their routes."""
        ways, traffic = problem.ways, problem.traffic
        owner = np.repeat(staying, np.diff(kept.indptr))
        carried = np.bincount(kept.links, problem.demand_Bps[owner] * kept.usage, problem.fabric.links)
        load = np.multiply(carried, problem.inverse, out=np.zeros(len(carried)), where=carried > 0)
        return Beside(
            fabric=problem.fabric,
            traffic=traffic,
            climbs=problem.climbs,
            ways=ways._replace(**{name: getattr(ways, name)[flows] for name in ways._fields[3:]}),
            demand_Bps=problem.demand_Bps[flows],
            others=load,
        )

    def _problem(self, jobs: Sequence[int]) -> Problem:
        paths = rail_paths(self.fabric) if self.plan.router == "rail" else None
        return routing_problem(self.fabric, self.plan.traffic.only(jobs), paths=paths)

    def _take(self, flows: Ints, found: Routes, staying: Sequence[int]) -> None:
        """Let flows go by other routes from now on."""
        under_way = np.isin(self.plan.traffic.flow_job[flows], staying)
        moved = changed(self.routes.of(flows), found)
        self.moved += int(np.count_nonzero(moved & under_way))
        self.routes = replaced(self.routes, flows, found)


def replaced(routes: Routes, flows: Ints, other: Routes) -> Routes:
    """Routes in which some flows have those of ``other``, in the order of ``flows``."""
    at = np.arange(len(routes))
    at[flows] = len(routes) + np.arange(len(flows))
    return joined([routes, other]).of(at)


def changed(one: Routes, other: Routes) -> Mask:
    """Which flows have other links, or other shares of them."""
    same = np.diff(one.indptr) == np.diff(other.indptr)
    flows = np.flatnonzero(same)
    a, b = one.of(flows), other.of(flows)
    differs = (a.links != b.links) | (a.usage != b.usage)
    owner = np.repeat(flows, np.diff(a.indptr))
    return np.asarray(~same | (np.bincount(owner, differs, len(same)) > 0))
