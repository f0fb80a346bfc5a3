"""``weft.schedule``: a collective, or a whole iteration, over the dimensions of a network."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from weft.commands.command_line import command
from weft.commands.options import Options, given_options, option, verb
from weft.commands.output import Output, VerboseOutput, chart_option, deliver, file_option, report
from weft.commands.shared import (
    CalibrationOptions,
    PlannedOptions,
    RecipeOptions,
    Subject,
    cluster_of,
    constants_of,
    subject_of,
)
from weft.errors import BadInput, Unsupported
from weft.files import CONFIGURATION_BYTES, read_text
from weft.interop.formats import formats_of
from weft.units import parse_bytes

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.collectives.schedules.result import ScheduleResult
    from weft.collectives.schedules.timing import Active, TimedSchedule
    from weft.fabric.dimension import Dimension
    from weft.interop.astra import AstraSystem
    from weft.model.workload import Workload
    from weft.simulation.workload import WorkloadResult

USAGE = "weft schedule all-reduce 1GiB --cluster h100-64"
EXPORTED_CHUNKS = 4
"""Where nobody says how many: MSCCL's executor takes few steps a rank."""


class ScheduledNetwork(Options):
    """The dimensions."""

    group = "Network"
    cluster: str | Cluster | None = option(None, "Cluster by name, or its TOML file.", metavar="CLUSTER")
    dims: str | tuple[Dimension, ...] | None = option(
        None, "Dimensions, inner to outer (see above), or an ASTRA-sim file.", metavar="DIMENSION,...|FILE.yml"
    )


class ScheduledJob(PlannedOptions):
    """Where the collectives come from, other than the arguments."""

    group = "Job"
    workload: str | Workload | None = option(None, "Iteration to schedule (see above).", metavar="NAME|FILE")
    groups: str | None = option(None, "Process groups of a Chakra trace, as for ASTRA-sim.", metavar="FILE")

    needs = {"layout": "workload", "groups": "workload"}


class ScheduleOptions(ScheduledJob, ScheduledNetwork, CalibrationOptions):
    """The scheduler."""

    group = "Search"
    policy: Literal["baseline", "blueconnect", "themis", "weft"] | None = option(
        None, "Scheduler (default weft, or that of --system)."
    )
    compare: bool = option(False, "Compare all policies.")
    chunks: int | None = option(None, "Number of chunks (default 64; weft chooses).", metavar="N")
    order: Literal["fifo", "scf", "paper-scf", "astra-fifo", "astra-scf"] | None = option(
        None, "Order of chunks in a dimension (default for themis: scf)."
    )
    active: str | int | None = option(
        None, "Chunks in a dimension at a time (default: 1 or overlap).", metavar="N|overlap"
    )
    algorithms: str | None = option(None, "Algorithm of each dimension, - for the default.", metavar="A,A,...")
    system: str | None = option(None, "Algorithms, chunks and policy of an ASTRA-sim system.", metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_iteration and self.compare:
            raise BadInput("--compare: only for one collective", where="--workload", remedy="drop it")

    @property
    def has_iteration(self) -> bool:
        """Whether an iteration is scheduled, not one collective."""
        return self.workload is not None or self.plan is not None


@verb(ScheduleOptions)
def schedule(
    collective: str | None = None,
    size: str | float | None = None,
    options: ScheduleOptions | None = None,
    **given: Any,
) -> ScheduleResult | WorkloadResult:
    """Schedule a collective over every dimension of a network, or a whole iteration.

    >>> import weft
    >>> result = weft.schedule("all-reduce", "1GiB", dims="switch:16:150GiB/s:1us,switch:8:50GiB/s:2us")
    >>> result.bound_s <= result.time_s < 1.05 * result.bound_s
    True

    Args:
        collective: all-reduce, reduce-scatter, all-gather, all-to-all, broadcast or reduce.
        size: bytes of the full buffer (reduced, gathered, before scattering), as "1GiB".
        options: the options as a record instead of keywords; with ``workload`` or ``plan`` a whole iteration is
            scheduled under every policy, and there is no collective.

    Raises:
        BadInput: a name, a file or an option that cannot be used, or options that do not go together.
    """
    options = given_options(ScheduleOptions, options, given)
    if options.has_iteration:
        if collective is not None or size is not None:
            words = " ".join(str(word) for word in (collective, size) if word is not None)
            raise BadInput(f"{words} does not go with --workload", where="schedule", remedy="drop one of them")
        return _iteration(options)
    from weft.collectives.schedules.bound import best_shares, ideal_s
    from weft.collectives.schedules.policies import compare
    from weft.collectives.schedules.policies import schedule as in_time
    from weft.collectives.schedules.result import ScheduleResult, provision

    if options.calibration is not None:
        raise BadInput("needs --workload", where="--calibration", remedy="add --workload, or drop it")
    timed, _, notes = _scheduled(collective, size, options)
    request = timed.schedule.request
    others = compare(request, active=timed.active, chunks=options.chunks) if options.compare else None
    baseline = timed
    if others is not None:
        baseline = others["baseline"]
    elif timed.schedule.policy != "baseline":
        baseline = in_time(request, "baseline", chunks=options.chunks, active=timed.active)
    return ScheduleResult(
        timed=timed,
        baseline=baseline,
        shares=best_shares(request),
        ideal_s=ideal_s(request),
        provision=provision(request),
        assumptions=notes,
        others=others,
    )


def _scheduled(
    collective: str | None, size: str | float | None, options: ScheduleOptions, *, executor: bool = False
) -> tuple[TimedSchedule, Cluster | None, tuple[str, ...]]:
    """A collective in time, the cluster, and what was assumed.

    ``executor``: for MSCCL's, which takes few chunks and no reduction in switches.
    """
    if collective is None or size is None:
        raise BadInput("COLLECTIVE and SIZE are missing", where="schedule", remedy=f"for example: {USAGE}")
    from weft.collectives.dimensions import parse_algorithms
    from weft.collectives.schedules.chunks import request
    from weft.collectives.schedules.policies import schedule as in_time
    from weft.collectives.stages import BALANCED_KINDS

    options = _with_system(collective, options, executor=executor)
    dimensions, cluster, notes = _dimensions(options, None)
    algorithms = None if options.algorithms is None else parse_algorithms(options.algorithms)
    if executor and algorithms is None:
        dimensions = tuple(replace(dimension, reduces=False) for dimension in dimensions)
    wanted = request(collective, parse_bytes(size, "size"), dimensions, algorithms=algorithms)
    if options.policy == "themis" and wanted.kind not in BALANCED_KINDS:
        notes = (*notes, f"Themis has no schedule for {wanted.kind}: the baseline's is used")
    timed = in_time(
        wanted, options.policy or "weft", order=options.order, chunks=options.chunks, active=_active(options.active)
    )
    return timed, cluster, notes


def _system_of(path: str) -> AstraSystem:
    from weft.interop.astra import read_system

    return read_system(read_text(path, where=path, largest=CONFIGURATION_BYTES), where=path)


def _with_system(kind: str, options: ScheduleOptions, *, executor: bool = False) -> ScheduleOptions:
    """The options, with the values of ``system`` where an option is not set."""
    settings: dict[str, Any] = {"policy": "weft"}
    if options.system is not None:
        system = _system_of(options.system)
        settings = {"policy": "baseline", "chunks": system.chunks, "active": str(system.active)}
        if options.policy == "themis":
            settings["order"] = "fifo"
        if kind in system.algorithms:
            settings["algorithms"] = ",".join(system.algorithms[kind])
    if executor:
        settings.setdefault("chunks", EXPORTED_CHUNKS)
    missing = {name: value for name, value in settings.items() if getattr(options, name) is None}
    return options.changed(**missing)


def _dimensions(
    options: ScheduleOptions, planned: Cluster | None
) -> tuple[tuple[Dimension, ...], Cluster | None, tuple[str, ...]]:
    """The dimensions of the options, or of a plan's cluster; the cluster; the assumptions."""
    sources = [name for name in ("cluster", "dims") if getattr(options, name) is not None]
    if len(sources) != (0 if planned is not None and not sources else 1):
        raise BadInput(
            f"{'needs one' if not sources else 'takes only one'} of --cluster and --dims",
            where="schedule",
            remedy=f"for example: {USAGE}",
        )
    from weft.collectives.dimensions import dimensions_of, parse_dimensions

    if options.dims is not None:
        if isinstance(options.dims, str) and options.dims.endswith((".yml", ".yaml")):
            from weft.interop.astra import read_network

            text = read_text(options.dims, where=options.dims, largest=CONFIGURATION_BYTES)
            return read_network(text, where=options.dims), planned, ()
        return parse_dimensions(options.dims) if isinstance(options.dims, str) else tuple(options.dims), planned, ()

    cluster = planned if options.cluster is None else cluster_of(options.cluster)
    assert cluster is not None
    dimensions, notes = dimensions_of(cluster)
    return dimensions, cluster, notes


def _active(value: str | int | None) -> Active:
    text = None if value is None else str(value)
    if text is None or text == "auto":
        return "auto"
    if text == "overlap":
        return None
    if not text.isdecimal():
        raise BadInput(f"{text[:40]!r} is not a number", where="--active", remedy="give 1, 2, ... or overlap")
    return min(int(text[:40]), 10**9)


def _iteration(options: ScheduleOptions) -> WorkloadResult:
    """One iteration of ``workload``, or of ``plan``, under every policy."""
    from weft.collectives.dimensions import parse_algorithms
    from weft.simulation.workload import WorkloadResult, run_policies

    if options.plan is not None and options.workload is not None:
        raise BadInput("the plan has its own workload", where="--workload", remedy="drop one of them")
    planned = None
    if options.plan is not None:
        planned = subject_of(None, None, options, RecipeOptions(), verb="schedule", usage=USAGE)
    options = _with_system("", options)
    dimensions, cluster, notes = _dimensions(options, None if planned is None else planned.cluster)
    runs = run_policies(
        _workload(dimensions, cluster, planned, options),
        dimensions,
        order=options.order,
        chunks=64 if options.chunks is None else options.chunks,
        active=_active(options.active),
        algorithms=None if options.algorithms is None else parse_algorithms(options.algorithms),
    )
    return WorkloadResult(runs=runs, dimensions=tuple(dimensions), assumptions=notes)


def _workload(
    dimensions: tuple[Dimension, ...], cluster: Cluster | None, planned: Subject | None, options: ScheduleOptions
) -> Workload:
    """The iteration of a plan, of a model with a layout, of a trace, or of Themis' evaluation."""
    from weft.model import names
    from weft.model.workload import Workload, workload

    name, path = str(options.workload), Path(str(options.workload))
    if planned is None and isinstance(options.workload, Workload):
        return options.workload
    if planned is None and options.groups is not None and path.suffix != ".et":
        raise BadInput("applies to a Chakra trace only", where="--groups", remedy="drop it")
    if planned is None and options.layout is not None:
        if cluster is None:
            raise BadInput("a planned job needs --cluster", where="--layout")
        planned = subject_of(name, cluster, options, RecipeOptions(), verb="schedule", usage=USAGE)
    if planned is not None:
        from weft.simulation.workload import job_workload

        constants = constants_of(options, planned.cluster, planned.job)
        return job_workload(planned.job, planned.cluster, planned.layout, constants=constants)
    if options.calibration is not None:
        raise BadInput("needs a job with a layout", where="--calibration", remedy="add --layout, or drop it")
    from weft.interop.chakra import read_groups, read_trace

    if path.suffix == ".et":
        # FLOP/s and bytes/s of computations that a trace gives as work
        peak_flops = memory_Bps = None
        if options.system is not None:
            system = _system_of(options.system)
            peak_flops, memory_Bps = system.peak_flops, system.local_memory_Bps
        elif cluster is not None:
            chip = cluster.accelerator
            peak_flops, memory_Bps = chip.bf16_flops or chip.fp16_flops, chip.memory_Bps
        groups = None if options.groups is None else read_groups(options.groups)
        sizes = [dimension.size for dimension in dimensions]
        return read_trace(path, sizes=sizes, peak_flops=peak_flops, memory_Bps=memory_Bps, groups=groups)
    if name.endswith((".json", ".json.gz")):
        from weft.interop.kineto import read_kineto

        return read_kineto(path)
    if name in names() or path.exists():
        remedy = "add --layout and --cluster, or give a trace (.et, .json, .json.gz)"
        raise BadInput(f"{name} is a model or a file", where="--workload", remedy=remedy)
    return workload(name)


# Formats of the stacks that run or simulate a schedule ----------------------------------------------

MSCCL_CHUNKS = 32_767
"""Parts of a buffer that MSCCL's executor takes."""
FORMATS = tuple(formats_of("schedule"))


def _exported(timed: TimedSchedule, cluster: Cluster | None, options: ScheduleOptions, form: str) -> str:
    """A schedule as text in one of ``FORMATS``, except chakra."""
    wanted = timed.schedule.request
    if form == "msccl":
        from weft.collectives.schedules.messages import equal, schedule_plan
        from weft.interop.msccl import write_msccl

        chunks = len(timed.schedule)
        if chunks * wanted.accelerators > MSCCL_CHUNKS:
            problem = f"{chunks} chunks on {wanted.accelerators} ranks are over {MSCCL_CHUNKS:,}"
            raise Unsupported(problem, where="--export msccl", remedy="give fewer chunks with --chunks")
        plan = schedule_plan(equal(timed, chunks))
        name = f"weft_{wanted.kind.replace('-', '')}_{wanted.accelerators}"
        return write_msccl(plan, wanted.kind, wanted.accelerators, name=name)
    if form == "nccl-tuner":
        from weft.interop.nccl import write_tuner

        if cluster is None:
            raise BadInput("a tuner file needs --cluster", where="--export nccl-tuner")
        entry = (cluster, cluster.count // cluster.tiers[0].size, cluster.count)
        return write_tuner([entry], calibration=constants_of(options, cluster))
    from weft.interop import astra

    if form == "astra-network":
        return astra.write_network(wanted.dimensions)
    policy, where = timed.schedule.policy.split()[0], "--export astra-system"
    if policy != "baseline" or "scf" in timed.rule:
        problem = f"ASTRA-sim 2 does not schedule as {policy} with {timed.rule}"
        raise BadInput(problem, where=where, remedy="add --policy baseline, with --order fifo")
    if timed.active is None:
        problem = "ASTRA-sim has no overlap of latencies without limit"
        raise BadInput(problem, where=where, remedy="add --active 1, or more")
    system = astra.AstraSystem(
        algorithms={wanted.kind: wanted.algorithms}, chunks=len(timed.schedule), active=timed.active
    )
    return astra.write_system(system)


class ScheduleOutput(VerboseOutput, Output):
    """Output options of ``weft schedule``."""

    export: str | None = option(None, "Write a format instead (chakra: -o FOLDER).", choices=FORMATS)
    output: str | None = option(None, "Write there instead of to the terminal.", "-o", "--output", metavar="FILE")
    timeline: str | None = file_option("Also write a timeline for ui.perfetto.dev.")
    chart: str | None = chart_option("the policies")


@command("COLLECTIVE", "SIZE", options=ScheduleOptions, out=ScheduleOutput)
def schedule_command(collective: str | None, size: str | None, options: ScheduleOptions, out: ScheduleOutput) -> None:
    """Schedule COLLECTIVE of SIZE bytes over all dimensions of a network.

    COLLECTIVE is all-reduce, reduce-scatter, all-gather, all-to-all, broadcast or reduce. SIZE is the full buffer
    (reduced, gathered, before scattering), as 1GiB.

    \b
    weft schedule all-reduce 1GiB --cluster h100-1024
    weft schedule all-reduce 1GiB --dims switch:16:150GiB/s:1ns,switch:64:100GiB/s:1ns
    weft schedule --workload llama-3.1-8b --layout fsdp=64,mbs=1 --cluster h100-64
    weft schedule --plan plan.json

    A dimension is KIND:SIZE:BANDWIDTH:LATENCY. KIND is ring, line, fully-connected or switch (:reduce at the end where
    it reduces); BANDWIDTH is an accelerator's in that dimension, per direction, over all its links; LATENCY is that of
    one step.

    --workload takes resnet-50, gnmt or dlrm (as in Themis), a Chakra trace (.et), a PyTorch profile (.json, .json.gz),
    or a model with --layout and --cluster.
    """
    if out.export is not None:
        _export(collective, size, options, out, out.export)
        return
    from weft.collectives.schedules.result import ScheduleResult
    from weft.views.collective import schedule_timeline
    from weft.views.files import write_trace
    from weft.views.simulation import workload_timeline

    _needs_one_collective(options, out)
    result = schedule(collective, size, options)
    if isinstance(result, ScheduleResult):
        report(result, out, chart=partial(result.chart, chunks=options.chunks))
        slices = partial(schedule_timeline, result.timed)
    else:
        policy = str(_with_system("", options).policy).replace("blueconnect", "baseline")
        report(result, out, policy=policy)
        slices = partial(workload_timeline, result.runs[policy])
    if out.timeline is not None:
        write_trace(out.timeline, slices())


def _needs_one_collective(options: ScheduleOptions, out: ScheduleOutput) -> None:
    """Refuse output options of one collective where an iteration is scheduled."""
    for name in ("export", "chart"):
        if options.has_iteration and getattr(out, name) is not None:
            raise BadInput(f"--{name} needs one collective", where="--workload", remedy="drop it")


def _export(
    kind: str | None, size: str | float | None, options: ScheduleOptions, out: ScheduleOutput, form: str
) -> None:
    """Write a schedule in one of ``FORMATS``."""
    _needs_one_collective(options, out)
    unused = ["compare"] * options.compare
    unused += [name for name in ("timeline", "chart") if getattr(out, name) is not None]
    unused += ["format json"] * (out.form == "json")
    if unused:
        raise BadInput("has no effect with --export", where=f"--{unused[0]}", remedy="drop one of them")
    if options.calibration is not None and form != "nccl-tuner":
        raise BadInput("needs --workload", where="--calibration", remedy="add --workload, or drop it")
    timed, cluster, _ = _scheduled(kind, size, options, executor=form == "msccl")
    if form != "chakra":
        deliver(_exported(timed, cluster, options, form), out.output)
        return
    if out.output is None:
        raise BadInput("writes a file a rank", where="--export chakra", remedy="give a folder for them with -o")
    from weft.interop.chakra import write_traces

    request = timed.schedule.request
    sizes = [dimension.size for dimension in request.dimensions]
    count = len(write_traces(request.kind, request.bytes, out.output, sizes))
    click.echo(f"{count:,} traces: {out.output}/trace.<rank>.et", err=True)
