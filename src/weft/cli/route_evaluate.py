"""``weft route evaluate``: routers compared over epochs in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import FORMATS, Progress, check_chart, check_folder, deliver
from weft.cli.outcome import show
from weft.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from weft.simulate.route_evaluation import Evaluation, Workload

CONTROLLERS = ("held", "paper")
DEFAULT_ROUTERS = ("ecmp-paper", "greedy", "auto")


@click.command()
@click.option(
    "--jobs", metavar="DIR", multiple=True, help="A workload: a folder of job files (again for more)."
)
@click.option(
    "--router", "routers", metavar="NAME", multiple=True, help="ecmp-paper, greedy and auto by default."
)
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
@click.option("--seed", type=int, default=0, show_default=True, help="Of hashes, draws and searches.")
@click.option("--timings", is_flag=True, help="Also how long the controller took to decide.")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="Output."
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
@click.option("--chart", metavar="FILE.svg", help="Also draw all-reduce times over failed spines.")
def evaluate(**values: Any) -> None:
    """Compare routers: replay jobs over epochs on the paper's network, flow by flow.

    Jobs are job files of the routing paper's code. Every job runs its all-reduce, computes, and repeats; the
    table has the mean all-reduce of each router beside the time without any collision, flow completion
    times, and what the controller did.
    """
    check_chart(values["chart"])
    check_folder(values["output"], "--output")
    result = evaluation(values)
    write(result, values)
    if values["chart"] is not None:
        from weft.report.route_evaluation_picture import evaluation_svg

        deliver(evaluation_svg(result), values["chart"])


def evaluation(values: dict[str, Any]) -> Evaluation:
    """What the options ask for.

    Raises:
        BadInput: no workload, one twice, or files that cannot be used.
        UnknownName: there is no such router.
    """
    if not values["jobs"]:
        raise BadInput("no jobs are given", where="evaluate", remedy="give --jobs DIR, a folder of job files")
    from weft.interop.routing_jobs import paper_fabric
    from weft.routing.routers import ROUTERS
    from weft.simulate.route_evaluation import evaluate as run

    routers = tuple(dict.fromkeys(values["routers"])) or DEFAULT_ROUTERS
    for name in routers:
        if name not in ROUTERS:
            raise UnknownName("router", name, ROUTERS, where="--router")
    given = workloads(values["jobs"])
    with Progress("replays") as advance:
        return run(
            paper_fabric(),
            given,
            routers=routers,
            failed_spines=tuple(sorted(set(values["failed"]))) or (0,),
            epochs=values["epochs"],
            seed=values["seed"],
            controller=values["controller"],
            progress=advance,
        )


def workloads(folders: tuple[str, ...]) -> list[Workload]:
    """The jobs of each folder, under its name and that of the folder above."""
    from weft.interop.routing_jobs import read_jobs
    from weft.simulate.route_evaluation import Workload

    found: list[Workload] = []
    for folder in folders:
        name = "/".join(Path(folder).absolute().parts[-2:])
        if name in [one.name for one in found]:
            raise BadInput(f"{name} is given twice", where="--jobs", remedy="give each folder once")
        found.append(Workload(name=name, traffic=read_jobs(folder)))
    return found


def write(result: Evaluation, values: dict[str, Any]) -> None:
    """The comparison in the format asked for."""
    from weft.report import route_evaluation as report

    timings = values["timings"]
    if values["form"] == "json":
        deliver(report.evaluation_to_json(result, timings=timings), values["output"])
    elif values["form"] == "csv":
        deliver(report.evaluation_to_csv(result, timings=timings), values["output"])
    else:
        show(lambda screen: report.evaluation_table(result, screen, timings=timings), values["output"])
