"""Counters of links as a CSV table, turned into "counters" events for the route controller.

Columns: ``time_s``, ``source`` and ``target`` (names of nodes) and those of a "counters" event
(``weft.routing.telemetry.FIGURES``).  A row holds what was read of all links from a source to a target at a time.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict

from weft.documents import csv_rows
from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.routing.telemetry import FIGURES

MOST = 2.0**64
"""Largest value of a counter."""
_ENDS = ("source", "target")
_NEEDED = ("time_s", *_ENDS)


def event_lines(text: str, fabric: Fabric, *, where: str) -> list[tuple[float, str]]:
    """The "counters" events of a table in order of time, each as its time in s and its line of JSON.

    Raises:
        BadInput: a column is missing or unknown, a node is not in the fabric, a value is not a number from 0 to 2**64,
            or two rows tell of the same links at the same time.
    """
    nodes = set(fabric.names)
    events: dict[float, dict[tuple[str, str], dict[str, float]]] = defaultdict(dict)
    for row, place in csv_rows(text, where, _NEEDED, (*_NEEDED, *FIGURES)):
        for name in _ENDS:
            if row[name] not in nodes:
                raise BadInput(f"there is no node {row[name][:60]!r}", where=f"{place}: {name}", remedy="use its name")
        ends = row["source"], row["target"]
        time_s = _number(row["time_s"], f"{place}: time_s")
        if ends in events[time_s]:
            problem = f"a row above tells of {' -> '.join(ends)} at {time_s:g} s"
            raise BadInput(problem, where=place, remedy="give the sum of parallel links in one row")
        events[time_s][ends] = {name: _number(row[name], f"{place}: {name}") for name in FIGURES if row.get(name)}
    if not events:
        raise BadInput("holds no counter of a link", where=where, remedy="add a row below the heading")
    lines = []
    for time_s, rows in sorted(events.items()):
        links = [{"link": list(ends)} | figures for ends, figures in sorted(rows.items())]
        lines.append((time_s, json.dumps({"time_s": time_s, "event": "counters", "links": links})))
    return lines


def _number(value: str, place: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST:
        raise BadInput(f"{value[:40]!r} is not a value of a counter", where=place, remedy="give a number from 0")
    return number
