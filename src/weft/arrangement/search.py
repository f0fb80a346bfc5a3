"""The search for an arrangement: placements, routes, offsets, classes and layouts, in this order, improvements only.

The steps are fixed and drawn from one seed, so the same site gives the same arrangement.  A budget of processor
seconds only cuts them short, and the result says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

import numpy as np

from weft.arrangement.bundle import POLICIES, ArrangedSearch, Arrangement, Ended
from weft.arrangement.certificate import certify, verifiable, verify
from weft.arrangement.clock import MOST_STEPPED, Clock, Hosts, Timed
from weft.arrangement.cuts import FabricCuts, cuts_of
from weft.arrangement.layouts import Layouts
from weft.arrangement.schedule import DONE, with_offsets, with_order
from weft.arrangement.site import Router, Site
from weft.arrangement.template import Template
from weft.errors import Unsupported
from weft.fabric.spec import Floats, Ints
from weft.solvers import lp

# Where jobs go -------------------------------------------------------------------------------------------------

MOVES = 400
"""Moves that local search draws, for each job."""
PACKING_S = 5.0
"""Seconds that one integer program may take."""
LeftS = Callable[[], float]
"""Says how many seconds there are for the search."""
MOST_COUNTS = 20_000
"""Jobs times units up to which packings are solved exactly."""


def as_given(site: Site) -> Hosts:
    """Every job on the hosts that it holds, the others on the first that are free, in order (first fit)."""
    # Hosts that are down or gone free the job to be placed again.
    stay = [bool(job.hosts) and all(site.usable[host] for host in job.hosts) for job in site.jobs]
    occupied = {host for job, stays in zip(site.jobs, stay, strict=True) if stays for host in job.hosts}
    free = iter([host for host, up in enumerate(site.usable) if up and host not in occupied])
    result = [
        job.hosts if stays else tuple(islice(free, job.domains)) for job, stays in zip(site.jobs, stay, strict=True)
    ]
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Placements of a site's jobs, judged by what crosses cuts: the closed form of what the clock steps."""

    site: Site
    cuts: FabricCuts
    between: tuple[Floats, ...]
    alone_s: Floats
    weights: Floats

    @classmethod
    def of(cls, site: Site, cuts: FabricCuts, templates: tuple[Template, ...]) -> Places:
        """The places of a site."""
        weights = np.array([job.weight for job in site.jobs])
        return cls(
            site=site,
            cuts=cuts,
            between=tuple(template.between_hosts(site.domain_size) for template in templates),
            alone_s=np.array([template.alone_s for template in templates]),
            weights=weights / weights.sum(),
        )

    def share(self, job: int, hosts: Sequence[int]) -> Floats:
        """The share of an iteration in which a job keeps each cut busy."""
        busy_s = self.cuts.crossing(self.between[job], hosts) / np.maximum(self.cuts.all_Bps, 1e-300)
        return np.asarray(busy_s / self.alone_s[job])

    def shares(self, hosts: Hosts) -> Floats:
        """``share`` of every job (row)."""
        return np.array([self.share(job, at_hosts) for job, at_hosts in enumerate(hosts)])

    def cost(self, shares: Floats) -> float:
        """What a placement with these ``shares`` costs: each job's busiest cut, what shares its cuts beside, and what
        exceeds them."""
        if not shares.shape[1]:
            return 0.0
        # A job's own cut bounds its pace; what others send over the same cuts delays it; more than all the time is
        # impossible and costs most.
        all_of_it = shares.sum(axis=0)
        alone_share = shares.max(axis=1)
        met = (shares * (all_of_it[None, :] - shares)).max(axis=1)
        return float((self.weights * (alone_share + met)).sum() + np.maximum(all_of_it - 1.0, 0.0).sum())

    def sorted(self, hosts: Hosts) -> Hosts:
        """Ranks in the order of units, outermost first, for jobs whose order is free."""
        return tuple(
            at_hosts if job.may == "stay" else tuple(sorted(at_hosts, key=lambda host: self._place(host)))
            for job, at_hosts in zip(self.site.jobs, hosts, strict=True)
        )

    @property
    def moving(self) -> list[int]:
        """Jobs that may have any hosts."""
        return [job for job, settings in enumerate(self.site.jobs) if settings.may == "move"]

    def packed(self, begin: Hosts) -> list[Hosts]:
        """Jobs that may move on hosts in a row: the largest first, and in the order of the site."""
        largest = sorted(self.moving, key=lambda job: -self.site.jobs[job].domains)
        packings = []
        for order in (largest, self.moving) if self.moving else ():
            free, hosts = iter(self._free(begin)), list(self.sorted(begin))
            for job in order:
                hosts[job] = tuple(islice(free, self.site.jobs[job].domains))
            packings.append(tuple(hosts))
        return list(dict.fromkeys(packings))

    def candidates(self, begin: Hosts, seed: int, left_s: LeftS = lambda: inf) -> Iterator[Hosts]:
        """Placements worth a closer look, ``begin`` first, without repetition, while there are seconds left."""
        result: dict[Hosts, float] = {}
        for hosts in self._drawn(begin, seed, left_s, result):
            if hosts not in result:
                result[hosts] = self.cost(self.shares(hosts))
                yield hosts

    def _drawn(self, first: Hosts, seed: int, left_s: LeftS, result: dict[Hosts, float]) -> Iterator[Hosts]:
        """``candidates`` with repetition; ``result`` has the cost of those before."""
        # From cheap to dear: as they are, in order of units, in rows, by the integer program, by local search from the
        # best.
        yield from (first, self.sorted(first), *self.packed(first))
        for counts in self._packings(first, left_s) if self.moving else ():
            yield self._of_counts(first, counts)
        for begin, at in ((None, seed), (self.sorted(first), seed + 1)):
            if not left_s():
                return
            yield self.improved(begin or min(result, key=result.__getitem__), at, left_s)

    def improved(self, hosts: Hosts, seed: int, left_s: LeftS = lambda: inf) -> Hosts:
        """Local search: two places of one job exchanged, or of two jobs that may move, or one with a free host."""
        jobs = self.site.jobs
        able = [job for job, settings in enumerate(jobs) if settings.may != "stay"]
        if not able or not len(self.cuts.all_Bps):
            return hosts
        draw = np.random.default_rng(seed)
        occupied = {host for at_hosts in hosts for host in at_hosts}
        free = [host for host, up in enumerate(self.site.usable) if up and host not in occupied]
        now = [list(at_hosts) for at_hosts in hosts]
        shares = self.shares(hosts)
        cost = self.cost(shares)
        for move in range(MOVES * len(able)):
            if move % 64 == 0 and not left_s():
                break
            # Step 1: draw two places.  Hosts of two jobs, or a free one, are exchanged only where the jobs may move.
            job = able[int(draw.integers(len(able)))]
            partner = able[int(draw.integers(len(able)))]
            into_free = bool(free) and draw.random() < 0.25
            a = int(draw.integers(len(now[job])))
            if jobs[job].may != "move" or (not into_free and jobs[partner].may != "move"):
                partner, into_free = job, False
            pool = free if into_free else now[partner]
            b = int(draw.integers(len(pool)))
            if pool is now[job] and a == b:
                continue
            now[job][a], pool[b] = pool[b], now[job][a]
            # Step 2: cuts are counted again for the jobs that changed; the others keep theirs.
            changed = [job] if into_free or partner == job else [job, partner]
            before = shares[changed]
            for number in changed:
                shares[number] = self.share(number, now[number])
            better = self.cost(shares)
            # Step 3: the exchange stays only where the cost falls, so that the search ends in a local minimum.
            if better < cost - 1e-12:
                cost = better
            else:
                shares[changed] = before
                now[job][a], pool[b] = pool[b], now[job][a]
        return tuple(tuple(at_hosts) for at_hosts in now)

    def _place(self, host: int) -> tuple[int, ...]:
        return (*(int(unit[host]) for unit in reversed(self.cuts.unit)), host)

    def _free(self, begin: Hosts) -> list[int]:
        """Hosts for jobs that may move, in the order of units."""
        occupied = {
            host for job, at_hosts in zip(self.site.jobs, begin, strict=True) if job.may != "move" for host in at_hosts
        }
        usable = [host for host, up in enumerate(self.site.usable) if up and host not in occupied]
        return sorted(usable, key=self._place)

    def _packings(self, begin: Hosts, left_s: LeftS) -> Iterator[Floats]:
        """Hosts of each moving job (row) in each inner unit, by the least bytes over cuts in all, and by the least
        load of the busiest cut."""
        if not self.cuts.unit:
            return
        moving = self.moving
        inner = self.cuts.unit[0]
        room = np.bincount(
            inner[np.array(self._free(begin), dtype=np.int64)], minlength=len(self.cuts.capacity_Bps[0])
        )
        if len(moving) * len(room) > MOST_COUNTS:
            return
        # What a job sends over a cut that parts its ranks: in the middle, as share of its iteration.
        worth = np.array([self._parting(job) for job in moving])
        wanted = [self.site.jobs[job].domains for job in moving]
        for spread in (False, True):
            limit_s = min(PACKING_S, left_s())
            counts = _packed(wanted, room, self.cuts, worth, limit_s, spread=spread) if limit_s > 0 else None
            if counts is not None:
                yield counts

    def _parting(self, job: int) -> float:
        between = self.between[job]
        half = len(between) // 2
        crossing = max(float(between[:half, half:].sum()), float(between[half:, :half].sum()))
        return crossing / float(self.alone_s[job]) * self.site.jobs[job].weight

    def _of_counts(self, begin: Hosts, counts: Floats) -> Hosts:
        """Concrete hosts of counts per unit, the first that are free in each unit."""
        inner = self.cuts.unit[0]
        pools: dict[int, list[int]] = {}
        for host in self._free(begin):
            pools.setdefault(int(inner[host]), []).append(host)
        result = list(self.sorted(begin))
        for row, job in enumerate(self.moving):
            chosen: list[int] = []
            for unit, count in enumerate(counts[row].tolist()):
                pool = pools.get(unit, [])
                chosen += pool[: int(count)]
                pools[unit] = pool[int(count) :]
            result[job] = tuple(sorted(chosen, key=self._place))
        return tuple(result)


def _packed(
    wanted: list[int], room: Ints, cuts: FabricCuts, worth: Floats, limit_s: float, *, spread: bool
) -> Floats | None:
    """Hosts of each job in each inner unit; None where the program ends without a packing.

    Variables: counts, whether a job is in a unit (of each tier), and the busiest cut's load.  A job in k units of a
    tier pays k - 1 times what parting its ranks sends; with ``spread`` the busiest cut counts most.
    """
    jobs, inner = len(wanted), len(room)
    scale = max(float(worth.max()), 1e-300)
    counts = jobs * inner
    busiest = counts + jobs * sum(len(capacities) for capacities in cuts.capacity_Bps)
    cost, high = np.zeros(busiest + 1), np.ones(busiest + 1)
    high[:counts] = high[busiest] = inf
    cost[busiest] = 1.0 if spread else 0.0
    rows: list[tuple[list[int], list[float], float, float]] = []
    every = range(inner)
    for job, count in enumerate(wanted):
        # Each job has all its hosts.
        rows.append(([job * inner + unit for unit in every], [1.0] * inner, float(count), float(count)))
    # No unit holds more hosts than are free in it.
    rows += [([job * inner + unit for job in range(jobs)], [1.0] * jobs, 0.0, float(room[unit])) for unit in every]
    first = counts
    for tier, capacity in enumerate(cuts.capacity_Bps):
        fastest = float(capacity.max())
        for unit in range(len(capacity)):
            inside = np.unique(cuts.unit[0][cuts.unit[tier] == unit]).tolist()
            crossing, loads = [busiest], [-1.0]
            for job, count in enumerate(wanted):
                present = first + job * len(capacity) + unit
                pays = float(worth[job]) / scale
                cost[present] = (0.01 if spread else 1.0) * pays
                # A host in a unit makes the job present there: hosts - most * presence <= 0, with the least factor
                # that is valid.
                most = min(float(count), float(sum(room[at] for at in inside)))
                rows.append(
                    ([*(job * inner + at for at in inside), present], [1.0] * len(inside) + [-most], -inf, 0.0)
                )
                # Presence stands for crossing: linear, and too much only for a job that lies in one unit.
                crossing.append(present)
                loads.append(pays * fastest / max(float(capacity[unit]), 1e-300))
            # The busiest cut carries at least what crosses each cut.
            rows.append((crossing, loads, -inf, 0.0))
        first += jobs * len(capacity)
    integers = [True] * busiest + [False]
    bounds = np.zeros(busiest + 1), high
    solution = lp.least(cost, bounds, lp.Rows.of(rows), integer=integers, seconds=limit_s, seed=0).values
    if not len(solution):
        return None
    # A program that ran out of time may end between whole numbers: only a packing that adds up counts.
    packed = np.rint(solution[:counts]).reshape(jobs, inner)
    return packed if (packed.sum(axis=1) == np.array(wanted)).all() else None


# The search ----------------------------------------------------------------------------------------------------

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
