"""``weft schedule``: a collective over the dimensions of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from weft.cli.build import takes
from weft.cli.options import check_chart, check_count, check_folder, deliver, deliver_chart
from weft.cli.outcome import Output, report
from weft.cli.schedule_export import FORMATS, exported, write_chakra
from weft.errors import BadInput
from weft.verbs.options import option
from weft.verbs.schedule import USAGE, ScheduleOptions, arranged_request, arranged_schedules, scheduled, with_system
from weft.verbs.schedule import schedule as schedule_of

if TYPE_CHECKING:
    from weft.collectives.schedules.timing import TimedSchedule
    from weft.verbs.schedule import Scheduled


@dataclass(frozen=True, kw_only=True)
class ScheduleOutput(Output):
    """What is made of a schedule."""

    export: str | None = option(None, "Print in a format instead (chakra: -o FOLDER).", choices=FORMATS)
    timeline: str | None = option(None, "Also write a timeline for ui.perfetto.dev.", metavar="FILE")
    chart: str | None = option(
        None,
        "Also draw the chunks under every policy, or what --chunk-counts shows (.svg, .png, .pdf, .html).",
        metavar="FILE",
    )


@click.command()
@click.argument("names", nargs=-1, metavar="COLLECTIVE SIZE")
@takes(options=ScheduleOptions, out=ScheduleOutput)
def schedule(names: tuple[str, ...], options: ScheduleOptions, out: ScheduleOutput) -> None:
    """Schedule COLLECTIVE of SIZE bytes over every dimension of a network.

    COLLECTIVE is all-reduce, reduce-scatter, all-gather, all-to-all, broadcast or reduce; SIZE is the full
    buffer (reduced, gathered, before scattering), as 1GiB.

    With --workload a whole iteration instead, under every policy: resnet-50, resnet-152, gnmt, dlrm or
    transformer-1t (Themis' evaluation), a Chakra trace (.et), a PyTorch profile or execution trace (.json,
    .json.gz), or MODEL with --layout and --cluster. With --plan the iteration of a planned layout.

    With --arrangement FILE and --job NAME the collectives of an arranged job, on its hosts: all in one table, or
    the largest COLLECTIVE, over AXES (as data) in place of SIZE.
    """
    check_chart(out.chart)
    check_folder(out.timeline, "--timeline")
    check_count(names, 2, "schedule", USAGE)
    kind: str | None
    size: str | float | None
    kind, size = (*names, None, None)[:2]
    if options.arrangement is not None:
        if kind is None:
            _arranged(options, out)
            return
        kind, size, options = arranged_request(kind, size, options)
    if options.whole:
        _workload(kind, size, options, out)
        return
    if out.export is not None:
        _check_export(options, out)
        found = scheduled(kind, size, options, executor=out.export == "msccl")
        _export(found, options, out)
        _extras(found.timed, {}, options, out)
        return
    from weft.collectives.schedules.result import ScheduleResult
    from weft.views.collective import schedule_view

    result = schedule_of(kind, size, options)
    assert isinstance(result, ScheduleResult)
    report(result, out, schedule_view(result))
    _extras(result.timed, result.counts, options, out)


def _arranged(options: ScheduleOptions, out: ScheduleOutput) -> None:
    """Every collective of a job, or its tuner file."""
    from weft.views.job_collectives import schedules_view

    if out.export == "nccl-tuner":
        from weft.arrangement.bundle import read_bundle

        bundle = read_bundle(str(options.arrangement))
        deliver(bundle.tuners[bundle.number(options.job)], out.output)
        return
    for name in ("export", "timeline", "chart"):
        if getattr(out, name) is not None:
            raise BadInput(
                f"--{name} goes with one collective", where="schedule", remedy="name one: COLLECTIVE [AXES]"
            )
    found = arranged_schedules(options)
    report(found, out, schedules_view(found))


def _workload(kind: str | None, size: str | float | None, options: ScheduleOptions, out: ScheduleOutput) -> None:
    from weft.simulation.workload.run import WorkloadResult
    from weft.views.workload import workload_view, write_workload_timeline

    for name in ("export", "chart"):
        if getattr(out, name) is not None:
            raise BadInput(f"--{name} goes with one collective", where="--workload", remedy="drop it")
    found = schedule_of(kind, size, options)
    assert isinstance(found, WorkloadResult)
    report(found, out, workload_view(found))
    if out.timeline is not None:
        policy = str(with_system("", options).policy)
        write_workload_timeline(out.timeline, found.runs["baseline" if policy == "blueconnect" else policy])


def _check_export(options: ScheduleOptions, out: ScheduleOutput) -> None:
    """Refuse options that would say nothing."""
    names = ("compare", "chunk_counts", "late", "slow", "fabric")
    beside = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if out.form == "json":
        beside.append("--format json")
    if beside:
        raise BadInput("says nothing beside --export", where=beside[0], remedy="drop one of them")
    if options.calibration is not None and out.export != "nccl-tuner":
        raise BadInput("goes with --workload", where="--calibration", remedy="add --workload, or drop it")


def _export(found: Scheduled, options: ScheduleOptions, out: ScheduleOutput) -> None:
    assert out.export is not None
    if out.export != "chakra":
        deliver(exported(found, options, out.export), out.output)
        return
    if out.output is None:
        raise BadInput("writes a file a rank", where="--export chakra", remedy="give a folder for them with -o")
    click.echo(f"{write_chakra(found.timed, out.output):,} traces: {out.output}/trace.<rank>.et", err=True)


def _extras(
    timed: TimedSchedule,
    counts: Mapping[int, Mapping[str, TimedSchedule]],
    options: ScheduleOptions,
    out: ScheduleOutput,
) -> None:
    """Timeline and chart."""
    if out.timeline is not None:
        from weft.views.charts.activity import write_schedule_timeline

        write_schedule_timeline(out.timeline, timed)
    if out.chart is not None:
        from weft.collectives.schedules.bound import best_shares
        from weft.collectives.schedules.policies import beside
        from weft.views.charts.schedules import counts_chart, policies_chart

        bound_s = best_shares(timed.schedule.request).bound_s
        if counts:
            deliver_chart(counts_chart(counts, bound_s), out.chart)
        else:
            deliver_chart(policies_chart(beside(timed, chunks=options.chunks), bound_s), out.chart)
