"""Events for the route controller as lines of JSON, one event a line.

    {"time_s": 0, "event": "job-arrives", "job": "a", "flows": [{"source": "accelerator-0", "target":
     "accelerator-32", "bytes": 1e9, "collective": "ring 0", "rounds": 6}, ...], "pause_s": 1.2}
    {"time_s": 9, "event": "link-down", "link": ["leaf-0", "spine-3"]}
    {"time_s": 9, "event": "switch-down", "switch": "spine-3"}
    {"time_s": 60, "event": "measured", "files": ["flows-60.csv"]}

Also "job-ends", "link-up", "switch-up" and "tick".  "traffic" has the measured ``flows`` of a job, which nobody need
have announced; "measured" names tables of all measured flows, or the NCCL logs of one run, in which jobs are
recognised.  Ends are names of accelerators or their numbers.

Counters of links come as a CSV table: ``time_s``, ``source`` and ``target`` (names of nodes) and any of
``weft.routing.telemetry.FIGURES``.  A row holds what was read of all links from a source to a target at a time.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from weft.codec import Count, Positive, Range, decode
from weft.documents import csv_rows, parse_json
from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.interop.flow_tables import FlowRow, accelerator_of, traffic_of
from weft.interop.nccl_traffic import demand_of
from weft.routing.controller import Event, Kind
from weft.routing.telemetry import FIGURES, LinkSample
from weft.routing.traffic import JobTraffic

_Amount = Annotated[float, Range(0, 1e18, below=True)]
_Name = Annotated[str, Range(0, 200, printable=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFlow:
    """A flow of an event."""

    source: _Name | int
    target: _Name | int
    bytes: _Amount
    collective: _Name = "flows"
    rounds: Count = 1
    queue_pair: Annotated[int, Range(0, 10**6, below=True)] = 0
    rate_Bps: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """A line."""

    time_s: _Amount
    event: Kind
    job: _Name | None = None
    flows: tuple[EventFlow, ...] | None = None
    pause_s: _Amount = 0.0
    link: Annotated[tuple[str, ...], Range(2, 2)] | None = None
    switch: _Name | None = None
    files: tuple[_Name, ...] | None = None


def read_event(line: str, fabric: Fabric, where: str) -> Event:
    """The event of a line."""
    try:
        table = parse_json(line, where)
    except BadInput as error:
        problem = f"is torn or no JSON ({error.what.removeprefix('not valid JSON: ')})"
        raise BadInput(problem, where=where, remedy="send each event as one whole line of JSON") from None
    fields = decode(EventLine, table, where)
    kind = fields.event
    needed = {"job-arrives": ("job", "flows"), "job-ends": ("job",), "traffic": ("job", "flows")}
    needed["measured"] = ("files",)
    needed |= {f"{kind}-{way}": (kind,) for kind in ("link", "switch") for way in ("down", "up")}
    for name in needed.get(kind, ()):
        if not getattr(fields, name):
            raise BadInput("is missing", where=f"{where}: {name}", remedy=f"{kind} needs it")
    traffic = _traffic(fields, fields.flows, fabric, where) if fields.flows else None
    if kind == "measured":
        traffic = demand_of(fields.files or (), fabric).traffic
    return Event(
        time_s=fields.time_s,
        kind=kind,
        job=fields.job or "",
        traffic=traffic,
        nodes=tuple(fields.link or ()) or ((fields.switch,) if fields.switch else ()),
        text=line.strip(),
    )


def arrival_line(traffic: JobTraffic, fabric: Fabric, time_s: float) -> str:
    """A job's arrival as a line."""
    flows = [
        {
            "source": fabric.names[source],
            "target": fabric.names[target],
            "bytes": bytes_,
            "collective": traffic.names[collective],
            "rounds": int(traffic.rounds[collective]),
            **({"queue_pair": pair} if pair else {}),
            **({"rate_Bps": rate} if np.isfinite(rate) else {}),
        }
        for source, target, bytes_, collective, pair, rate in zip(
            *(each.tolist() for each in (traffic.source, traffic.target, traffic.bytes)),
            *(each.tolist() for each in (traffic.collective, traffic.queue_pair, traffic.cap_Bps)),
            strict=True,
        )
    ]
    line = {"time_s": time_s, "event": "job-arrives", "job": traffic.jobs[0]}
    return json.dumps(line | {"pause_s": float(traffic.pause_s[0]), "flows": flows})


def _traffic(fields: EventLine, flows: Sequence[EventFlow], fabric: Fabric, where: str) -> JobTraffic:
    number = {name: i for i, name in enumerate(fabric.names[: fabric.accelerators])}
    rows = [
        FlowRow(
            source=accelerator_of(flow.source, number, fabric, where),
            target=accelerator_of(flow.target, number, fabric, where),
            bytes=flow.bytes,
            job=fields.job or "",
            collective=flow.collective,
            rounds=flow.rounds,
            queue_pair=flow.queue_pair,
            rate_Bps=np.inf if flow.rate_Bps is None else flow.rate_Bps,
        )
        for flow in flows
    ]
    return traffic_of(rows, where, start_s=np.array([fields.time_s]), pause_s=np.array([fields.pause_s]))


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
        time_s = _value(row["time_s"], f"{place}: time_s", "time_s")
        if ends in rows[time_s]:
            problem = f"a row above tells of {' -> '.join(ends)} at {time_s:g} s"
            raise BadInput(problem, where=place, remedy="give the sum of parallel links in one row")
        rows[time_s][ends] = {name: _value(row[name], f"{place}: {name}", name) for name in FIGURES if row.get(name)}
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


def _value(value: str, place: str, name: str) -> float:
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
