"""``weft.simulate``: flow by flow, a scenario file or one iteration of a job on a fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from weft.commands.command_line import GroupedCommand, takes
from weft.commands.networks import ROUTINGS, RadixOptions, RoutingOptions, fabric_of, placement_of, routes_of
from weft.commands.options import given_options, option, options_of, verb
from weft.commands.output import Output, check_count, check_file, report
from weft.commands.shared import CalibrationOptions, RankedOptions, RecipeOptions, constants_of, subject_of
from weft.errors import BadInput, NothingFeasible

if TYPE_CHECKING:
    from weft.commands.shared import ClusterSource, JobSource, LayoutSource
    from weft.fabric import Fabric
    from weft.fabric.placement import Placement
    from weft.reliability.parts import Failed
    from weft.routing.report import RouteReport
    from weft.simulation.flows.scenario import ScenarioReport
    from weft.simulation.iteration.result import IterationReport

USAGE = (
    "weft simulate MODEL CLUSTER --layout tp=8,pp=4 | weft simulate --plan FILE | weft simulate --flows FILE"
    " | weft simulate --arrangement FILE --job NAME"
)


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(RankedOptions, RadixOptions, RoutingOptions, CalibrationOptions, RecipeOptions):
    """What is simulated, and how flows find their way."""

    group = "Options"
    more = ("planned",)
    flows: str | None = option(None, "A plain scenario: hosts, links, flows with their paths.", metavar="FILE")
    mode: Literal["fair", "shortest-remaining"] = option("fair", "How the flows of a scenario share links.")
    fabric: str | Fabric | None = option(None, "Network to build, or a fabric file.", metavar="KIND|FILE")
    routes: str | RouteReport | None = option(None, "Routes of weft route --format json --paths.", metavar="FILE")
    placement: str | Placement | None = option(
        None, "Hosts in rank order: CSV or a hostfile (default: rank r on GPU r).", metavar="FILE"
    )
    arrangement: str | None = option(
        None, "JSON of weft arrange; takes a job's hosts, routes, cluster and layout.", metavar="FILE"
    )
    job: str | None = option(None, "Job of --arrangement.", metavar="NAME")
    failed: int = option(0, "Parts of the network that are down at once, drawn by their rates.", metavar="N", least=0)
    seed: int = option(0, "Seed of hashed and random paths, and of failed parts.")
    slow: tuple[str, ...] = option((), "Slow ranks: rank=3:1.3, host=2:1.1 or random=0.02 (repeats).", metavar="WHO")
    full: bool = option(False, "Simulate every flow in time, not equal groups once (small jobs).")


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
    >>> found = weft.simulate("gpt2-124m", "a100-16", "dp=16", fabric="rail-only", batch=64)
    >>> found.result.lower_bound_s < found.iteration_s
    True

    Args:
        model: as for ``weft.plan``; left out with ``plan`` and ``flows``.
        cluster: as for ``weft.plan``; left out with ``plan`` and ``flows``.
        layout: as text or as a record.
        options: the options as a record instead of keywords.

    Raises:
        BadInput: a name, a file or an option that cannot be used, a layout that cannot run the job, or flows
            without a path or a route.
        NothingFeasible: the failed parts cut accelerators of the job off.
    """
    options = given_options(SimulateOptions, options, given | ({} if layout is None else {"layout": layout}))
    if options.flows is not None:
        return _scenario(model, cluster, options, options.flows)
    if options.mode != "fair":
        raise BadInput("--mode goes with --flows only", where="simulate", remedy="drop it")
    if options.arrangement is not None:
        return _arranged(model, cluster, options, options.arrangement)
    if options.job is not None:
        raise BadInput("--job needs --arrangement", where="simulate", remedy="add it, or drop --job")
    subject = subject_of(model, cluster, options, options, verb="simulate", usage=USAGE)
    from weft.reliability.parts import USUAL_HOST, part_name
    from weft.simulation.iteration.result import IterationReport
    from weft.simulation.iteration.simulate import parse_slow, simulate_iteration
    from weft.simulation.routes.traffic import planned_routes

    job, where, cut = subject.job, subject.cluster, subject.layout
    fabric, constants = fabric_of(options.fabric, where, options.radix), constants_of(options, where, job)
    placement = placement_of(options.placement, fabric, cut.world)
    failed: tuple[Failed, ...] = ()
    if options.failed:
        fabric, failed = _degraded(fabric, options, cut.world, placement)
    planned, routes = options.routing == "planned", None
    if options.routes is not None:
        if options.routing in (*ROUTINGS[1:], "planned"):
            raise BadInput("goes without --routes", where=f"--routing {options.routing}", remedy="drop one of them")
        routes = routes_of(options.routes, fabric)
    elif planned:
        routes = planned_routes(job, where, cut, fabric, placement=placement, constants=constants, seed=options.seed)
    size = min(int((fabric.domain == 0).sum()), USUAL_HOST)
    found = simulate_iteration(
        job,
        where,
        cut,
        fabric,
        slow=parse_slow(options.slow, cut.world, size, seed=options.seed) if options.slow else None,
        routing="ecmp" if planned else options.routing,
        seed=options.seed,
        constants=constants,
        placement=placement,
        routes=routes,
        full=options.full,
    )
    parts = tuple(part_name(fabric, one) for one in failed)
    return IterationReport(
        job=job, cluster=where, layout=cut, fabric=fabric, result=found, slow=options.slow, failed=parts
    )


def _degraded(
    fabric: Fabric, options: SimulateOptions, ranks: int, placement: Placement | None
) -> tuple[Fabric, tuple[Failed, ...]]:
    """The fabric with ``--failed`` parts down, and these."""
    import numpy as np

    from weft.reliability.classes import preset
    from weft.reliability.parts import broken, drawn_failures, part_name, stranded_accelerators

    failed = drawn_failures(fabric, preset("llama-3"), options.failed, seed=options.seed, where="--failed")
    left = broken(fabric, failed)
    used = np.arange(ranks) if placement is None else placement.accelerators
    lost = stranded_accelerators(left, used)
    if len(lost):
        some = ", ".join(part_name(fabric, one) for one in failed[:5]) + (", ..." if len(failed) > 5 else "")
        raise NothingFeasible(
            f"--failed {options.failed}: {len(lost):,} of the job's {ranks:,} accelerators are cut off by {some}"
            " -- draw other parts with --seed, give fewer, or a network with other ways"
        )
    return left, failed


def _arranged(
    model: JobSource | None, cluster: ClusterSource | None, options: SimulateOptions, path: str
) -> IterationReport:
    """A job alone on the hosts and routes that an arrangement gives it."""
    own = ("arrangement", "job", "full", "calibration", "seed")
    beside = [one for one in options_of(SimulateOptions) if one.name not in own]
    if model is not None or cluster is not None or any(getattr(options, one.name) != one.default for one in beside):
        problem = "--arrangement goes with --job, --full, --calibration, --format and -o only"
        raise BadInput(problem, where="simulate", remedy="drop the rest: they are in the arrangement")
    from weft.arrangement.bundle import read_bundle
    from weft.simulation.iteration.result import IterationReport
    from weft.simulation.iteration.simulate import simulate_iteration

    bundle = read_bundle(path)
    number = bundle.number(options.job)
    site, job = bundle.site, bundle.site.jobs[number]
    found = simulate_iteration(
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
    return IterationReport(job=job.job, cluster=site.cluster, layout=job.layout, fabric=site.fabric, result=found)


def _scenario(
    model: JobSource | None, cluster: ClusterSource | None, options: SimulateOptions, path: str
) -> ScenarioReport:
    beside = [one for one in options_of(SimulateOptions) if one.name not in ("flows", "mode")]
    if model is not None or cluster is not None or any(getattr(options, one.name) != one.default for one in beside):
        raise BadInput("--flows goes with --mode, --format and -o only", where="simulate", remedy=USAGE)
    from weft.simulation.flows.engine import run
    from weft.simulation.flows.scenario import ScenarioReport, read_scenario

    capacity_Bps, traffic, routes = read_scenario(path)
    result = run(capacity_Bps, traffic, routes, mode=options.mode)
    return ScenarioReport(capacity_Bps=capacity_Bps, traffic=traffic, result=result)


@dataclass(frozen=True, kw_only=True)
class SimulateOutput(Output):
    """Output options of ``weft simulate``."""

    timeline: str | None = option(None, "Also write a timeline for ui.perfetto.dev.", metavar="FILE")


@click.command("simulate", cls=GroupedCommand)
@click.argument("names", nargs=-1, metavar="[MODEL] [CLUSTER]")
@takes(options=SimulateOptions, out=SimulateOutput)
def simulate_command(names: tuple[str, ...], options: SimulateOptions, out: SimulateOutput) -> None:
    """Simulate flows, or one iteration of MODEL on CLUSTER's network.

    With --plan the job, the cluster and the layout are those of a plan. With --flows a scenario file is run:
    line 1 "hosts links flows bytes_per_second", then a flow a line "src dst bytes n l1 .. ln", then a link a
    line "from to".
    """
    check_count(names, 2, "simulate", USAGE)
    if options.flows is not None and out.timeline:
        raise BadInput("--flows goes with --mode, --format and -o only", where="simulate", remedy=USAGE)
    check_file(out.timeline, "--timeline")
    model, cluster = (*names, None, None)[:2]
    found = simulate(model, cluster, options=options)
    from weft.simulation.flows.scenario import ScenarioReport
    from weft.views.simulation import iteration_view, scenario_view

    if isinstance(found, ScenarioReport):
        report(found, out, scenario_view(found))
        return
    report(found, out, iteration_view(found))
    if out.timeline is not None:
        from weft.views.simulation import write_timeline

        write_timeline(out.timeline, found.result)
