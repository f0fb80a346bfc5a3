"""``weft route watch``: the controller, fed with events."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from weft.cli.build import takes
from weft.cli.feed import undecided
from weft.errors import BadInput
from weft.verbs.options import option
from weft.verbs.shared import cluster_of
from weft.verbs.traffic import NetworkOptions, network_alone

if TYPE_CHECKING:
    from weft.routing.controller import Controller, Decision
    from weft.routing.store import Store

PINNED = ("auto", "greedy", "edge-coloring", "repair", "ilp")


@dataclass(frozen=True, kw_only=True)
class WatchOptions(NetworkOptions):
    """The controller, its events, and what is printed of its decisions."""

    events: str | None = option(None, "Events, one JSON object a line (default: standard input).", metavar="FILE")
    state: str | None = option(None, "Keep the state there; go on from it after a restart.", metavar="DIR")
    router: str = option("auto", "Plans everything anew.", choices=PINNED)
    replan_s: float = option(60.0, "Seconds.", "--replan", least=0)
    moves: bool = option(False, "With --format json: every changed path.")
    since: int | None = option(None, "First print the decisions from N on in --state.", metavar="N", least=1)
    timings: bool = option(False, "Also show how long each decision took.")
    form: str = option("table", "Output.", "--format", choices=("table", "json"))


@click.command()
@takes(options=WatchOptions)
def watch(options: WatchOptions) -> None:
    """Keep routes collision-free while jobs, links and switches come and go.

    \b
    {"time_s": 0, "event": "job-arrives", "job": "a", "flows": [{"source": 0, "target": 32, "bytes": 1e9}]}
    {"time_s": 5, "event": "switch-down", "switch": "spine-3"}

    Events: job-arrives, job-ends, link-down, link-up, switch-down, switch-up, traffic (a collective was
    measured to begin) and tick. One decision is printed for each: flows placed, and flows moved although
    their path was live (the churn). With --state a decision is on disk before it is printed; events of FILE
    that were decided on are skipped after a restart. weft route events writes the arrivals of any traffic.
    """
    from weft.routing.controller import Controller

    cluster = None if options.cluster is None else cluster_of(options.cluster)
    fabric = network_alone(options, cluster)
    controller = Controller(fabric, router=options.router, seed=options.seed, replan_s=options.replan_s)
    if options.since is not None and (options.state is None or options.form != "json"):
        raise BadInput("goes with --state and --format json", where="--since", remedy="add them")
    if options.state is None:
        _run(controller, None, 0, options)
        return
    from weft.routing.store import Store

    with closing(Store(options.state, controller)) as store:
        done = store.load()
        for text in store.decisions()[options.since - 1 :] if options.since else ():
            click.echo(text)
        if done and options.form == "table":
            click.echo(f"{done:,} events were decided before; see --since to print them again", err=True)
        _run(controller, store, done, options)


def _run(controller: Controller, store: Store | None, done: int, options: WatchOptions) -> None:
    from weft.interop.traffic.events import read_event
    from weft.report.tables.route_decisions import decision_line, decision_to_json, heading_line

    if options.form == "table":
        click.echo(heading_line(timings=options.timings))
    for place, line in undecided(options.events, store, done):
        event = read_event(line, controller.whole, place)
        try:
            decision: Decision = controller.apply(event)
        except BadInput as error:
            raise BadInput(error.what, where=place, remedy=error.remedy) from None
        text = decision_to_json(decision, controller.whole, moves=True)
        if store is not None:
            store.save(event.text, decision, text)
        if options.form == "json":
            click.echo(decision_to_json(decision, controller.whole, moves=options.moves, timings=options.timings))
        else:
            click.echo(decision_line(decision, timings=options.timings))
