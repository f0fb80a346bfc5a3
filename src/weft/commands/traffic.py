"""The fabric and the flows that the verbs of ``weft route`` work on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from weft.commands.networks import RadixOptions, fabric_file, fabric_of, is_file, needs_a_file, placement_of
from weft.commands.options import option
from weft.commands.shared import cluster_of, planned_subject
from weft.errors import BadInput
from weft.layout.text import parse_layout
from weft.units import counted

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.commands.shared import Subject
    from weft.fabric import Fabric
    from weft.fabric.placement import Placement
    from weft.routing import JobTraffic
    from weft.routing.demand import MeasuredDemand
    from weft.search import Plan

_NUMBERED = re.compile(r"\s*\S+\s+\S+(\s+[0-9]{1,9})?\s*")
SOURCES = (
    "--plan FILE, --generate BLOOM:4, --flows FILE.csv, --demand FILE, --job 'MODEL LAYOUT' or --arrangement FILE"
)


@dataclass(frozen=True, kw_only=True)
class TrafficNetwork(RadixOptions):
    """The fabric: of a cluster, a file, or the one of arXiv 2503.05324."""

    group = "Network"
    cluster: str | Cluster | None = option(
        None, "Cluster whose network is used: a name or TOML file.", metavar="CLUSTER"
    )
    fabric: str | Fabric | None = option(
        None, "Network of --cluster, or a fabric file (default: 64 ToRs x 32 spines).", metavar="KIND|FILE"
    )
    seed: int = option(0, "Seed of hashes and searches.", metavar="N", least=0)


@dataclass(frozen=True, kw_only=True)
class TrafficOptions(TrafficNetwork):
    """The fabric, its failed parts, and the jobs whose flows cross it."""

    group = "Job"
    arrangement: str | None = option(None, "Fabric and jobs of an arrangement (JSON of weft arrange).", metavar="FILE")
    failed: tuple[str, ...] = option(
        (), "Take down a switch or link, as spine-3 or leaf-0:spine-3.", metavar="NODE|A:B"
    )
    plan: tuple[str, ...] | tuple[Plan, ...] = option(
        (), "Job and first layout of a plan (JSON of weft plan; repeats).", metavar="FILE"
    )
    placement: tuple[str, ...] | tuple[Placement, ...] = option(
        (), "Hosts of each --plan in rank order: CSV or a hostfile (repeats).", metavar="FILE"
    )
    job: tuple[str, ...] = option(
        (), "Job on --cluster, as 'llama-3.1-8b tp=8,dp=4 0' (repeats).", metavar="'MODEL LAYOUT [FIRST]'"
    )
    generate: tuple[str, ...] = option(
        (), "Example jobs in rings: BLOOM, GPT_3, LLaMA2_70B.", metavar="MODEL:RING,..."
    )
    flows: tuple[str, ...] = option((), "Flows as CSV: source, target, bytes (repeats).", metavar="FILE.csv")
    demand: tuple[str, ...] = option(
        (), "Measured flows: CSV (source, target, bytes, start_s, end_s) or NCCL logs (repeats).", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.placement) > len(self.plan):
            problem = f"{counted(len(self.placement), 'placement')} for {counted(len(self.plan), 'plan')}"
            raise BadInput(problem, where="--placement", remedy="give one for each --plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedFabric:
    """A fabric as built and at the speed that its links reach, and its cluster where it is known."""

    built: Fabric
    fabric: Fabric
    cluster: Cluster | None
    subjects: tuple[Subject, ...] = ()


def network_of(options: TrafficOptions) -> RoutedFabric:
    """The fabric, with links at their calibrated share of capacity where the accelerators are known."""
    plans: tuple[str | Plan, ...] = options.plan
    subjects = tuple(planned_subject(plan, 1) for plan in plans)
    cluster = None if options.cluster is None else cluster_of(options.cluster)
    if cluster is None and subjects:
        cluster = subjects[0].cluster
        if len(subjects) > 1 and (
            options.fabric is None or (isinstance(options.fabric, str) and not is_file(options.fabric))
        ):
            problem = f"{len(subjects)} plans need one network"
            raise BadInput(problem, where="--plan", remedy="add --cluster, or a fabric file")
    fabric = network_alone(options, cluster)
    if cluster is None:
        return RoutedFabric(built=fabric, fabric=fabric, cluster=None)
    from weft.cluster.calibration import calibration
    from weft.simulation.iteration.contention import reached

    derated = reached(fabric, calibration(cluster.accelerator.name))
    return RoutedFabric(built=fabric, fabric=derated, cluster=cluster, subjects=subjects)


def network_alone(options: TrafficNetwork, cluster: Cluster | None) -> Fabric:
    """The fabric at the speed of its links."""
    built = options.fabric is None or (isinstance(options.fabric, str) and not is_file(options.fabric))
    if built:
        needs_a_file(options)
    if options.radix != RadixOptions.radix and not (built and cluster):
        raise BadInput("applies to networks of --cluster only", where="--radix", remedy="drop it, or add --cluster")
    if options.fabric is None and cluster is None:
        from weft.fabric.families.clos import two_layers

        return two_layers()
    if isinstance(options.fabric, str) and not built:
        return fabric_file(options.fabric, options, cluster=cluster)
    return fabric_of(options.fabric, cluster, options.radix)


def jobs_of(options: TrafficOptions, result: RoutedFabric) -> list[JobTraffic]:
    """The flows of ``plan`` and ``job``, by default one job after the other on the accelerators."""
    from weft.fabric.placement import Placement
    from weft.model import resolve_job
    from weft.simulation.routes.traffic import planned_traffic

    parts: list[JobTraffic] = []
    free = 0
    for number, subject in enumerate(result.subjects):
        world = subject.layout.world
        hosts = options.placement[number] if number < len(options.placement) else None
        placement = placement_of(hosts, result.fabric, world) or Placement.in_order(world, first=free)
        name = subject.job.model.name if len(result.subjects) == 1 else f"plan {number}: {subject.job.model.name}"
        parts.append(
            planned_traffic(
                subject.job, subject.cluster, subject.layout, result.fabric, placement=placement, name=name
            )
        )
        free = int(placement.accelerators.max()) + 1
    for number, text in enumerate(options.job):
        if result.cluster is None or not _NUMBERED.fullmatch(text):
            raise BadInput(
                f"{text!r} is not a model with a layout" if result.cluster else "needs --cluster",
                where="--job",
                remedy="write --cluster h100-32 --job 'llama-3.1-8b tp=8,dp=4 0'",
            )
        words = text.split()
        first = int(words[2]) if len(words) == 3 else free
        layout, name = parse_layout(words[1]).complete(), f"job {number}: {words[0]}"
        placement = Placement.in_order(layout.world, first=first)
        job = resolve_job(words[0])
        parts.append(planned_traffic(job, result.cluster, layout, result.fabric, placement=placement, name=name))
        free = first + layout.world
    return parts


def names_traffic(options: TrafficOptions) -> bool:
    """Whether any flows are named."""
    return any(getattr(options, name) for name in ("arrangement", "plan", "job", "generate", "flows", "demand"))


class RoutedTraffic(NamedTuple):
    """The fabric with its failed parts down, all traffic, and what was recognised in measurements."""

    fabric: Fabric
    flows: JobTraffic
    demand: MeasuredDemand | None = None


def measured(paths: Sequence[str], fabric: Fabric) -> MeasuredDemand:
    """What was recognised in tables of measured flows, or in NCCL logs of one run."""
    from weft.interop.flow_tables import read_records
    from weft.interop.nccl_log import is_nccl_log
    from weft.interop.nccl_traffic import read_demand
    from weft.routing.demand import recognised

    logs = [path for path in paths if is_nccl_log(path)]
    if not logs:
        demand = recognised(read_records(paths, fabric), fabric)
        if not demand.jobs:
            problem, remedy = "holds no flows of a job", "measure ten iterations or more"
            raise BadInput(problem, where=", ".join(paths[:3]), remedy=remedy)
        return demand
    if len(logs) < len(paths):
        raise BadInput("has logs of NCCL beside tables", where="--demand", remedy="give either")
    return read_demand(logs, fabric)


def traffic_of(options: TrafficOptions, *more: JobTraffic) -> RoutedTraffic:
    """The fabric and all traffic."""
    from weft.interop.flow_tables import read_csv
    from weft.routing.generate import generate
    from weft.routing.traffic import merged

    if options.job and options.cluster is None and not options.plan:
        raise BadInput("--job needs a cluster", where="weft route", remedy="add --cluster, as h100-1024")
    if options.arrangement is not None:
        return _arranged(options, options.arrangement)
    network = network_of(options)
    parts = [*more, *(read_csv(path, network.built) for path in options.flows)]
    if options.generate:
        parts.append(generate(network.fabric, generated_jobs(",".join(options.generate)), seed=options.seed))
    parts += jobs_of(options, network)
    demand = measured(options.demand, network.fabric) if options.demand else None
    parts += [demand.traffic] if demand else []
    if not parts:
        raise BadInput("there is no traffic", where="weft route", remedy=f"add {SOURCES}")
    return RoutedTraffic(failed(network.fabric, options.failed), merged(parts), demand)


def _arranged(options: TrafficOptions, path: str) -> RoutedTraffic:
    """The fabric and the flows of an arrangement."""
    from weft.arrangement.bundle import read_bundle
    from weft.cluster.calibration import calibration
    from weft.simulation.iteration.contention import reached

    for name in ("plan", "job", "generate", "flows", "demand", "cluster", "fabric"):
        if getattr(options, name):
            raise BadInput(f"--{name} beside --arrangement", where="weft route", remedy="drop one of them")
    bundle = read_bundle(path)
    fabric = reached(bundle.site.fabric, calibration(bundle.site.cluster.accelerator.name))
    return RoutedTraffic(failed(fabric, options.failed), bundle.flows())


def failed(fabric: Fabric, names: Sequence[str]) -> Fabric:
    """The fabric with the named switches and links down."""
    import numpy as np

    number = {name: node for node, name in enumerate(fabric.names)} if names else {}
    for name in names:
        if name in number:
            fabric = fabric.failed(nodes=np.array([number[name]]))
            continue
        ends = [number.get(end, -1) for end in name.split(":")]
        joined = (fabric.source == ends[0]) & (fabric.target == ends[-1])
        if len(ends) != 2 or not joined.any():
            raise BadInput(
                f"{name!r} is not a switch or a link of {fabric.name}",
                where="--failed",
                remedy=f"use names like {fabric.names[-1]}, or two joined nodes as A:B",
            )
        fabric = fabric.failed(links=np.flatnonzero(joined))
    return fabric


def generated_jobs(text: str) -> list[tuple[str, int]]:
    """Models and ring sizes of ``--generate``."""
    jobs = []
    for word in text.split(","):
        name, _, ring = word.strip().partition(":")
        if not (ring.isascii() and ring.isdigit() and len(ring) < 7):
            raise BadInput(f"{word!r} has no ring size", where="--generate", remedy="write BLOOM:4,GPT_3:2")
        jobs.append((name, int(ring)))
    return jobs
