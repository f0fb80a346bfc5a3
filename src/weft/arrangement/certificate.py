"""How good any arrangement of a site could be, in the model of the clock, and an arrangement stepped once more.

For each job the largest of these bounds holds, whatever else is chosen:

- alone: what it takes alone on a 1:1 network, with the layout that it keeps or, where it may have any, with none;
- cuts: bytes that must cross a cut, over the cut's capacity (jobs that keep their layouts);
- phases: its phases in their order, each no faster than its bytes cross cuts, and those that are under way together
  sharing these (jobs that also stay).

Jobs that share a cut share its time: what all of them send over it, at their paces, is at most its capacity.  The
least objective under that is a convex program; a linear one over tangents bounds it from below.

The search steps templates: phases that stay inside hosts are delays there, and phases without flows are taken
together.  ``verify`` steps every phase and every flow, on the links where the job is, as ``weft simulate --full``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Annotated, Any, Literal

import numpy as np

from weft.arrangement.clock import Assignment, Clock, Hosts, repeated, together, window
from weft.arrangement.cuts import FabricCuts, least_cut
from weft.arrangement.objective import RATES, Objective
from weft.arrangement.template import Template
from weft.cluster.calibration import calibration
from weft.codec import Range
from weft.fabric.placement import Placement
from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Routes, joined, uncapped
from weft.simulation.flows.engine import run
from weft.simulation.iteration.contention import Wires
from weft.simulation.iteration.simulate import iteration_traffic
from weft.solvers import lp

TANGENTS = 64
MOST_HOSTS = 300
"""Hosts of a job up to which its least cut is computed."""


Proof = Literal["alone", "cuts", "phases", "time-sharing"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certificate:
    """Least seconds of each job's iteration with what proves them, and the least score of the objective with what
    proves it."""

    iteration_s: Floats
    proofs: tuple[Proof, ...]
    objective: float
    proof: Proof

    def gap(self, reached: float) -> float:
        """How far a score is above the bound, as a share of the bound; below a millionth it is none."""
        share = reached / self.objective - 1.0
        return share if share > 1e-6 else 0.0


def certify(clock: Clock, cuts: FabricCuts, hosts: Hosts) -> Certificate:
    """The bounds for a site whose jobs that stay are on ``hosts``."""
    site = clock.site
    # 1. Bytes that each job must send over each cut.
    between = [template.between_hosts(site.domain_size) for template in clock.templates]
    must = np.stack([_must_cross(clock, cuts, hosts, job, between[job]) for job in range(len(between))])
    least: list[float] = []
    proofs: list[Proof] = []
    for job, template in enumerate(clock.templates):
        # 2. The largest bound of each job alone. Each holds whatever the other jobs do, so that the largest does too.
        bounds: dict[Proof, float] = {"alone": clock.references[job].bound_s}
        fixed = site.jobs[job].cut == "keep"
        if len(cuts.all_Bps) and fixed:
            bounds["cuts"] = max(float((must[job] / cuts.all_Bps).max()), _overflow(clock, cuts, job, between[job]))
        if site.jobs[job].may == "stay" and len(cuts.all_Bps) and fixed:
            bounds["phases"] = _in_phases(template, cuts, clock.accelerators(hosts[job], job), clock)
        # The first name that reaches it is the simplest proof.
        best = max(bounds.values())
        name = next(name for name, value in bounds.items() if value >= best * (1 - 1e-9))
        least.append(bounds[name])
        proofs.append(name)
    # 3. The objective grows with every job's seconds, so that at all bounds it is a bound.  Where jobs share cuts, a
    # convex program may give a sharper one.
    seconds = np.array(least)
    lone = clock.objective.score(seconds)
    shared = _time_sharing(clock.objective, cuts, must, seconds)
    if shared > lone * (1 + 1e-9):
        return Certificate(iteration_s=seconds, proofs=tuple(proofs), objective=shared, proof="time-sharing")
    strongest: Proof = "phases" if "phases" in proofs else "cuts" if "cuts" in proofs else "alone"
    return Certificate(iteration_s=seconds, proofs=tuple(proofs), objective=lone, proof=strongest)


def _must_cross(clock: Clock, cuts: FabricCuts, hosts: Hosts, job: int, between: Floats) -> Floats:
    """Bytes of a job that cross each cut in every arrangement: exactly where it stays, the least of any order of
    its hosts where these stay, none known where it may move or have another layout."""
    may = clock.site.jobs[job].may
    if clock.site.jobs[job].cut != "keep":
        return np.zeros(len(cuts.all_Bps))
    if may == "stay":
        return cuts.crossing(between, hosts[job])
    bytes_ = np.zeros(len(cuts.all_Bps))
    if may == "move" or len(between) > MOST_HOSTS:
        return bytes_
    least, first = least_cut(between), 0
    # The hosts stay but their order may change: over a cut that parts them at least the least cut crosses.
    at = np.array(hosts[job], dtype=np.int64)
    for unit, capacity in zip(cuts.unit, cuts.capacity_Bps, strict=True):
        inside = np.bincount(unit[at], minlength=len(capacity))
        bytes_[first : first + len(capacity)] = np.where((inside > 0) & (inside < len(at)), least, 0.0)
        first += len(capacity)
    return bytes_


def _overflow(clock: Clock, cuts: FabricCuts, job: int, between: Floats) -> float:
    """Seconds that a job larger than every unit needs over some cut, wherever it is put."""
    if len(between) > MOST_HOSTS:
        return 0.0
    usable = np.flatnonzero(np.array(clock.site.usable))
    least_s = 0.0
    for unit, capacity in zip(cuts.unit, cuts.capacity_Bps, strict=True):
        # No unit has room for the whole job, so that some cut parts it, wherever it is; the widest is the fastest.
        if np.bincount(unit[usable], minlength=len(capacity)).max() < len(between):
            least_s = max(least_s, least_cut(between) / float(capacity.max()))
    return least_s


def _in_phases(template: Template, cuts: FabricCuts, at: Ints, clock: Clock) -> float:
    """Seconds of a job's phases in their order, each at least as long as its bytes cross every cut, and those that
    are under way together sharing it."""
    # Seconds that each phase keeps each cut of each unit busy, shape (phases, cuts), out of and into the unit.
    source, target = at[template.source][template.message], at[template.target][template.message]
    domain = clock.fabric.domain
    works = []
    for unit, capacity in zip(cuts.unit, cuts.capacity_Bps, strict=True):
        a, b = unit[domain[source]], unit[domain[target]]
        crossing = np.flatnonzero(a != b)
        for ends in (a, b):
            key = template.phase[crossing] * len(capacity) + ends[crossing]
            bytes_ = np.bincount(key, template.bytes[crossing], len(template.phases) * len(capacity))
            works.append(bytes_.reshape(len(template.phases), -1) / capacity)
    work = np.concatenate(works, axis=1)
    longest = work.max(axis=1)
    none = np.zeros(0)
    no_flows = none.astype(np.int64)
    # A phase's delay comes before its flows: both one after the other are its length.
    lengths = template.phases.delay_s + longest
    empty = uncapped(replace(template.phases, delay_s=lengths), no_flows, none)
    routes = Routes(indptr=np.zeros(1, dtype=np.int64), links=no_flows, usage=none, latency_s=none)
    end = run(np.ones(1), empty, routes).phase_end_s
    # Step 1 gave the earliest begin of each phase by the critical path; step 2 its tail; step 3 looks at each cut as
    # one machine that has to do the phases' crossings in some order.
    tail = _tails(template, lengths)
    best = float(end[template.last])
    begin = end - longest
    for cut in np.flatnonzero(work.sum(axis=0) > 0).tolist():
        mine = np.flatnonzero((work[:, cut] > 0) & (tail >= 0))
        # No order of these can need more than this.
        if len(mine) and float((begin + tail)[mine].max() + work[mine, cut].sum()) > best:
            best = max(best, one_after_another(begin[mine], work[mine, cut], tail[mine]))
    return best


def _tails(template: Template, lengths: Floats) -> Floats:
    """Seconds from the end of each phase to that of the iteration, at least; below 0 where it need not wait."""
    tail = np.full(len(lengths), -np.inf)
    tail[template.last] = 0.0
    waits = [part.tolist() for part in np.split(template.phases.waits, template.phases.indptr[1:-1])]
    later = np.bincount(template.phases.waits, minlength=len(lengths))
    # Backwards in topological order: a phase is looked at when all that wait for it have been.
    stack = np.flatnonzero(later == 0).tolist()
    while stack:
        phase = stack.pop()
        for before in waits[phase]:
            tail[before] = max(tail[before], tail[phase] + lengths[phase])
            later[before] -= 1
            if not later[before]:
                stack.append(before)
    return tail


def one_after_another(begin: Floats, work: Floats, tail: Floats) -> float:
    """The least time by which work that a machine does in pieces can all be done and followed by its tail.

    Jackson's preemptive schedule (Carlier, European J. Operational Research 11, 1982): of the work that may have
    begun, that with the longest tail goes first.  Sharing the machine cannot be faster: for every set, the first
    begin, all its work and the least tail come one after the other, and the largest such sum is this time.
    """
    ready: list[tuple[float, int]] = []
    left = work.tolist()
    now = best = 0.0
    order = np.argsort(begin, kind="stable").tolist()
    for at, job in enumerate(order):
        # Work that may begin joins those that wait; until the next may, that with the longest tail is done.
        now = max(now, float(begin[job]))
        heappush(ready, (-float(tail[job]), job))
        until = float(begin[order[at + 1]]) if at + 1 < len(order) else np.inf
        while ready and now < until:
            longest, first = ready[0]
            done = min(left[first], until - now)
            left[first] -= done
            now += done
            if left[first] <= 0.0:
                heappop(ready)
                best = max(best, now - longest)
    return best


def _time_sharing(objective: Objective, cuts: FabricCuts, must: Floats, least_s: Floats) -> float:
    """The least score when cuts are shared in time; 0 where no cut is too busy for all jobs at their bounds."""
    if not len(cuts.all_Bps):
        return 0.0
    if objective.kind == "makespan":
        # All bytes of all iterations cross before the last job ends.
        return float((objective.worth @ must / cuts.all_Bps).max()) / objective.scale
    # Each job at its bound keeps a cut busy for this share of the time; only cuts above 1 bind.
    share = must / least_s[:, None] / cuts.all_Bps[None, :]
    busy = share[:, share.sum(axis=0) > 1.0]
    if not busy.shape[1]:
        return 0.0
    if objective.kind in RATES:
        # What all jobs do in a second is linear in their paces.
        at_most = objective.worth / least_s
        done = -_solved(-at_most / at_most.sum(), (np.zeros(len(at_most)), np.ones(len(at_most))), _paced(busy))
        return objective.score(least_s) / done if done > 0 else 0.0
    return _least_slow(objective, busy, least_s / objective.against_s)


def _paced(busy: Floats) -> list[_Row]:
    """The rows that let no cut be busy all the time and more; the first variables are paces (1: at the bound)."""
    jobs = [np.flatnonzero(share > 0) for share in busy.T]
    return [(mine, share[mine], -np.inf, 1.0) for mine, share in zip(jobs, busy.T, strict=True)]


def _solved(cost: Floats, bounds: tuple[Floats, Floats], rows: list[_Row]) -> float:
    """The least value; 0 where there is none."""
    solution = lp.least(cost, bounds, lp.Rows.of(rows))
    return solution.objective if solution.optimal else 0.0


def _least_slow(objective: Objective, busy: Floats, least: Floats) -> float:
    """The least (mean or worst) slowdown of jobs whose slowdowns at their bounds are given."""
    jobs, worst = len(least), objective.kind == "worst"
    # Pace p of each job (1: at its bound), its slowdown s >= least / p by tangents, and the worst slowdown.
    cost = np.concatenate([np.zeros(jobs), np.zeros(jobs) if worst else objective.weights, [1.0 if worst else 0.0]])
    low = np.concatenate([np.zeros(jobs), least, [0.0]])
    high = np.concatenate([np.ones(jobs), np.full(jobs + 1, np.inf)])
    rows = _paced(busy)
    lowest = 1.0 / float(busy.sum(axis=0).max()) / 4
    for job, slowdown in enumerate(least.tolist()):
        # 1 / p is convex, so that its tangents lie below it: s >= least (2 / point - p / point^2) loosens s >= least /
        # p, and the linear program's least is a bound.
        for point in np.geomspace(lowest, 1.0, TANGENTS).tolist():
            rows.append(((job, jobs + job), (slowdown / point**2, 1.0), 2 * slowdown / point, np.inf))
        rows.append(((2 * jobs, jobs + job), (1.0, -1.0), 0.0, np.inf))
    return _solved(cost, (low, high), rows)


_Row = tuple[Any, Any, float, float]
"""Columns, values, low and high of a row."""


MOST_RANKS = 1024
"""Ranks of all jobs up to which every flow is stepped."""
MOST_FLOWS = 2_000_000
"""Flows of all stepped iterations up to which they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Steady seconds of an iteration of each job with every flow stepped (None: not done), by how much the search's
    differ at most, as a share, and what was not verified and why."""

    iteration_s: tuple[Annotated[float, Range(1e-12, 1e12, above=True, below=True)] | None, ...]
    apart: Annotated[float, Range(0, 1e12, below=True)] | None
    left_out: tuple[str, ...]

    @property
    def jobs(self) -> int:
        """Jobs of which every flow was stepped."""
        return sum(seconds is not None for seconds in self.iteration_s)


def verifiable(clock: Clock) -> bool:
    """Whether some flows can be stepped beside what the search stepped."""
    few = sum(template.ranks for template in clock.templates) <= MOST_RANKS
    return few and any(template.detail == "phases" for template in clock.templates)


def verify(clock: Clock, choice: Assignment, found_s: Floats, *, late: bool = False) -> Verified:
    """Step a choice flow by flow, beside the seconds that the search found, if there is time."""
    nothing = (None,) * len(clock.templates)
    ranks = sum(template.ranks for template in clock.templates)
    bursts = [template.name for template in clock.templates if template.detail == "burst"]
    if late or not verifiable(clock):
        why = "--budget leaves no time for it" if late else _burst(bursts)
        if ranks > MOST_RANKS:
            why = f"{ranks:,} ranks are more than the {MOST_RANKS:,} of which every flow is stepped"
        return Verified(iteration_s=nothing, apart=None, left_out=(why,))
    wholes = [_whole(clock, choice, job) for job in range(len(clock.templates))]
    flows = sum(len(template.phase) * epochs for (template, _), epochs in zip(wholes, clock.epochs, strict=True))
    if flows > MOST_FLOWS:
        why = f"{flows:,} flows in the stepped iterations are more than {MOST_FLOWS:,}"
        return Verified(iteration_s=nothing, apart=None, left_out=(why,))
    parts = [repeated(template, epochs) for (template, _), epochs in zip(wholes, clock.epochs, strict=True)]
    traffic = together(
        [iterations.traffic(choice.offset_s[job], clock.weight(choice, job)) for job, iterations in enumerate(parts)]
    )
    known = joined([routes.of(iterations.message) for iterations, (_, routes) in zip(parts, wholes, strict=True)])
    result = run(clock.fabric.capacity_Bps, traffic, known)
    seconds = window(result.phase_end_s, parts)
    stepped = np.array([template.detail == "phases" for template in clock.templates])
    return Verified(
        iteration_s=tuple(time if done else None for time, done in zip(seconds.tolist(), stepped, strict=True)),
        apart=float(np.abs(found_s / seconds - 1.0)[stepped].max()),
        left_out=(_burst(bursts),) if bursts else (),
    )


def _burst(names: list[str]) -> str:
    return f"{', '.join(names)}: one burst of bytes an iteration, whose phases were not stepped"


def _whole(clock: Clock, choice: Assignment, job: int) -> tuple[Template, Routes]:
    """The iteration of a job with all phases and flows, and the routes of its messages; its burst where it is one."""
    template, site = clock.templates[job], clock.site
    if template.detail == "burst":
        return template, clock.routes(choice.hosts, choice.router)[job]
    wires = Wires(
        site.jobs[job].layout,
        site.cluster,
        site.fabric,
        calibration(site.cluster.accelerator.name),
        placement=Placement(accelerators=clock.accelerators(choice.hosts[job], job)),
        routing="spray" if choice.router == "spray" else "ecmp",
        routes=clock.planned(choice.hosts) if choice.router == "planned" else None,
    )
    full, messages = iteration_traffic(site.jobs[job].job, site.cluster, site.jobs[job].layout, wires)
    known = joined(
        [wave.routes for messages_of_key in messages.values() for wave in messages_of_key.waves]
    ).without_latency()
    stepped = replace(
        template,
        phases=full.traffic.phases,
        last=full.last,
        phase=full.traffic.phase,
        bytes=full.traffic.bytes,
        message=full.message,
    )
    return stepped, known
