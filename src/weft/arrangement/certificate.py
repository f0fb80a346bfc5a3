"""How good any arrangement of a site could be, in the model of the clock, and an arrangement stepped once more.

For each job the largest of these bounds holds, whatever else is chosen:

- alone: what it takes alone on a 1:1 network, with the layout that it keeps or, where it may have any, with none;
- cuts: bytes that must cross a cut, over the cut's capacity (jobs that keep their layouts);
- phases: its phases in their order, each no faster than its bytes cross cuts, and those that are under way together
  sharing these; without packet spraying, some cable of a cut carries as many pairs of ranks as come on each.

Jobs that move take any hosts: of k hosts in a unit the bounds are the least of all parts of the job with k hosts.
Jobs that share a cut share its time: what all of them send over it, at their paces, is at most its capacity.  The
least objective of all numbers of hosts in units under that is a program (``counts``).

The search steps templates: phases that stay inside hosts are delays there, and phases without flows are taken
together.  ``verify`` steps every phase and every flow, on the links where the job is, as ``weft simulate --full``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Annotated, Literal

import numpy as np

from weft.arrangement.clock import Assignment, Clock, Hosts, ended_s, epochs, settled
from weft.arrangement.counts import HostCounts, Parts, best_counts
from weft.arrangement.cuts import FabricCuts
from weft.arrangement.site import Site
from weft.arrangement.template import Template
from weft.cluster.calibration import calibration
from weft.codec import Range
from weft.fabric.placement import Placement
from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Routes, joined
from weft.simulation.iteration.contention import Wires
from weft.simulation.iteration.simulate import iteration_traffic

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
    # 1. What each job may have in each unit, and its largest bound, which holds whatever the other jobs do.
    room = room_in(clock.site, cuts, hosts)
    options, of_jobs = zip(*(_options(clock, cuts, hosts, room, job) for job in range(len(hosts))), strict=True)
    seconds = np.array([max(bounds.values()) for bounds in of_jobs])
    # The first name that reaches it is the simplest proof.
    proofs = tuple(
        next(name for name, value in bounds.items() if value >= best * (1 - 1e-9))
        for bounds, best in zip(of_jobs, seconds.tolist(), strict=True)
    )
    # 2. The objective grows with every job's seconds, so that at all bounds it is a bound.  Where jobs share units, an
    # integer program may give a sharper one.
    objective = clock.objective.score(seconds)
    proof: Proof = "phases" if "phases" in proofs else "cuts" if "cuts" in proofs else "alone"
    if cuts.unit:
        wanted = [job.domains for job in clock.site.jobs]
        shared = best_counts(clock.objective, cuts, options, seconds, wanted, room[0])
        if shared > objective * (1 + 1e-9):
            objective, proof = shared, "time-sharing"
    return Certificate(iteration_s=seconds, proofs=proofs, objective=objective, proof=proof)


def room_in(site: Site, cuts: FabricCuts, hosts: Hosts) -> list[Ints]:
    """Hosts of each unit of each tier that jobs may have: those that are up and not of a job that does not move."""
    fixed = [host for job, at in zip(site.jobs, hosts, strict=True) if job.may != "move" for host in at]
    free = np.setdiff1d(np.flatnonzero(np.array(site.usable)), fixed)
    return [
        np.bincount(unit[free], minlength=len(capacity))
        for unit, capacity in zip(cuts.unit, cuts.capacity_Bps, strict=True)
    ]


def _options(
    clock: Clock, cuts: FabricCuts, hosts: Hosts, room: list[Ints], job: int
) -> tuple[list[HostCounts], dict[Proof, float]]:
    """What a job may have in each unit of each tier, and the bounds of the job alone by their names."""
    settings, template = clock.site.jobs[job], clock.templates[job]
    alone_s, wanted = clock.references[job].bound_s, template.domains
    at = np.array(hosts[job], dtype=np.int64)
    fixed = settings.cut == "keep"
    bounds: dict[Proof, float] = {"alone": alone_s}
    parts = Parts.of(template, clock.site.domain_size)
    stays = settings.may == "stay" and fixed and bool(cuts.unit)
    between = template.between_hosts(clock.site.domain_size)
    # Ways may differ, and jobs share each apart: half of both ways is what holds for their sum.
    exact = cuts.crossing((between + between.T) / 2, at) if stays else np.zeros(0)
    if stays:
        bounds["cuts"] = float((cuts.crossing(between, at) / cuts.all_Bps).max())
        bounds["phases"] = _where_it_is(template, cuts, clock.accelerators(hosts[job], job), clock)
    known: dict[tuple[float, int], tuple[Floats, Floats]] = {}
    options = list[HostCounts]()
    both: tuple[tuple[Proof, int], ...] = (("cuts", 0), ("phases", 1))
    for unit, free, capacities, cables in zip(cuts.unit, room, cuts.capacity_Bps, cuts.cables, strict=True):
        inside = np.bincount(unit[at], minlength=len(capacities))
        of_tier = list[tuple[Ints, Floats, Floats]]()
        for place, (capacity, links) in enumerate(zip(capacities.tolist(), cables.tolist(), strict=True)):
            if (capacity, links) not in known:
                known[capacity, links] = _by_number(clock, cuts, parts, job, capacity, links)
            cut_s, phases_s = known[capacity, links]
            count = np.arange(min(wanted, int(free[place])) + 1) if settings.may == "move" else inside[[place]]
            if not fixed:
                cut_s = phases_s = np.zeros(wanted + 1)
            count = count[np.isfinite(cut_s[count])]
            of_tier.append((count, cut_s[count], phases_s[count]))
            if stays:
                busy = float(exact[len(options)] / capacity) if capacity else 0.0
                options.append(HostCounts(count, np.array([max(bounds.values())]), np.array([busy])))
            else:
                slowest = np.maximum(np.maximum(cut_s, phases_s)[count], alone_s)
                options.append(HostCounts(count, slowest, cut_s[count]))
        # Where no unit has room for the whole job, some cut parts it; where it stays, all do on which it lies.
        parted = [[way[(count > 0) & (count < wanted)] for way in ways] for count, *ways in of_tier]
        if settings.may == "move" and (free < wanted).all():
            for name, number in both:
                every = np.concatenate([ways[number] for ways in parted])
                bounds[name] = max(bounds.get(name, 0.0), float(every.min()) if len(every) else 0.0)
        elif settings.may == "reorder":
            for name, number in both:
                bounds[name] = max(bounds.get(name, 0.0), *(float(ways[number].max(initial=0.0)) for ways in parted))
    return options, bounds


def _by_number(
    clock: Clock, cuts: FabricCuts, parts: Parts, job: int, capacity: float, cables: int
) -> tuple[Floats, Floats]:
    """Seconds of a job by its number of hosts in a unit: of all its bytes over the unit's cut, and of its phases."""
    template, size = clock.templates[job], parts.flow_bytes[:, None]
    able = max(capacity, 1e-300)
    cut_s, longest = parts.whole / able, parts.most_bytes / able
    apart = "spray" not in clock.site.routers and cables > 0
    if apart:
        # All of a pair of ranks takes one path: of all pairs some cable has as many as come on each.
        longest = np.maximum(longest, np.ceil(parts.most_pairs / cables) / cuts.cable_Bps)
    longest = np.maximum(longest, (parts.host_bytes / cuts.host_Bps)[:, None])
    begin, tail, path_s = _paths(template, size * longest[parts.kind])
    least = np.full((2, template.domains + 1), np.inf)
    # The shortest path first: a part whose path alone is longer than the least of its number needs no closer look.
    for part in np.argsort(path_s, kind="stable").tolist():
        number, best = parts.number[part], float(path_s[part])
        least[0, number] = min(least[0, number], cut_s[part])
        if best >= least[1, number]:
            continue
        for way in parts.bytes:
            best = _one_machine(begin[:, part], size[:, 0] * way[parts.kind, part] / able, tail[:, part], best)
        for stream in parts.streams if apart else ():
            for ends, far_ends in ((stream.source, stream.target), (stream.target, stream.source)):
                mine = stream.phase[parts.inside[part, ends] & ~parts.inside[part, far_ends]]
                if len(mine) > cables:
                    # Whichever pairs share the cable, each of their phases has at least this work, begin and tail.
                    busy_s = -(-len(mine) // cables) * stream.bytes / cuts.cable_Bps
                    best = _one_machine(begin[mine, part].min(axis=0), busy_s, tail[mine, part].min(axis=0), best)
        least[1, number] = min(least[1, number], best)
    return least[0], least[1]


def _where_it_is(template: Template, cuts: FabricCuts, at: Ints, clock: Clock) -> float:
    """Seconds of the phases of a job on its accelerators."""
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
    begin, tail, path_s = _paths(template, work.max(axis=1)[:, None])
    return max(_one_machine(begin[:, 0], of_cut, tail[:, 0], path_s[0]) for of_cut in work.T)


def _paths(template: Template, longest: Floats) -> tuple[Floats, Floats, Floats]:
    """When the flows of each phase (row) begin at the earliest, what comes at least after their end, and the longest
    path, where they last at least so long (each column apart).  What the iteration need not wait for has no tail
    (-inf)."""
    # A phase's delay comes before its flows: both one after the other are its length.
    lengths = template.phases.delay_s[:, None] + longest
    waits = np.split(template.phases.waits, template.phases.indptr[1:-1])
    later, order = np.bincount(template.phases.waits, minlength=len(lengths)), list[int]()
    # Backwards in topological order: a phase is looked at when all that wait for it have been.
    stack = np.flatnonzero(later == 0).tolist()
    while stack:
        order.append(stack.pop())
        for before in waits[order[-1]].tolist():
            later[before] -= 1
            if not later[before]:
                stack.append(before)
    tail, end = np.full(lengths.shape, -np.inf), lengths.copy()
    tail[template.last] = 0.0
    for phase in order:
        for before in waits[phase].tolist():
            np.maximum(tail[before], tail[phase] + lengths[phase], out=tail[before])
    for phase in reversed(order):
        if len(waits[phase]):
            end[phase] += end[waits[phase]].max(axis=0)
    return end - longest, tail, end[template.last]


def _one_machine(begin: Floats, work: Floats, tail: Floats, path_s: float) -> float:
    """Seconds of an iteration at least, where a cut has to do the phases' crossings in some order."""
    mine = np.flatnonzero((work > 0) & (tail >= 0))
    # No order of these can need more than this.
    if not len(mine) or float((begin + tail)[mine].max() + work[mine].sum()) <= path_s:
        return path_s
    return max(path_s, one_after_another(begin[mine], work[mine], tail[mine]))


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
    counts = epochs(np.array([template.alone_s for template in clock.templates]))
    sizes = np.array([len(template.phase) for template, _ in wholes])
    flows = int(sizes @ counts)
    if flows > MOST_FLOWS:
        why = f"{flows:,} flows in the stepped iterations are more than {MOST_FLOWS:,}"
        return Verified(iteration_s=nothing, apart=None, left_out=(why,))

    def ended(jobs: list[int], counts: Ints) -> list[Floats]:
        begins = [choice.offset_s[job] for job in jobs], [clock.weight(choice, job) for job in jobs]
        return ended_s(clock.fabric.capacity_Bps, [wholes[job] for job in jobs], counts, *begins)

    # All jobs in one group: no step is left out.
    seconds = settled(ended, [list(range(len(wholes)))], counts, sizes)
    if not np.isfinite(seconds).all():
        return Verified(iteration_s=nothing, apart=None, left_out=("jobs are too unlike to step every flow",))
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
