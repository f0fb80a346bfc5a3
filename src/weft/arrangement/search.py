"""The search for an arrangement: placements, routes, offsets, classes and layouts, in this order, improvements only.

The steps are fixed and drawn from one seed, so the same site gives the same arrangement.  A budget of processor
seconds only cuts them short, and the result says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from weft.arrangement.bundle import POLICIES, ArrangedSearch, Arrangement, Ended
from weft.arrangement.certificate import certify, verifiable, verify
from weft.arrangement.clock import MOST_STEPPED, Clock, Hosts, Timed
from weft.arrangement.cuts import FabricCuts, cuts_of
from weft.arrangement.layouts import Layouts
from weft.arrangement.place import Places, as_given
from weft.arrangement.schedule import DONE, with_offsets, with_order
from weft.arrangement.site import Router, Site
from weft.errors import Unsupported

KEPT = 3
"""Placements with routes that are scheduled in time."""
ALONE_SHARE = 0.4
"""Share of the budget until which layouts of jobs alone are searched."""
COMPARED_PART = 0.25
"""Part of what is left then for the policies that are compared."""
CHOSEN_PART = 0.8
"""Part of what is left then for placements until the best of them are scheduled in time."""
PLACED_SHARE = 0.7
"""Share of the budget after which free layouts are searched."""
VERIFIED_SHARE = 0.5
"""Share of the budget that the verification may take."""
ROUNDS = 4
"""How often every job may answer the others with another layout."""
WORTHWHILE = 1e-5
"""Another layout must lower the score by more than this."""
Progress = Callable[[float, float], object]
"""Takes the incumbent's objective and the bound, or processor seconds spent and those of the budget."""


@dataclass(slots=True, eq=False)
class Search:
    """One search; ``best`` is the incumbent at any time."""

    site: Site
    budget_s: float = 60.0
    seed: int = 0
    progress: Progress | None = None
    spent: Progress | None = None
    began_s: float = field(default_factory=time.process_time)
    best: Timed | None = None
    clock: Clock | None = None
    bound: float = 1.0
    reserve_s: float = 0.0
    cut_short: bool = False
    tried: int = 0

    def run(self) -> Arrangement:
        """Search.  An interrupt ends it with the best so far.

        Raises:
            BadInput: a job that cannot run, or flows without a path.
            NothingFeasible: no layout of a job fits.
        """
        # 1. Layouts, bounds, and the arrangement as it is, which is the first incumbent.
        layouts = Layouts(self.site, self._left(ALONE_SHARE))
        site, references = layouts.begun()
        clock = Clock(site, tuple(layouts.template(job, job.layout) for job in site.jobs), references)
        cuts, hosts = cuts_of(clock.fabric), as_given(site)
        certificate = certify(clock, cuts, hosts)
        self.clock, self.bound = clock, certificate.objective
        # Stepping all flows takes about as long as the templates took; the search leaves that time, unless it is too
        # much.
        verify_s = layouts.each_s * len(clock.templates) if verifiable(clock) else 0.0
        self.reserve_s = verify_s if verify_s < VERIFIED_SHARE * self.budget_s else 0.0
        policies = {"hashed": self._keep(clock, clock.timed(clock.plain(hosts)))}
        if not np.isfinite(self._best.cost):
            problem = f"iterations differ so much that more than {MOST_STEPPED:,} flows and phases had to be stepped"
            raise Unsupported(problem, where=site.name, remedy="arrange jobs with short and long iterations apart")
        ended: Ended = "complete"
        placements, verified = 1, None
        try:
            # 2. Places, routes, offsets and classes; 3. other layouts where some are free; 4. the incumbent once
            # more, with every flow stepped.
            placements = self._search(clock, cuts, hosts, policies)
            if self._free:
                policies["kept"] = self._best
                layouts.left_s = self._left(1.0)
                placements += self._recut(layouts, cuts)
            late = not self.reserve_s and self._left(1.0)() < verify_s
            verified = verify(self._clock, self._best.choice, self._best.iteration_s, late=late)
        except KeyboardInterrupt:
            ended = "interrupted"
        if ended == "complete" and self.cut_short:
            ended = "budget"
        policies["arrange"] = self._best
        # A policy whose steady times did not show is left out.
        policies = {name: timed for name, timed in policies.items() if np.isfinite(timed.cost)}
        return Arrangement(
            clock=self._clock,
            began=clock,
            cuts=cuts,
            policies={name: policies[name] for name in POLICIES if name in policies},
            certificate=certificate,
            search=ArrangedSearch(arrangements=clock.evaluations, placements=placements, layouts=self.tried),
            first=tuple(job.layout for job in clock.site.jobs),
            verified=verified,
            ended=ended,
            seed=self.seed,
        )

    @property
    def _best(self) -> Timed:
        assert self.best is not None
        return self.best

    @property
    def _clock(self) -> Clock:
        """The clock of the incumbent's layouts."""
        assert self.clock is not None
        return self.clock

    def _search(self, clock: Clock, cuts: FabricCuts, hosts: Hosts, policies: dict[str, Timed]) -> int:
        """Fill in the policies and improve the incumbent; returns how many placements were tried.

        What needs no search comes first, whatever the budget.
        """
        hashed, early = policies["hashed"], self._until(1.0, COMPARED_PART)
        # Policies without a search: hosts in a row, planned routes.  Then offsets and classes for the hosts as given.
        router: Router = "planned" if "planned" in self.site.routers else "ecmp"
        packed = Places.of(clock.site, cuts, clock.templates).packed(hosts)
        for name, places in (("packed", packed), ("routes", [hosts])):
            tried = [self._keep(clock, clock.timed(clock.plain(hosts, router))) for hosts in places]
            if tried:
                policies[name] = min(tried, key=lambda timed: timed.cost)
        # The policies for the hosts as given are also starts of the search.
        starts = []
        if not early():
            policies["offsets"] = self._keep(clock, with_offsets(clock, hashed, self.seed, early, early))
            policies["priorities"] = self._keep(clock, with_order(clock, hashed, early))
            starts = [policies["offsets"], policies["priorities"]]
        return self._placed(clock, cuts, hosts, starts, PLACED_SHARE if self._free else 1.0)

    @property
    def _free(self) -> list[int]:
        """Jobs that may have another layout."""
        return [number for number, job in enumerate(self.site.jobs) if job.cut != "keep"]

    def _placed(self, clock: Clock, cuts: FabricCuts, begin: Hosts, extra_starts: list[Timed], share: float) -> int:
        """Try placements with each router, and the best of them and some others with offsets and classes."""
        routers: list[Router] = list(dict.fromkeys(("ecmp", *self.site.routers)))
        if self.site.routers == ("spray",):
            routers = ["spray", "ecmp"]
        late, placements, tried = self._until(share), 0, list[Timed]()
        left_s = self._left(share, CHOSEN_PART)
        for hosts in Places.of(clock.site, cuts, clock.templates).candidates(begin, self.seed, left_s):
            placements += 1
            for router in routers:
                if tried and not left_s():
                    break
                tried.append(self._keep(clock, clock.timed(clock.plain(hosts, router))))
        # The best placements get offsets, then classes with and without them, and with better classes offsets once
        # more.
        starts = sorted(tried, key=lambda timed: timed.cost)[:KEPT]
        for start in [*starts, *extra_starts]:
            if self._done() or late():
                break
            shifted = self._keep(clock, with_offsets(clock, start, self.seed, late, late))
            for timed in (shifted, start):
                if late():
                    return placements
                ordered = self._keep(clock, with_order(clock, timed, late))
                if ordered.cost < timed.cost:
                    self._keep(clock, with_offsets(clock, ordered, self.seed + 1, late, late))
        return placements

    def _recut(self, layouts: Layouts, cuts: FabricCuts) -> int:
        """Other layouts, a job at a time, until none is better; then hosts and times once more for the new ones.
        Returns how many placements were tried."""
        late, placements = self._until(1.0), 0
        for _ in range(ROUNDS):
            before = self._clock
            # Best response: each job changes its layout where that is better for all; a round without a change ends
            # it.
            for job in self._free:
                if self._done() or late():
                    return placements
                # Its layouts where it is, with the incumbent's routes and times.
                clock, now = self._clock, self._best
                for layout in layouts.candidates(clock, now, job):
                    if late():
                        return placements
                    recut = clock.recut(job, layout, layouts.template(clock.site.jobs[job], layout))
                    self.tried += 1
                    self._keep(recut, recut.timed(now.choice))
            if self._clock is before or late():
                break
            placements += self._placed(self._clock, cuts, self._best.choice.hosts, [self._best], 1.0)
        return placements

    def _keep(self, clock: Clock, timed: Timed) -> Timed:
        """Take a choice for the incumbent where it is better."""
        # Only better choices replace the incumbent, so that its cost never rises and any end of the search leaves the
        # best.
        if self.best is None or timed.cost < self.best.cost - (1e-12 if clock is self.clock else WORTHWHILE):
            self.best, self.clock = timed, clock
            if self.progress is not None:
                self.progress(clock.objective.shown(timed.score), clock.objective.shown(self.bound))
        return timed

    def _done(self) -> bool:
        return self.best is not None and self.best.cost <= self.bound * (1 + DONE)

    def _left(self, share: float, part: float = 1.0) -> Callable[[], float]:
        """Says how many seconds of a share of the budget are left, beside those for the verification; with ``part``
        that part of the seconds that are left now."""
        spared_s = (1.0 - part) * self._left(share)() if part < 1.0 else 0.0

        def left() -> float:
            used_s = time.process_time() - self.began_s
            if self.spent is not None:
                self.spent(used_s, self.budget_s)
            # A search that has run out of its share once was cut short, whatever ends it.
            left_s = max(0.0, share * (self.budget_s - self.reserve_s) - used_s - spared_s)
            self.cut_short |= not left_s
            return left_s

        return left

    def _until(self, share: float, part: float = 1.0) -> Callable[[], bool]:
        left = self._left(share, part)
        return lambda: not left()
