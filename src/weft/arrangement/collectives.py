"""The collectives of an arranged job, and NCCL's fastest algorithm for each on its hosts and the site's network.

Between hosts a group reaches what its busiest accelerator gets while all groups of the same axes send at once, by the
arrangement's routes and without other jobs.  With that bandwidth NCCL's algorithms are compared by
``weft.collectives.cost``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.arrangement.site import Router, Site, SiteJob
from weft.cluster.calibration import Calibration, calibration
from weft.cluster.spec import Cluster
from weft.codec import Document
from weft.collectives.cost import Network, candidates, collective_s, lower_bound_s
from weft.collectives.stages import BALANCED_KINDS
from weft.estimation.iteration import Estimator
from weft.fabric.placement import Placement
from weft.fabric.spec import Floats
from weft.interop.nccl import write_tuner
from weft.layout.mesh import Spread, rank_groups, real_axes, spread
from weft.layout.operations import CollectiveKind
from weft.layout.stages import HeldChunk, held_chunks
from weft.layout.step import Call, TrainingStep
from weft.layout.table import LayoutTable
from weft.simulation.flows.symmetry import transfer
from weft.simulation.iteration.contention import UNIT_BYTES, FlowRoutes, Messages, Wires
from weft.simulation.iteration.demand import Key
from weft.units import counted


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a call with an algorithm."""

    algorithm: str
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobCollective(Document):
    """One collective of a job on its hosts; seconds are of one call.

    Attributes:
        bytes: the full buffer of a call.
        calls: in an iteration, of a rank of the stage that has most.
        hosts: that a group lies on.
        reached_Bps: what an accelerator gets between hosts with all groups of the axes; None where nothing leaves.
        assumed: algorithm whose messages the simulation sends, and what the prediction takes for a call.
        best: the fastest of NCCL's algorithms and protocols that can run it (or the only way to run it).
        bound_s: bytes over the peak bandwidth of the ports, which nothing undercuts.
        cluster: the job's hosts, with what is reached between them.
    """

    DOCUMENT = "kind axes ranks hosts bytes calls reached_Bps assumed best bound_s"

    kind: CollectiveKind
    axes: tuple[str, ...]
    ranks: int
    hosts: int
    bytes: float
    calls: float
    reached_Bps: float | None
    assumed: Prediction
    best: Prediction
    bound_s: float
    cluster: Cluster


def tuner_text(collectives: Sequence[JobCollective], constants: Calibration) -> str:
    """NCCL's tuner file for the groups of a job; empty where everything is left to NCCL.

    The plugin tells groups by hosts and ranks alone.  Of groups that agree in both the slowest network counts.
    """

    def reach(collective: JobCollective) -> float:
        return float("inf") if collective.reached_Bps is None else collective.reached_Bps

    # One entry of the file serves all groups of a shape.
    slowest: dict[tuple[int, int], JobCollective] = {}
    for collective in collectives:
        shape = (collective.hosts, collective.ranks)
        even = collective.ranks % collective.hosts == 0 and collective.kind in BALANCED_KINDS
        if even and (shape not in slowest or reach(collective) < reach(slowest[shape])):
            slowest[shape] = collective
    groups = [(collective.cluster, *shape) for shape, collective in sorted(slowest.items())]
    return write_tuner(groups, calibration=constants)


def own_cluster(cluster: Cluster, domains: int) -> Cluster:
    """The hosts of a job as a separate cluster."""
    first, second = cluster.tiers[:2]
    tiers = (first, replace(second, size=domains)) if domains > 1 else (first,)
    return replace(
        cluster, name=f"{cluster.name}: {counted(domains, 'host')}", count=first.size * domains, tiers=tiers
    )


def job_collectives(
    site: Site, number: int, placement: Placement, router: Router, routes: FlowRoutes | None
) -> tuple[JobCollective, ...]:
    """The collectives of a job where it is, those that move most bytes in an iteration first.

    Args:
        placement: of the job's ranks.
        routes: of the flows of all jobs where the router is "planned".
    """
    job, constants = site.jobs[number], calibration(site.cluster.accelerator.name)
    wires = Wires(
        job.layout,
        site.cluster,
        site.fabric,
        constants,
        placement=placement,
        routing="spray" if router == "spray" else "ecmp",
        routes=routes,
    )
    costs = _CollectiveCosts(job, site.cluster, wires, constants)
    return tuple(costs.collective(*listed) for listed in _listed(job, site.cluster, constants))


def _listed(
    job: SiteJob, cluster: Cluster, constants: Calibration
) -> list[tuple[CollectiveKind, tuple[str, ...], float, float]]:
    """Kind, axes, bytes and calls of what an iteration of a rank holds, by the stage that has most of each."""
    frame = next(iter(Estimator(job.job, cluster, constants).frames(LayoutTable.of([job.layout]))))
    step = TrainingStep(frame.job.model, frame.job.recipe, frame.table, frame.software)
    rounds = float(step.micro_batches[0])
    most: Counter[tuple[CollectiveKind, tuple[str, ...], float]] = Counter()
    chunks = held_chunks(step.model, job.layout)
    for stage in range(job.layout.pipeline):
        stage_chunks = [chunk for chunk in chunks if chunk.stage == stage]
        result: Counter[tuple[CollectiveKind, tuple[str, ...], float]] = Counter()
        for chunk in stage_chunks:
            for call in (*step.inside(chunk), *step.between(chunk)):
                _count(result, job, call, rounds)
        for call in step.once(HeldChunk.together(stage_chunks)):
            _count(result, job, call, 1.0)
        # Counters joined by ``|`` keep the larger count: of each collective the stage that calls it most.
        most |= result
    order = sorted(most.items(), key=lambda entry: (-entry[0][2] * entry[1], entry[0]))
    return [(*key, calls) for key, calls in order]


def _count(result: Counter[Any], job: SiteJob, call: Call, rounds: float) -> None:
    """Add a call, unless it is empty or of a rank alone."""
    axes = real_axes(job.layout, call.axes)
    bytes_, times = float(np.max(call.bytes)), float(np.max(call.times)) * rounds
    if bytes_ > 0 and times > 0 and axes and rank_groups(job.layout, axes).shape[1] > 1:
        wide = tuple(axis for axis in axes if getattr(job.layout, axis, 2) > 1)
        result[call.kind, wide, bytes_] += times  # type: ignore[assignment]


class _CollectiveCosts:
    """What a job's collectives cost on its hosts."""

    def __init__(self, job: SiteJob, cluster: Cluster, wires: Wires, constants: Calibration) -> None:
        self.job, self.cluster, self.wires, self.constants = job, cluster, wires, constants
        self.table = LayoutTable.of([job.layout])
        self.known: dict[Key, tuple[str, float, float | None]] = {}

    def _met(self, key: Key) -> tuple[str, float, float | None]:
        """The algorithm of a collective's messages, what the fabric adds, and what is reached between hosts."""
        if key not in self.known:
            messages = self.wires.messages(key)
            self.known[key] = (messages.algorithm, self.wires.extra(key), self._reached_Bps(messages))
        return self.known[key]

    def collective(self, kind: CollectiveKind, axes: tuple[str, ...], bytes_: float, calls: float) -> JobCollective:
        key = (kind, axes)
        algorithm, extra, reached_Bps = self._met(key)
        hosts = own_cluster(self.cluster, self.job.domains)
        # The outer tier gets the bandwidth for which the model, with its efficiency, sends at the reached rate.
        if reached_Bps is not None:
            outer_Bps = reached_Bps / self.constants.scale_out_efficiency
            outer = replace(hosts.tiers[1], bandwidth_Bps=outer_Bps, oversubscription=1.0)
            hosts = replace(hosts, tiers=(hosts.tiers[0], outer))
        network, group = Network.of(hosts, self.constants), spread(self.table, axes, hosts.spans)
        nominal = Network.of(self.cluster, self.constants)
        nominal_group = spread(self.table, axes, self.cluster.spans)
        size = np.array([bytes_])
        waiting = replace(nominal, contention={(kind, nominal_group.axes): extra})
        assumed_s = float(collective_s(kind, size, nominal_group, waiting)[0])
        best = Prediction("ring step" if kind == "exchange" else "direct", assumed_s)
        if kind in BALANCED_KINDS:
            best = _fastest(kind, size, group, network)
        return JobCollective(
            kind=kind,
            axes=axes,
            ranks=int(group.size[0]),
            hosts=int(np.ceil(group.size[0] / group.members[0][0])),
            bytes=bytes_,
            calls=calls,
            reached_Bps=reached_Bps,
            assumed=Prediction(algorithm, assumed_s),
            best=best,
            bound_s=float(lower_bound_s(kind, size, nominal_group, nominal)[0]),
            cluster=hosts,
        )

    def _reached_Bps(self, messages: Messages) -> float | None:
        """Bytes/s of the busiest accelerator between hosts, with all groups; None where nothing leaves a host."""
        domain, least = self.wires.fabric.domain, np.inf
        for wave in messages.waves:
            away = np.flatnonzero(domain[wave.source] != domain[wave.target])
            if not len(away):
                continue
            bytes_ = wave.bytes[away] * UNIT_BYTES
            # All groups send at once: bytes of the busiest accelerator over the seconds until the last flow ends.
            busiest = max(float(np.bincount(ends[away], bytes_).max()) for ends in (wave.source, wave.target))
            routes = wave.routes.of(away)
            done = transfer(self.wires.capacity_Bps, wave.source[away], wave.target[away], bytes_, routes)
            least = min(least, busiest / float(done.end_s.max()))
        return least if np.isfinite(least) else None


def _fastest(kind: CollectiveKind, size: Floats, group: Spread, network: Network) -> Prediction:
    """The fastest of NCCL's algorithms with their protocols; seconds include the launch."""
    times = {" ".join(name): float(seconds[0]) for name, seconds in candidates(kind, size, group, network).items()}
    algorithm, seconds = min(times.items(), key=lambda entry: entry[1])
    return Prediction(algorithm, seconds + network.launch_s)
