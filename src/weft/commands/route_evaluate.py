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
from weft.commands.traffic import JobOptions, asked_jobs, jobs_of, network_of
from weft.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from weft.commands.traffic import RoutedFabric
    from weft.fabric import Fabric
    from weft.routing.events import Event
    from weft.simulation.routes.replay import Evaluation, NamedJobs

DEFAULT_ROUTERS = ("ecmp", "greedy", "auto")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(JobOptions):
    """Workloads, routers, and what happens meanwhile."""

    jobs: tuple[str, ...] = option((), "Job files of the routing paper's code.", metavar="DIR")
    events: str | None = option(None, "Links and switches that go down and up meanwhile.", metavar="FILE")
    routers: tuple[str, ...] = option((), "ecmp, greedy and auto by default.", "--router", metavar="NAME")
    controller: Literal["held", "paper"] = option(
        "held", "held: one plan for all jobs; paper: a new one at every begin and end of an all-reduce."
    )
    failed_spines: tuple[int, ...] = option(
        (), "The last N spines are down (again for more; 0 by default).", metavar="N", least=0
    )
    epochs: int = option(10, "Epochs of each job.", least=1, most=10_000)


@dataclass(frozen=True, kw_only=True)
class EvaluateOutput(RowsOutput):
    """What is shown of a comparison."""

    chart: str | None = option(None, "Also draw times over failed spines (.svg, .png, .pdf, .html).", metavar="FILE")


@click.command("evaluate", cls=GroupedCommand)
@takes(options=EvaluateOptions, out=EvaluateOutput)
def evaluate_command(options: EvaluateOptions, out: EvaluateOutput) -> None:
    """Compare routers: replay jobs over epochs, flow by flow.

    Each --jobs, --generate and --flows is a workload, all --plan and --job together one; without --fabric,
    --cluster or --plan the network is the paper's. Every job runs its all-reduce, computes, and repeats; the
    table has the mean all-reduce of each router beside the time without any collision, flow completion times,
    and what the controller did.
    """
    check_chart(out.chart)
    check_file(out.output, "--output")
    result = evaluation(options)
    write(result, out)
    if out.chart is not None:
        from weft.views.charts.sweep import evaluation_chart

        deliver_chart(evaluation_chart(result), out.chart)


def evaluation(options: EvaluateOptions) -> Evaluation:
    """What the options ask for."""
    if not (options.plan or options.jobs or options.generate or options.flows or options.job):
        what = "--plan FILE, --jobs DIR, --generate BLOOM:4,GPT_3:2, --flows FILE.csv or --job 'MODEL LAYOUT'"
        raise BadInput("no jobs are given", where="evaluate", remedy=f"give {what}")
    from weft.simulation.routes.replay import evaluate as run

    routers = tuple(dict.fromkeys(options.routers)) or DEFAULT_ROUTERS
    for name in routers:
        if name not in ROUTERS:
            raise UnknownName("router", name, ROUTERS, where="--router")
    network = network_of(options)
    fabric = network.fabric
    given = workloads(options, network)
    with Progress("replays") as advance:
        return run(
            fabric,
            given,
            routers=routers,
            failed_spines=tuple(sorted(set(options.failed_spines))) or (0,),
            epochs=options.epochs,
            seed=options.seed,
            events=_events(options.events, fabric),
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
    found = [
        NamedJobs(name="/".join(Path(folder).absolute().parts[-2:]), traffic=read_jobs(folder, numbering(fabric)))
        for folder in options.jobs
    ]
    for text in options.generate:
        traffic = generate(fabric, asked_jobs(text), seed=options.seed)
        found.append(NamedJobs(name=text, traffic=traffic))
    found += [NamedJobs(name=Path(path).stem, traffic=read_csv(path, network.built)) for path in options.flows]
    if planned := jobs_of(options, network):
        found.append(NamedJobs(name="planned jobs", traffic=merged(planned)))
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{name} is given twice", where="evaluate", remedy="give each workload once")
    return found


def _events(path: str | None, fabric: Fabric) -> list[Event]:
    """The events of a file."""
    if path is None:
        return []
    from weft.files import read_text
    from weft.interop.events import read_event

    lines = enumerate(read_text(path, where=path).splitlines(), start=1)
    return [read_event(line, fabric, f"{path}: line {number}") for number, line in lines if line.strip()]


def write(result: Evaluation, out: EvaluateOutput) -> None:
    """The comparison in the format asked for."""
    from weft.views import route_evaluation as report

    if out.form == "json":
        deliver(report.evaluation_to_json(result), out.output)
    elif out.form == "csv":
        deliver(report.evaluation_to_csv(result), out.output)
    else:
        show(report.evaluation_view(result), out.output, wide=out.wide)
