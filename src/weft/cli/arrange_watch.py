"""``weft arrange --watch`` and ``--trace``: a site from event to event, and a trace replayed under policies."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click

from weft.cli.feed import undecided
from weft.cli.options import deliver
from weft.errors import BadInput
from weft.verbs.options import Options, option

POLICY_NAMES = ("first-fit + ecmp", "first-fit + routes", "cassini-like", "crux-like", "arrange")


@dataclass(frozen=True, kw_only=True)
class OnlineOptions(Options):
    """Events or a trace instead of the site's jobs alone."""

    watch: str | None = option(
        None, "Keep the site arranged while events come: JSON lines (- is standard input).", metavar="FILE"
    )
    state: str | None = option(
        None, "With --watch: keep the state there; go on from it after a restart.", metavar="DIR"
    )
    since: int | None = option(None, "First print the decisions from N on in --state.", metavar="N", least=1)
    trace: str | None = option(
        None,
        "Replay a trace of arrivals under several policies (a CSV file, or the folder of the Crux trace).",
        metavar="FILE",
    )
    day: int | None = option(None, "With --trace: only the arrivals of that day of it.", metavar="N", least=1)
    policy: tuple[str, ...] = option((), "With --trace: only this policy (repeats).", choices=POLICY_NAMES)
    timings: bool = option(False, "With --trace: also show processor time.")
    steps: int = option(16, "With --watch, --trace: arrangements in time stepped for one decision.", least=1)


def check_online(online: OnlineOptions, *, output: str | None, chart: str | None) -> None:
    """Refuse options that do not go together.

    Raises:
        BadInput: says which.
    """
    needs = [
        ("--state", online.state is not None, "--watch", online.watch is not None),
        ("--since", online.since is not None, "--state", online.state is not None),
        ("--day", online.day is not None, "--trace", online.trace is not None),
        ("--policy", bool(online.policy), "--trace", online.trace is not None),
        ("--timings", online.timings, "--trace", online.trace is not None),
    ]
    for name, given, other, there in needs:
        if given and not there:
            raise BadInput(f"goes with {other}", where=name, remedy="add it")
    against = [
        ("--trace", online.trace is not None, "--watch", online.watch is not None),
        ("--chart", chart is not None, "--watch or --trace", (online.watch or online.trace) is not None),
        ("-o", output is not None, "--watch", online.watch is not None),
    ]
    for name, given, other, there in against:
        if given and there:
            raise BadInput(f"does not go with {other}", where=name, remedy="leave one out")


def watch(source: str, events: str, online: OnlineOptions, *, seed: int, form: str) -> None:
    """Feed the controller of a site."""
    from weft.arrangement.online import SiteController
    from weft.arrangement.site import read_site
    from weft.arrangement.site_events import read_site_event
    from weft.arrangement.site_store import SiteStore
    from weft.views.site_decisions import decision_lines, decision_to_json

    site = read_site(source, idle=True)
    controller = SiteController(site, steps=online.steps, seed=seed)
    path = None if events == "-" else events

    def feed(store: SiteStore | None, done: int) -> None:
        for place, line in undecided(path, store, done):
            try:
                decision = controller.apply(read_site_event(line, site, Path(source).parent, place))
            except BadInput as error:
                raise BadInput(error.what, where=_placed(error.where, place), remedy=error.remedy) from None
            text = decision_to_json(decision, site)
            if store is not None:
                store.save(line.strip(), decision, text)
            click.echo(text if form == "json" else decision_lines(decision, site))

    if online.state is None:
        feed(None, 0)
        return
    with closing(SiteStore(online.state, controller)) as store:
        done = store.load()
        for text in store.decisions()[online.since - 1 :] if online.since else ():
            click.echo(text)
        if done and form == "table":
            click.echo(f"{done:,} events were decided before; see --since to print them again", err=True)
        feed(store, done)


def replay(source: str, trace: str, online: OnlineOptions, *, seed: int, form: str, output: str | None) -> None:
    """Replay a trace, and write what came of it."""
    from weft.arrangement.replay import replay as replayed
    from weft.arrangement.site import read_site
    from weft.arrangement.trace import read_trace

    site = read_site(source, idle=True)
    found = replayed(site, read_trace(trace, day=online.day), online.policy, steps=online.steps, seed=seed)
    if output is not None:
        deliver(found.to_json(), output)
    if form == "json":
        if output is None:
            deliver(found.to_json(), None)
        return
    from weft.views.replay import replay_view
    from weft.views.terminal import print_blocks

    print_blocks(replay_view(found, timings=online.timings))


def _placed(where: str | None, place: str) -> str:
    """Where a message points: the controller knows no lines."""
    return place if where is None or where == "event" else where
