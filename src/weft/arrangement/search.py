"""The search for an arrangement: placements, routes, offsets and classes, in this order, improvements only.

The steps are fixed and drawn from one seed, so the same site gives the same arrangement.  A budget of processor
seconds only cuts them short, and the result says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from weft.arrangement.certificate import Certificate, certify
from weft.arrangement.clock import Choice, Clock, Hosts, Timed
from weft.arrangement.cuts import Cuts, cuts_of
from weft.arrangement.place import Places, as_given
from weft.arrangement.schedule import DONE, with_offsets, with_order
from weft.arrangement.site import Router, Site
from weft.arrangement.template import template

POLICIES = ("hashed", "routes", "offsets", "priorities", "arrange")
KEPT = 3
"""Placements with routes that are scheduled in time."""
ALONE_SHARE = 0.4
"""Share of the budget for the policies that are compared."""
Progress = Callable[[float, float], object]
"""Told the incumbent's objective and the bound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """What a search found: the best, each policy on the given placement, the bounds, and how the search ended."""

    clock: Clock
    cuts: Cuts
    given: Hosts
    policies: dict[str, Timed]
    certificate: Certificate
    placements: int
    ended: str

    @property
    def best(self) -> Timed:
        """The arrangement."""
        return self.policies["arrange"]


@dataclass(slots=True, eq=False)
class Search:
    """One search; ``best`` is the incumbent at any time."""

    site: Site
    budget_s: float = 60.0
    seed: int = 0
    progress: Progress | None = None
    began_s: float = field(default_factory=time.process_time)
    best: Timed | None = None
    bound: float = 1.0
    cut_short: bool = False

    def run(self) -> Found:
        """Search.  An interrupt ends it with the best so far.

        Raises:
            BadInput: a job that cannot run, or flows without a path.
        """
        known = {}
        templates = []
        for job in self.site.jobs:
            key = (job.job, job.layout)
            if key not in known:
                known[key] = template(job, self.site.cluster)
            traffic = known[key].traffic
            named = None if traffic is None else replace(traffic, jobs=(job.name,))
            templates.append(replace(known[key], name=job.name, traffic=named))
        clock = Clock(self.site, tuple(templates))
        cuts = cuts_of(clock.fabric)
        given = as_given(self.site)
        certificate = certify(clock, cuts, given)
        self.bound = certificate.objective
        policies = {"hashed": self._keep(clock.timed(clock.plain(given)))}
        ended, placements = "complete", 1
        try:
            placements = self._search(clock, cuts, given, policies)
        except KeyboardInterrupt:
            ended = "interrupted"
        if ended == "complete" and self.cut_short:
            ended = "budget"
        assert self.best is not None
        policies["arrange"] = self.best
        return Found(
            clock=clock,
            cuts=cuts,
            given=given,
            policies={name: policies[name] for name in POLICIES if name in policies},
            certificate=certificate,
            placements=placements,
            ended=ended,
        )

    def _search(self, clock: Clock, cuts: Cuts, given: Hosts, policies: dict[str, Timed]) -> int:
        """Fill in the policies and improve the incumbent; returns how many placements were tried."""
        hashed = policies["hashed"]
        early = self._until(ALONE_SHARE)
        policies["routes"] = hashed
        if "planned" in self.site.routers:
            policies["routes"] = self._keep(clock.timed(clock.plain(given, "planned")))
        policies["offsets"] = self._keep(with_offsets(clock, hashed, self.seed, early))
        policies["priorities"] = self._keep(with_order(clock, hashed, early))
        routers: list[Router] = list(dict.fromkeys(("ecmp", *self.site.routers)))
        if self.site.routers == ("spray",):
            routers = ["spray", "ecmp"]
        places = Places.of(self.site, cuts, clock.templates).candidates(given, self.seed)
        tried: list[Timed] = []
        late = self._until(1.0)
        for hosts in places:
            for router in routers:
                tried.append(self._keep(clock.timed(clock.plain(hosts, router))))
                if late():
                    return len(places)
        starts = sorted(tried, key=lambda one: one.cost)[:KEPT]
        for start in [*starts, policies["offsets"], policies["priorities"]]:
            if self._done() or late():
                break
            shifted = self._keep(with_offsets(clock, start, self.seed, late))
            for one in (shifted, start):
                ordered = self._keep(with_order(clock, one, late))
                if ordered.cost < one.cost:
                    self._keep(with_offsets(clock, ordered, self.seed + 1, late))
        return len(places)

    def _keep(self, one: Timed) -> Timed:
        """Take a choice for the incumbent where it is better."""
        if self.best is None or one.cost < self.best.cost - 1e-12:
            self.best = one
            if self.progress is not None:
                self.progress(one.cost, self.bound)
        return one

    def _done(self) -> bool:
        return self.best is not None and self.best.cost <= self.bound * (1 + DONE)

    def _until(self, share: float) -> Callable[[], bool]:
        def stop() -> bool:
            late = time.process_time() - self.began_s > share * self.budget_s
            self.cut_short |= late
            return late

        return stop


__all__ = ["POLICIES", "Choice", "Found", "Search"]
