"""The controller: routes of all known jobs, held as long as they do not collide, changed as little as
possible.

It begins with nothing, or with the routes that a network has.  It plans over all pairs of all known jobs, so that no
timing of theirs can make them collide.  On an event the flows that keep a live path keep it; others are placed where
they hurt least, then single moves and chains of moves bring congestion down to the bound.  Only if that fails, or from
time to time while routes are above the bound, everything is planned again, and taken where it is better.  Flows that
moved without need go back.

Measured links (``weft.routing.telemetry``) count as they are: lossy ones are avoided, capacity that others use is not
there.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import count
from typing import Literal, get_args

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints, Mask, ranks
from weft.fabric.traffic import Routes
from weft.routing import _kernels
from weft.routing.bound import closed_bound
from weft.routing.choice import ENOUGH, PathChoice, follow, links_of, ordered
from weft.routing.plan import path_rates
from weft.routing.problem import Problem, demands, routing_problem
from weft.routing.routers import ROUTERS, as_trees, bundled, improve
from weft.routing.telemetry import Ends, LinkChange, LinkSample, Telemetry
from weft.routing.traffic import JobTraffic, check_traffic, job_traffic, merged
from weft.routing.ways import Climbs, Ways, climbs, table_ways, ways_of

Down = frozenset[tuple[str, ...]]
"""What is down: a switch as one name, a link as those of its two ends, sorted."""


def changed(fabric: Fabric, down: Collection[tuple[str, ...]], nodes: tuple[str, ...], *, fails: bool) -> Down:
    """What is down after a link (two nodes) or switch (one) went down or came up.

    Raises:
        BadInput: no such node or link, or it comes up without having been down.
    """
    numbers = _numbers(fabric)
    for name in nodes:
        if name not in numbers:
            raise BadInput(
                f"{name!r} is not a node of {fabric.name}", where="event", remedy=f"use names like {fabric.names[-1]}"
            )
    names = tuple(sorted(nodes))
    ends = [numbers[name] for name in names]
    if len(ends) == 2 and not np.any((fabric.source == ends[0]) & (fabric.target == ends[1])):
        raise BadInput(f"{names[0]} and {names[1]} share no link", where="event", remedy="name joined nodes")
    if fails:
        return frozenset(down) | {names}
    if names not in down:
        raise BadInput(f"{' - '.join(names)} is not down", where="event", remedy="report it down before it comes up")
    return frozenset(down) - {names}


def without(fabric: Fabric, down: Collection[tuple[str, ...]]) -> Fabric:
    """The fabric without what is down."""
    numbers, off, pairs = _numbers(fabric), np.zeros(fabric.nodes, dtype=bool), []
    for first, *second in ([numbers[name] for name in names] for names in down):
        off[first] |= not second
        pairs += [(first * fabric.nodes + end, end * fabric.nodes + first) for end in second]
    dead = off[fabric.source] | off[fabric.target] | np.isin(fabric.source * fabric.nodes + fabric.target, pairs)
    return replace(fabric, up=fabric.up & ~dead)


@lru_cache(maxsize=2)
def _numbers(fabric: Fabric) -> dict[str, int]:
    """The nodes by name."""
    return {name: node for node, name in enumerate(fabric.names)}


REPLAN_S = 60.0
"""Time between new plans while routes are above the bound."""
QUIET = ("traffic", "tick")
"""Events after which routes above the bound are only looked at again when that is due; so are counters that change
nothing."""
GAIN = 0.05
"""Share by which a new plan has to raise the pace of the slowest collective before a measurement moves flows."""
STEP = 0.05
"""A measured job is the known one while no flow is new, and none has a demand that differs by more than this share."""
MISSES = 2
"""Measurements in a row without a job that end it: a job may pause for one."""
DIGITS = 9

Path = tuple[int, ...]
Key = tuple[str, str, int, int, int]
"""Job, collective, source, target and queue pair of a flow."""


Kind = Literal[
    "job-arrives", "job-ends", "link-down", "link-up", "switch-down", "switch-up", "traffic", "measured", "tick"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Those that files of events have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at ``time_s``.

    ``job`` names the job of "job-arrives", "job-ends" and "traffic", ``traffic`` its flows (for "traffic" those that
    were measured); ``nodes`` are the two ends of a link, or a switch.  "counters" has ``samples`` of links;
    "installed" the ``traffic`` of all jobs and the ``routes`` that it has, "measured" the ``traffic`` of all jobs that
    were recognised.  A "tick" says that time has passed.
    ``text`` is the event as it was read.
    """

    time_s: float
    kind: Kind | Literal["counters", "installed"]
    job: str = ""
    traffic: JobTraffic | None = None
    nodes: tuple[str, ...] = ()
    samples: tuple[LinkSample, ...] = ()
    routes: Routes | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A flow's new path (links), and the ``old`` one; ``new``: the old is not there any more, or there was none."""

    flow: Key
    path: Path
    new: bool
    old: Path = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Network-wide efficiency around a decision: the pace of the slowest group against its pace alone, and the mean
    over groups; before it (of the flows that had a path, 0 where it is not there any more; None where none had one),
    after it, and at most.  A group with a flow that is cut off has pace 0 after it.
    """

    before: float | None = None
    after: float = 1.0
    bound: float = 1.0
    mean_before: float | None = None
    mean_after: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the controller did about an event.

    ``how``: "kept" (no route changed), "placed" (new or cut-off flows alone), "repaired" (others moved as
    well), "replanned" (all planned again), "rolled-back" (the network did not take it).  ``moved`` counts
    flows that had a live path before and now have another: the churn. ``cut`` flows have no path until links
    come up again.  ``changes`` is what measurements changed, ``about`` the job or part of the network that an event
    names, ``withheld`` a plan that would have gained less than ``GAIN``; ``cut_jobs`` have the flows that are cut.
    """

    number: int
    time_s: float
    kind: str
    how: str
    flows: int
    cut: int
    alpha: float
    alpha_bound: float
    placed: int
    moved: int
    moves: tuple[Move, ...]
    solve_s: float
    gain: Gain = Gain()
    changes: tuple[LinkChange, ...] = ()
    about: str = ""
    withheld: bool = False
    cut_jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Routed:
    """What a decision is made of: how it was found, what changes, congestion and its bound; the problem and the links
    of its flows before and after; the collectives with a flow that has no path left, and with one that ``lost`` it."""

    how: str = "kept"
    withheld: bool = False
    moves: tuple[Move, ...] = ()
    alpha: float = 0.0
    low: float = 0.0
    problem: Problem | None = None
    had: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    links: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    before: list[object] = field(default_factory=list)
    stopped: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lost: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Network:
    """What stands (``standing``: all but what is down), what of it is avoided, what is used, and its ways."""

    standing: Fabric
    avoided: frozenset[Ends] = frozenset()
    fabric: Fabric
    table: Climbs

    @cached_property
    def _part(self) -> Ints:
        return components(self.fabric.nodes, self.fabric.source[self.fabric.up], self.fabric.target[self.fabric.up])

    def cut(self, traffic: JobTraffic) -> Mask:
        """Flows between parts of the fabric that nothing joins any more."""
        return np.asarray(self._part[traffic.source] != self._part[traffic.target])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """What a job's flows ask of the whole fabric, and their ways there where all are in its table."""

    demand_Bps: Floats
    ways: Ways | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Last:
    """What follows from the jobs and the network of the last decision, which the next may need again."""

    jobs: list[JobTraffic] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)
    traffic: JobTraffic | None = None
    demand_Bps: Floats = field(default_factory=lambda: np.zeros(0))
    network: _Network | None = None
    flows: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    problem: Problem | None = None
    low: float = 0.0


class Controller:
    """Routes of the jobs on a fabric, kept up to date event by event.

    The same events give the same decisions (``solve_s`` apart), also after ``restore`` in between.

    Args:
        fabric: with all links that may ever be up.
        router: of new plans; one of ``weft.routing.routers.ROUTERS`` that pins each flow to one path.  With
            "destination" flows leave a switch by one link for each destination after every decision.
        replan_s: least time between new plans while routes are above the bound.
    """

    def __init__(self, fabric: Fabric, *, router: str = "auto", seed: int = 0, replan_s: float = REPLAN_S) -> None:
        self.whole, self.router, self.seed, self.replan_s = fabric, router, seed, replan_s
        self.telemetry = Telemetry(whole=fabric)
        self.jobs: dict[str, JobTraffic] = {}
        self.links: dict[str, Ints] = {}
        self.missed: dict[str, int] = {}
        """Of the jobs that were measured, in how many measurements since they were missing."""
        self.down: Down = frozenset()
        self.count, self.now_s, self.planned_s = 0, 0.0, 0.0
        self._table = climbs(fabric)
        self._known = _Last()
        self._taken: dict[str, tuple[Ints, Ints]] = {}
        """Of jobs the rows of links, and the numbers of the ways in the table that these are."""
        self._measured: tuple[list[object], float | None, float | None] = [], None, None
        """The last pace of the slowest group and mean, and what they are of."""
        self._network = _Network(standing=fabric, fabric=fabric, table=self._table)

    @property
    def fabric(self) -> Fabric:
        """The fabric without what is down and what is avoided, with the capacity that others leave."""
        return self._network.fabric

    def apply(self, event: Event) -> Decision:
        """Take note of an event and bring the routes up to date.

        Raises:
            BadInput: an event that does not fit what is known (an unknown job, a name twice, time that goes
                back); nothing is changed then.
        """
        begun = time.perf_counter()
        if event.time_s < self.now_s:
            raise BadInput(
                f"{event.kind} at {event.time_s:g} s comes after {self.now_s:g} s",
                where="event",
                remedy="give events in order of time",
            )
        # An event is taken whole or not at all: what it changed is put back if it is refused.
        before = self.jobs.copy(), self.links, self.missed, self.down, self._network, self.planned_s
        health = self.telemetry
        try:
            changes = self._note(event)
            fresh = bool(changes) if event.kind == "counters" else event.kind not in QUIET
            if measured := event.kind == "measured":
                fresh = list(self.jobs.items()) != list(before[0].items())
            result = self._routed(event.time_s, fresh=fresh, least_gain=GAIN if measured else 0.0)
        except BaseException:
            self.jobs, self.links, self.missed, self.down, self._network, self.planned_s = before
            self.telemetry = health
            raise
        self.count, self.now_s = self.count + 1, event.time_s
        seconds = time.perf_counter() - begun
        return Decision(
            number=self.count,
            time_s=event.time_s,
            kind=event.kind,
            how=result.how,
            flows=sum(len(links) for links in self.links.values()),
            cut=sum(int((links[:, 0] < 0).sum()) for links in self.links.values()),
            cut_jobs=tuple(name for name, links in self.links.items() if (links[:, 0] < 0).any()),
            alpha=result.alpha,
            alpha_bound=result.low,
            placed=sum(move.new for move in result.moves),
            moved=sum(not move.new for move in result.moves),
            moves=result.moves,
            solve_s=seconds,
            gain=self._gain(result),
            changes=tuple(changes),
            about=event.job or " - ".join(event.nodes) or self._news(before[0]),
            withheld=result.withheld,
        )

    def _news(self, before: dict[str, JobTraffic]) -> str:
        """Jobs that came and went."""
        came = [f"+{name}" for name in self.jobs if name not in before]
        return ", ".join(came + [f"-{name}" for name in before if name not in self.jobs])

    def hold(self, decision: Decision) -> Decision:
        """Go on from the paths before the last decision, which was not carried out; the decision that this makes.

        Flows that had no path are placed again with the next event.
        """
        # The flows that the decision moved go back to the links that they had.
        old = {move.flow: move.old for move in decision.moves}
        for name, job in self.jobs.items():
            links = self.links[name].copy()
            for flow, key in enumerate(keys_of(job, np.arange(len(job)))):
                if key in old:
                    links[flow] = -1
                    links[flow, : len(old[key])] = old[key]
            self.links = self.links | {name: links}
        gain = decision.gain
        unchanged = replace(gain, after=gain.before or 0.0, mean_after=gain.mean_before or 0.0)
        alpha = round(float(self._load().max(initial=0.0)), DIGITS)
        return replace(decision, how="rolled-back", alpha=alpha, placed=0, moved=0, moves=(), gain=unchanged)

    def _load(self) -> Floats:
        """What the known flows ask of every link on their paths."""
        if not self.jobs:
            return np.zeros(self.whole.links)
        rows = self.rows()
        flow, _ = np.nonzero(on_path := rows >= 0)
        sent_Bps = np.bincount(rows[on_path], self._flows()[1][flow], self.whole.links)
        return np.asarray(sent_Bps / np.maximum(self.fabric.capacity_Bps, 1e-300))

    def rows(self) -> Ints:
        """The links of the paths of all known flows, -1 behind."""
        return self._had(1) if self.jobs else np.zeros((0, 1), dtype=np.int64)

    def restore(
        self,
        *,
        jobs: dict[str, JobTraffic],
        links: dict[str, Ints],
        down: Down,
        count: int,
        now_s: float,
        planned_s: float,
        missed: dict[str, int] | None = None,
        telemetry: Telemetry | None = None,
        pace: tuple[float | None, float | None] | None = None,
    ) -> None:
        """Go on from what an earlier controller on the same fabric held.

        Args:
            links: of every job's flows (rows) the links of their paths in order, -1 behind.
        """
        self.jobs, self.links, self.missed, self.down = jobs, links, missed or {}, down
        self.count, self.now_s, self.planned_s = count, now_s, planned_s
        self.telemetry = self.telemetry if telemetry is None else telemetry
        self._survey()
        if pace is not None:
            self._measured = self._state(), *pace

    @property
    def pace(self) -> tuple[float | None, float | None] | None:
        """The pace of the slowest group and the mean since the last decision; None where that was not carried out."""
        return self._measured[1:] if _same(self._measured[0], self._state()) else None

    def _survey(self) -> None:
        """Look at the network again: parts of it went or came, or were measured."""
        standing = without(self.whole, self.down)
        avoided, table = self.telemetry.avoided(standing), self._table
        fabric = self.telemetry.applied(standing, avoided)
        usable = table.usable & fabric.up & fabric.up[table.reverse]
        self._network = _Network(
            standing=standing, avoided=avoided, fabric=fabric, table=replace(table, usable=usable)
        )

    def _note(self, event: Event) -> list[LinkChange]:
        """What is known now, and what measurements changed."""
        if event.kind == "installed":
            self._install(event)
        elif event.kind == "counters":
            return self._read(event)
        elif event.kind == "measured":
            self._measure(event)
        elif event.kind == "job-arrives":
            if event.job in self.jobs:
                raise BadInput(f"job {event.job!r} is there already", where="event", remedy="end it first")
            assert event.traffic is not None
            check_traffic(self.whole, event.traffic, "event")
            self.jobs[event.job] = event.traffic
        elif event.kind == "job-ends":
            if event.job not in self.jobs:
                raise BadInput(f"there is no job {event.job!r}", where="event", remedy="name one that runs")
            del self.jobs[event.job]
            self.missed = {name: times for name, times in self.missed.items() if name != event.job}
        elif event.kind == "traffic":
            # Flows that nobody announced become known.
            known = self.jobs.get(event.job)
            assert event.traffic is not None
            check_traffic(self.whole, event.traffic, "event")
            self.jobs[event.job] = event.traffic if known is None else _joined(known, event.traffic)
        elif event.kind != "tick":
            self.down = changed(self.whole, self.down, event.nodes, fails=event.kind.endswith("down"))
            self._survey()
        return []

    def _install(self, event: Event) -> None:
        """Begin with the routes that a network has."""
        assert event.traffic is not None
        assert event.routes is not None
        if self.count:
            raise BadInput("routes are known already", where="event", remedy="begin with those that are installed")
        check_traffic(self.whole, event.traffic, "event")
        links = links_of(event.routes)
        for number, name in enumerate(event.traffic.jobs):
            self.jobs[name] = event.traffic.only([number])
            self.links = self.links | {name: links[event.traffic.flow_job == number]}

    def _measure(self, event: Event) -> None:
        """Jobs were recognised: those that appear arrive, those that stay away end, and others may have changed."""
        assert event.traffic is not None
        check_traffic(self.whole, event.traffic, "event")
        jobs = [event.traffic.only([number]) for number in range(len(event.traffic.jobs))]
        pairs = {name: set(self._pairs(job).tolist()) for name, job in self.jobs.items()}
        missed = {name: times + 1 for name, times in self.missed.items() if name in self.jobs}
        for job in jobs:
            # A job goes by its flows, not by its name: the known one of which it shares most, if that is half of both.
            now = set(self._pairs(job).tolist())
            alike = {name: len(now & old) / len(now | old) for name, old in pairs.items()}
            name = max(alike, key=alike.__getitem__, default="")
            if name and alike[name] >= 1 / 2:
                del pairs[name]
                self._update(name, job)
            else:
                taken = self.jobs.keys() | set(event.traffic.jobs) - {job.jobs[0]}
                names = (f"{job.jobs[0]}{'' if turn == 1 else f' ({turn})'}" for turn in count(1))
                name = next(name for name in names if name not in taken)
                self.jobs[name] = replace(job, jobs=(name,))
            missed[name] = 0
        for name in [name for name, times in missed.items() if times >= MISSES]:
            del self.jobs[name], missed[name]
        self.missed = missed

    def _pairs(self, job: JobTraffic) -> Ints:
        """A number of every flow by its ends, and its place among those with the same ends."""
        ends = job.source * self.whole.accelerators + job.target
        return np.asarray(ends + ranks(ends) * self.whole.accelerators**2)

    def _update(self, name: str, job: JobTraffic) -> None:
        """Take what was measured of a known job, unless it differs by noise alone; flows keep their paths."""
        known = self.jobs[name]
        old, now = self._pairs(known), self._pairs(job)
        order = np.argsort(old)
        at = order[np.minimum(np.searchsorted(old[order], now), len(old) - 1)]
        seen = old[at] == now
        demand, measured = demands(self.whole, known)[at], demands(self.whole, job)
        unseen = 1.0 - float(known.bytes[at[seen]].sum() / known.bytes.sum())
        if seen.all() and unseen <= STEP and bool(np.all(np.abs(measured / demand - 1) <= STEP)):
            return
        self.jobs[name] = replace(job, jobs=known.jobs)
        if name in self.links:
            rows = np.where(seen[:, None], self.links[name][at], -1)
            self.links = self.links | {name: rows}

    def _read(self, event: Event) -> list[LinkChange]:
        """Links were measured."""
        before = self._network.avoided, self.telemetry.lossy()
        self.telemetry, changes = self.telemetry.after(event.samples, event.time_s, self._known_Bps())
        lossy = self.telemetry.lossy()
        if changes or lossy != before[1]:
            self._survey()
        after = self._network.avoided
        # Links are reported where being lossy or being avoided has changed.
        for ends in sorted(before[1].keys() | lossy.keys()):
            was, now = (ends in before[0], ends in before[1]), (ends in after, ends in lossy)
            if was != now:
                kind: Literal["avoided", "kept", "back"] = "avoided" if now[0] else "kept" if now[1] else "back"
                changes.append(LinkChange(ends=ends, kind=kind, value=lossy.get(ends, 0.0)))
        return changes

    def _known_Bps(self) -> Floats:
        """What the known flows are expected to send over each link."""
        if not self.jobs:
            return np.zeros(self.whole.links)
        every, demand = self._flows()
        rows = self.rows()
        flows = np.flatnonzero(_live(rows, self.fabric.up))
        # A flow sends no faster than its max-min fair rate among the known flows, and no faster than alone.
        rates = np.minimum(path_rates(self.fabric, every.select(flows), rows[flows]), demand[flows])
        flow, column = np.nonzero(rows[flows] >= 0)
        links = rows[flows][flow, column]
        return np.asarray(np.bincount(links, rates[flow], self.whole.links), dtype=np.float64)

    def _routed(self, now_s: float, *, fresh: bool, least_gain: float) -> _Routed:
        """New routes of everything; flows that could stay move where that raises the pace by ``least_gain``."""
        if not self.jobs:
            self.links = {}
            return _Routed()
        before = self._state()
        flows, problem, low = self._asked()
        had, up, down = self._remembered(problem, flows)
        every = self._flows()[0]
        cut = np.zeros(0, dtype=np.int64) if len(flows) == len(every) else np.setdiff1d(np.arange(len(every)), flows)
        lost = cut[self._had(1)[cut, 0] >= 0] if len(cut) else cut
        stopped, lost = (np.unique(every.collective[which]) for which in (cut, lost))
        done = partial(_Routed, low=round(low, DIGITS), had=had, before=before, stopped=stopped, lost=lost)
        # Where every flow is on one of its ways, all of them are up, and congestion is at the bound, all stay.
        if not len(cut) and np.all(up >= 0) and self.router != "destination":
            load = np.zeros(problem.fabric.links)
            _kernels.weigh(load, problem.inverse, problem.demand_Bps, had)
            if (alpha := float(load.max(initial=0.0))) <= low * (1 + ENOUGH):
                self.links = {name: self.links[name] for name in self.jobs}
                return done(alpha=round(alpha, DIGITS), problem=problem, links=had)
        bundles, bundle, former = self._bundles(problem, up, down)
        choice = self._placed(bundles, former)
        # The ways of the whole fabric may all lead over links that are down, which cost infinity: list those of what
        # is left.
        if not np.isfinite(choice.congestion):
            problem = routing_problem(self.fabric, problem.traffic, checked=True, demand_Bps=problem.demand_Bps)
            low = closed_bound(problem)
            self._known = replace(self._known, problem=problem, low=low)
            had, up, down = self._remembered(problem, flows)
            bundles, bundle, former = self._bundles(problem, up, down)
            choice = self._placed(bundles, former)
        planned, withheld = False, False
        if choice.congestion > low * (1 + ENOUGH):
            stays = max(1.0, choice.congestion)
            choice, planned = self._better(choice, former, low, now_s, fresh=fresh)
            # Hysteresis: figures that waver move no flow.
            gain = stays / max(1.0, choice.congestion) - 1
            if gain < least_gain:
                planned, withheld = False, gain > ENOUGH
                choice = self._placed(bundles, former)
        moves, links = self._settled(problem, (choice.up[bundle], choice.down[bundle]), had, (up, down), flows)
        how = "kept"
        if moves:
            how = "replanned" if planned else "placed" if all(move.new for move in moves) else "repaired"
        return done(
            how=how,
            withheld=withheld,
            moves=moves,
            alpha=round(choice.congestion, DIGITS),
            low=round(low, DIGITS),
            had=had,
            problem=problem,
            links=links,
        )

    def _gain(self, result: _Routed) -> Gain:
        """The efficiency before and after a decision."""
        if result.problem is None:
            return Gain()
        if _same(self._measured[0], result.before):
            _, before, mean_before = self._measured
        else:
            before, mean_before = self._pace(result.problem, result.had, result.lost)
        after, mean = before, mean_before
        if result.links is not result.had or len(result.stopped):
            after, mean = self._pace(result.problem, result.links, result.stopped)
        self._measured = self._state(), after, mean
        return Gain(
            before=before,
            after=1.0 if after is None else after,
            bound=0.0 if len(result.stopped) else round(1.0 / max(1.0, result.low), DIGITS),
            mean_before=mean_before,
            mean_after=1.0 if mean is None else mean,
        )

    def _state(self) -> list[object]:
        """What the pace of flows with a path follows from: the network, the jobs and their paths."""
        routed = [(job, self.links[name]) for name, job in self.jobs.items() if name in self.links]
        return [self._network, *(each for pair in routed for each in pair)]

    def _pace(self, problem: Problem, links: Ints, stopped: Ints) -> tuple[float | None, float | None]:
        """The pace of the slowest group on some paths and the mean of all, of which some are stopped; None where no
        flow has a path and no group is stopped."""
        routed = np.flatnonzero(links[:, 0] >= 0)
        if not len(routed) and not len(stopped):
            return None, None
        # Flows whose path is cut have rate 0; measured loss cuts none, as an avoided link still carries packets.
        standing = replace(self.fabric, up=self._network.standing.up)
        live = np.flatnonzero(_live(links, standing.up))
        rates = np.zeros(len(links))
        rates[live] = path_rates(standing, problem.traffic.select(live), links[live])
        # Of the groups that have a flow with a path: those of a job that only arrives have no pace yet.
        slowest = np.full(len(problem.traffic.job), np.inf)
        np.minimum.at(slowest, problem.traffic.collective[routed], rates[routed] / problem.demand_Bps[routed])
        slowest[stopped] = 0.0
        paces = slowest[np.isfinite(slowest)]
        return round(float(paces.min()), DIGITS), round(float(paces.mean()), DIGITS)

    def _flows(self) -> tuple[JobTraffic, Floats]:
        """All known flows with their demands, which are of the whole fabric."""
        jobs, known = list(self.jobs.values()), self._known
        if known.traffic is None or list(map(id, jobs)) != list(map(id, known.jobs)):
            parts = {id(job): part for job, part in zip(known.jobs, known.parts, strict=True)}
            each = [parts[id(job)] if id(job) in parts else self._part(job) for job in jobs]
            demand = np.concatenate([part.demand_Bps for part in each])
            self._known = known = _Last(jobs=jobs, parts=each, traffic=merged(jobs), demand_Bps=demand)
        assert known.traffic is not None
        return known.traffic, known.demand_Bps

    def _part(self, job: JobTraffic) -> _Part:
        ways, listed = table_ways(self.whole, job.source, job.target, self._table)
        return _Part(demand_Bps=demands(self.whole, job), ways=None if len(listed) else ways)

    def _ways(self) -> Ways | None:
        """The ways of all flows, where those of the jobs fit together and hold on the present network."""
        inside = self.whole.tier == SCALE_UP
        ways = [part.ways for part in self._known.parts]
        if None in ways or not np.array_equal(self.fabric.up[inside], self.whole.up[inside]):
            return None
        bounds = map(np.concatenate, zip(*(each[3:] for each in ways if each is not None), strict=True))
        return Ways(self._table.top, self._table.up, self._table.down, *bounds)

    def _asked(self) -> tuple[Ints, Problem, float]:
        """The flows between which a path is left, their problem, and its bound.

        The problem has the ways of the whole fabric, of which those over links that are down cost infinity.
        """
        every, demand = self._flows()
        network, known = self._network, self._known
        if known.problem is None or known.network is not network:
            flows = np.flatnonzero(~network.cut(every))
            traffic = every.select(flows) if len(flows) < len(every) else every
            ways = self._ways()
            if ways is None:
                ways = ways_of(network.fabric, traffic.source, traffic.target, network.table)
            elif len(flows) < len(every):
                ways = Ways(*ways[:3], *(bound[flows] for bound in ways[3:]))
            problem = Problem(
                fabric=network.fabric, traffic=traffic, climbs=network.table, ways=ways, demand_Bps=demand[flows]
            )
            self._known = known = replace(
                known, network=network, flows=flows, problem=problem, low=closed_bound(problem)
            )
        assert known.problem is not None
        return known.flows, known.problem, known.low

    def _remembered(self, problem: Problem, flows: Ints) -> tuple[Ints, Ints, Ints]:
        """The links that flows had, and the numbers of their ways where these are up; -1 where none are."""
        had = self._had(2 * problem.ways.up.shape[1] + 2)
        ways = np.full((2, len(had)), -1, dtype=np.int64)
        begin = 0
        self._taken = {name: self._taken[name] for name in self.jobs if name in self._taken}
        for name, job in self.jobs.items():
            rows, numbers = self._taken.get(name, (None, ways[:, :0]))
            if rows is not None and rows is self.links.get(name) and problem.ways.top is self._table.top:
                ways[:, begin : begin + len(rows)] = numbers
            begin += len(job)
        if len(flows) < len(had):
            had, ways = had[flows], ways[:, flows]
        live = _live(had, self.fabric.up)
        follow(problem, had, np.flatnonzero(live & (ways[0] < 0)), ways)
        ways[:, ~live] = -1
        return had, ways[0], ways[1]

    def _bundles(self, problem: Problem, up: Ints, down: Ints) -> tuple[Problem, Ints, tuple[Ints, Ints]]:
        """The problem of what goes together, the number of each flow in it, and the ways that these had."""
        if self.router != "destination":
            return problem, np.arange(len(up)), (up, down)
        bundles, bundle = bundled(problem)
        ways = np.full((2, len(bundles.demand_Bps)), -1, dtype=np.int64)
        flows = np.flatnonzero(up >= 0)
        ways[:, bundle[flows]] = up[flows], down[flows]
        return bundles, bundle, (ways[0], ways[1])

    def _placed(self, problem: Problem, former: tuple[Ints, Ints]) -> PathChoice:
        """Flows with a live path on it, the others where they hurt least."""
        # Step 1: every flow whose path is whole keeps it.  Step 2: the others go where they hurt least.
        choice = PathChoice(problem, *former)
        choice.place(np.flatnonzero(choice.up < 0), smooth=True)
        return self._fitted(choice, former)

    def _fitted(self, choice: PathChoice, former: tuple[Ints, Ints]) -> PathChoice:
        """The choice that tables by destination can hold, where the router is for those."""
        if self.router != "destination" or not np.isfinite(choice.congestion):
            return choice
        problem = choice.problem
        # What stays goes first; where that leaves a flow without a path, the largest demand.
        moved = (choice.up != former[0]) | (choice.down != former[1])
        try:
            ways = as_trees(problem, choice.up, choice.down, np.lexsort((-problem.demand_Bps, moved)))
        except Unsupported:
            ways = as_trees(problem, choice.up, choice.down, ordered(problem))
        return PathChoice(problem, *ways)

    def _had(self, width: int) -> Ints:
        """The links that every flow had, -1 behind; rows of -1 for flows without a path."""
        old = [self.links.get(name, np.zeros((0, 0), dtype=np.int64)) for name in self.jobs]
        width = max(width, *(rows.shape[1] for rows in old))
        result = np.full((sum(map(len, self.jobs.values())), width), -1, dtype=np.int64)
        begin = 0
        for job, rows in zip(self.jobs.values(), old, strict=True):
            result[begin : begin + len(rows), : rows.shape[1]] = rows
            begin += len(job)
        return result

    def _better(
        self, choice: PathChoice, former: tuple[Ints, Ints], low: float, now_s: float, *, fresh: bool
    ) -> tuple[PathChoice, bool]:
        """Lower congestion by moving flows; by a new plan (True) where it is time for one or moves do not get
        there.
        """
        problem, before, planned = choice.problem, choice.congestion, False
        due = now_s >= self.planned_s + self.replan_s
        # Step 3: moves and chains from there.  Step 4, only if these end above the bound: plan all again, and take
        # that where it is better, since it moves flows that had no need.
        if fresh or due:
            placed = choice.up.copy(), choice.down.copy()
            improve(choice, low)
            choice = self._fitted(choice, former)
            if choice.congestion > before:
                choice = PathChoice(problem, *placed)
        if choice.congestion > low * (1 + ENOUGH) and (fresh or due):
            self.planned_s = now_s
            ways = ROUTERS[self.router](problem, self.seed).ways
            if ways is None:
                raise BadInput(f"{self.router} pins no flow to a path", where="--router", remedy="use auto or repair")
            plan = PathChoice(problem, *ways)
            if plan.congestion < min(before, choice.congestion) * (1 - ENOUGH):
                choice, planned = plan, True
        # Step 5: flows that moved without need go back.
        target, ways = max(choice.congestion, low), (choice.up.copy(), choice.down.copy())
        choice.keep(*former, target)
        choice = self._fitted(choice, former)
        return (choice if choice.congestion <= target * (1 + ENOUGH) else PathChoice(problem, *ways)), planned

    def _settled(
        self, problem: Problem, ways: tuple[Ints, Ints], had: Ints, former: tuple[Ints, Ints], flows: Ints
    ) -> tuple[tuple[Move, ...], Ints]:
        """Take the ways over; what changed, and the links of all flows."""
        live = _live(had, self._network.standing.up)
        # Only flows on other ways than before can have other links.
        other = np.flatnonzero((ways[0] != former[0]) | (ways[1] != former[1]))
        routes = problem.select(other).routes(ways[0][other], ways[1][other])
        links = had.copy()
        links[other] = links_of(routes, had.shape[1])
        changed = other[(links[other] != had[other]).any(axis=1)]
        keys = keys_of(problem.traffic, changed)
        each = zip(keys, _paths(links[changed]), live[changed].tolist(), _paths(had[changed]), strict=True)
        moves = tuple(Move(flow=key, path=path, new=not lives, old=old) for key, path, lives, old in each)
        # Flows without a path keep a row of -1, so that a later event can place them.
        links_after = {}
        begins = np.cumsum([0] + [len(job) for job in self.jobs.values()])
        at_job, moved = np.searchsorted(flows, begins).tolist(), np.diff(np.searchsorted(flows[changed], begins))
        for number, (name, begin, end) in enumerate(zip(self.jobs, begins[:-1], begins[1:], strict=True)):
            at = slice(*at_job[number : number + 2])
            # Rows that did not change stay the same array, which is how caches know them.
            rows = self.links.get(name)
            if rows is None or moved[number] or at.stop - at.start < end - begin:
                rows = np.full((end - begin, links.shape[1]), -1, dtype=np.int64)
                rows[flows[at] - begin] = links[at]
            links_after[name] = rows
            if problem.ways.top is self._table.top:
                numbers = np.full((2, end - begin), -1, dtype=np.int64)
                numbers[:, flows[at] - begin] = ways[0][at], ways[1][at]
                self._taken[name] = rows, numbers
        self.links = links_after
        return moves, links if moves else had

    @property
    def traffic(self) -> JobTraffic | None:
        """All known flows; None without jobs."""
        return self._flows()[0] if self.jobs else None


def _live(links: Ints, up: Mask) -> Mask:
    """Which flows have a path whose links are up; rows of ``links``, -1 behind."""
    live = np.zeros(len(links), dtype=bool)
    _kernels.all_up(links, up, live)
    return live


def _paths(links: Ints) -> list[Path]:
    """Rows of ``links`` without the -1 behind."""
    counts = (links >= 0).sum(axis=1).tolist()
    return [tuple(row[:count]) for row, count in zip(links.tolist(), counts, strict=True)]


def _same(these: list[object], those: list[object]) -> bool:
    return len(these) == len(those) and all(a is b for a, b in zip(these, those, strict=True))


def keys_of(traffic: JobTraffic, flows: Ints) -> list[Key]:
    """What names some flows."""
    job = [traffic.jobs[j] for j in traffic.flow_job[flows].tolist()]
    name = [traffic.names[c] for c in traffic.collective[flows].tolist()]
    ends = (each[flows].tolist() for each in (traffic.source, traffic.target, traffic.queue_pair))
    return list(zip(job, name, *ends, strict=True))


def _joined(known: JobTraffic, measured: JobTraffic) -> JobTraffic:
    """A job's flows and those measured that were not known; a collective keeps its name."""
    have = {key[1:] for key in keys_of(known, np.arange(len(known)))}
    extra = [flow for flow, key in enumerate(keys_of(measured, np.arange(len(measured)))) if key[1:] not in have]
    if not extra:
        return known
    names = list(known.names) + [name for name in dict.fromkeys(measured.names) if name not in known.names]
    rounds = {name: int(count) for name, count in zip(measured.names, measured.rounds, strict=True)}
    rounds |= {name: int(count) for name, count in zip(known.names, known.rounds, strict=True)}
    labels = [measured.names[c] for c in measured.collective[extra].tolist()]
    return job_traffic(
        np.concatenate([known.source, measured.source[extra]]),
        np.concatenate([known.target, measured.target[extra]]),
        np.concatenate([known.bytes, measured.bytes[extra]]),
        collective=np.concatenate([known.collective, np.array([names.index(name) for name in labels])]),
        job=np.zeros(len(names), dtype=np.int64),
        rounds=np.array([rounds[name] for name in names]),
        names=names,
        jobs=known.jobs,
        start_s=known.start_s,
        pause_s=known.pause_s,
        cap_Bps=np.concatenate([known.cap_Bps, measured.cap_Bps[extra]]),
        queue_pair=np.concatenate([known.queue_pair, measured.queue_pair[extra]]),
    )
