"""``weft route evaluate``: routers compared over epochs in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import FORMATS, Progress, check_chart, check_folder, deliver, deliver_chart
from weft.cli.outcome import show
from weft.cli.route_source import asked_jobs, load_network, network_options, planned_jobs
from weft.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from weft.fabric import Fabric
    from weft.routing.events import Event
    from weft.simulation.routes.evaluation import Evaluation, Workload

CONTROLLERS = ("held", "paper")
DEFAULT_ROUTERS = ("ecmp-paper", "greedy", "auto")


@click.command()
@network_options
@click.option("--jobs", metavar="DIR", multiple=True, help="A workload: a folder of job files.")
@click.option(
    "--generate", metavar="MODEL:RING,...", multiple=True, help="A workload of the paper's models made anew."
)
@click.option("--flows", metavar="FILE.csv", multiple=True, help="A workload: flows of jobs.")
@click.option(
    "--job", "planned", metavar="'MODEL LAYOUT [FIRST]'", multiple=True, help="Planned jobs of --cluster, together."
)
@click.option("--split", type=click.IntRange(1, 64), default=2, show_default=True, help="Parts, for split.")
@click.option("--events", metavar="FILE", help="Links and switches that go down and up meanwhile.")
@click.option("--router", "routers", metavar="NAME", multiple=True, help="ecmp-paper, greedy and auto by default.")
@click.option(
    "--controller",
    type=click.Choice(CONTROLLERS),
    default="held",
    show_default=True,
    help="held: one plan for all jobs; paper: a new one at every begin and end of an all-reduce.",
)
@click.option(
    "--failed-spines",
    "failed",
    type=click.IntRange(0),
    metavar="N",
    multiple=True,
    help="The last N spines are down (again for more; 0 by default).",
)
@click.option("--epochs", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Of each job.")
@click.option("--timings", is_flag=True, help="Also how long the controller took to decide.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="Output.")
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
@click.option("--chart", metavar="FILE", help="Also draw times over failed spines (.svg, .png, .html).")
def evaluate(**values: Any) -> None:
    """Compare routers: replay jobs over epochs, flow by flow.

    Each --jobs, --generate and --flows is a workload, all --job together one; without --fabric or --cluster
    the network is the paper's. Every job runs its all-reduce, computes, and repeats; the table has the mean
    all-reduce of each router beside the time without any collision, flow completion times, and what the
    controller did.
    """
    check_chart(values["chart"])
    check_folder(values["output"], "--output")
    result = evaluation(values)
    write(result, values)
    if values["chart"] is not None:
        from weft.report.pictures.routers import evaluation_chart

        deliver_chart(evaluation_chart(result), values["chart"])


def evaluation(values: dict[str, Any]) -> Evaluation:
    """What the options ask for.

    Raises:
        BadInput: no workload, one twice, or files that cannot be used.
        UnknownName: there is no such router.
    """
    if not (values["jobs"] or values["generate"] or values["flows"] or values["planned"]):
        what = "--jobs DIR, --generate BLOOM:4,GPT_3:2, --flows FILE.csv or --job 'MODEL LAYOUT'"
        raise BadInput("no jobs are given", where="evaluate", remedy=f"give {what}")
    from weft.routing.routers import ROUTERS
    from weft.simulation.routes.evaluation import evaluate as run

    routers = tuple(dict.fromkeys(values["routers"])) or DEFAULT_ROUTERS
    for name in routers:
        if name not in ROUTERS:
            raise UnknownName("router", name, ROUTERS, where="--router")
    fabric = load_network(values)
    given = workloads(values, fabric)
    with Progress("replays") as advance:
        return run(
            fabric,
            given,
            routers=routers,
            failed_spines=tuple(sorted(set(values["failed"]))) or (0,),
            epochs=values["epochs"],
            seed=values["seed"],
            split=values["split"],
            events=_events(values["events"], fabric),
            controller=values["controller"],
            progress=advance,
        )


def workloads(values: dict[str, Any], fabric: Fabric) -> list[Workload]:
    """The jobs of each source, under its name (of a folder with that above)."""
    from weft.interop.traffic.flow_tables import read_csv
    from weft.interop.traffic.routing_jobs import numbering, read_jobs
    from weft.routing.generate import generate
    from weft.routing.traffic import merged
    from weft.simulation.routes.evaluation import Workload

    found = [
        Workload(name="/".join(Path(folder).absolute().parts[-2:]), traffic=read_jobs(folder, numbering(fabric)))
        for folder in values["jobs"]
    ]
    for text in values["generate"]:
        traffic = generate(fabric, asked_jobs(text), seed=values["seed"])
        found.append(Workload(name=text, traffic=traffic))
    found += [Workload(name=Path(path).stem, traffic=read_csv(path, fabric)) for path in values["flows"]]
    if values["planned"]:
        found.append(Workload(name="planned jobs", traffic=merged(planned_jobs(values, fabric))))
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{name} is given twice", where="evaluate", remedy="give each workload once")
    return found


def _events(path: str | None, fabric: Fabric) -> list[Event]:
    """The events of a file."""
    if path is None:
        return []
    from weft.fabric.edge import read_text
    from weft.interop.traffic.events import read_event

    lines = enumerate(read_text(path, where=path).splitlines(), start=1)
    return [read_event(line, fabric, f"{path}: line {number}") for number, line in lines if line.strip()]


def write(result: Evaluation, values: dict[str, Any]) -> None:
    """The comparison in the format asked for."""
    from weft.report.tables import route_evaluation as report

    timings = values["timings"]
    if values["form"] == "json":
        deliver(report.evaluation_to_json(result, timings=timings), values["output"])
    elif values["form"] == "csv":
        deliver(report.evaluation_to_csv(result, timings=timings), values["output"])
    else:
        show(lambda screen: report.evaluation_table(result, screen, timings=timings), values["output"])
