"""``weft.route``: routes for all flows of all jobs on a fabric."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from weft.commands.command_line import DefaultGroup, command, takes
from weft.commands.networks import RadixOptions, SubnetOptions, fabric_of, is_file, needs_a_file, placement_of
from weft.commands.options import Options, given_options, option, verb
from weft.commands.output import RowsOutput, VerboseOutput, deliver, report
from weft.commands.route_watch import watch_command
from weft.commands.shared import cluster_of, planned_subject
from weft.errors import BadInput, UnknownName
from weft.files import read_text, write_folder
from weft.interop.formats import formats_of
from weft.layout.text import parse_layout
from weft.units import counted

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.commands.shared import Subject
    from weft.fabric import Fabric
    from weft.fabric.placement import Placement
    from weft.fabric.traffic import Routes
    from weft.interop.subnet import Subnet
    from weft.routing import JobTraffic
    from weft.routing.demand import MeasuredDemand
    from weft.routing.report import RouteAudit, RouteReport
    from weft.search import Plan

_NUMBERED = re.compile(r"\s*(\S+)\s+(\S+)(?:\s+([0-9]{1,9}))?\s*")
SOURCES = ("arrangement", "plan", "job", "generate", "flows", "demand")
"""Options that name flows."""


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
    built = options.fabric is None or (isinstance(options.fabric, str) and not is_file(options.fabric))
    if cluster is None and subjects:
        cluster = subjects[0].cluster
        if len(subjects) > 1 and built:
            problem = f"{len(subjects)} plans need one network"
            raise BadInput(problem, where="--plan", remedy="add --cluster, or a fabric file")
    if options.radix != RadixOptions.radix and not (built and cluster):
        raise BadInput("applies to networks of --cluster only", where="--radix", remedy="drop it, or add --cluster")
    if options.fabric is None and cluster is None:
        from weft.fabric.families.clos import two_layers

        needs_a_file(options)
        fabric = two_layers()
    else:
        fabric = fabric_of(options.fabric, cluster, options.radix, options)
    if cluster is None:
        return RoutedFabric(built=fabric, fabric=fabric, cluster=None)
    from weft.cluster.calibration import calibration
    from weft.simulation.iteration.contention import reached

    derated = reached(fabric, calibration(cluster.accelerator.name))
    return RoutedFabric(built=fabric, fabric=derated, cluster=cluster, subjects=subjects)


def jobs_of(options: TrafficOptions, result: RoutedFabric) -> list[JobTraffic]:
    """The flows of ``plan`` and ``job``, by default one job after the other on the accelerators."""
    from weft.fabric.placement import Placement
    from weft.model import resolve_job
    from weft.simulation.iteration.evaluator import planned_traffic

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
        written = _NUMBERED.fullmatch(text)
        if result.cluster is None or written is None:
            raise BadInput(
                f"{text!r} is not a model with a layout" if result.cluster else "needs --cluster",
                where="--job",
                remedy="write --cluster h100-32 --job 'llama-3.1-8b tp=8,dp=4 0'",
            )
        model, cut, begin = written.groups()
        layout, first = parse_layout(cut).complete(), free if begin is None else int(begin)
        placement = Placement.in_order(layout.world, first=first)
        job, name = resolve_job(model), f"job {number}: {model}"
        parts.append(planned_traffic(job, result.cluster, layout, result.fabric, placement=placement, name=name))
        free = first + layout.world
    return parts


class RoutedTraffic(NamedTuple):
    """The fabric with its failed parts down, all traffic, and what was recognised in measurements."""

    fabric: Fabric
    flows: JobTraffic
    demand: MeasuredDemand | None = None


def measured(paths: Sequence[str], fabric: Fabric) -> MeasuredDemand:
    """What was recognised in tables of measured flows, or in NCCL logs of one run."""
    from weft.interop.nccl_traffic import demand_of

    demand = demand_of(paths, fabric)
    if not demand.jobs:
        problem, remedy = "holds no flows of a job", "measure ten iterations or more"
        raise BadInput(problem, where=", ".join(paths[:3]), remedy=remedy)
    return demand


def traffic_of(options: TrafficOptions, *more: JobTraffic) -> RoutedTraffic:
    """The fabric and all traffic."""
    from weft.interop.flow_tables import read_csv
    from weft.routing.traffic import generate, merged

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
        remedy = "add --plan FILE, --generate BLOOM:4, --flows FILE.csv, --demand FILE, --job 'MODEL LAYOUT'"
        raise BadInput("there is no traffic", where="weft route", remedy=f"{remedy} or --arrangement FILE")
    return RoutedTraffic(failed(network.fabric, options.failed), merged(parts), demand)


def _arranged(options: TrafficOptions, path: str) -> RoutedTraffic:
    """The fabric and the flows of an arrangement."""
    from weft.arrangement.bundle import read_bundle
    from weft.cluster.calibration import calibration
    from weft.simulation.iteration.contention import reached

    for name in (*SOURCES[1:], "cluster", "fabric"):
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


# Routes ------------------------------------------------------------------------------------------------

ROUTERS = ("auto", "ecmp", "greedy", "edge-coloring", "repair", "ilp", "destination", "split", "spray")


class RouteOptions(TrafficOptions):
    """Who routes which flows, and how the routes are judged."""

    group = "Search"
    router: str = option("auto", "Method that chooses the paths.", choices=ROUTERS)
    split: int = option(2, "With --router split: parts of each flow.", metavar="N", least=1, most=64)
    compare: str | None = option(None, "Compare with these routers, as ecmp,spray.", metavar="ROUTER,...")
    paths: bool = option(False, "With --format json: list the path of every flow.")

    def rivals(self) -> list[str]:
        """The routers of ``compare``."""
        names = [name.strip() for name in self.compare.split(",")] if self.compare else []
        for name in names:
            if name not in ROUTERS:
                raise UnknownName("router", name, ROUTERS, where="--compare")
        return names


@verb(RouteOptions)
def route(
    fabric: Fabric | str | None = None,
    traffic: JobTraffic | None = None,
    options: RouteOptions | None = None,
    **given: Any,
) -> RouteReport:
    """Route all flows at once, and bound how good any routes could be.

    >>> import weft
    >>> report = weft.route(cluster="h100-64", fabric="fat-tree", radix=8, job="llama-3.1-8b tp=8,dp=8")
    >>> report.plan.alpha, report.plan.alpha_bound
    (1.0, 1.0)

    Args:
        fabric: a fabric, a fabric file, or a kind of network of ``cluster``.
        traffic: flows in addition to those that the options name.

    Raises:
        BadInput: no traffic, flows that cannot be routed, or an option that cannot be used.
        Unsupported: a router that does not apply.
    """
    options = given_options(RouteOptions, options, given, fabric=fabric)
    from weft.routing.plan import plan
    from weft.routing.report import RouteReport

    rivals = options.rivals()
    network, flows, demand = traffic_of(options, *(() if traffic is None else (traffic,)))
    *compared, result = (
        plan(network, flows, router=name, seed=options.seed, split=options.split) for name in (*rivals, options.router)
    )
    hashed = None
    if "ecmp" in rivals:
        hashed = compared[rivals.index("ecmp")]
    elif options.router != "ecmp":
        hashed = plan(network, flows, router="ecmp", seed=options.seed, bound="cuts")
    return RouteReport(plan=result, compared=tuple(compared), hashed=hashed, paths=options.paths, demand=demand)


PATH_BITS = "path_bits.csv"
"""The file of LIDs that flows are sent to, beside OpenSM's tables."""
PINNED = ("auto", "greedy", "edge-coloring", "repair", "ilp", "destination")
"""Routers that give every flow one path."""


class AuditOptions(TrafficOptions, SubnetOptions):
    """Which routes are installed, and the flows on them."""

    group = "Search"
    routes: str | None = option(
        None, "Installed routes: weft.routes/1, a CSV of paths or OpenSM's tables.", metavar="FILE"
    )


@verb(AuditOptions)
def audit_routes(options: AuditOptions | None = None, **given: Any) -> RouteAudit:
    """Judge installed routes, the best possible ones, and what moving flows would gain.

    >>> import tempfile, weft
    >>> flows = {"cluster": "h100-64", "fabric": "fat-tree", "radix": 8, "job": "llama-3.1-8b tp=8,dp=8"}
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     weft.route(router="ecmp", paths=True, **flows).save(file.name)
    ...     audit = weft.audit_routes(routes=file.name, **flows)
    >>> audit.installed.efficiency.value <= audit.repaired.efficiency.value <= audit.installed.efficiency.bound
    True

    Raises:
        BadInput: no routes, routes of another fabric, flows without a path, or tables without traffic.
    """
    options = given_options(AuditOptions, options, given)
    from weft.routing.report import audit

    if options.routes is None:
        raise BadInput("is missing", where="--routes", remedy="give weft.routes/1, a CSV of paths or OpenSM's tables")
    traffic, routes = installed(options, options.routes)
    if not len(traffic.flows):
        raise BadInput("holds no flow", where=options.routes, remedy="list the path of each flow")
    return audit(traffic.fabric, traffic.flows, routes, seed=options.seed, demand=traffic.demand)


def installed(options: TrafficOptions, path: str) -> tuple[RoutedTraffic, Routes]:
    """The fabric, the flows (of the options, else of the file), and their installed routes."""
    from weft.interop.routes_json import read_paths

    flows: JobTraffic | None = None
    demand: MeasuredDemand | None = None
    if any(getattr(options, name) for name in SOURCES):
        fabric, flows, demand = traffic_of(options)
    else:
        fabric = failed(network_of(options).fabric, options.failed)
    text = read_text(path, where=path)
    if "Unicast lids" not in text:
        flows, routes = read_paths(text, fabric, flows, where=path)
        return RoutedTraffic(fabric, flows, demand), routes
    if flows is None:
        raise BadInput("tables name no flows", where=path, remedy="add --plan, --job, --flows or --generate")
    from weft.interop.opensm import read_tables

    subnet = _subnet(options)
    beside = Path(path).with_name(PATH_BITS)
    bits = read_text(beside, where=str(beside)) if beside.is_file() else ""
    routes = read_tables(text, subnet, fabric, flows, path_bits=bits, where=path)
    return RoutedTraffic(fabric, flows, demand), routes


def _subnet(options: TrafficOptions, **hints: Any) -> Subnet:
    """The subnet of InfiniBand that ``fabric`` is."""
    from weft.interop.subnet import read_subnet

    discovered = options.fabric
    if not isinstance(discovered, str) or options.cluster is not None:
        remedy = "give the output of ibnetdiscover as --fabric FILE"
        raise BadInput("forwarding tables need GUIDs and ports", where="--fabric", remedy=remedy)
    return read_subnet(read_text(discovered, where=discovered), where=discovered, **hints)


@click.group(cls=DefaultGroup, default="plan")
def route_command() -> None:
    """Compute routes on which the flows of training jobs do not collide.

    \b
    weft route --plan plan.json                       a planned job on its cluster's network
    weft route --cluster h100-1024 --job 'llama-3.1-8b tp=8,dp=32'
    weft route --fabric net.json --demand flows.csv   the jobs that a network measured
    weft route audit --routes FILE                    judge the routes that a network has
    weft route watch --events FILE --state DIR        keep routes good as jobs and links change
    weft route export roce-csv --plan plan.json       write routes for a network

    weft route OPTIONS means weft route plan OPTIONS; weft route plan --help lists them.
    """


class RouteOutput(VerboseOutput, RowsOutput):
    """Output options of ``weft route`` and its audit."""


@command(into=route_command, options=RouteOptions, out=RouteOutput)
def plan_command(options: RouteOptions, out: RouteOutput) -> None:
    """Route all flows at once, and bound how good any routes could be.

    \b
    auto           edge-coloring where it applies, otherwise repair
    ecmp           a hash of the flow at every hop
    greedy         the method of arXiv 2503.05324
    edge-coloring  optimal for equal flows on a Clos
    repair         greedy, then local search; any fabric and demands
    ilp            exact, for small problems
    destination    one link out of each switch for each destination, as frr writes it
    split          several parts of each flow, each with its path
    spray          every packet on its own path
    """
    report(route(options=options), out)


@command(into=route_command, options=AuditOptions, out=RouteOutput)
def audit_command(options: AuditOptions, out: RouteOutput) -> None:
    """Judge installed routes, the best possible ones, and what moving flows would gain.

    \b
    --routes takes
      weft.routes/1       of weft route --format json --paths
      CSV                 source, target, path (node names), as traceroute measures them
      forwarding tables   of dump_fts or weft route export opensm (its path_bits.csv
                          beside them); --fabric is ibnetdiscover's output

    --format json and csv list the flows that the repair moves.
    """
    report(audit_routes(options=options), out)


route_command.add_command(watch_command)

# Routes for real networks ---------------------------------------------------------------------------------

KINDS = formats_of("routes") | {"events": formats_of("traffic")["events"]}
"""The formats of routes, and that of the traffic itself."""


class ExportOptions(TrafficOptions, SubnetOptions):
    """Where the routes come from, and details of the formats."""

    group = "Search"
    routes: str | None = option(None, "Write these routes, as weft route audit reads them.", metavar="FILE")
    router: str = option("auto", "Without --routes: method that chooses the paths.", choices=(*PINNED, "split"))


class ExportOutput(Options):
    """What is written, and where."""

    group = "Output"
    at: float | None = option(None, "events: time of the arrivals in s (default 0).", metavar="TIME", least=0)
    probes: str | None = option(None, "roce-csv: measured paths of source ports.", metavar="FILE.csv")
    output: str | None = option(None, "Folder to write to.", "-o", "--output", metavar="DIR")


@route_command.command(
    "export",
    help="\n\n".join(
        [
            "Write routes in the format of a network.",
            "\b\n" + "\n".join(f"{name:<14}{form.title}" for name, form in KINDS.items()),
            "One file is printed; several need -o DIR.",
        ]
    ),
)
@click.argument("kind", type=click.Choice(sorted(KINDS)))
@takes(options=ExportOptions, out=ExportOutput)
def export_command(kind: str, options: ExportOptions, out: ExportOutput) -> None:
    if out.at is not None and kind != "events":
        raise BadInput(f"does not apply to {kind}", where="--at", remedy="use events, or drop it")
    if kind == "events":
        files = _events(options, out.at or 0.0)
    else:
        files = _route_files(kind, _routed(options), options, out)
    if out.output is not None:
        write_folder(out.output, {name: text.encode() for name, text in files.items()})
        click.echo(f"{counted(len(files), 'file')} written to {out.output}", err=True)
        return
    if len(files) > 1:
        names = f"{', '.join(sorted(files)[:4])}{', ...' if len(files) > 4 else ''}"
        raise BadInput(f"{counted(len(files), 'file')}: {names}", where="weft route export", remedy="add -o DIR")
    deliver(next(iter(files.values())), None)


def _events(options: ExportOptions, time_s: float) -> dict[str, str]:
    from weft.interop.events import arrival_line

    if options.failed:
        raise BadInput(
            "does not apply to events", where="--failed", remedy="drop it; weft route watch has events for it"
        )
    fabric, traffic, _ = traffic_of(options)
    jobs = range(len(traffic.jobs))
    lines = [arrival_line(traffic.only([job]), fabric, time_s) for job in jobs]
    return {"events.jsonl": "\n".join(lines) + "\n"}


def _routed(options: ExportOptions) -> tuple[Fabric, JobTraffic, Routes]:
    """A fabric with flows and their routes, from a file or of a new plan."""
    from weft.routing.plan import plan
    from weft.routing.problem import routing_problem

    if options.routes is None:
        fabric, traffic, _ = traffic_of(options)
        return fabric, traffic, plan(fabric, traffic, router=options.router, seed=options.seed).routes
    there, routes = installed(options, options.routes)
    if len(there.flows):  # a file without flows takes all planned routes away
        routing_problem(there.fabric, there.flows)  # refuses flows that no network can have
    return there.fabric, there.flows, routes


def _route_files(
    kind: str, routed: tuple[Fabric, JobTraffic, Routes], options: ExportOptions, out: ExportOutput
) -> dict[str, str]:
    """The texts of routes in a format, by file name."""
    more: dict[str, object] = {}
    if out.probes is not None:
        if kind != "roce-csv":
            raise BadInput(f"does not apply to {kind}", where="--probes", remedy="use roce-csv")
        more = {"probes": read_text(out.probes, where=out.probes)}
    if kind == "opensm":
        more = {"subnet": _subnet(options, exclude=options.exclude)}
    form = KINDS[kind]
    written = form.write(*routed, **more)
    return {form.file: written} if isinstance(written, str) else written
