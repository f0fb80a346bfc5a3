"""Network-wide efficiency of routes: two layers of max-min fairness, and what it means for the jobs.

Inner layer: for fixed routes, congestion control gives every flow its max-min fair rate.  Outer layer: a
group of flows moves at the pace of its slowest one; the better routes are those whose sorted list of paces is
lexicographically larger.  A pace is a rate over the flow's demand: 1 is as if alone.  With equal flows the
lowest pace is 1 / congestion.  (The paper's definition could not be read; this reconstruction fits its name,
its code and its baselines, see docs/routing.md.)

An objective is a function ``(traffic, paces of the flows) -> paces of the groups``; ``OBJECTIVES`` has those
by flow, collective and job, and any other may be passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.errors import UnknownName
from weft.fabric.spec import Fabric, Floats, Ints
from weft.fabric.traffic import Routes
from weft.routing.traffic import JobTraffic
from weft.solvers import maxmin

Objective = Callable[[JobTraffic, Floats], Floats]
TIE = 1e-9


def by_flow(traffic: JobTraffic, pace: Floats) -> Floats:
    """Every flow for itself."""
    return pace


def by_collective(traffic: JobTraffic, pace: Floats) -> Floats:
    """The slowest flow of every collective."""
    return _least(pace, traffic.collective, len(traffic.job))


def by_job(traffic: JobTraffic, pace: Floats) -> Floats:
    """The slowest flow of every job."""
    return _least(pace, traffic.flow_job, len(traffic.jobs))


OBJECTIVES: dict[str, Objective] = {"flow": by_flow, "collective": by_collective, "job": by_job}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Efficiency:
    """Paces of all groups, slowest first, and the most that the slowest could have."""

    objective: str
    paces: Floats
    bound: float

    @property
    def value(self) -> float:
        """The pace of the slowest group; 1 without any."""
        return float(self.paces[0]) if len(self.paces) else 1.0

    @property
    def gap(self) -> float:
        """How far the slowest group is from its bound, as a share of the bound; 0 is optimal."""
        return max(0.0, 1.0 - self.value / self.bound)

    def better_than(self, other: Efficiency) -> bool:
        """Whether the sorted paces are lexicographically larger (differences below 1e-9 are none)."""
        apart = np.flatnonzero(np.abs(self.paces - other.paces) > TIE)
        return bool(len(apart)) and bool(self.paces[apart[0]] > other.paces[apart[0]])


def flow_rates(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> Floats:
    """Max-min fair rates in bytes/s while all flows send at once."""
    capacity = np.where(fabric.up, fabric.capacity_Bps, 0.0)
    return maxmin.solve(capacity, routes.indptr, routes.links, routes.usage, np.ones(len(traffic)), traffic.cap_Bps)


def efficiency(
    traffic: JobTraffic, pace: Floats, congestion_bound: float, objective: str | Objective = "collective"
) -> Efficiency:
    """The objective's value for flows with given paces.

    On a link with congestion A the slowest flow has a pace of at most 1 / A, which bounds the slowest group.

    Raises:
        UnknownName: there is no such objective.
    """
    name = objective if isinstance(objective, str) else getattr(objective, "__name__", "custom")
    if isinstance(objective, str) and objective not in OBJECTIVES:
        raise UnknownName("objective", objective, OBJECTIVES, where="--objective")
    rule = OBJECTIVES[objective] if isinstance(objective, str) else objective
    return Efficiency(objective=name, paces=np.sort(rule(traffic, pace)), bound=1.0 / max(1.0, congestion_bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What routes mean for one job, while all jobs send at once.

    ``slowdown`` is the time of a round against that without collisions; ``all_reduce_s`` the time of all
    rounds of the slowest collective, ``iteration_s`` with the job's compute pause, and the same ``alone``.
    """

    job: str
    flows: int
    slowdown: float
    all_reduce_s: float
    alone_s: float
    iteration_s: float
    alone_iteration_s: float


def outcomes(traffic: JobTraffic, demand_Bps: Floats, rates: Floats) -> tuple[JobOutcome, ...]:
    """Of every job, in order."""
    slowest = 1.0 / by_job(traffic, rates / demand_Bps)
    flows = np.bincount(traffic.flow_job, minlength=len(traffic.jobs))
    found = []
    now, alone = _all_reduce_s(traffic, rates), _all_reduce_s(traffic, demand_Bps)
    for job, name in enumerate(traffic.jobs):
        pause = float(traffic.pause_s[job])
        found.append(
            JobOutcome(
                job=name,
                flows=int(flows[job]),
                slowdown=float(max(slowest[job], 0.0)),
                all_reduce_s=float(now[job]),
                alone_s=float(alone[job]),
                iteration_s=float(now[job]) + pause,
                alone_iteration_s=float(alone[job]) + pause,
            )
        )
    return tuple(found)


def _all_reduce_s(traffic: JobTraffic, rates: Floats) -> Floats:
    """Rounds times the slowest flow of a round, of the slowest collective of each job."""
    round_s = np.zeros(len(traffic.job))
    np.maximum.at(round_s, traffic.collective, traffic.bytes / rates)
    found = np.zeros(len(traffic.jobs))
    np.maximum.at(found, traffic.job, round_s * traffic.rounds)
    return found


def _least(pace: Floats, group: Ints, count: int) -> Floats:
    found = np.ones(count)
    held = np.full(count, np.inf)
    np.minimum.at(held, group, pace)
    return np.where(np.isfinite(held), held, found)
