"""Sites and events for the tests of what happens online."""

import json
from pathlib import Path

from weft.arrangement.online import SiteEvent
from weft.arrangement.site import Site, read_site
from weft.arrangement.site_events import read_site_event


def idle_site(folder: Path, *, cluster="a100-128", kind="fat-tree", jobs="", limit="", radix=64, ratio=4.0) -> Site:
    """A site without jobs: sixteen hosts of eight behind leaves with four ports down for each one up."""
    path = folder / "site.toml"
    path.write_text(
        f'schema = "weft.site/1"\nname = "idle"\ncluster = "{cluster}"\nfabric = "{kind}"\nradix = {radix}\n'
        f'oversubscription = [{ratio}]\n[switches]\nrouting = ["ecmp", "planned"]\nclasses = 4\n{limit}\n{jobs}'
    )
    return read_site(path, idle=True)


def arrival(name: str, count: int, at: float, batch: int = 0, **more: object) -> str:
    """A GPT-2 that sends much, on some hosts of eight."""
    fields = {"model": "gpt2-124m", "layout": f"dp={8 * count}", "batch": batch or 8 * count}
    return json.dumps({"time_s": at, "event": "job-arrives", "job": name, **fields, **more})


def other(kind: str, at: float, **more: object) -> str:
    return json.dumps({"time_s": at, "event": kind, **more})


def events(site: Site, lines: list[str]) -> list[SiteEvent]:
    return [read_site_event(line, site, Path(), f"line {number}") for number, line in enumerate(lines, start=1)]


STORY = [
    arrival("a", 7, 0),
    arrival("b", 7, 60, weight=2.0),
    arrival("c", 4, 90),
    arrival("d", 2, 120),
    other("host-down", 300, host="host-1"),
    other("job-ends", 600, job="b"),
    other("link-down", 900, link=["leaf-0", "spine-0"]),
    other("link-up", 930, link=["leaf-0", "spine-0"]),
    other("host-up", 960, host="host-1"),
    arrival("e", 3, 970, may="move", hosts=["host-15", "host-14", "host-13"]),
    other("switch-down", 980, switch="leaf-1"),
    other("switch-up", 990, switch="leaf-1"),
]
"""Placed beside, waits, passes, evicted, placed again, moved, waits for its hosts, cut off."""
