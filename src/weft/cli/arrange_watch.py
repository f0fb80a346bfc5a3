"""``weft arrange --watch`` and ``--trace``: a site from event to event, and a trace replayed under policies."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click

from weft.cli.feed import undecided
from weft.errors import BadInput
from weft.verbs.options import Options, option


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
    steps: int = option(24, "With --watch, --trace: arrangements in time stepped for one decision.", least=1)


def watch(source: str, events: str, online: OnlineOptions, *, seed: int, form: str) -> None:
    """Feed the controller of a site."""
    from weft.arrangement.online import SiteController
    from weft.arrangement.site import read_site
    from weft.arrangement.site_events import read_site_event
    from weft.arrangement.site_store import SiteStore
    from weft.report.tables.site_decisions import decision_lines, decision_to_json

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


def _placed(where: str | None, place: str) -> str:
    """Where a message points: the controller knows no lines."""
    return place if where is None or where == "event" else where
