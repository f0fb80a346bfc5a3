"""``weft route watch``: the controller, fed with events and counters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from weft.commands.command_line import takes
from weft.commands.feed import undecided
from weft.commands.options import option
from weft.commands.route import installed_routes
from weft.commands.shared import cluster_of
from weft.commands.traffic import TrafficOptions, failed, names_traffic, network_alone, traffic_of
from weft.errors import BadInput

if TYPE_CHECKING:
    from weft.commands.route_push import Hook
    from weft.fabric import Fabric
    from weft.routing import JobTraffic
    from weft.routing.controller import Controller, Decision
    from weft.routing.events import Event
    from weft.routing.store import Store


@dataclass(frozen=True, kw_only=True)
class WatchOptions(TrafficOptions):
    """The controller, what it begins with and is fed with, and what becomes of its decisions."""

    routes: str | None = option(
        None, "Begin with installed routes: weft.routes/1, a CSV of paths or OpenSM's tables.", metavar="PATH"
    )
    path_bits: str | None = option(None, "LID of each flow, of weft route export opensm.", metavar="FILE.csv")
    events: str | None = option(
        None, "Events, one JSON object a line (default: standard input, if no --counters).", metavar="FILE"
    )
    counters: tuple[str, ...] = option(
        (), "Counters of links: CSV of time_s,source,target and values.", metavar="FILE"
    )
    state: str | None = option(None, "Keep the state there; go on from it after a restart.", metavar="DIR")
    apply: str | None = option(
        None, "Say what CMD ROUTES.json ROUTES.diff would be run for each change of routes.", metavar="CMD"
    )
    push: bool = option(False, "Run it; if it fails, once more with the former routes, which are held.")
    form: str = option("table", "Output.", "--format", choices=("table", "json"))


@click.command()
@takes(options=WatchOptions)
def watch(options: WatchOptions) -> None:
    """Keep routes collision-free while jobs, links and switches come and go.

    \b
    {"time_s": 0, "event": "job-arrives", "job": "a", "flows": [{"source": 0, "target": 32, "bytes": 1e9}]}
    {"time_s": 5, "event": "switch-down", "switch": "spine-3"}

    Events: job-arrives, job-ends, link-down, link-up, switch-down, switch-up, traffic (a collective was measured to
    begin) and tick; --counters are events too. One decision is printed for each: flows placed, flows moved although
    their path was live (the churn), and the pace of the slowest collective before, after and at most. With --routes
    the first says what moving flows gains on what is installed. With --state a decision is on disk before it is
    printed; events of files that were decided on are skipped after a restart. weft route events writes arrivals.
    """
    from weft.routing.controller import Controller

    hook = _hook(options)
    fabric, flows = _network(options)
    controller = Controller(fabric, seed=options.seed)
    feed = _RouteFeed(controller, options, hook)
    if options.state is None:
        feed.run(None, 0, flows)
        return
    from weft.routing.store import Store

    with closing(Store(options.state, controller)) as store:
        done = store.load()
        if done and options.form == "table":
            click.echo(f"{done:,} events were decided before", err=True)
        feed.run(store, done, flows)


def _hook(options: WatchOptions) -> Hook | None:
    if options.apply is None:
        if options.push:
            raise BadInput("goes with --apply CMD", where="--push", remedy="add it")
        return None
    from weft.commands.route_push import Hook

    return Hook(options.apply, push=options.push)


def _network(options: WatchOptions) -> tuple[Fabric, JobTraffic | None]:
    """The fabric with what is down, and the flows that the options name."""
    if names_traffic(options) and options.routes is None:
        raise BadInput(
            "flows are named, but no routes that they have",
            where="--routes",
            remedy="add it, or write their arrivals: weft route events",
        )
    if options.arrangement is not None:
        return traffic_of(options)
    cluster = None if options.cluster is None else cluster_of(options.cluster)
    fabric = failed(network_alone(options, cluster), options.failed_spines, options.failed)
    return fabric, traffic_of(options)[1] if names_traffic(options) else None


class _RouteFeed:
    """What goes into a controller, and what comes out."""

    def __init__(self, controller: Controller, options: WatchOptions, hook: Hook | None) -> None:
        self.controller, self.options, self.hook = controller, options, hook
        self.told_thresholds = False
        self.stuck = ""

    def run(self, store: Store | None, done: int, flows: JobTraffic | None) -> None:
        """Decide on all events."""
        from weft.views.route_decisions import heading_line

        options = self.options
        if options.form == "table":
            click.echo(heading_line())
        for place, event in self._events(store, done, flows):
            try:
                decision = self.controller.apply(event)
            except BadInput as error:
                raise BadInput(error.what, where=place, remedy=error.remedy) from None
            self._tell(event, decision, store)
            if self.stuck:
                remedy = "see what is installed: weft route audit"
                raise BadInput(f"leaves routes open: {self.stuck}", where="--apply", remedy=remedy)

    def _events(self, store: Store | None, done: int, flows: JobTraffic | None) -> Iterator[tuple[str, Event]]:
        """What is installed, then all events that were not decided on, with their places.

        Files are opened, and their first event is read, before anything is decided.
        """
        from weft.interop.events import read_event

        options, fabric = self.options, self.controller.whole
        began = store is not None and done > 0 and '"event": "installed"' in store.event(1)
        if options.routes is not None:
            event = self._installed(options.routes, flows)
            if store is not None and done and store.event(1) != event.text:
                raise BadInput(
                    f"are not those that the state in {store.where} began with",
                    where=options.routes,
                    remedy="give them, or an empty --state folder",
                )
        measured = self._measured() if options.counters else None
        beside = None if measured is None else [(event.time_s, place, event.text) for place, event in measured]
        counters = {event.text: event for _, event in measured or ()}
        lines = undecided(options.events, store, done, first=int(began), beside=beside)
        later = ((place, counters.get(line) or read_event(line, fabric, place)) for place, line in lines)
        first = list(islice(later, 1)) if options.events or options.counters else []
        if options.routes is not None and not done:
            yield options.routes, event
        yield from chain(first, later)

    def _measured(self) -> list[tuple[str, Event]]:
        """The events of files of counters in order of time, with their places."""
        from weft.files import read_text
        from weft.interop.counters import read_counters

        events: list[tuple[str, Event]] = []
        for path in self.options.counters:
            found = read_counters(read_text(path, where=path), self.controller.whole, where=path)
            events += [(f"{path}: at {event.time_s:g} s", event) for event in found]
        return sorted(events, key=lambda each: each[1].time_s)

    def _installed(self, path: str, flows: JobTraffic | None) -> Event:
        """The routes that a network has, as an event."""
        from weft.routing.events import Event
        from weft.routing.traffic import check_traffic

        fabric = self.controller.whole
        traffic, routes = installed_routes(self.options, path, fabric, flows, path_bits=self.options.path_bits)
        check_traffic(fabric, traffic, path)
        digest = hashlib.sha256(routes.indptr.tobytes() + routes.links.tobytes())
        digest.update(traffic.source.tobytes() + traffic.target.tobytes() + traffic.bytes.tobytes())
        text = json.dumps({"time_s": 0.0, "event": "installed", "sha256": digest.hexdigest()})
        return Event(time_s=0.0, kind="installed", traffic=traffic, routes=routes, text=text)

    def _tell(self, event: Event, decision: Decision, store: Store | None) -> None:
        """Push a decision, keep it, print it."""
        from weft.views.route_decisions import change_lines, decision_line, decision_to_json, thresholds_line

        options, whole = self.options, self.controller.whole
        told: dict[str, Any] = {}
        lines: list[str] = []
        if event.kind == "counters" and not self.told_thresholds:
            lines.append(thresholds_line())
            self.told_thresholds = True
        lines += change_lines(decision, whole)
        if self.hook is not None:
            outcome = self.hook.carry(self.controller, decision, decision_to_json(decision, whole))
            decision, self.stuck = outcome.decision, outcome.stuck
            told["push"] = outcome.push
            lines += outcome.lines
        text = decision_to_json(decision, whole, **told)
        if store is not None:
            store.save(event.text, decision, text)
        if options.form == "json":
            click.echo(text)
        else:
            click.echo("\n".join([decision_line(decision), *(f"       {line}" for line in lines)]))
