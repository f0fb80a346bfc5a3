"""The collectives of an arranged job, and which algorithm is best for each on its hosts and the site's network.

Between hosts a group reaches what its busiest accelerator gets while all groups of the same axes send at once, by the
arrangement's routes and without other jobs.  With that bandwidth two kinds of answer are compared, by one set of
constants: NCCL's algorithms (``weft.collectives.cost``), and schedules over the group's dimensions
(``weft.collectives.schedules``) whose steps cost what a step of NCCL's Simple protocol does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import numpy as np

from weft.arrangement.site import Router, Site, SiteJob
from weft.cluster.calibration import Calibration, calibration
from weft.cluster.spec import Cluster
from weft.codec import Document
from weft.collectives.cost import PROTOCOLS, Network, candidates, collective_s, lower_bound_s
from weft.collectives.dimensions import factors_of, part_dimensions
from weft.collectives.schedules.bound import best_shares
from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.messages import equal, schedule_plan
from weft.collectives.schedules.policies import POLICIES, SMALLEST_PIECE_BYTES, schedule
from weft.collectives.schedules.timing import TimedSchedule, time_schedule
from weft.collectives.stages import BALANCED_KINDS
from weft.errors import Unsupported
from weft.estimation.iteration import Estimator
from weft.fabric.dimension import Dimension, from_tier
from weft.fabric.placement import Placement
from weft.interop.msccl import write_msccl
from weft.interop.nccl_tuner import write_tuner
from weft.layout.mesh import Spread, rank_groups, real_axes, spread
from weft.layout.operations import CollectiveKind
from weft.layout.stages import HeldChunk, held_chunks
from weft.layout.step import Call, TrainingStep
from weft.layout.table import LayoutTable
from weft.simulation.flows.symmetry import transfer
from weft.simulation.iteration.contention import UNIT_BYTES, FlowRoutes, Messages, Wires
from weft.simulation.iteration.demand import Key
from weft.units import counted

CHUNKS = 4
"""Chunks of a schedule: executors take few steps a rank."""
MOST_XML_RANKS = 128
"""Ranks of a group up to which MSCCL XML is written."""
SPAN = 1.25
"""Sizes to this factor around that of a collective are those for which its schedule is written: frameworks pad and
bucket."""
WORTH = 0.01
"""A schedule is best where it is at least this share faster than NCCL's fastest algorithm."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a call with an algorithm."""

    algorithm: str
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionSchedule:
    """A schedule over the dimensions of a group: the dimensions' order of each chunk, from 1."""

    policy: str
    sizes: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    predicted_s: float
    bound_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobCollective(Document):
    """One collective of a job on its hosts; seconds are of one call.

    Attributes:
        bytes: the full buffer of a call.
        calls: in an iteration, of a rank of the stage that has most.
        hosts: that a group lies on.
        reached_Bps: what an accelerator gets between hosts with all groups of the axes; None where nothing leaves.
        assumed: algorithm whose messages the simulation sends, and what the prediction takes for a call.
        nccl: seconds of each of NCCL's algorithms and protocols that can run it (or of the only way to run it).
        dimensions: those of a group, as an executor sees them; empty where it lies on them unevenly.
        timed: the best of some schedules in equal chunks over them; None where there is one dimension, or no choice.
        shares_bound_s: what no schedule of chunks over these dimensions undercuts.
        bound_s: bytes over the peak bandwidth of the ports, which nothing undercuts.
        schedule_is_best: whether the schedule beats all of NCCL's algorithms by ``WORTH``, at ``bytes`` and at both
            ends of the sizes that ``SPAN`` puts around it.
        cluster: the job's hosts, with what is reached between them.
    """

    DOCUMENT = """
        kind axes ranks hosts bytes calls reached_Bps assumed best nccl=nccl_time bound_s
        dimensions=over_dimensions"""

    kind: CollectiveKind
    axes: tuple[str, ...]
    ranks: int
    hosts: int
    bytes: float
    calls: float
    reached_Bps: float | None
    assumed: Prediction
    nccl: dict[str, float]
    dimensions: tuple[Dimension, ...]
    timed: TimedSchedule | None
    shares_bound_s: float | None
    bound_s: float
    launch_s: float
    schedule_is_best: bool
    cluster: Cluster

    @property
    def name(self) -> str:
        """Kind and axes, as ``weft schedule`` takes them."""
        return f"{self.kind} {'+'.join(self.axes)}"

    @property
    def scheduled_s(self) -> float | None:
        """Seconds of the schedule, launch included."""
        return None if self.timed is None else self.timed.time_s + self.launch_s

    @property
    def best(self) -> Prediction:
        """The best algorithm and its seconds."""
        if self.schedule_is_best and self.timed is not None and self.scheduled_s is not None:
            return Prediction(f"schedule {self.timed.schedule.policy}", self.scheduled_s)
        return self.nccl_time

    @property
    def nccl_time(self) -> Prediction:
        """NCCL's fastest algorithm and its seconds."""
        return Prediction(*min(self.nccl.items(), key=lambda entry: entry[1]))

    @property
    def over_dimensions(self) -> DimensionSchedule | None:
        """The schedule over the dimensions, where there is one."""
        if self.timed is None or self.scheduled_s is None:
            return None
        return DimensionSchedule(
            policy=self.timed.schedule.policy,
            sizes=tuple(dimension.size for dimension in self.dimensions),
            orders=tuple(map(tuple, (self.timed.schedule.orders + 1).tolist())),
            predicted_s=self.scheduled_s,
            bound_s=self.shares_bound_s,
        )


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


def msccl_text(collective: JobCollective) -> str | None:
    """The schedule of a collective as MSCCL XML for sizes near its own.

    None where NCCL is as good, or the executor cannot run it.
    """
    if not collective.schedule_is_best or collective.timed is None or collective.ranks > MOST_XML_RANKS:
        return None
    name = f"weft_{collective.kind}_{'_'.join(collective.axes)}_{collective.ranks}"
    least, most = ceil(collective.bytes / SPAN), int(collective.bytes * SPAN)
    try:
        plan = schedule_plan(collective.timed)
        return write_msccl(plan, collective.kind, collective.ranks, name=name, min_bytes=least, max_bytes=most)
    except Unsupported:
        return None


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
        dimensions = self._dimensions(axes, hosts, network)
        timed, bound_s = _scheduled(kind, bytes_, dimensions)
        nominal = Network.of(self.cluster, self.constants)
        nominal_group = spread(self.table, axes, self.cluster.spans)
        size = np.array([bytes_])
        waiting = replace(nominal, contention={(kind, nominal_group.axes): extra})
        assumed_s = float(collective_s(kind, size, nominal_group, waiting)[0])
        nccl = {"ring step" if kind == "exchange" else "direct": assumed_s}
        if kind in BALANCED_KINDS:
            nccl = _nccl(kind, bytes_, group, network)
        return JobCollective(
            kind=kind,
            axes=axes,
            ranks=int(group.size[0]),
            hosts=int(np.ceil(group.size[0] / group.members[0][0])),
            bytes=bytes_,
            calls=calls,
            reached_Bps=reached_Bps,
            assumed=Prediction(algorithm, assumed_s),
            nccl=nccl,
            dimensions=dimensions,
            timed=timed,
            shares_bound_s=None if bound_s is None else bound_s + network.launch_s,
            bound_s=float(lower_bound_s(kind, size, nominal_group, nominal)[0]),
            launch_s=network.launch_s,
            schedule_is_best=timed is not None
            and all(
                (_sized(timed, share).time_s + network.launch_s) * (1 + WORTH)
                < min(_nccl(kind, bytes_ * share, group, network).values())
                for share in (1 / SPAN, 1.0, SPAN)
            ),
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

    def _dimensions(self, axes: tuple[str, ...], hosts: Cluster, network: Network) -> tuple[Dimension, ...]:
        """Scale-up domain and hosts that a group spans, as an executor on NCCL's Simple protocol sees them."""
        simple = PROTOCOLS[-1]
        dimensions = [
            replace(
                from_tier(tier),
                bandwidth_Bps=network.achieved_Bps[k],
                latency_s=network.latency_s[k] + (simple.outside_s if k else simple.inside_s),
                reduces=False,
            )
            for k, tier in enumerate(hosts.tiers)
        ]
        try:
            ranks = sorted(rank_groups(self.job.layout, axes)[0].tolist())
            return tuple(dimension for _, dimension in part_dimensions(dimensions, factors_of(ranks)))
        except Unsupported:
            return ()


def _nccl(kind: CollectiveKind, bytes_: float, group: Spread, network: Network) -> dict[str, float]:
    """Seconds of NCCL's algorithms with their protocols, launch included."""
    result = candidates(kind, np.array([bytes_]), group, network)
    times = {" ".join(name): float(seconds[0]) + network.launch_s for name, seconds in result.items()}
    return {name: seconds for name, seconds in times.items() if np.isfinite(seconds)}


def _scheduled(
    kind: CollectiveKind, bytes_: float, dimensions: tuple[Dimension, ...]
) -> tuple[TimedSchedule | None, float | None]:
    """The fastest of the policies' schedules in equal chunks, without the launch, and the bound of all schedules."""
    ranks = prod(dimension.size for dimension in dimensions)
    if kind not in BALANCED_KINDS or len(dimensions) < 2 or bytes_ < CHUNKS * ranks * SMALLEST_PIECE_BYTES:
        return None, None
    wanted = request(kind, bytes_, dimensions)
    # Every policy's order in equal chunks, which executors can run; the bound holds for all orders and chunks.
    known = [schedule(wanted, policy, chunks=CHUNKS) for policy in POLICIES]
    best = min((equal(candidate, len(candidate.schedule)) for candidate in known), key=lambda timed: timed.time_s)
    return best, best_shares(wanted).bound_s


def _sized(timed: TimedSchedule, share: float) -> TimedSchedule:
    """The same orders for a share of the bytes."""
    schedule = timed.schedule
    scaled = replace(schedule.request, bytes=schedule.request.bytes * share)
    resized = replace(schedule, request=scaled, chunk_bytes=schedule.chunk_bytes * share)
    return time_schedule(resized, rule=timed.rule, active=timed.active)
