"""What is left of a training run after failures: goodput, days, dollars, and which class of failures costs what.

Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from weft.cluster.calibration import Calibration
from weft.cluster.catalogue import resized
from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.estimation.iteration import estimate
from weft.estimation.result import Estimate, TrainingRun
from weft.estimation.training import Failing, checkpoint_size, failures_of, positive, training_run
from weft.fabric.spec import Fabric
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.reliability.classes import FailureBook
from weft.reliability.job import (
    FailingJob,
    Policy,
    assumed,
    broken,
    failing_job,
    is_simulated,
    parts_of,
    stranded_accelerators,
)
from weft.reliability.renewal import ClassCost, Saving, TimeShares
from weft.results import Result
from weft.simulation.iteration.result import IterationSimulation
from weft.simulation.iteration.simulate import simulate_iteration
from weft.units import counted


@dataclass(kw_only=True)
class DegradedNetwork:
    """A job on a fabric, healthy and with parts failed."""

    job: Job
    cluster: Cluster
    layout: Layout
    fabric: Fabric
    routing: str
    constants: Calibration | None = None

    @cached_property
    def healthy(self) -> IterationSimulation:
        """An iteration with nothing failed."""
        return self._simulated(self.fabric)

    @property
    def healthy_s(self) -> float:
        return self.healthy.iteration_s

    def iteration_s(self, fabric: Fabric) -> float:
        """Seconds of an iteration on another state of the fabric."""
        return self._simulated(fabric).iteration_s

    def _simulated(self, fabric: Fabric) -> IterationSimulation:
        return simulate_iteration(
            self.job, self.cluster, self.layout, fabric, routing=self.routing, constants=self.constants
        )

    def speed(self, failed: Sequence[tuple[str, int, float]]) -> float | None:
        """Speed with parts failed (kind, part, share of capacity left); None where accelerators are cut off."""
        left = broken(self.fabric, failed)
        if len(stranded_accelerators(left)):
            return None
        return min(1.0, self.healthy_s / self.iteration_s(left))


MOST_SPARES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTerms:
    """How failures are met and counted.

    ``simulate``: speeds with a part of the network down are the flow simulator's, else 1.
    """

    book: FailureBook
    policy: Policy
    tokens: float
    spares: int | None = None
    usd_per_hour: float | None = None
    simulate: bool = True
    routing: str = "ecmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """One class in a run: what there is of it, what one takes down, events expected, and its share of the time."""

    name: str
    component: str
    components: float
    events: float
    hosts: int
    speed: float | None
    share: float
    rework: float
    restart: float
    waiting: float
    reduced: float
    planned: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SparesRow:
    """Goodput with so many spare hosts, and accelerator-hours over those of a run that never fails."""

    spares: int
    goodput: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class GoodputReport(Result):
    """A run under failures.

    ``iteration_s`` is the simulator's where the network is simulated, else the estimate's.  ``best_spares`` needs the
    fewest accelerator-hours, spares included.  ``routing`` is that of the simulation (None: nothing is simulated).
    """

    SCHEMA = "weft.goodput/1"
    DOCUMENT = """
        job cluster layout fabric=fabric.name failures=failing.book.name policy iteration_s goodput shares=outcome run
        saving spares best_spares spare_rows simulated routing classes"""

    job: Job
    cluster: Cluster
    fabric: Fabric
    estimate: Estimate
    iteration_s: float
    failing: FailingJob
    spares: int
    saving: Saving
    run: TrainingRun
    outcome: TimeShares
    classes: tuple[ClassRow, ...]
    spare_rows: tuple[SparesRow, ...]
    best_spares: int
    routing: str | None

    @property
    def simulated(self) -> bool:
        return self.routing is not None

    @property
    def goodput(self) -> float:
        """Share of the expected time that is useful training at full speed."""
        return self.outcome.goodput

    @property
    def layout(self) -> Layout:
        return self.estimate.layout

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every class of failures."""
        return [asdict(row) for row in self.classes]

    @property
    def policy(self) -> str:
        return str(self.failing.policy)


def goodput(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    fabric: Fabric,
    terms: FailureTerms,
    *,
    constants: Calibration | None = None,
    network: DegradedNetwork | None = None,
) -> GoodputReport:
    """A run of a layout under failures.

    Args:
        fabric: whose parts fail.
        network: the job on the fabric, where some of it is simulated already.
    """
    estimated = estimate(job, cluster, [layout], constants)[0]
    network = network or DegradedNetwork(
        job=job, cluster=cluster, layout=layout, fabric=fabric, routing=terms.routing, constants=constants
    )
    iteration_s = network.healthy_s if terms.simulate else estimated.iteration_s
    timed = replace(estimated, iteration_s=iteration_s)
    pace = (iteration_s, math.ceil(positive(terms.tokens, "tokens") / job.recipe.tokens))
    failing = _failing(estimated, job, cluster, fabric, terms, _speeds(network, terms))
    speeds_short = _speeds_short(job, cluster, estimated, failing, constants) if terms.policy.shrink else (1.0,)
    rows, best = _spare_rows(failing, speeds_short, pace)
    spares = best if terms.spares is None else terms.spares
    met = _met(failing, spares, speeds_short)
    run = training_run(
        timed, job, cluster, tokens=terms.tokens, usd_per_accelerator_hour=terms.usd_per_hour, failing=met
    )
    _, saving, result = failures_of(met, layout.world, pace)
    return GoodputReport(
        job=job,
        cluster=cluster,
        fabric=fabric,
        estimate=estimated,
        iteration_s=iteration_s,
        failing=failing,
        spares=spares,
        saving=saving,
        run=run,
        outcome=result,
        classes=_class_rows(failing, result, run),
        spare_rows=rows,
        best_spares=best,
        routing=network.routing if terms.simulate else None,
    )


def _speeds(network: DegradedNetwork, terms: FailureTerms) -> dict[str, float]:
    """Speed of the job with a part of each simulated class failed, where no accelerator is cut off by that."""
    wanted = [known for known in terms.book.classes if terms.simulate and is_simulated(known)]
    # Parts of a kind are taken as alike: one failed part of each class is simulated.
    speeds: dict[str, float] = {}
    for failure in wanted:
        parts = parts_of(network.fabric, failure.component)
        if len(parts):
            speed = network.speed([(failure.component, int(parts[0]), failure.capacity)])
            if speed is not None:
                speeds[failure.name] = speed
    return speeds


def failing_run(
    estimated: Estimate, job: Job, cluster: Cluster, fabric: Fabric, terms: FailureTerms, constants: Calibration | None
) -> TrainingRun:
    """A run at an estimate's speed under failures, without simulation: a network that leaves all accelerators
    connected is not slowed down by its failures.
    """
    failing = _failing(estimated, job, cluster, fabric, terms, {})
    speeds_short = _speeds_short(job, cluster, estimated, failing, constants) if terms.policy.shrink else (1.0,)
    pace = (estimated.iteration_s, math.ceil(positive(terms.tokens, "tokens") / job.recipe.tokens))
    met = _met(failing, _spare_rows(failing, speeds_short, pace)[1], speeds_short)
    return training_run(
        estimated, job, cluster, tokens=terms.tokens, usd_per_accelerator_hour=terms.usd_per_hour, failing=met
    )


def _failing(
    estimated: Estimate, job: Job, cluster: Cluster, fabric: Fabric, terms: FailureTerms, speeds: dict[str, float]
) -> FailingJob:
    """The job's failures on a fabric; ``speeds`` by class where the job goes on more slowly."""
    return failing_job(
        terms.book,
        terms.policy,
        cluster,
        fabric,
        accelerators=estimated.layout.world,
        checkpoint_bytes=checkpoint_size(job),
        speeds=speeds,
    )


def _met(failing: FailingJob, spares: int, speeds: tuple[float, ...]) -> Failing:
    """A job's failures, met with spares and with speeds of fewer hosts."""
    process = failing.process(spares, speeds)
    idle = f", beside {counted(failing.idle_hosts, 'host')} idle in domains (one pool)" if failing.idle_hosts else ""
    if process.rate <= 0:
        remedy = "add a class that takes something"
        raise BadInput("nothing stops the job", where=f"{failing.book.name}: classes", remedy=remedy)
    return Failing(
        name=failing.book.name,
        process=process,
        saving=failing.saving,
        checkpoint_bytes=failing.checkpoint_bytes,
        spare_accelerators=spares * failing.host_size,
        defaults=(
            *assumed(failing.book),
            f"spares: {counted(spares, 'host')} of {failing.host_size}, paid for like others{idle}",
        ),
    )


def _class_rows(failing: FailingJob, result: TimeShares, run: TrainingRun) -> tuple[ClassRow, ...]:
    """Classes by what they cost."""
    costs = {cost.name: cost for cost in result.classes}
    rows = []
    for failing_class in failing.classes:
        if failing_class.rate <= 0:
            continue
        cost = costs.get(failing_class.known.name) or ClassCost(name=failing_class.known.name)
        rate = cost.rate if failing_class.speed is None else failing_class.rate
        rows.append(
            ClassRow(
                name=failing_class.known.name,
                component=failing_class.known.component,
                components=failing_class.components,
                events=rate * run.expected_s,
                hosts=failing_class.hosts,
                speed=failing_class.speed,
                share=cost.share,
                rework=cost.rework,
                restart=cost.restart,
                waiting=cost.waiting,
                reduced=cost.reduced,
                planned=cost.planned,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.share))


def _spare_rows(
    failing: FailingJob, speeds: tuple[float, ...], run: tuple[float, int]
) -> tuple[tuple[SparesRow, ...], int]:
    """Goodput and cost by spare hosts, up to where more cannot help, and the cheapest number."""
    load = failing.in_repair()
    # Hosts in repair are about Poisson: five deviations above the mean, another spare would hardly ever be used.
    most = min(MOST_SPARES, failing.hosts, math.ceil(load + 5.0 * math.sqrt(load)) + 2)
    rows = []
    for spares in range(most + 1):
        shares = failures_of(_met(failing, spares, speeds), failing.census.accelerators, run)[2]
        cost = (1.0 + spares / (failing.hosts + failing.idle_hosts)) / shares.goodput
        rows.append(SparesRow(spares=spares, goodput=shares.goodput, cost=cost))
    best = min(rows, key=lambda row: row.cost).spares
    listed = sorted({0, 1, best, most, *(2**i for i in range(14) if 2**i < most)} & set(range(most + 1)))
    return tuple(rows[i] for i in listed), best


def _speeds_short(
    job: Job, cluster: Cluster, full: Estimate, failing: FailingJob, constants: Calibration | None
) -> tuple[float, ...]:
    """Tokens a second with 0, 1, 2, ... hosts too few over those with all.

    Whole replicas go on, each with its share of the batch, at the pace that the estimator gives them, down to half of
    them; below that the job waits.
    """
    layout = full.layout
    replica = layout.world // layout.data
    load = failing.in_repair()
    most = math.ceil(load + 8.0 * math.sqrt(load)) + max(
        (failing_class.hosts for failing_class in failing.classes), default=0
    )
    pace: dict[int, float] = {layout.data: 1.0}
    speeds = []
    for short in range(min(most, failing.hosts) + 1):
        # Whole replicas only: a replica that lacks a host cannot train.
        left = min(layout.data, (layout.world - short * failing.host_size) // replica)
        if left < max(1, layout.data / 2):
            break
        if left not in pace:
            pace[left] = _pace(job, cluster, full, left, constants)
        speeds.append(pace[left])
    return tuple(speeds)


def _pace(job: Job, cluster: Cluster, full: Estimate, data: int, constants: Calibration | None) -> float:
    """Tokens a second of fewer replicas over those of all; their mere number where the cluster cannot be cut so."""
    share = data / full.layout.data
    batch = job.recipe.global_batch // full.layout.data * data
    smaller = replace(job, recipe=replace(job.recipe, global_batch=batch))
    try:
        fewer = resized(cluster, full.layout.world // full.layout.data * data)
        smaller_run = estimate(smaller, fewer, [replace(full.layout, data=data)], constants)[0]
    except BadInput:
        return share
    return min(1.0, smaller_run.tokens_per_s / full.tokens_per_s)
