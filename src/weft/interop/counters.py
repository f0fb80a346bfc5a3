"""Counters of links as a CSV table, turned into "counters" events for the route controller.

Columns: ``time_s``, ``source`` and ``target`` (names of nodes) and any of ``weft.routing.telemetry.FIGURES``.  A row
holds what was read of all links from a source to a target at a time.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict

from weft.documents import csv_rows
from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.routing.controller import Event
from weft.routing.telemetry import FIGURES, LinkSample

_ENDS = ("source", "target")
_NEEDED = ("time_s", *_ENDS)
_MOST = {"time_s": 1e18, "rate_Bps": 1e18, "load": 10.0, "loss": 1.0}
_MOST_COUNTED = 2.0**64


def read_counters(text: str, fabric: Fabric, *, where: str) -> list[Event]:
    """The "counters" events of a table in order of time; their texts are lines of JSON."""
    number = {name: node for node, name in enumerate(fabric.names)}
    joined = set(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True))
    rows: dict[float, dict[tuple[str, str], dict[str, float]]] = defaultdict(dict)
    for row, place in csv_rows(text, where, _NEEDED, (*_NEEDED, *FIGURES)):
        for name in _ENDS:
            if row[name] not in number:
                raise BadInput(f"there is no node {row[name][:60]!r}", where=f"{place}: {name}", remedy="use its name")
        ends = row["source"], row["target"]
        if (number[ends[0]], number[ends[1]]) not in joined:
            problem = f"{' -> '.join(ends)} is not a link of {fabric.name}"
            raise BadInput(problem, where=place, remedy="name two joined nodes")
        time_s = _number(row["time_s"], f"{place}: time_s", "time_s")
        if ends in rows[time_s]:
            problem = f"a row above tells of {' -> '.join(ends)} at {time_s:g} s"
            raise BadInput(problem, where=place, remedy="give the sum of parallel links in one row")
        rows[time_s][ends] = {name: _number(row[name], f"{place}: {name}", name) for name in FIGURES if row.get(name)}
    if not rows:
        raise BadInput("holds no counter of a link", where=where, remedy="add a row below the heading")
    events = []
    for time_s, links in sorted(rows.items()):
        table = [{"link": list(ends)} | figures for ends, figures in sorted(links.items())]
        samples = tuple(
            LinkSample(ends=(number[source], number[target]), **figures)
            for (source, target), figures in sorted(links.items())
        )
        text = json.dumps({"time_s": time_s, "event": "counters", "links": table})
        events.append(Event(time_s=time_s, kind="counters", samples=samples, text=text))
    return events


def _number(value: str, place: str, name: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    most = _MOST.get(name, _MOST_COUNTED)
    if not 0 <= number <= most:
        raise BadInput(
            f"{value[:40]!r} is not a value of {name}", where=place, remedy=f"give a number from 0 to {most:g}"
        )
    return number
