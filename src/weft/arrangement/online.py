"""Jobs come and go, hosts and links fail: who runs where, from event to event.

Jobs that run keep their hosts until one goes down or they are cut off from each other.  Jobs that wait are tried in
the order of arrival after every event; one that does not fit lets later ones pass.  Groups of jobs that changed are
timed anew; the others keep everything.  Budgets count steps, so the same events give the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from weft.arrangement.clock import Choice, Hosts, Timed, levels
from weft.arrangement.objective import Objective
from weft.arrangement.place import Places
from weft.arrangement.schedule import DONE
from weft.arrangement.sharing import ARRANGE, LESS, Fleet, Group, Policy
from weft.arrangement.site import Router, Site, SiteJob
from weft.errors import BadInput, UnknownName
from weft.fabric.checks import components
from weft.fabric.spec import Floats, Ints, Mask
from weft.routing.failures import Down, changed, without
from weft.units import counted

STEPS = 16
"""Offsets, and orders, that are stepped for a group in one decision."""
LOOKED_AT = 2
"""Placements of a job that are timed with offsets and classes."""
ALIKE = 1e-6
"""Objectives of placements that are as good: the one in fewer units is taken, and that which leaves less of them."""
Kind = Literal[
    "job-arrives", "job-ends", "host-down", "host-up", "link-down", "link-up", "switch-down", "switch-up"
]  # fmt: skip
What = Literal["placed", "waits", "moved", "evicted", "ended", "retimed"]


SLOWDOWNS = ("slowdown", "worst")
"""Objectives of jobs that come and go."""


def check_cut(job: SiteJob, where: str) -> None:
    """Refuse a job whose layout is to be chosen: events do not wait for that search.

    Raises:
        BadInput: with the job.
    """
    if job.cut == "choose":
        raise BadInput(f"{job.name} has no layout", where=where, remedy="give layout, or a plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a running job has: hosts in rank order, the router of its flows, when it begins and its place in the
    order of classes among the jobs that it meets."""

    hosts: tuple[int, ...]
    router: Router = "ecmp"
    offset_s: float = 0.0
    order: int = 0


class Occupancy:
    """Who runs on a site under a policy, and who waits.

    ``jobs`` are all known jobs in order of arrival, ``seats`` those that run, ``slowdown`` what these take over
    their time alone on a 1:1 network.

    Args:
        known: see ``Fleet``.

    Raises:
        BadInput: a job of the site has no hosts or layout (other jobs than those that run are told by events), or the
            objective is none of slowdowns.
    """

    def __init__(
        self, site: Site, policy: Policy = ARRANGE, *, steps: int = STEPS, seed: int = 0, known: Fleet | None = None
    ) -> None:
        self.site, self.policy, self.steps, self.seed = site, policy, steps, seed
        self.fleet = Fleet(site, known)
        self.jobs: dict[str, SiteJob] = {}
        self.seats: dict[str, Seat] = {}
        self.slowdown: dict[str, float] = {}
        self.down: Down = frozenset()
        self.down_hosts: frozenset[int] = frozenset()
        self._part = self._parts()
        self._timed: set[frozenset[str]] = set()
        if site.objective not in SLOWDOWNS:
            problem = f"{site.objective} is of jobs that are all known"
            remedy = f"choose {' or '.join(SLOWDOWNS)} where jobs come and go"
            raise BadInput(problem, where="objective", remedy=remedy)
        for job in site.jobs:
            check_cut(job, "jobs")
            if not job.hosts:
                raise BadInput(
                    f"{job.name} has no hosts", where="jobs", remedy="name those that it runs on, or let it arrive"
                )
            self.jobs[job.name], self.seats[job.name] = job, Seat(hosts=job.hosts)
        self._measure()

    def fails(self, *, down: Down | None = None, hosts: frozenset[int] | None = None) -> None:
        """Take note of what is down now; ``update`` acts on it."""
        if hosts is not None:
            self.down_hosts = hosts
        if down is not None:
            self.down = down
            self.fleet.put(without(self.site.fabric, down))
            self._part = self._parts()
            self._timed.clear()

    def restore(
        self, *, jobs: dict[str, SiteJob], seats: dict[str, Seat], down: Down, down_hosts: frozenset[int]
    ) -> None:
        """Go on from what an earlier one on the same site held.

        Raises:
            BadInput, ValueError: no earlier one can have held that.
        """
        self.fails(down=down, hosts=down_hosts)
        self.jobs, self.seats = jobs, seats
        self._measure()

    def copied(self) -> tuple[dict[str, SiteJob], dict[str, Seat], dict[str, float]]:
        """Jobs, seats and slowdowns, to compare with later."""
        return dict(self.jobs), dict(self.seats), dict(self.slowdown)

    def update(self) -> dict[str, str]:
        """Give up what does not run any more, start what fits, time what changed; why, for the jobs concerned."""
        why: dict[str, str] = {}
        for name in [name for name in self.seats if name not in self.jobs]:
            del self.seats[name], self.slowdown[name]
        for name, seat in list(self.seats.items()):
            lost = self._lost(seat)
            if lost:
                why[name] = lost
                del self.seats[name], self.slowdown[name]
        self._retime()
        for name, job in self.jobs.items():
            if name not in self.seats:
                said = self._admit(name, job)
                why[name] = f"{why[name]}; {said}" if name in why else said
        return why

    def free(self) -> tuple[int, ...]:
        """Hosts that are up, joined with most others, and not taken."""
        taken = {host for seat in self.seats.values() for host in seat.hosts}
        return tuple(host for host in np.flatnonzero(self._open()).tolist() if host not in taken)

    def beside(self, name: str) -> list[str]:
        """The jobs that a running job meets on links."""
        names = list(self.seats)
        for group in self.fleet.groups(self._group(names, self.seats)):
            if names.index(name) in group:
                return sorted(names[one] for one in group if names[one] != name)
        return []

    def traffic_class(self, name: str) -> int:
        """Traffic class of a running job; a higher number goes first."""
        if not self.seats[name].order and not any(self.seats[other].order for other in self.beside(name)):
            return 0
        together = [self.seats[name].order, *(self.seats[other].order for other in self.beside(name))]
        return levels(together, self.site.classes)[0]

    @property
    def objective(self) -> float:
        """The site's objective over the jobs that run; 1 without any."""
        objective, slowdown = self._all(self.slowdown)
        return objective.score(slowdown) if self.seats else 1.0

    def _cost(self, slowdown: Mapping[str, float]) -> float:
        """What is minimised, over the jobs that these slowdowns are of."""
        objective, values = self._all(slowdown)
        return objective.cost(values, values)

    def _all(self, slowdown: Mapping[str, float]) -> tuple[Objective, Floats]:
        """The objective of the site with some jobs, against slowdowns of 1, and their slowdowns."""
        site = replace(self.site, jobs=tuple(self.jobs[name] for name in slowdown))
        values = np.array(list(slowdown.values()), dtype=np.float64)
        return Objective.of(site, np.ones(len(values))), values

    def _parts(self) -> Ints:
        """What each host hangs together with: a label, -1 where its accelerators do not."""
        fabric = self.fleet.site.fabric
        label = components(fabric.nodes, fabric.source[fabric.up], fabric.target[fabric.up])
        of_host = label[self.site.members]
        return np.where((of_host == of_host[:, :1]).all(axis=1), of_host[:, 0], -1)

    def _open(self) -> Mask:
        """Hosts that are up and hang together with most others."""
        up = np.array(self.site.usable)
        up[list(self.down_hosts)] = False
        up &= self._part >= 0
        if not up.any():
            return up
        most = int(np.argmax(np.bincount(self._part[up])))
        return np.asarray(up & (self._part == most))

    def _lost(self, seat: Seat) -> str:
        """Why a job cannot go on where it is; empty where it can."""
        dead = [self.site.host_names[host] for host in seat.hosts if host in self.down_hosts]
        if dead:
            return f"{dead[0]} is down"
        parts = self._part[list(seat.hosts)]
        if (parts < 0).any() or (parts != parts[0]).any():
            return "its hosts are cut off from each other"
        return ""

    def _group(self, names: list[str], seats: Mapping[str, Seat]) -> Group:
        return tuple((self.jobs[name], seats[name].hosts) for name in names)

    def _choice(self, seats: list[Seat]) -> Choice | None:
        """What jobs of a group have now; None where their routers differ."""
        if len({seat.router for seat in seats}) > 1:
            return None
        return Choice(
            hosts=tuple(seat.hosts for seat in seats),
            router=seats[0].router,
            offset_s=tuple(seat.offset_s for seat in seats),
            order=tuple(seat.order for seat in seats),
        )

    def _measure(self) -> None:
        """Slowdowns of what is there, as it is."""
        names = list(self.seats)
        self._timed.clear()
        slow: dict[str, float] = {}
        for group in self.fleet.groups(self._group(names, self.seats)):
            mine = [names[one] for one in group]
            choice = self._choice([self.seats[name] for name in mine])
            if choice is None:
                raise ValueError("jobs that share links have several routers")
            timed = self.fleet.clock(self._group(mine, self.seats)).timed(choice)
            slow |= dict(zip(mine, timed.slowdown.tolist(), strict=True))
            self._timed.add(frozenset(mine))
        self.slowdown = {name: slow[name] for name in names}

    def _retime(self) -> None:
        """Time the groups that are not those of before."""
        names = list(self.seats)
        groups = [[names[one] for one in group] for group in self.fleet.groups(self._group(names, self.seats))]
        for mine in groups:
            if frozenset(mine) not in self._timed:
                timed = self._time(mine, self.seats)
                self._take(mine, timed, self.seats, self.slowdown)
        self._timed = {frozenset(mine) for mine in groups}

    def _time(self, mine: list[str], seats: Mapping[str, Seat]) -> Timed:
        clock = self.fleet.clock(self._group(mine, seats))
        return self.policy.time(clock, self._choice([seats[name] for name in mine]), self.steps, self.seed)

    @staticmethod
    def _take(mine: list[str], timed: Timed, seats: dict[str, Seat], slowdown: dict[str, float]) -> None:
        choice = timed.choice
        for at, name in enumerate(mine):
            seats[name] = Seat(
                hosts=choice.hosts[at], router=choice.router, offset_s=choice.offset_s[at], order=choice.order[at]
            )
            slowdown[name] = float(timed.slowdown[at])

    def _admit(self, name: str, job: SiteJob) -> str:
        """Start a job where it fits; why there, or why not."""
        free, spares = self.free(), self.site.spares
        if job.domains > len(free) - spares:
            kept = f", of which {spares} stay spare" if spares else ""
            return f"needs {counted(job.domains, 'host')}, {len(free)} are free{kept}"
        if job.may != "move" and not set(job.hosts) <= set(free):
            return "its hosts are not free"
        places = self._candidates(name, job, free)
        first = self._plainly(name, places[0])
        if self.policy.packs:
            quick = [first, *(self._plainly(name, hosts) for hosts in places[1:])]
            least = min(quick)
            order = sorted(
                range(len(places)), key=lambda at: (max(quick[at] - least, ALIKE), *self._spread(places[at], free), at)
            )
            places = [places[at] for at in order[:LOOKED_AT]]
        best, found = np.inf, (self.seats, self.slowdown)
        for hosts in places:
            seats = {**self.seats, name: Seat(hosts=hosts)}
            mine = self._meeting(name, seats)
            seats[name] = _newcomer(hosts, [seats[one] for one in mine if one != name])
            slowdown = {**self.slowdown, name: 1.0}
            self._take(mine, self._time(mine, seats), seats, slowdown)
            value = self._cost(slowdown)
            if value < best - ALIKE:
                best, found = value, (seats, slowdown)
            if max(slowdown[one] for one in mine) <= 1 + DONE:
                break
        worst = max(found[1], key=lambda one: found[1][one])
        limit = self.site.max_slowdown
        if self.policy.packs and limit is not None and found[1][worst] > limit * (1 + LESS):
            return f"would slow {worst} to {found[1][worst]:.4f}, above max_slowdown {limit:g}"
        self.seats, self.slowdown = found
        names = list(self.seats)
        groups = self.fleet.groups(self._group(names, self.seats))
        self._timed = {frozenset(names[one] for one in group) for group in groups}
        units = self._units(self.seats[name].hosts)
        where = counted(job.domains, "host")
        return f"{where} in {units}; objective {self.objective:.4f}, first fit with ECMP {first:.4f}"

    def _units(self, hosts: tuple[int, ...]) -> str:
        count, _ = self._spread(hosts, hosts)
        return "one unit" if count == 1 else counted(count, "unit")

    def _spread(self, hosts: tuple[int, ...], free: tuple[int, ...]) -> tuple[int, int]:
        """Inner units that a job is in, and free hosts that it leaves there."""
        if not self.fleet.cuts.unit:
            return 1, len(free) - len(hosts)
        unit = self.fleet.cuts.unit[0]
        mine = np.unique(unit[list(hosts)])
        return len(mine), int(np.isin(unit[list(free)], mine).sum()) - len(hosts)

    def _snug(self, domains: int, free: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The first hosts of the inner unit with the least room that holds a job, if one does."""
        if not self.fleet.cuts.unit:
            return []
        unit = self.fleet.cuts.unit[0][list(free)]
        room = np.bincount(unit)
        able = np.flatnonzero(room >= domains)
        if not len(able):
            return []
        best = able[np.argmin(room[able])]
        return [tuple(np.array(free)[unit == best][:domains].tolist())]

    def _meeting(self, name: str, seats: Mapping[str, Seat]) -> list[str]:
        """The jobs that a job meets, itself among them."""
        names = list(seats)
        at = names.index(name)
        group = next(one for one in self.fleet.groups(self._group(names, seats)) if at in one)
        return [names[one] for one in group]

    def _plainly(self, name: str, hosts: tuple[int, ...]) -> float:
        """The objective with a job on some hosts, where it and those that it meets have hashed routes alone."""
        seats = {**self.seats, name: Seat(hosts=hosts)}
        mine = self._meeting(name, seats)
        clock = self.fleet.clock(self._group(mine, seats))
        timed = clock.timed(clock.plain(tuple(seats[one].hosts for one in mine)))
        slowdown = {**self.slowdown, name: 1.0} | dict(zip(mine, timed.slowdown.tolist(), strict=True))
        return self._cost(slowdown)

    def _candidates(self, name: str, job: SiteJob, free: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Hosts for a job: its own, or the first that are free; then those of ``Places`` where hosts are searched."""
        own = bool(job.hosts) and set(job.hosts) <= set(free)
        first = job.hosts if own else tuple(islice(free, job.domains))
        if not self.policy.packs or job.may == "stay":
            return [first]
        running = list(self.seats)
        given: Hosts = (*(self.seats[one].hosts for one in running), first)
        jobs = [replace(self.jobs[one], hosts=self.seats[one].hosts, may="stay") for one in running]
        site = replace(self.fleet.site, jobs=(*jobs, replace(job, hosts=first)), usable=tuple(self._open().tolist()))
        templates = tuple(self.fleet.template(one) for one in site.jobs)
        found = Places.of(site, self.fleet.cuts, templates).candidates(given, self.seed)
        snug = self._snug(job.domains, free) if job.may == "move" else []
        return list(dict.fromkeys([*(hosts[-1] for hosts in found), *snug]))


def _newcomer(hosts: tuple[int, ...], others: list[Seat]) -> Seat:
    """A job beside others that it meets: their router, and behind them where there are classes."""
    last = max((seat.order for seat in others), default=0)
    return Seat(hosts=hosts, router=others[0].router if others else "ecmp", order=last + 1 if last else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEvent:
    """Something that happened to a site at ``time_s``.

    ``job`` is who arrives; ``name`` a job that ends or a host; ``nodes`` a switch or the ends of a link; ``text``
    the event as it was read.
    """

    time_s: float
    kind: Kind
    job: SiteJob | None = None
    name: str = ""
    nodes: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of a job, and why.  ``seat`` and what follows are None for a job that does not run."""

    job: str
    what: What
    why: str
    seat: Seat | None = None
    traffic_class: int | None = None
    slowdown: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was done about an event: changes, and how the site stands."""

    number: int
    time_s: float
    kind: Kind
    subject: str
    changes: tuple[Change, ...]
    running: int
    waiting: tuple[str, ...]
    free: int
    objective: float


class SiteController:
    """Keeps a site arranged, event by event; the same events give the same decisions, also after ``restore``."""

    def __init__(self, site: Site, *, steps: int = STEPS, seed: int = 0) -> None:
        self.site = site
        self.held = Occupancy(site, steps=steps, seed=seed)
        self.count, self.now_s = 0, 0.0

    def apply(self, event: SiteEvent) -> Decision:
        """Take note of an event, and start, move and time jobs.

        Raises:
            BadInput: an event that does not fit what is known (a job's name twice, an unknown job, host or link,
                time that goes back); nothing is changed then.
        """
        if event.time_s < self.now_s:
            raise BadInput(
                f"{event.kind} at {event.time_s:g} s comes after {self.now_s:g} s",
                where="event",
                remedy="give events in order of time",
            )
        held = self.held
        before = held.copied()
        broken = held.down, held.down_hosts
        try:
            self._note(event)
            why = held.update()
        except BaseException:
            held.restore(jobs=before[0], seats=before[1], down=broken[0], down_hosts=broken[1])
            raise
        self.count, self.now_s = self.count + 1, event.time_s
        return Decision(
            number=self.count,
            time_s=event.time_s,
            kind=event.kind,
            subject=event.job.name if event.job is not None else event.name or " - ".join(event.nodes),
            changes=self._changes(before[0], before[1], why),
            running=len(held.seats),
            waiting=tuple(name for name in held.jobs if name not in held.seats),
            free=len(held.free()),
            objective=held.objective,
        )

    def _note(self, event: SiteEvent) -> None:
        held = self.held
        if event.kind == "job-arrives":
            assert event.job is not None
            self._check_arrival(event.job)
            held.jobs[event.job.name] = event.job
        elif event.kind == "job-ends":
            if event.name not in held.jobs:
                raise UnknownName("job", event.name, list(held.jobs), where="event")
            del held.jobs[event.name]
        elif event.kind in ("host-down", "host-up"):
            if event.name not in self.site.host_names:
                raise UnknownName("host", event.name, self.site.host_names, where="event")
            host = frozenset([self.site.host_names.index(event.name)])
            if event.kind == "host-up" and not host <= held.down_hosts:
                raise BadInput(f"{event.name} is not down", where="event", remedy="report it down before it comes up")
            held.fails(hosts=held.down_hosts | host if event.kind == "host-down" else held.down_hosts - host)
        else:
            fails = event.kind.endswith("down")
            held.fails(down=changed(self.site.fabric, held.down, event.nodes, fails=fails))

    def _check_arrival(self, job: SiteJob) -> None:
        """Refuse a name twice, a job that can never fit, and hosts that are not free."""
        held = self.held
        if job.name in held.jobs:
            raise BadInput(f"job {job.name!r} is there already", where="event", remedy="end it first")
        most = sum(self.site.usable) - self.site.spares
        if job.domains > most:
            problem = f"{job.name} needs {job.domains} hosts, the site has {most} for jobs"
            raise BadInput(problem, where="event", remedy="cut it smaller")
        if job.may != "move":
            free = set(held.free())
            for host in job.hosts:
                if host not in free:
                    problem = f"{self.site.host_names[host]} is not free"
                    raise BadInput(
                        problem, where="event", remedy='name free hosts, or let the job move (may = "move")'
                    )

    def _changes(
        self, jobs: Mapping[str, SiteJob], seats: Mapping[str, Seat], why: Mapping[str, str]
    ) -> tuple[Change, ...]:
        """What differs from before."""
        held = self.held
        found = [Change(job=name, what="ended", why="") for name in jobs if name not in held.jobs]
        for name in held.jobs:
            was, now = seats.get(name), held.seats.get(name)
            if now is None:
                if was is not None or name not in jobs:
                    found.append(Change(job=name, what="waits" if was is None else "evicted", why=why[name]))
                continue
            if was == now and name not in why:
                continue
            others = held.beside(name)
            what: What = "retimed" if name not in why else "placed" if was is None else "moved"
            shares = f"shares links with {', '.join(others)}" if others else "shares links with no other job"
            found.append(
                Change(
                    job=name,
                    what=what,
                    why=why.get(name, shares),
                    seat=now,
                    traffic_class=held.traffic_class(name),
                    slowdown=held.slowdown[name],
                )
            )
        return tuple(found)
