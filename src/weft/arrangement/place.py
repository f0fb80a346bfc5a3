"""Where jobs go: in rows, by the numbers of hosts in units of the bound, then by local search on what crosses cuts."""

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

MOVES, MOST_MOVES = 400, 8_000
"""Moves that local search draws, for each job and in all."""
LeftS = Callable[[], float]
"""Says how many seconds there are for the search."""


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

    def cost(self, shares: Floats) -> float:
        """What a placement costs, from the ``shares`` of every job (row): each job's busiest cut, what shares its cuts
        beside, and what exceeds them."""
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

    def candidates(
        self, begin: Hosts, seed: int, left_s: LeftS = lambda: inf, counts: Ints | None = None
    ) -> Iterator[Hosts]:
        """Placements worth a closer look, ``begin`` first, without repetition, while there are seconds left."""
        result: dict[Hosts, float] = {}
        for hosts in self._drawn(begin, seed, left_s, result, counts):
            if hosts not in result:
                result[hosts] = self.cost(self.shares(hosts))
                yield hosts

    def _drawn(
        self, first: Hosts, seed: int, left_s: LeftS, result: dict[Hosts, float], counts: Ints | None
    ) -> Iterator[Hosts]:
        """``candidates`` with repetition; ``result`` has the cost of those before."""
        # From cheap to dear: as they are, in order of units, in rows, by the integer program, by local search from the
        # best.
        if counts is not None:
            yield self._of_counts(first, counts[self.moving])
        yield from (first, self.sorted(first), *self.packed(first))
        for begin, at in ((None, seed), (self.sorted(first), seed + 1)):
            if not left_s():
                return
            yield self.improved(begin or min(result, key=result.__getitem__), at, left_s)

    def shares(self, hosts: Hosts) -> Floats:
        """``share`` of every job."""
        return np.array([self.share(job, at_hosts) for job, at_hosts in enumerate(hosts)])

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
        for move in range(min(MOVES * len(able), MOST_MOVES)):
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

    def _of_counts(self, begin: Hosts, counts: Ints) -> Hosts:
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
