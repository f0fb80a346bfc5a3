"""``weft.simulate``: flow by flow, a scenario file or one iteration of a job on a fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from weft.commands.command_line import command
from weft.commands.networks import ROUTINGS, RadixOptions, RoutingOptions, fabric_of, placement_of, routes_of
from weft.commands.options import given_options, option, options_of, verb
from weft.commands.output import Output, VerboseOutput, file_option, report
from weft.commands.shared import CalibrationOptions, RankedOptions, RecipeOptions, Subject, constants_of, subject_of
from weft.errors import BadInput, NothingFeasible

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource, LayoutSource
    from weft.fabric import Fabric
    from weft.fabric.placement import Placement
    from weft.reliability.job import Failed
    from weft.routing.report import RouteReport
    from weft.simulation.flows.scenario import ScenarioReport
    from weft.simulation.iteration.result import IterationReport

USAGE = (
    "weft simulate MODEL CLUSTER [--layout tp=8,pp=4] | weft simulate --plan FILE | weft simulate --flows FILE"
    " | weft simulate --arrangement FILE --job NAME"
)


class SimulatedNetwork(RadixOptions, RoutingOptions):
    """The network, and how flows find their way."""

    group = "Network"
    more = ("planned",)
    fabric: str | Fabric | None = option(None, "Network to build, or a fabric file.", metavar="KIND|FILE")
    routes: str | RouteReport | None = option(None, "Routes of weft route --format json --paths.", metavar="FILE")
    placement: str | Placement | None = option(
        None, "Hosts in rank order: CSV or a hostfile (default: rank r on GPU r).", metavar="FILE"
    )
    failed: int = option(0, "Cables and switches that are down, drawn by failure rate.", metavar="N", least=0)
    slow: tuple[str, ...] = option((), "Slow ranks: rank=3:1.3, host=2:1.1 or random=0.02 (repeats).", metavar="WHO")
    seed: int = option(0, "Seed of hashed paths and failed parts.", metavar="N")


class SimulateOptions(RankedOptions, SimulatedNetwork, CalibrationOptions, RecipeOptions):
    """The job or the flows, and how exactly they are simulated."""

    group = "Job"
    arrangement: str | None = option(None, "Job of an arrangement (JSON of weft arrange).", metavar="FILE")
    job: str | None = option(None, "Job of --arrangement.", metavar="NAME")
    flows: str | None = option(None, "Scenario file: hosts, links and flows (see above).", metavar="FILE")
    full: bool = option(False, "Simulate every flow in time, for small jobs.")

    needs = {"job": "arrangement"}


@verb(SimulateOptions)
def simulate(
    model: JobSource | None = None,
    cluster: ClusterSource | None = None,
    layout: LayoutSource | None = None,
    options: SimulateOptions | None = None,
    **given: Any,
) -> IterationReport | ScenarioReport:
    """One iteration of a job flow by flow on a network, or the flows of a scenario file.

    >>> import weft
    >>> report = weft.simulate("gpt2-124m", "a100-16", "dp=16", fabric="rail-only", batch=64)
    >>> report.result.lower_bound_s < report.iteration_s
    True

    Args:
        model: as for ``weft.plan``; left out with ``plan`` and ``flows``.
        cluster: as for ``weft.plan``; left out with ``plan`` and ``flows``.
        layout: as text or as a record; the one that ``weft.plan`` recommends by default.

    Raises:
        BadInput: a name, a file or an option that cannot be used, a layout that cannot run the job, or flows
            without a path or a route.
        NothingFeasible: the failed parts cut accelerators of the job off.
    """
    options = given_options(SimulateOptions, options, given, layout=layout)
    if options.flows is not None:
        return _scenario(model, cluster, options, options.flows)
    if options.arrangement is not None:
        return _arranged(model, cluster, options, options.arrangement)
    if options.plan is None and (model is None or cluster is None):
        raise BadInput("MODEL and CLUSTER are needed, or --plan", where="simulate", remedy=USAGE)
    if options.plan is None and options.layout is None:
        return _iteration(_best(model, cluster, options), options, planned=True)  # type: ignore[arg-type]
    subject = subject_of(model, cluster, options, options, verb="simulate", usage=USAGE)
    return _iteration(subject, options, planned=False)


def _iteration(subject: Subject, options: SimulateOptions, *, planned: bool) -> IterationReport:
    """One iteration of a job; ``planned``: with the layout that ``weft plan`` recommends."""
    from weft.reliability.job import USUAL_HOST, part_name
    from weft.simulation.iteration.evaluator import planned_routes
    from weft.simulation.iteration.result import IterationReport
    from weft.simulation.iteration.simulate import parse_slow, simulate_iteration

    job, where, cut = subject.job, subject.cluster, subject.layout
    fabric, constants = fabric_of(options.fabric, where, options.radix), constants_of(options, where, job)
    placement = placement_of(options.placement, fabric, cut.world)
    failed: tuple[Failed, ...] = ()
    if options.failed:
        fabric, failed = _degraded(fabric, options, cut.world, placement)
    routes = None
    if options.routes is not None:
        if options.routing in (*ROUTINGS[1:], "planned"):
            raise BadInput(
                "does not go with --routes", where=f"--routing {options.routing}", remedy="drop one of them"
            )
        routes = routes_of(options.routes, fabric)
    elif options.routing == "planned":
        routes = planned_routes(job, where, cut, fabric, placement=placement, constants=constants, seed=options.seed)
    size = min(int((fabric.domain == 0).sum()), USUAL_HOST)
    result = simulate_iteration(
        job,
        where,
        cut,
        fabric,
        slow=parse_slow(options.slow, cut.world, size, seed=options.seed) if options.slow else None,
        routing="ecmp" if options.routing == "planned" else options.routing,
        seed=options.seed,
        constants=constants,
        placement=placement,
        routes=routes,
        full=options.full,
    )
    parts = tuple(part_name(fabric, one) for one in failed)
    return IterationReport(
        job=job,
        cluster=where,
        layout=cut,
        fabric=fabric,
        result=result,
        slow=options.slow,
        failed=parts,
        planned=planned,
    )


def _best(model: JobSource, cluster: ClusterSource, options: SimulateOptions) -> Subject:
    """A job with the layout that ``weft plan`` recommends."""
    from weft.commands.plan import plan

    same = {name: getattr(options, name) for name in ("batch", "sequence", "precision", "calibration")}
    chosen = plan(model, cluster, top=1, **same)
    return Subject(job=chosen.job, cluster=chosen.cluster, layout=chosen.best.layout)


def _degraded(
    fabric: Fabric, options: SimulateOptions, ranks: int, placement: Placement | None
) -> tuple[Fabric, tuple[Failed, ...]]:
    """The fabric with ``--failed`` parts down, and these."""
    import numpy as np

    from weft.reliability.classes import preset
    from weft.reliability.job import broken, drawn_failures, part_name, stranded_accelerators

    failed = drawn_failures(fabric, preset("llama-3"), options.failed, seed=options.seed, where="--failed")
    left = broken(fabric, failed)
    used = np.arange(ranks) if placement is None else placement.accelerators
    lost = stranded_accelerators(left, used)
    if len(lost):
        names = ", ".join(part_name(fabric, part) for part in failed[:5]) + (", ..." if len(failed) > 5 else "")
        raise NothingFeasible(
            f"--failed {options.failed}: {len(lost):,} of the job's {ranks:,} accelerators are cut off by {names}"
            " -- draw other parts with --seed, lower --failed, or choose a network with more paths"
        )
    return left, failed


def _arranged(
    model: JobSource | None, cluster: ClusterSource | None, options: SimulateOptions, path: str
) -> IterationReport:
    """A job alone on the hosts and routes that an arrangement gives it."""
    if _extra(model, cluster, options, "arrangement", "job", "full", "calibration", "seed"):
        problem = "--arrangement takes --job, --full, --calibration and output options only"
        raise BadInput(problem, where="simulate", remedy="drop the others: the arrangement has them")
    from weft.arrangement.bundle import read_bundle
    from weft.simulation.iteration.result import IterationReport
    from weft.simulation.iteration.simulate import simulate_iteration

    bundle = read_bundle(path)
    number = bundle.number(options.job)
    site, job = bundle.site, bundle.site.jobs[number]
    result = simulate_iteration(
        job.job,
        site.cluster,
        job.layout,
        site.fabric,
        routing="spray" if bundle.choice.router == "spray" else "ecmp",
        constants=constants_of(options, site.cluster, job.job),
        placement=bundle.placement(number),
        routes=bundle.routes,
        full=options.full,
    )
    return IterationReport(job=job.job, cluster=site.cluster, layout=job.layout, fabric=site.fabric, result=result)


def _extra(model: JobSource | None, cluster: ClusterSource | None, options: SimulateOptions, *allowed: str) -> bool:
    """Whether a model, a cluster, or options other than those allowed are set."""
    others = [known for known in options_of(SimulateOptions) if known.name not in allowed]
    return (
        model is not None
        or cluster is not None
        or any(getattr(options, known.name) != known.default for known in others)
    )


def _scenario(
    model: JobSource | None, cluster: ClusterSource | None, options: SimulateOptions, path: str
) -> ScenarioReport:
    if _extra(model, cluster, options, "flows"):
        raise BadInput("--flows takes output options only", where="simulate", remedy=USAGE)
    from weft.simulation.flows.engine import run
    from weft.simulation.flows.scenario import ScenarioReport, read_scenario

    capacity_Bps, traffic, routes = read_scenario(path)
    result = run(capacity_Bps, traffic, routes)
    return ScenarioReport(capacity_Bps=capacity_Bps, traffic=traffic, result=result)


class SimulateOutput(VerboseOutput, Output):
    """Output options of ``weft simulate``."""

    timeline: str | None = file_option("Also write a timeline for ui.perfetto.dev.")


@command(options=SimulateOptions, out=SimulateOutput)
def simulate_command(model: str | None, cluster: str | None, options: SimulateOptions, out: SimulateOutput) -> None:
    """Simulate one iteration of MODEL on CLUSTER's network, flow by flow.

    Without --layout: the layout that weft plan recommends.

    \b
    weft simulate llama-3.1-8b h100-64
    weft simulate llama-3.1-8b h100-64 --layout tp=8,dp=8,sp --fabric fat-tree
    weft simulate --plan plan.json --fabric rail-only
    weft simulate --flows scenario.txt

    A scenario file has a line "hosts links flows bytes_per_second", then a line for each flow ("source target bytes n
    link1 .. linkn"), then a line for each link ("from to").
    """
    if options.flows is not None and out.timeline:
        raise BadInput("--flows does not go with --timeline", where="simulate", remedy=USAGE)
    result = simulate(model, cluster, options=options)
    report(result, out)
    if out.timeline is not None:
        from weft.views.files import write_trace
        from weft.views.simulation import timeline

        write_trace(out.timeline, timeline(cast("IterationReport", result).result))
