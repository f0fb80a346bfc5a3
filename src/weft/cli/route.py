"""``weft route``: plan, evaluate, watch and export the routes of training jobs."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import check_picture, deliver
from weft.cli.outcome import RowsOutput, report
from weft.cli.route_evaluate import evaluate
from weft.cli.route_export import events, export
from weft.cli.route_watch import watch
from weft.verbs.options import option
from weft.verbs.route import AuditOptions, RouteOptions, audit_routes
from weft.verbs.route import route as routed


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
    weft route --plan plan.json                      the flows of a planned job on its cluster's network
    weft route --generate BLOOM:4,GPT_3:4            routes of the paper's workload, how good they are
    weft route --jobs DIR --failed-spines 4          the same for job files of the paper's code
    weft route --cluster h100-1024 --job 'llama-3.1-8b tp=8,dp=32'
    weft route evaluate --jobs DIR                   routers compared over epochs in the simulator
    weft route audit --routes FILE                   installed routes: how good, and what moves would gain
    weft route watch --state DIR --events FILE       the controller: jobs and links come and go
    weft route export frr --generate BLOOM:4 -o DIR  what real networks take

    Options without a verb are those of plan: weft route plan --help.
    """


@dataclass(frozen=True, kw_only=True)
class RouteOutput(RowsOutput):
    """What is made of routes."""

    picture: str | None = option(None, "Also draw how busy links are, under every router.", metavar="FILE.svg")


@route.command()
@takes(options=RouteOptions, out=RouteOutput)
def plan(options: RouteOptions, out: RouteOutput) -> None:
    """Route all flows at once; say how good the routes are, and how good any could be.

    Routers: auto (edge-coloring where it applies, otherwise repair), ecmp (hash of the flow at every hop),
    greedy (the paper's), edge-coloring (exact for equal flows on a Clos), repair (greedy and local search: any
    fabric and demands), ilp (exact, small), split (k parts of each flow), spray (every packet its own path),
    rail (any rail, forwarding inside scale-up domains).
    """
    from weft.views.route import plan_view

    check_picture(out.picture)
    found = routed(options=options)
    report(found, out, plan_view(found))
    if out.picture is not None:
        from weft.views.charts.palette import alone
        from weft.views.charts.routes import routes_svg

        deliver(alone(routes_svg([*found.compared, found.plan])), out.picture)


@route.command()
@takes(options=AuditOptions, out=RowsOutput)
def audit(options: AuditOptions, out: RowsOutput) -> None:
    """Say how good installed routes are, how good any could be, and what moving flows would gain.

    \b
    --routes FILE  weft.routes/1 (weft route --format json --paths), with its flows or for those named here
                   CSV with source, target and path (names of nodes), as measured by traceroute
                   forwarding tables of dump_fts or weft route export opensm; --fabric: ibnetdiscover's output

    Network-wide efficiency is the pace of the slowest collective against its pace alone, then of the next, and so on.
    The repair moves few flows until the busiest link is as good as can be; --format json and csv list its moves.
    """
    from weft.views.route import audit_view

    found = audit_routes(options=options)
    report(found, out, audit_view(found))


for verb in (evaluate, watch, export, events):
    route.add_command(verb)
