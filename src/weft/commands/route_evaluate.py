"""``weft route evaluate``: routers compared over epochs in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from weft.commands.command_line import GroupedCommand, takes
from weft.commands.options import option
from weft.commands.output import Progress, RowsOutput, check_chart, check_file, deliver, deliver_chart, show
from weft.commands.route import ROUTERS
from weft.commands.traffic import JobOptions, generated_jobs, jobs_of, network_of
from weft.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from weft.commands.traffic import RoutedFabric
    from weft.simulation.routes.replay import Evaluation, NamedJobs

DEFAULT_ROUTERS = ("ecmp", "greedy", "auto")


@dataclass(frozen=True, kw_only=True)
class EvaluatedJobs(JobOptions):
    """The jobs, and what is down."""

    group = "Job"
    jobs: tuple[str, ...] = option((), "Folder of job files of the paper's code (repeats).", metavar="DIR")
    failed_spines: tuple[int, ...] = option(
        (), "Take the last N spines down (repeats, a run each; default 0).", metavar="N", least=0
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluatedJobs):
    """The routers to compare, and for how long."""

    group = "Search"
    routers: tuple[str, ...] = option(
        (), "Router to compare (repeats; default ecmp, greedy, auto).", "--router", metavar="NAME"
    )
    controller: Literal["held", "paper"] = option("held", "One plan for all jobs, or a new one at each all-reduce.")
    epochs: int = option(10, "All-reduces of each job.", metavar="N", least=1, most=10_000)


@dataclass(frozen=True, kw_only=True)
class EvaluateOutput(RowsOutput):
    """Output options of ``weft route evaluate``."""

    chart: str | None = option(None, "Also draw times by failed spines (.svg, .png, .pdf, .html).", metavar="FILE")


@click.command("evaluate", cls=GroupedCommand)
@takes(options=EvaluateOptions, out=EvaluateOutput)
def evaluate_command(options: EvaluateOptions, out: EvaluateOutput) -> None:
    """Compare routers in the flow-level simulator.

    Every job runs its all-reduce, computes, and repeats. Each --jobs, --generate and --flows is one workload; all
    --plan and --job together are one. Without --fabric, --cluster or --plan the network is 64 ToRs x 32 spines.
    """
    check_chart(out.chart)
    check_file(out.output, "--output")
    result = evaluation(options)
    write(result, out)
    if out.chart is not None:
        from weft.views.charts.sweep import evaluation_chart

        deliver_chart(evaluation_chart(result), out.chart)


def evaluation(options: EvaluateOptions) -> Evaluation:
    """The comparison that the options describe."""
    if not (options.plan or options.jobs or options.generate or options.flows or options.job):
        sources = "--plan FILE, --jobs DIR, --generate BLOOM:4,GPT_3:2, --flows FILE.csv or --job 'MODEL LAYOUT'"
        raise BadInput("there are no jobs", where="evaluate", remedy=f"give {sources}")
    from weft.simulation.routes.replay import evaluate as run

    routers = tuple(dict.fromkeys(options.routers)) or DEFAULT_ROUTERS
    for name in routers:
        if name not in ROUTERS:
            raise UnknownName("router", name, ROUTERS, where="--router")
    network = network_of(options)
    fabric = network.fabric
    with Progress("replays") as advance:
        return run(
            fabric,
            workloads(options, network),
            routers=routers,
            failed_spines=tuple(sorted(set(options.failed_spines))) or (0,),
            epochs=options.epochs,
            seed=options.seed,
            controller=options.controller,
            progress=advance,
        )


def workloads(options: EvaluateOptions, network: RoutedFabric) -> list[NamedJobs]:
    """The jobs of each source, under its name (of a folder with that above)."""
    from weft.interop.flow_tables import read_csv
    from weft.interop.routing_jobs import numbering, read_jobs
    from weft.routing.generate import generate
    from weft.routing.traffic import merged
    from weft.simulation.routes.replay import NamedJobs

    fabric = network.fabric
    result = [
        NamedJobs(name="/".join(Path(folder).absolute().parts[-2:]), traffic=read_jobs(folder, numbering(fabric)))
        for folder in options.jobs
    ]
    for text in options.generate:
        traffic = generate(fabric, generated_jobs(text), seed=options.seed)
        result.append(NamedJobs(name=text, traffic=traffic))
    result += [NamedJobs(name=Path(path).stem, traffic=read_csv(path, network.built)) for path in options.flows]
    if planned := jobs_of(options, network):
        result.append(NamedJobs(name="planned jobs", traffic=merged(planned)))
    names = [workload.name for workload in result]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{name} is given twice", where="evaluate", remedy="give each workload once")
    return result


def write(result: Evaluation, out: EvaluateOutput) -> None:
    """The comparison in the format of the options."""
    from weft.views import route_evaluation as report

    if out.form == "json":
        deliver(report.evaluation_to_json(result), out.output)
    elif out.form == "csv":
        deliver(report.evaluation_to_csv(result), out.output)
    else:
        show(report.evaluation_view(result), out.output, wide=out.wide)
