"""Jobs that run on a site, by groups that share links: what each group's choice comes to, and who is beside whom.

Jobs meet where shortest paths between their hosts may take a common link, whichever router chooses.  Groups that do
not meet do not feel each other, so each is stepped alone, once for every set of jobs and hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.arrangement.clock import Choice, Clock, Timed
from weft.arrangement.cuts import Cuts, cuts_of
from weft.arrangement.schedule import DONE, by_intensity, with_offsets, with_order
from weft.arrangement.site import Router, Site, SiteJob
from weft.arrangement.template import Template, template
from weft.cluster.calibration import calibration
from weft.fabric.lump import trunked
from weft.fabric.paths import Paths
from weft.fabric.spec import Fabric, Ints
from weft.simulation.iteration.contention import reached

MOST_CLOCKS = 512
"""Groups whose times are remembered."""
LESS = 1e-9
"""What a choice must gain to be taken."""
Group = tuple[tuple[SiteJob, tuple[int, ...]], ...]
"""Jobs and their hosts."""


class Fleet:
    """Times of groups of jobs on a site's fabric, which may change.

    Args:
        known: another one on the same cluster, whose iterations of jobs are taken over.
    """

    def __init__(self, site: Site, known: Fleet | None = None) -> None:
        self.site = site
        self._templates: dict[tuple[object, object], Template] = {} if known is None else known._templates
        self.put(site.fabric)

    def put(self, fabric: Fabric) -> None:
        """Go on with another state of the fabric."""
        self.site = replace(self.site, fabric=fabric, jobs=())
        at_speed = reached(fabric, calibration(self.site.cluster.accelerator.name))
        self.cuts: Cuts = cuts_of(at_speed)
        self._paths = Paths(trunked(at_speed).fabric)
        self._members = self.site.members
        self._links: dict[tuple[int, tuple[int, ...]], Ints] = {}
        self._clocks: dict[tuple[object, ...], Clock] = {}

    def template(self, job: SiteJob) -> Template:
        """One iteration of a job.

        Raises:
            BadInput: its layout cannot run.
        """
        key = (job.job, job.layout)
        if key not in self._templates:
            self._templates[key] = template(job, self.site.cluster)
        return self._templates[key]

    def groups(self, seats: Group) -> list[list[int]]:
        """The numbers of jobs that meet, those of a group in order of their hosts."""
        owner = np.full(self._paths.fabric.links, -1, dtype=np.int64)
        group = list(range(len(seats)))
        for number, (job, hosts) in enumerate(seats):
            links = self._reach(job, hosts)
            for other in {group[one] for one in np.unique(owner[links]).tolist() if one >= 0}:
                group = [number if one == other else one for one in group]
            owner[links] = number
        found: dict[int, list[int]] = {}
        for number in sorted(range(len(seats)), key=lambda one: seats[one][1]):
            found.setdefault(group[number], []).append(number)
        return list(found.values())

    def clock(self, group: Group) -> Clock:
        """What steps a group of jobs, each on its hosts."""
        key = tuple((id(self.template(job)), job.weight, hosts) for job, hosts in group)
        if key not in self._clocks:
            if len(self._clocks) >= MOST_CLOCKS:
                self._clocks.clear()
            jobs = tuple(replace(job, name=str(n), hosts=at, may="stay") for n, (job, at) in enumerate(group))
            parts = []
            for one, (job, _) in zip(jobs, group, strict=True):
                known = self.template(job)
                traffic = None if known.traffic is None else replace(known.traffic, jobs=(one.name,))
                parts.append(replace(known, name=one.name, traffic=traffic))
            self._clocks[key] = Clock(replace(self.site, jobs=jobs), tuple(parts))
        return self._clocks[key]

    def _reach(self, job: SiteJob, hosts: tuple[int, ...]) -> Ints:
        """Links that flows of a job between its hosts may take; inside hosts they may change rails before."""
        known = self.template(job)
        key = (id(known), hosts)
        if known.traffic is None or len(hosts) < 2:
            return np.zeros(0, dtype=np.int64)
        if key not in self._links:
            at = self._members[np.array(hosts, dtype=np.int64)]
            size = at.shape[1]
            pairs = np.unique(np.stack([known.source // size, known.target // size]), axis=1)
            pairs = pairs[:, pairs[0] != pairs[1]]
            ranks = at.ravel()
            source = np.concatenate([ranks[known.source], at[pairs[0]].ravel()])
            target = np.concatenate([ranks[known.target], at[pairs[1]].ravel()])
            routes = self._paths.routes(source, target, mode="spray")
            self._links[key] = np.unique(routes.links)
        return self._links[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How jobs that come get hosts, routes and times.

    ``packs``: hosts are searched; the first that are free otherwise.  ``time`` chooses for a group on its hosts,
    from what it has now (None: a job is new there), steps and a seed.
    """

    name: str
    words: str
    packs: bool
    time: Callable[[Clock, Choice | None, int, int], Timed]


def _plain(router: Router) -> Callable[[Clock, Choice | None, int, int], Timed]:
    def time(clock: Clock, now: Choice | None, steps: int, seed: int) -> Timed:
        return clock.timed(clock.plain(hosts_of(clock), router))

    return time


def _shifted(clock: Clock, now: Choice | None, steps: int, seed: int) -> Timed:
    return with_offsets(clock, clock.timed(clock.plain(hosts_of(clock))), seed, counted(steps))


def _by_intensity(clock: Clock, now: Choice | None, steps: int, seed: int) -> Timed:
    routed = clock.timed(clock.plain(hosts_of(clock), "planned" if "planned" in clock.site.routers else "ecmp"))
    if clock.site.classes < 2 or len(clock.templates) < 2:
        return routed
    return by_intensity(clock, routed)


def _settled(clock: Clock, now: Choice | None, steps: int, seed: int) -> Timed:
    """The best of what a group has, plain routers, offsets and classes."""
    hosts = hosts_of(clock)
    best = clock.timed(clock.plain(hosts))
    if now is not None:
        best = least([clock.timed(now), best])
    jobs = range(len(clock.templates))
    if best.cost <= 1 + DONE:
        return best
    best = least([best, *(clock.timed(clock.plain(hosts, router)) for router in clock.site.routers)])
    alone_s = np.array([clock.timed(best.choice, [job]).iteration_s[job] for job in jobs])
    enough = clock.objective.cost(alone_s, alone_s / clock.objective.against_s) * (1 + DONE)
    if clock.site.classes > 1 and len(jobs) > 1 and best.cost > enough:
        best = least([best, _by_intensity(clock, now, steps, seed)])
    for improved in (with_offsets, _ordered):
        if len(jobs) > 1 and best.cost > enough:
            best = least([best, improved(clock, best, seed, counted(steps))])
    return best


def _ordered(clock: Clock, now: Timed, seed: int, stop: Callable[[], bool]) -> Timed:
    return with_order(clock, now, stop)


def least(tried: Sequence[Timed]) -> Timed:
    """The one that costs least; an earlier one where the gain is rounding."""
    best = tried[0]
    for one in tried[1:]:
        if one.cost < best.cost - LESS:
            best = one
    return best


def counted(steps: int) -> Callable[[], bool]:
    """Says stop from the given number of calls on: a budget that does not hang on the machine."""
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls >= steps

    return stop


def hosts_of(clock: Clock) -> tuple[tuple[int, ...], ...]:
    """The hosts that a group's jobs hold."""
    return tuple(job.hosts for job in clock.site.jobs)


POLICIES = (
    Policy(name="first-fit + ecmp", words="first hosts, ECMP", packs=False, time=_plain("ecmp")),
    Policy(name="first-fit + routes", words="first hosts, routes", packs=False, time=_plain("planned")),
    Policy(name="cassini-like", words="first hosts, ECMP, offsets", packs=False, time=_shifted),
    Policy(name="crux-like", words="first hosts, routes, classes", packs=False,
           time=_by_intensity),
    Policy(name="arrange", words="all searched", packs=True, time=_settled),
)  # fmt: skip
"""Policies that a trace is replayed under.  CASSINI-like and Crux-like are made after the papers' ideas (Rajasekaran
et al., NSDI 2024; Cao et al., SIGCOMM 2024): planned routes stand in for Crux's choice of paths, and CASSINI's
choice among candidate placements is left out."""
ARRANGE = POLICIES[-1]
