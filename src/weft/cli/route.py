"""``weft route``: plan, evaluate, watch and export the routes of training jobs."""

from __future__ import annotations

from typing import Any

import click

from weft.cli.options import deliver
from weft.cli.outcome import show
from weft.cli.route_evaluate import evaluate
from weft.cli.route_export import events, export
from weft.cli.route_source import load_source, traffic_options
from weft.cli.route_watch import watch
from weft.errors import UnknownName

ROUTERS = (
    "auto",
    "ecmp",
    "ecmp-paper",
    "random",
    "greedy",
    "edge-coloring",
    "repair",
    "anneal",
    "ilp",
    "split",
    "spray",
    "rail",
)
OBJECTIVES = ("flow", "collective", "job")
BOUNDS = ("auto", "cuts", "lp")


class PlanByDefault(click.Group):
    """A group that takes anything but the name of a verb for options of ``plan``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["plan", *args]
        return super().parse_args(ctx, args)


@click.group(cls=PlanByDefault)
def route() -> None:
    """Find routes for all flows of all jobs on a fabric that do not collide, and keep them so.

    \b
    weft route --generate BLOOM:4,GPT_3:4            routes of the paper's workload, how good they are
    weft route --jobs DIR --failed-spines 4          the same for job files of the paper's code
    weft route --cluster h100-1024 --job 'llama-3.1-8b tp=8,dp=32'
    weft route evaluate --jobs DIR                   routers compared over epochs in the simulator
    weft route watch --state DIR --events FILE       the controller: jobs and links come and go
    weft route export frr --generate BLOOM:4 -o DIR  what real networks take

    Options without a verb are those of plan: weft route plan --help.
    """


@route.command()
@traffic_options
@click.option("--router", type=click.Choice(ROUTERS), default="auto", show_default=True, help="Who chooses the paths.")
@click.option("--split", type=click.IntRange(1, 64), default=2, show_default=True, help="Parts, for split.")
@click.option(
    "--objective", type=click.Choice(OBJECTIVES), default="collective", show_default=True, help="Groups that count."
)
@click.option("--bound", type=click.Choice(BOUNDS), default="auto", show_default=True, help="How the bound is proved.")
@click.option("--time-limit", type=click.FloatRange(0.01), default=60.0, help="Seconds, for ilp (60).")
@click.option("--compare", metavar="ROUTER,...", help="Also show what these routers reach.")
@click.option("--paths", is_flag=True, help="With --format json: every flow's path.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Output; csv lists every flow and its path.",
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
def plan(**values: Any) -> None:
    """Route all flows at once; say how good the routes are, and how good any could be.

    Routers: auto (edge-coloring where it applies, otherwise repair), ecmp (hash of the flow at every hop),
    ecmp-paper (the hash of the paper's code), random, greedy (the paper's), edge-coloring (exact for equal
    flows on a Clos), repair (greedy and local search: any fabric and demands), anneal (as Hedera), ilp
    (exact, small), split (k parts of each flow), spray (every packet its own path), rail (any rail,
    forwarding inside scale-up domains).
    """
    from weft.report.tables import route as report
    from weft.routing.plan import plan as make

    fabric, traffic = load_source(values)
    asked = {name: values[name] for name in ("seed", "split", "objective", "bound")}
    asked["time_limit_s"] = values["time_limit"]
    others = [make(fabric, traffic, router=name, **asked) for name in _routers(values["compare"])]
    found = make(fabric, traffic, router=values["router"], **asked)
    if values["form"] == "json":
        deliver(report.plan_to_json(found, others, paths=values["paths"]), values["output"])
    elif values["form"] == "csv":
        deliver(report.plan_to_csv(found), values["output"])
    else:
        show(lambda screen: report.plan_table(found, others, screen), values["output"])


def _routers(text: str | None) -> list[str]:
    names = [name.strip() for name in text.split(",")] if text else []
    for name in names:
        if name not in ROUTERS:
            raise UnknownName("router", name, ROUTERS, where="--compare")
    return names


for verb in (evaluate, watch, export, events):
    route.add_command(verb)
