"""Flows of jobs from CSV tables.

A header with ``source``, ``target`` and ``bytes``; optional ``job``, ``collective``, ``rounds``,
``queue_pair`` and ``rate`` (the most that the flow can use, as "50 Gb/s" or bytes/s).  Ends are names of
accelerators, or their numbers; bytes may carry a unit.  Flows without a collective are one collective of
their job.

Measured flows have ``start_s`` and ``end_s`` instead of the optional columns: a row for each record of a switch, a NIC
or a counter, in seconds of any clock or as times with a zone.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.documents import csv_rows
from weft.errors import BadInput
from weft.fabric.spec import Fabric, Floats
from weft.files import read_text
from weft.routing.demand import FlowRecords
from weft.routing.problem import port_Bps
from weft.routing.traffic import JobTraffic, job_traffic
from weft.units import format_si, parse_bandwidth, parse_bytes, parse_moment

COLUMNS = ("source", "target", "bytes", "job", "collective", "rounds", "queue_pair", "rate")
_NEEDED = COLUMNS[:3]
MEASURED = (*_NEEDED, "start_s", "end_s")
MOST_BYTES = 1e18
LATEST_S = 1e11


def read_csv(path: str | os.PathLike[str], fabric: Fabric) -> JobTraffic:
    """The flows of a CSV table."""
    where = os.fspath(path)
    number = {name: i for i, name in enumerate(fabric.names[: fabric.accelerators])}
    table = list(csv_rows(read_text(path, where=where), where, _NEEDED, COLUMNS))
    rows = [_row(row, number, fabric, place) for row, place in table]
    if not rows:
        raise BadInput("holds no flow", where=where, remedy="add a line for each flow")
    rate = np.array([row.rate_Bps for row in rows])
    most = port_Bps(fabric, np.array([row.source for row in rows]), np.array([row.target for row in rows]))
    for at in np.flatnonzero((rate > most * (1 + 1e-9)) & (rate < np.inf))[:1]:
        problem = f"{format_si(rate[at], 'B/s')} is more than the {format_si(most[at], 'B/s')} of its ends' links"
        raise BadInput(problem, where=f"{table[at][1]}: rate", remedy="give at most that")
    return traffic_of(rows, where)


class FlowRow(NamedTuple):
    """A flow, as a row of a table or a document has it; ``rate_Bps`` is infinite where nothing bounds it."""

    source: int
    target: int
    bytes: float
    job: str
    collective: str
    rounds: int = 1
    queue_pair: int = 0
    rate_Bps: float = math.inf


def read_records(paths: Sequence[str], fabric: Fabric) -> FlowRecords:
    """The measured flows of CSV tables, which may be none."""
    number = {name: i for i, name in enumerate(fabric.names[: fabric.accelerators])}
    rows = []
    for path in paths:
        for row, place in csv_rows(read_text(path, where=path), path, MEASURED, MEASURED):
            ends = [accelerator_of(row[name], number, fabric, f"{place}: {name}") for name in _NEEDED[:2]]
            start, end = (_moment(row[name], f"{place}: {name}") for name in MEASURED[3:])
            if end < start:
                raise BadInput("ends before it starts", where=place, remedy="give start_s and end_s of one clock")
            rows.append((*ends, _size(row["bytes"], place), start, end))
    table = np.array(rows, dtype=np.float64).reshape(-1, len(MEASURED))
    source, target = table[:, :2].T.astype(np.int64)
    return FlowRecords(source=source, target=target, bytes=table[:, 2], start_s=table[:, 3], end_s=table[:, 4])


def _moment(text: str, place: str) -> float:
    """Seconds of a clock that may start anywhere."""
    try:
        seconds = float(text)
    except ValueError:
        return parse_moment(text, place)
    if not abs(seconds) <= LATEST_S:
        raise BadInput(f"{text[:40]!r} is not a time", where=place, remedy="give seconds of any clock")
    return seconds


def _size(text: str, place: str) -> float:
    size = float(parse_bytes(text, f"{place}: bytes"))
    if not 0 <= size < MOST_BYTES:
        raise BadInput(f"{size:g} bytes", where=f"{place}: bytes", remedy=f"give less than {MOST_BYTES:g}")
    return size


def _row(row: dict[str, str], number: dict[str, int], fabric: Fabric, place: str) -> FlowRow:
    ends = [accelerator_of(row[name], number, fabric, f"{place}: {name}") for name in ("source", "target")]
    size = _size(row["bytes"], place)
    for name, text in row.items():
        if not text.isprintable():
            raise BadInput("holds characters that cannot be printed", where=f"{place}: {name}")
    rounds = _whole(row.get("rounds") or "1", 1, f"{place}: rounds")
    queue_pair = _whole(row.get("queue_pair") or "0", 0, f"{place}: queue_pair")
    rate = parse_bandwidth(row["rate"], f"{place}: rate") if row.get("rate") else math.inf
    job, collective = row.get("job") or "job", row.get("collective") or "flows"
    return FlowRow(ends[0], ends[1], size, job, collective, rounds, queue_pair, rate)


def accelerator_of(end: str | int, number: dict[str, int], fabric: Fabric, place: str) -> int:
    """The accelerator of a name or of its number."""
    at = number.get(end, -1) if isinstance(end, str) else end
    if isinstance(end, str) and at < 0 and end.isascii() and end.isdigit() and len(end) < 10:
        at = int(end)
    if not 0 <= at < fabric.accelerators:
        problem = f"{reprlib.repr(end)} is not an accelerator of {fabric.name}"
        remedy = f"use names like {fabric.names[0]}, or numbers from 0 to {fabric.accelerators - 1}"
        raise BadInput(problem, where=place, remedy=remedy)
    return at


def _whole(text: str, low: int, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= low):
        raise BadInput(f"{text[:20]!r} is not a whole number from {low}", where=place)
    return int(text)


def traffic_of(rows: Sequence[FlowRow], where: str, **times: Floats) -> JobTraffic:
    """The traffic of flows in their order; ``times`` are of the jobs, as ``job_traffic`` takes them."""
    jobs = list(dict.fromkeys(row.job for row in rows))
    collectives = list(dict.fromkeys((row.job, row.collective) for row in rows))
    job_at = {name: i for i, name in enumerate(jobs)}
    at = {collective: i for i, collective in enumerate(collectives)}
    rounds: dict[tuple[str, str], int] = {}
    for row in rows:
        if rounds.setdefault((row.job, row.collective), row.rounds) != row.rounds:
            raise BadInput(f"collective {row.collective!r} of {row.job} has several numbers of rounds", where=where)
    return job_traffic(
        np.array([row.source for row in rows], dtype=np.int64),
        np.array([row.target for row in rows], dtype=np.int64),
        np.array([row.bytes for row in rows], dtype=np.float64),
        collective=np.array([at[row.job, row.collective] for row in rows], dtype=np.int64),
        job=np.array([job_at[job] for job, _ in collectives], dtype=np.int64),
        rounds=np.array([rounds[collective] for collective in collectives], dtype=np.int64),
        names=[name for _, name in collectives],
        jobs=jobs,
        cap_Bps=np.array([row.rate_Bps for row in rows], dtype=np.float64),
        queue_pair=np.array([row.queue_pair for row in rows], dtype=np.int64),
        **times,
    )
