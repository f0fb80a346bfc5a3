"""An arrangement stepped once more, flow by flow, as ``weft simulate --full`` makes the flows of a job.

The search steps templates: phases that stay inside hosts are delays there, and phases without flows are taken
together.  Here every phase and every flow is there, on the links where the job is, inside hosts too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.arrangement.clock import Assignment, Clock, repeated, together, window
from weft.arrangement.template import Template
from weft.cluster.calibration import calibration
from weft.fabric.placement import Placement
from weft.fabric.spec import Floats
from weft.fabric.traffic import Routes, joined
from weft.simulation.flows.engine import run
from weft.simulation.iteration.contention import Wires
from weft.simulation.iteration.simulate import iteration_traffic

MOST_RANKS = 1024
"""Ranks of all jobs up to which every flow is stepped."""
MOST_FLOWS = 2_000_000
"""Flows of all stepped iterations up to which they are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verified:
    """Steady seconds of an iteration of each job with every flow stepped, nan where that was not done, by how much
    the search's differ at most, as a share, and what was not verified and why."""

    iteration_s: Floats
    apart: float
    left_out: tuple[str, ...]

    @property
    def jobs(self) -> int:
        """Jobs of which every flow was stepped."""
        return int(np.isfinite(self.iteration_s).sum())


def verifiable(clock: Clock) -> bool:
    """Whether some flows can be stepped beside what the search stepped."""
    few = sum(one.ranks for one in clock.templates) <= MOST_RANKS
    return few and any(one.detail == "phases" for one in clock.templates)


def verify(clock: Clock, choice: Assignment, found_s: Floats, *, late: bool = False) -> Verified:
    """Step a choice flow by flow, beside the seconds that the search found, if there is time."""
    nothing = np.full(len(clock.templates), np.nan)
    ranks = sum(one.ranks for one in clock.templates)
    bursts = [one.name for one in clock.templates if one.detail == "burst"]
    if late or not verifiable(clock):
        why = "--budget leaves no time for it" if late else _burst(bursts)
        if ranks > MOST_RANKS:
            why = f"{ranks:,} ranks are more than the {MOST_RANKS:,} of which every flow is stepped"
        return Verified(iteration_s=nothing, apart=0.0, left_out=(why,))
    wholes = [_whole(clock, choice, job) for job in range(len(clock.templates))]
    flows = sum(len(one.phase) * epochs for (one, _), epochs in zip(wholes, clock.epochs, strict=True))
    if flows > MOST_FLOWS:
        why = f"{flows:,} flows in the stepped iterations are more than {MOST_FLOWS:,}"
        return Verified(iteration_s=nothing, apart=0.0, left_out=(why,))
    parts = [repeated(one, epochs) for (one, _), epochs in zip(wholes, clock.epochs, strict=True)]
    traffic = together([one.traffic(choice.offset_s[job], clock.weight(choice, job)) for job, one in enumerate(parts)])
    known = joined([routes.of(one.message) for one, (_, routes) in zip(parts, wholes, strict=True)])
    result = run(clock.fabric.capacity_Bps, traffic, known)
    seconds = window(result.phase_end_s, parts)
    stepped = np.array([one.detail == "phases" for one in clock.templates])
    return Verified(
        iteration_s=np.where(stepped, seconds, np.nan),
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
    known = joined([wave.routes for one in messages.values() for wave in one.waves]).without_latency()
    whole = replace(
        template,
        phases=full.traffic.phases,
        last=full.last,
        phase=full.traffic.phase,
        bytes=full.traffic.bytes,
        message=full.message,
    )
    return whole, known
