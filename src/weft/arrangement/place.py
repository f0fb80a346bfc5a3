"""Where jobs go: packings by an integer program on counts, then local search on what crosses cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

import numpy as np

from weft.arrangement.clock import Hosts
from weft.arrangement.cuts import FabricCuts
from weft.arrangement.site import Site
from weft.arrangement.template import Template
from weft.fabric.spec import Floats, Ints
from weft.solvers import lp

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
