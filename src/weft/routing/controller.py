"""The controller: routes of all known jobs, held as long as they do not collide, changed as little as
possible.

It plans over all pairs of all known jobs, so that no timing of theirs can make them collide.  On an event the
flows that keep a live path keep it; others are placed where they hurt least, then single moves and chains of
moves bring congestion down to the bound.  Only if that fails, or from time to time while routes are above the
bound, everything is planned anew, and taken where it is better.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from weft.errors import BadInput
from weft.fabric.checks import components
from weft.fabric.spec import Fabric, Ints, Mask
from weft.routing.bound import closed_bound
from weft.routing.choice import ENOUGH, Choice, links_of, on_links
from weft.routing.events import Event
from weft.routing.failures import Down, changed, without
from weft.routing.forecast import Forecast, Seen, earliest, forecast
from weft.routing.problem import Problem, problem
from weft.routing.routers import ROUTERS, improve
from weft.routing.traffic import JobTraffic, check_traffic, job_traffic, merged
from weft.routing.ways import climbs

REPLAN_S = 60.0
"""Time between plans made anew while routes are above the bound."""
QUIET = ("traffic", "tick")
"""Events after which routes above the bound are only looked at again when that is due."""
DIGITS = 9

Path = tuple[int, ...]
Key = tuple[str, str, int, int, int]
"""Job, collective, source, target and queue pair of a flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A flow's new path (links), and when to switch: before its job's next collective, where that is
    known.
    """

    flow: Key
    path: Path
    new: bool
    apply_by_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the controller did about an event.

    ``how``: "kept" (no route changed), "placed" (new or cut-off flows alone), "repaired" (others moved as
    well), "replanned" (all planned anew).  ``moved`` counts flows that had a live path before and now have
    another: the churn. ``cut`` flows have no path until links come up again.  ``expected`` is what the
    measured collective's regularity says about its next beginning.
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
    expected: Forecast | None
    solve_s: float


class Controller:
    """Routes of the jobs on a fabric, kept up to date event by event.

    The same events give the same decisions (``solve_s`` apart), also after ``restore`` in between.

    Args:
        fabric: with all links that may ever be up.
        router: plans everything anew; one of ``weft.routing.routers.ROUTERS`` that pins each flow to one
            path.
        replan_s: least time between new plans while routes are above the bound.
    """

    def __init__(self, fabric: Fabric, *, router: str = "auto", seed: int = 0, replan_s: float = REPLAN_S) -> None:
        self.whole, self.router, self.seed, self.replan_s = fabric, router, seed, replan_s
        self.jobs: dict[str, JobTraffic] = {}
        self.links: dict[str, Ints] = {}
        self.down: Down = frozenset()
        self.seen: dict[tuple[str, str], Seen] = {}
        self.count, self.now_s, self.planned_s = 0, 0.0, 0.0
        self._table = climbs(fabric)
        self._fabric = fabric

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
        before = self.jobs.copy(), self.down, self.seen.copy(), self._fabric, self.planned_s
        try:
            self._note(event)
            how, moves, alpha, low = self._routed(event.time_s, fresh=event.kind not in QUIET)
        except BaseException:
            self.jobs, self.down, self.seen, self._fabric, self.planned_s = before
            raise
        self.count, self.now_s = self.count + 1, event.time_s
        return Decision(
            number=self.count,
            time_s=event.time_s,
            kind=event.kind,
            how=how,
            flows=sum(len(links) for links in self.links.values()),
            cut=sum(int((links[:, 0] < 0).sum()) for links in self.links.values()),
            alpha=alpha,
            alpha_bound=low,
            placed=sum(move.new for move in moves),
            moved=sum(not move.new for move in moves),
            moves=moves,
            expected=forecast(self.seen.get((event.job, event.collective), Seen())),
            solve_s=time.perf_counter() - begun,
        )

    def restore(
        self,
        *,
        jobs: dict[str, JobTraffic],
        links: dict[str, Ints],
        down: Down,
        seen: dict[tuple[str, str], Seen],
        count: int,
        now_s: float,
        planned_s: float,
    ) -> None:
        """Go on from what an earlier controller on the same fabric held.

        Args:
            links: of every job's flows (rows) the links of their paths in order, -1 behind.
        """
        self.jobs, self.links, self.down, self.seen = jobs, links, down, seen
        self.count, self.now_s, self.planned_s = count, now_s, planned_s
        self._fabric = without(self.whole, self.down)

    def _note(self, event: Event) -> None:
        """What is known now."""
        if event.kind == "job-arrives":
            if event.job in self.jobs:
                raise BadInput(f"job {event.job!r} is there already", where="event", remedy="end it first")
            assert event.traffic is not None
            check_traffic(self.whole, event.traffic, "event")
            self.jobs[event.job] = event.traffic
        elif event.kind == "job-ends":
            if event.job not in self.jobs:
                raise BadInput(f"there is no job {event.job!r}", where="event", remedy="let it arrive first")
            del self.jobs[event.job]
            self.seen = {key: one for key, one in self.seen.items() if key[0] != event.job}
        elif event.kind == "traffic":
            self._measure(event)
        elif event.kind != "tick":
            self._link(event)

    def _measure(self, event: Event) -> None:
        """A collective was seen to begin; flows that nobody announced become known with it."""
        known = self.jobs.get(event.job)
        if event.traffic is not None:
            check_traffic(self.whole, event.traffic, "event")
            self.jobs[event.job] = event.traffic if known is None else _joined(known, event.traffic)
        elif known is None:
            raise BadInput(f"there is no job {event.job!r}", where="event", remedy="give its flows with the traffic")
        key = event.job, event.collective
        self.seen[key] = self.seen.get(key, Seen()).add(event.time_s, event.bytes)

    def _link(self, event: Event) -> None:
        """A link or switch went down or came up."""
        self.down = changed(self.whole, self.down, event.nodes, fails=event.kind.endswith("down"))
        self._fabric = without(self.whole, self.down)

    def _routed(self, now_s: float, *, fresh: bool) -> tuple[str, tuple[Move, ...], float, float]:
        """New routes of everything; how they were found, what changed, congestion and its bound."""
        if not self.jobs:
            self.links = {}
            return "kept", (), 0.0, 0.0
        every = merged(list(self.jobs.values()))
        whole = np.flatnonzero(~self._cut(every))
        traffic = every.select(whole) if len(whole) < len(every) else every
        asked = self._problem(traffic)
        choice, had, live = self._placed(asked, whole)
        if not np.isfinite(choice.congestion):
            asked = problem(self._fabric, traffic, checked=True)
            choice, had, live = self._placed(asked, whole)
        low = closed_bound(asked)
        planned = False
        if choice.congestion > low * (1 + ENOUGH):
            choice, planned = self._better(asked, choice, low, now_s, fresh=fresh)
        moves = self._settled(asked, choice, had, live, whole, now_s)
        return _how(moves, planned), moves, round(choice.congestion, DIGITS), round(low, DIGITS)

    def _cut(self, traffic: JobTraffic) -> Mask:
        """Flows between parts of the fabric that nothing joins any more."""
        if not self.down:
            return np.zeros(len(traffic), dtype=bool)
        fabric = self._fabric
        part = components(fabric.nodes, fabric.source[fabric.up], fabric.target[fabric.up])
        return np.asarray(part[traffic.source] != part[traffic.target])

    def _problem(self, traffic: JobTraffic) -> Problem:
        """The problem with the ways of the whole fabric, of which those over links that are down cost
        infinity.
        """
        usable = self._table.usable & self._fabric.up & self._fabric.up[self._table.reverse]
        return problem(self._fabric, traffic, table=replace(self._table, usable=usable), checked=True)

    def _placed(self, asked: Problem, flows: Ints) -> tuple[Choice, Ints, Mask]:
        """Flows with a live path on it, the others where they hurt least; what all had, which was live."""
        had = self._had(2 * asked.ways.up.shape[1] + 2)[flows]
        live = (had[:, 0] >= 0) & np.where(had >= 0, self._fabric.up[had], True).all(axis=1)
        choice = on_links(asked, had, np.flatnonzero(live))
        choice.place(np.flatnonzero(choice.up < 0), smooth=True)
        return choice, had, live

    def _had(self, width: int) -> Ints:
        """The links that every flow had, -1 behind; rows of -1 for flows without a path."""
        rows = []
        for name, job in self.jobs.items():
            old = self.links.get(name, np.zeros((0, 0), dtype=np.int64))
            row = np.full((len(job), max(width, old.shape[1])), -1, dtype=np.int64)
            row[: len(old), : old.shape[1]] = old
            rows.append(row)
        widest = max(row.shape[1] for row in rows)
        return np.concatenate([np.pad(row, ((0, 0), (0, widest - row.shape[1])), constant_values=-1) for row in rows])

    def _better(self, asked: Problem, choice: Choice, low: float, now_s: float, *, fresh: bool) -> tuple[Choice, bool]:
        """Lower congestion by moving flows; by a new plan (True) where it is time for one or moves do not get
        there.
        """
        before = choice.congestion
        due = now_s >= self.planned_s + self.replan_s
        if fresh or due:
            improve(choice, low)
        if choice.congestion > low * (1 + ENOUGH) and (fresh or due):
            self.planned_s = now_s
            ways = ROUTERS[self.router](asked, self.seed).ways
            if ways is None:
                raise BadInput(f"{self.router} pins no flow to a path", where="--router", remedy="use auto or repair")
            other = Choice(asked, *ways)
            if other.congestion < min(before, choice.congestion) * (1 - ENOUGH):
                return other, True
        return choice, False

    def _settled(
        self, asked: Problem, choice: Choice, had: Ints, live: Mask, flows: Ints, now_s: float
    ) -> tuple[Move, ...]:
        """Take the choice over; what changed."""
        links = links_of(asked.routes(choice.up, choice.down), had.shape[1])
        changed = np.flatnonzero((links != had).any(axis=1))
        moves = []
        soon = {name: self.expected_s(name, now_s) for name in self.jobs} if len(changed) else {}
        for key, flow in zip(keys_of(asked.traffic, changed), changed.tolist(), strict=True):
            path = tuple(link for link in links[flow].tolist() if link >= 0)
            moves.append(Move(flow=key, path=path, new=not live[flow], apply_by_s=soon[key[0]]))
        ends = np.cumsum([len(job) for job in self.jobs.values()])
        every = np.full((int(ends[-1]), links.shape[1]), -1, dtype=np.int64)
        every[flows] = links
        self.links = dict(zip(self.jobs, np.split(every, ends[:-1]), strict=True))
        return tuple(moves)

    def expected_s(self, job: str, now_s: float) -> float | None:
        """When a job is expected to send next; None if that is not known."""
        return earliest([forecast(seen) for (name, _), seen in self.seen.items() if name == job], now_s)

    @property
    def fabric(self) -> Fabric:
        """The fabric with what is down now."""
        return self._fabric

    @property
    def traffic(self) -> JobTraffic | None:
        """All known flows; None without jobs."""
        return merged(list(self.jobs.values())) if self.jobs else None


def _how(moves: tuple[Move, ...], planned: bool) -> str:
    """See ``Decision``."""
    if not moves or planned:
        return "replanned" if moves else "kept"
    return "placed" if all(move.new for move in moves) else "repaired"


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
