"""How good any arrangement of a site could be, in the model of the clock, and an arrangement stepped once more.

For each job the largest of these bounds holds, whatever else is chosen:

- alone: what it takes alone on a 1:1 network, with the layout that it keeps or, where it may have any, with none;
- cuts: bytes that must cross a cut, over the cut's capacity (jobs that keep their layouts);
- phases: its phases in their order, each no faster than its bytes cross cuts, and those that are under way together
  sharing these; without packet spraying, some cable of a cut carries as many pairs of ranks as come on each.

Jobs that move take any hosts: of k hosts in a unit the bounds are the least of all parts of the job with k hosts.
Jobs that share a cut share its time: what all of them send over it, at their paces, is at most its capacity.  The
least objective of all numbers of hosts in units under that is a program (``best_counts``).

The search steps templates: phases that stay inside hosts are delays there, and phases without flows are taken
together.  ``verify`` steps every phase and every flow, on the links where the job is, as ``weft simulate --full``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from weft.arrangement.clock import RATES, Assignment, Clock, Hosts, Objective, ended_s, epochs, settled
from weft.arrangement.cuts import FabricCuts, least_cut
from weft.arrangement.site import Site
from weft.arrangement.template import Template
from weft.cluster.calibration import calibration
from weft.codec import Range
from weft.fabric.placement import Placement
from weft.fabric.spec import Floats, Ints, Mask
from weft.fabric.traffic import Routes, joined
from weft.simulation.iteration.contention import Wires
from weft.simulation.iteration.simulate import iteration_traffic
from weft.solvers import lp

# Numbers of hosts in units -------------------------------------------------------------------------------------
# What jobs cannot undercut with so many hosts in each unit, and the numbers of hosts that are best for all jobs.
#
# A job with k hosts in a unit sends at least what the cheapest k of its hosts send to the others, or get from them.
# So each of its phases takes a least time there, and its iteration too. An integer program chooses the numbers of
# all jobs in all units together, within the room of units and the time of their cuts; its bound holds for every
# placement.

ENUMERATED = 12
"""Hosts of a job up to which every part of them is looked at."""
MOST_HOSTS = 300
"""Hosts of a job up to which its least cut is computed."""
MOST_CELLS = 8_000_000
"""Phases times pairs of hosts up to which a job's phases are told apart."""
MOST_OPTIONS = 600
"""Numbers of hosts of all jobs that move, in all units, up to which these are in the program."""
NODES = 400
"""Nodes of the search tree of the program."""
TANGENTS = 32
Row = tuple[Any, Any, float, float]
"""Columns, values, low and high of a row."""


class Stream(NamedTuple):
    """Pairs of ranks in different hosts (source, target) with equal ``bytes`` in as many phases (a pair a row)."""

    source: Ints
    target: Ints
    phase: Ints
    bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """Some hosts of a job each (column): how many they are, and what crosses between them and the others.

    Phases that differ only in size have one kind; phase ``p`` is ``flow_bytes[p]`` times as large as kind ``kind[p]``.
    ``bytes`` (way, kind, part) is what leaves and what enters the hosts, ``most_bytes`` the larger way, ``most_pairs``
    that of pairs of ranks; ``whole`` is half of both ways of an iteration, ``host_bytes`` what the busiest host of a
    kind sends or gets.  ``inside`` says which hosts a part has (none for many hosts).
    """

    inside: Mask
    number: Ints
    kind: Ints
    flow_bytes: Floats
    bytes: Floats
    most_bytes: Floats
    most_pairs: Floats
    whole: Floats
    host_bytes: Floats
    streams: tuple[Stream, ...]

    @classmethod
    def of(cls, template: Template, size: int) -> Parts:
        """Every part of a job on hosts of ``size`` accelerators, alike ones once; of more than ``ENUMERATED`` hosts
        what no part of a number undercuts."""
        hosts, phases, ranks = template.domains, len(template.phases), template.ranks
        source, target = template.source[template.message], template.target[template.message]
        away = np.flatnonzero(source // size != target // size)
        if phases * hosts * hosts > MOST_CELLS or hosts > MOST_HOSTS:
            away = away[:0]
        # Bytes of each pair of ranks in each phase: all of a pair takes one path.
        key, at = np.unique((template.phase[away] * ranks + source[away]) * ranks + target[away], return_inverse=True)
        bytes_ = np.bincount(at, template.bytes[away], len(key)).astype(np.float64)
        phase, pair = key // (ranks * ranks), key % (ranks * ranks)
        smallest = np.full(phases, np.inf)
        np.minimum.at(smallest, phase, bytes_)
        smallest[np.isinf(smallest)] = 0.0
        cell, cells = pair // ranks // size * hosts + pair % ranks // size, hosts * hosts
        square = (phases, hosts, hosts)
        amount = np.bincount(phase * cells + cell, bytes_ / smallest[phase], phases * cells).reshape(square)
        pairs = np.bincount(phase * cells + cell, minlength=phases * cells).reshape(square)
        kinds, first = dict[bytes, int](), list[int]()
        kind = np.zeros(phases, dtype=np.int64)
        for each in range(phases):
            alike = amount[each].round(6).tobytes() + pairs[each].tobytes()
            kind[each] = kinds.setdefault(alike, len(kinds))
            if kind[each] == len(first):
                first.append(each)
        # Rounding must not make the bound larger.
        units = amount[first] * (1 - 1e-6)
        whole = template.between_hosts(size)[None]
        inside, number, (out, into, most) = _crossing(np.concatenate([units, pairs[first], whole]))
        count = len(first)
        return cls(
            inside=inside,
            number=number,
            kind=kind,
            flow_bytes=smallest,
            bytes=np.stack([out[:count], into[:count]]),
            most_bytes=most[:count],
            most_pairs=np.ceil(most[count:-1] - 1e-6),
            # Ways may differ, and jobs share each apart: half of both ways is what holds for their sum.
            whole=(out[-1] + into[-1]) / 2 if len(inside) else most[-1],
            host_bytes=np.maximum(units.sum(axis=2), units.sum(axis=1)).max(axis=1, initial=0.0),
            streams=_streams(phase, pair // ranks // size, pair % ranks // size, pair, bytes_) if len(inside) else (),
        )


def _streams(phase: Ints, source: Ints, target: Ints, pair: Ints, bytes_: Floats) -> tuple[Stream, ...]:
    """The pairs of ranks, those with equal bytes in equally many phases together."""
    order = np.lexsort((phase, pair))
    _, begin = np.unique(pair[order], return_index=True)
    alike: dict[bytes, list[Ints]] = {}
    for flows in np.split(order, begin[1:]) if len(order) else ():
        alike.setdefault(bytes_[flows].round().tobytes(), []).append(flows)
    return tuple(
        Stream(source[flows[:, 0]], target[flows[:, 0]], phase[flows], bytes_[flows].min(axis=0))
        for flows in map(np.array, alike.values())
    )


def _crossing(matrices: Floats) -> tuple[Mask, Ints, Floats]:
    """Parts of some hosts: which they have, their numbers of hosts, and (way, matrix, part) what leaves them, what
    enters them, and the larger of both, by matrices of what hosts send to each other.

    Of many hosts there is a part for each number: 0, 0, and what no such part undercuts.
    """
    count, hosts = matrices.shape[:2]
    if hosts <= ENUMERATED:
        inside = ((np.arange(2**hosts)[:, None] >> np.arange(hosts)) & 1).astype(np.float64)
        out = np.array([((inside @ matrix) * (1 - inside)).sum(axis=1) for matrix in matrices])
        into = np.array([((inside @ matrix.T) * (1 - inside)).sum(axis=1) for matrix in matrices])
        every = np.concatenate([inside.sum(axis=1)[None], out, into])
        # Parts alike, except for rounding, are looked at once.
        _, first = np.unique(every.round(6), axis=1, return_index=True)
        number, out, into = every[0, first].astype(np.int64), out[:, first], into[:, first]
        return inside[first] > 0, number, np.stack([out, into, np.maximum(out, into)])
    k = np.arange(hosts + 1)
    result = np.zeros((3, count, hosts + 1))
    # Half of what crosses both ways is at least half the least cut, and at least what the second eigenvalue of the
    # Laplacian says (Fiedler 1973), which is exact where all hosts send alike to all others.
    for row, matrix in enumerate(matrices if hosts <= MOST_HOSTS else matrices[:0]):
        both = matrix + matrix.T
        second = float(np.linalg.eigvalsh(np.diag(both.sum(axis=0)) - both)[1])
        spread = max(0.0, second * (1 - 1e-9)) * k * (hosts - k) / hosts / 2
        result[2, row] = np.maximum(spread, np.where((k > 0) & (k < hosts), least_cut(matrix), 0.0))
    return np.zeros((0, hosts), dtype=bool), k, result


class HostCounts(NamedTuple):
    """What a job may have in a unit: numbers of hosts, the seconds that an iteration takes at least with each, and
    the seconds that it keeps the unit's cut busy."""

    hosts: Ints
    seconds: Floats
    busy_s: Floats


class CountProgram(NamedTuple):
    """The rows of the program.  Its variables: pace and slowdown of each job, the worst slowdown, then for each option
    of jobs that move whether it is chosen, and the pace at which it is."""

    objective: Objective
    options: Sequence[Sequence[HostCounts]]
    moving: Mask
    sizes: Ints
    first: Ints

    @classmethod
    def of(cls, objective: Objective, options: Sequence[Sequence[HostCounts]]) -> CountProgram:
        """Of too many options those of jobs that move are left out: these jobs are alone everywhere."""
        sizes = np.array([[len(option.hosts) for option in row] for row in options])
        moving = np.asarray((sizes > 1).any(axis=1))
        sizes = np.where((moving & (sizes[moving].sum() <= MOST_OPTIONS))[:, None], sizes, 0)
        first = 2 * len(options) + 1 + (np.cumsum(sizes.ravel()) - sizes.ravel()).reshape(sizes.shape)
        return cls(objective, options, moving, sizes, first)

    @property
    def total(self) -> int:
        """Options in the program."""
        return int(self.sizes.sum())

    def columns(self, job: int, unit: int) -> Ints:
        """The variables of the options of a job in a unit."""
        return np.asarray(self.first[job, unit] + np.arange(self.sizes[job, unit]))

    def of_job(self, job: int, cuts: FabricCuts, wanted: int) -> Iterator[Row]:
        """The rows of a job that moves."""
        jobs, inner = len(self.options), len(cuts.capacity_Bps[0])
        for unit, option in enumerate(self.options[job]):
            # One number in each unit; the slowdown is at least what it brings; the job has one pace everywhere.
            columns, slow = self.columns(job, unit), option.seconds / self.objective.against_s[job]
            ones = np.ones(len(columns))
            yield columns, ones, 1.0, 1.0
            yield np.append(columns, jobs + job), np.append(-slow, 1.0), 0.0, np.inf
            yield np.append(columns + self.total, job), np.append(ones, -1.0), 0.0, 0.0
            for at, worst in zip(columns.tolist(), slow.tolist(), strict=True):
                yield (at + self.total, at), (1.0, -1.0 / worst), -np.inf, 0.0
        # All hosts of the job are somewhere, and units of outer tiers hold what their inner ones do.
        groups, outer = [(list(range(inner)), [1.0] * inner, float(wanted))], inner
        for unit_of, capacity in zip(cuts.unit[1:], cuts.capacity_Bps[1:], strict=True):
            for unit in range(len(capacity)):
                inside = np.unique(cuts.unit[0][unit_of == unit]).tolist()
                groups.append(([*inside, outer + unit], [1.0] * len(inside) + [-1.0], 0.0))
            outer += len(capacity)
        for places, signs, number in groups:
            counts = [self.options[job][at].hosts * sign for at, sign in zip(places, signs, strict=True)]
            yield np.concatenate([self.columns(job, at) for at in places]), np.concatenate(counts), number, number

    def of_unit(self, unit: int, room: int | None) -> Iterator[Row]:
        """The rows of a unit: it has room, and its cut time, which all jobs share at their paces."""
        objective, jobs = self.objective, len(self.options)
        inside, stays = np.flatnonzero(self.sizes[:, unit]).tolist(), np.flatnonzero(~self.moving).tolist()
        chosen = np.concatenate([np.zeros(0, dtype=np.int64), *(self.columns(job, unit) for job in inside)])
        if room is not None and inside:
            yield chosen, np.concatenate([self.options[job][unit].hosts for job in inside]), 0.0, float(room)
        shares = [self.options[job][unit].busy_s / objective.against_s[job] for job in inside + stays]
        if objective.kind == "makespan":
            # All bytes of all iterations cross before the last job ends.
            work = [share * self.scaled[job] for share, job in zip(shares, inside + stays, strict=True)]
            moved = np.concatenate([np.zeros(0), *work[: len(inside)]])
            fixed = float(sum(part.sum() for part in work[len(inside) :]))
            yield np.append(chosen, 2 * jobs), np.append(-moved, 1.0), fixed, np.inf
        elif any(share.any() for share in shares):
            yield np.concatenate([chosen + self.total, stays]), np.concatenate(shares), 0.0, 1.0

    @property
    def scaled(self) -> Floats:
        """What the slowdown of each job adds to a makespan."""
        return self.objective.worth * self.objective.against_s / self.objective.scale

    def slowdowns(self) -> Iterator[Row]:
        """The slowdown of each job is the reverse of its pace, and the worst is no less."""
        objective, jobs = self.objective, len(self.options)
        most = [max(float(part.busy_s.max()) for part in row) for row in self.options]
        lowest = 0.25 / max(1.0, float((np.array(most) / objective.against_s).sum()))
        for job in range(jobs):
            # 1 / p is convex, so that its tangents lie below it: s >= 2 / point - p / point^2.
            for point in np.geomspace(lowest, 1.0, TANGENTS).tolist():
                if objective.kind in ("slowdown", "worst"):
                    yield (job, jobs + job), (1.0 / point**2, 1.0), 2 / point, np.inf
            worse = float(self.scaled[job]) if objective.kind == "makespan" else 1.0
            yield (2 * jobs, jobs + job), (1.0, -worse), 0.0, np.inf


def best_counts(
    objective: Objective,
    cuts: FabricCuts,
    options: Sequence[Sequence[HostCounts]],
    least_s: Floats,
    wanted: Sequence[int],
    room: Ints,
) -> float:
    """The least score of any numbers of hosts of jobs in units.

    Args:
        options: of each job, for each unit of each tier (inner first).
        least_s: seconds of each job that nothing undercuts.
        wanted: hosts of each job in all.
        room: hosts in each inner unit that jobs may have.

    Jobs have paces (the reverse of slowdown) and share the time of cuts; the slowdown is bounded by tangents.
    """
    jobs, inner = len(options), len(cuts.capacity_Bps[0])
    program = CountProgram.of(objective, options)
    end, total = 2 * jobs + 1 + program.total, program.total
    low, high, cost = np.zeros(end + total), np.ones(end + total), np.zeros(end + total)
    slowest = least_s / objective.against_s
    high[:jobs], low[jobs : 2 * jobs], high[jobs : 2 * jobs + 1] = 1.0 / slowest, slowest, np.inf
    high[end:] = max(1.0, float(high[:jobs].max()))  # a layout may be faster than the reference
    rows = list(program.slowdowns())
    for job in np.flatnonzero(program.sizes.any(axis=1)).tolist():
        rows += program.of_job(job, cuts, wanted[job])
    for unit in range(len(options[0])):
        rows += program.of_unit(unit, int(room[unit]) if unit < inner else None)
    if objective.kind in RATES:
        done = objective.worth / objective.against_s
        cost[:jobs] = -done / done.sum()
    elif objective.kind == "slowdown":
        cost[jobs : 2 * jobs] = objective.weights
    else:
        cost[2 * jobs] = 1.0
    integer = [2 * jobs < at < end for at in range(len(low))]
    solution = lp.least(cost, (low, high), lp.Rows.of(rows), integer=integer, seed=0, nodes=NODES, gap=1e-3)
    bound = solution.bound if total else solution.objective if solution.optimal else -np.inf
    if not np.isfinite(bound):
        return 0.0
    return -1.0 / bound if objective.kind in RATES and bound < 0 else float(bound)


# Bounds --------------------------------------------------------------------------------------------------------

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
