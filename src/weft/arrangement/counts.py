"""What jobs cannot undercut with so many hosts in each unit, and the numbers of hosts that are best for all jobs.

A job with k hosts in a unit sends at least what the cheapest k of its hosts send to the others, or get from them.  So
each of its phases takes a least time there, and its iteration too.  An integer program chooses the numbers of all jobs
in all units together, within the room of units and the time of their cuts; its bound holds for every placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.arrangement.cuts import FabricCuts, least_cut
from weft.arrangement.objective import RATES, Objective
from weft.arrangement.template import Template
from weft.fabric.spec import Floats, Ints, Mask
from weft.solvers import lp

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
