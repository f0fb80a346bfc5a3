"""A trace replayed on a site under one policy: jobs arrive, wait, run at their steady slowdowns, and end.

Between two events all running jobs go on at the slowdown that the clock finds for the jobs that run.  A job's work is
the seconds of its trace at slowdown 1, alone on a 1:1 network.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np

from weft.arrangement.online import STEPS, Occupancy
from weft.arrangement.sharing import POLICIES, Fleet, Policy
from weft.arrangement.site import Site, SiteJob
from weft.arrangement.trace import TraceJob, work_of
from weft.errors import BadInput
from weft.fabric.spec import Floats
from weft.results import Result
from weft.units import counted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a policy made of a trace.

    For each job: seconds until it began, and its slowdown (seconds that it ran over those of the trace).
    ``utilization`` is the time of hosts that all jobs would hold at slowdown 1 over that of all hosts that are up
    until the last job ended, ``makespan_s`` when that was, counted from the first arrival.  ``cpu_s``
    is what the policy took of the processor, without the iterations of jobs, which all policies share.
    """

    policy: Policy
    queued_s: Floats
    slowdown: Floats
    utilization: float
    makespan_s: float
    cpu_s: float

    def to_dict(self) -> dict[str, float | str | int]:
        """Figures of all jobs together; without processor time, which differs from run to run."""
        return {
            "policy": self.policy.name,
            "jobs": len(self.slowdown),
            "mean_slowdown": float(self.slowdown.mean()),
            "p95_slowdown": float(np.quantile(self.slowdown, 0.95)),
            "mean_queued_s": float(self.queued_s.mean()),
            "utilization": self.utilization,
            "makespan_s": self.makespan_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Replay(Result):
    """A trace under several policies."""

    SCHEMA = "weft.arrangement-replay/1"

    site: Site
    jobs: int
    too_large: tuple[str, ...]
    seed: int
    steps: int
    outcomes: tuple[Outcome, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every policy."""
        return [one.to_dict() for one in self.outcomes]

    def _document(self) -> dict[str, Any]:
        facts = {"site": self.site.name, "seed": self.seed, "steps": self.steps, "jobs": self.jobs}
        return facts | {"too_large": list(self.too_large), "policies": self.to_dicts()}

    def _facts(self) -> Sequence[str]:
        return f"{counted(self.jobs, 'job')} on {self.site.name}", *(
            f"{one.policy.name} {float(one.slowdown.mean()):.4f}" for one in self.outcomes
        )


def replay(
    site: Site, trace: Sequence[TraceJob], names: Sequence[str] = (), *, steps: int = STEPS, seed: int = 0
) -> Replay:
    """Replay a trace under policies, all of them by default.  Jobs larger than the site are left out.

    Raises:
        BadInput: no job fits the site, the site has jobs of its own, or a job's layout cannot run.
    """
    if site.jobs:
        raise BadInput("the site has jobs of its own", where="--trace", remedy="name a site file without jobs")
    most = sum(site.usable)
    fits = [job for job in trace if -(-job.accelerators // site.domain_size) <= most]
    if not fits:
        problem = f"every job of the trace is larger than the {most} hosts that are up"
        raise BadInput(problem, where="--trace", remedy="name a larger site")
    chosen = [policy for policy in POLICIES if not names or policy.name in names]
    if "planned" not in site.routers:
        chosen = [policy for policy in chosen if policy.name != "first-fit + routes"]
    work = {job.name: work_of(job, site) for job in fits}
    fleet = Fleet(site)
    for one in work.values():
        fleet.template(one)
    return Replay(
        site=site,
        jobs=len(fits),
        too_large=tuple(job.name for job in trace if job not in fits),
        seed=seed,
        steps=steps,
        outcomes=tuple(_outcome(fleet, fits, work, policy, steps, seed) for policy in chosen),
    )


def _outcome(
    fleet: Fleet, trace: Sequence[TraceJob], work: Mapping[str, SiteJob], policy: Policy, steps: int, seed: int
) -> Outcome:
    begun, site = time.process_time(), fleet.site
    held = Occupancy(site, policy, steps=steps, seed=seed, known=fleet)
    left = {job.name: job.duration_s for job in trace}
    started: dict[str, float] = {}
    ended: dict[str, float] = {}
    now, at = 0.0, 0
    while len(ended) < len(trace):
        ends = {name: now + left[name] * slow for name, slow in held.slowdown.items()}
        arrives = trace[at].arrival_s if at < len(trace) else np.inf
        then = min([arrives, *ends.values()])
        for name, slow in held.slowdown.items():
            left[name] = max(0.0, left[name] - (then - now) / slow)
        now = then
        for name in [name for name, end in ends.items() if end <= then]:
            ended[name] = now
            del held.jobs[name]
        while at < len(trace) and trace[at].arrival_s <= now:
            held.jobs[trace[at].name] = work[trace[at].name]
            at += 1
        held.update()
        for name in held.seats:
            started.setdefault(name, now)
    ran = np.array([(ended[job.name] - started[job.name]) / job.duration_s for job in trace])
    wanted = fsum(work[job.name].domains * job.duration_s for job in trace)
    last = max(ended.values())
    return Outcome(
        policy=policy,
        queued_s=np.array([started[job.name] - job.arrival_s for job in trace]),
        slowdown=ran,
        utilization=wanted / (sum(site.usable) * last),
        makespan_s=last,
        cpu_s=time.process_time() - begun,
    )
