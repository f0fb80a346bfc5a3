"""``weft route watch``: the controller, fed with events."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.route_source import load_network, network_options
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.routing.controller import Controller, Decision
    from weft.routing.store import Store

PINNED = ("auto", "greedy", "edge-coloring", "repair", "ilp")


@click.command()
@network_options
@click.option("--events", metavar="FILE", help="Events, one JSON object a line (default: standard input).")
@click.option("--state", metavar="DIR", help="Keep the state there; go on from it after a restart.")
@click.option("--router", type=click.Choice(PINNED), default="auto", show_default=True, help="Plans everything anew.")
@click.option("--replan", "replan_s", type=click.FloatRange(0), default=60.0, show_default=True, help="Seconds.")
@click.option("--moves", is_flag=True, help="With --format json: every changed path.")
@click.option("--since", type=click.IntRange(1), metavar="N", help="First print the decisions from N on in --state.")
@click.option("--timings", is_flag=True, help="Also show how long each decision took.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output."
)
def watch(**values: Any) -> None:
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

    fabric = load_network(values)
    controller = Controller(fabric, router=values["router"], seed=values["seed"], replan_s=values["replan_s"])
    if values["since"] is not None and (values["state"] is None or values["form"] != "json"):
        raise BadInput("goes with --state and --format json", where="--since", remedy="add them")
    if values["state"] is None:
        _run(controller, None, 0, values)
        return
    from weft.routing.store import Store

    with closing(Store(values["state"], controller)) as store:
        done = store.load()
        for text in store.decisions()[values["since"] - 1 :] if values["since"] else ():
            click.echo(text)
        if done and values["form"] == "table":
            click.echo(f"{done:,} events were decided before; see --since to print them again", err=True)
        _run(controller, store, done, values)


def _run(controller: Controller, store: Store | None, done: int, values: dict[str, Any]) -> None:
    from weft.interop.traffic.events import read_event
    from weft.report.tables.route_decisions import decision_line, decision_to_json, heading_line

    where = values["events"] or "standard input"
    if values["form"] == "table":
        click.echo(heading_line(timings=values["timings"]))
    decided = 0
    for number, line in _lines(values["events"]):
        place = f"{where}: line {number}"
        if values["events"] is not None and decided < done:
            decided += 1
            _check_same(store, decided, line, place)
            continue
        event = read_event(line, controller.whole, place)
        try:
            decision: Decision = controller.apply(event)
        except BadInput as error:
            raise BadInput(error.what, where=place, remedy=error.remedy) from None
        text = decision_to_json(decision, controller.whole, moves=True)
        if store is not None:
            store.save(event.text, decision, text)
        if values["form"] == "json":
            click.echo(decision_to_json(decision, controller.whole, moves=values["moves"], timings=values["timings"]))
        else:
            click.echo(decision_line(decision, timings=values["timings"]))


def _lines(path: str | None) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers."""
    if path is None:
        stream: Any = sys.stdin
        try:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line
        except UnicodeDecodeError:
            raise BadInput("is not text in UTF-8", where="standard input") from None
        return
    from weft.fabric.edge import read_text

    text = read_text(Path(path), where=path)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def _check_same(store: Store | None, number: int, line: str, place: str) -> None:
    """Refuse a file whose events are not those decided on before."""
    if store is not None and store.event(number) != line.strip():
        raise BadInput(
            f"is not event {number} of the state in {store.where}",
            where=place,
            remedy="give the file that was watched, or an empty --state folder",
        )
