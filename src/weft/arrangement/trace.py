"""Traces of jobs that arrive: our own CSV, and the public trace of the Crux paper; and jobs made of their sizes.

Our own has the columns ``job``, ``arrival_s``, ``duration_s`` and ``accelerators``.

The public trace (github.com/alibaba/alibaba-lingjun-dataset-2023; Cao et al., SIGCOMM 2024) is a folder.  Of
``job.csv`` the columns job_name, gmt_job_submitted, gmt_job_running, and gmt_job_finished (or gmt_job_stopped) are
read; of ``worker.csv`` job_name and RES, a JSON object whose "nvidia.com/gpu" counts accelerators.  Jobs that never
ran, have no end or no accelerator are left out.  Its ``topo.csv`` is not read: the fabric is that of the site.

Traces do not say what jobs compute.  ``work_of`` gives each size a model of the catalogue by a fixed rule.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from weft.arrangement.site import Site, SiteJob, read_job
from weft.errors import BadInput
from weft.files import read_text

COLUMNS = ("job", "arrival_s", "duration_s", "accelerators")
DAY_S = 86_400.0
_GPU = "nvidia.com/gpu"
_TIMES = ("%Y/%m/%d %H:%M", "%Y-%m-%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S")
_WRITE_ONE = f"write a CSV file with the columns {', '.join(COLUMNS)}, or name the public trace's folder"
_MOST_S = 1e12
SMALL, MEDIUM = 4, 16
"""Hosts up to which a job is of a kind in ``work_of``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A job of a trace: seconds from its beginning to when it arrives, seconds that it ran, accelerators."""

    name: str
    arrival_s: float
    duration_s: float
    accelerators: int


def read_trace(source: str | os.PathLike[str], *, day: int | None = None) -> tuple[TraceJob, ...]:
    """The jobs of a trace in order of arrival, the first at 0 s.

    Args:
        source: a CSV file of our own, or a folder with ``job.csv`` and ``worker.csv``.
        day: only arrivals of that day of the trace, from 1.

    Raises:
        BadInput: the file cannot be read, a column is missing, a value cannot be used, or no job is left.
    """
    where = os.fspath(source)
    jobs = _public(Path(source)) if os.path.isdir(source) else _own(where)
    if jobs:
        begin = min(job.arrival_s for job in jobs) + (0.0 if day is None else (day - 1) * DAY_S)
        end = math.inf if day is None else begin + DAY_S
        jobs = [replace(job, arrival_s=job.arrival_s - begin) for job in jobs if begin <= job.arrival_s < end]
    if not jobs:
        raise BadInput("holds no job", where=where, remedy=_WRITE_ONE if day is None else "take another --day")
    return tuple(sorted(jobs, key=lambda job: (job.arrival_s, job.name)))


def work_of(job: TraceJob, site: Site) -> SiteJob:
    """What a job of a trace computes on a site: whole hosts, and a model by their number.

    One host runs GPT-2 XL with data parallelism.  Up to ``SMALL`` hosts run Llama 3.1 8B, up to ``MEDIUM`` Mixtral
    8x7B where a host has eight accelerators (else Llama 3.1 8B), more run Llama 3.1 70B; all but Mixtral with tensor
    parallelism over a host, the last in 4, 2 or 1 pipeline stages, as many as divide the hosts.  The batch grows
    with the job.

    Raises:
        BadInput: the layout cannot run on hosts of this size.
    """
    size = site.domain_size
    hosts = -(-job.accelerators // size)
    if hosts == 1:
        table = {"model": "gpt2-xl", "layout": f"dp={size}", "batch": 4 * size}
    elif SMALL < hosts <= MEDIUM and size == 8:
        table = {"model": "mixtral-8x7b", "layout": f"ep=8,dp={8 * hosts}", "batch": 16 * hosts}
    elif hosts <= MEDIUM:
        table = {"model": "llama-3.1-8b", "layout": f"tp={size},dp={hosts},sp", "batch": 4 * hosts}
    else:
        stages = math.gcd(hosts, 4)
        layout = f"tp={size},pp={stages},dp={hosts // stages},sp"
        table = {"model": "llama-3.1-70b", "layout": layout, "batch": 4 * hosts}
    return read_job({"name": job.name, **table}, site, Path(), f"job {job.name}")


def _rows(path: str, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Place and fields of every row of a CSV file."""
    text = read_text(path, where=path, remedy=_WRITE_ONE)
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise BadInput(f"column {missing[0]} is missing", where=path, remedy=_WRITE_ONE)
        for row in reader:
            place = f"{path}: line {reader.line_num}"
            if None in row or any(row[name] is None for name in columns):
                raise BadInput("has not as many cells as the heading", where=place, remedy=_WRITE_ONE)
            yield place, {name: row[name].strip() for name in row if row[name] is not None}
    except csv.Error as error:
        raise BadInput(f"is no CSV: {error}", where=path, remedy=_WRITE_ONE) from None


def _own(where: str) -> list[TraceJob]:
    found: dict[str, TraceJob] = {}
    for place, row in _rows(where, COLUMNS):
        name = row["job"]
        if not name or len(name) > 200:
            raise BadInput("has no name of 1 to 200 characters", where=f"{place}: job", remedy="name the job")
        if name in found:
            raise BadInput(f"job {name!r} is given twice", where=place, remedy="give each job its own name")
        found[name] = TraceJob(
            name=name,
            arrival_s=_number(row["arrival_s"], f"{place}: arrival_s"),
            duration_s=_number(row["duration_s"], f"{place}: duration_s", above=True),
            accelerators=_count(row["accelerators"], f"{place}: accelerators"),
        )
    return list(found.values())


def _public(folder: Path) -> list[TraceJob]:
    """Jobs of the public trace that ran to an end; their arrival is in seconds since 1970."""
    held: dict[str, int] = {}
    for place, row in _rows(str(folder / "worker.csv"), ("job_name", "RES")):
        held[row["job_name"]] = held.get(row["job_name"], 0) + _accelerators(row["RES"], f"{place}: RES")
    found: dict[str, TraceJob] = {}
    for place, row in _rows(str(folder / "job.csv"), ("job_name", "gmt_job_submitted", "gmt_job_running")):
        submitted, begun = (_moment(row[f"gmt_job_{name}"], place) for name in ("submitted", "running"))
        ended = _moment(row.get("gmt_job_finished", ""), place) or _moment(row.get("gmt_job_stopped", ""), place)
        count = held.get(row["job_name"], 0)
        if submitted is None or begun is None or ended is None or not submitted <= begun < ended or not count:
            continue
        if row["job_name"] in found:
            raise BadInput(f"job {row['job_name']!r} is given twice", where=place, remedy="give each job its own name")
        found[row["job_name"]] = TraceJob(
            name=row["job_name"], arrival_s=submitted, duration_s=ended - begun, accelerators=count
        )
    return list(found.values())


def _accelerators(text: str, where: str) -> int:
    """Accelerators of a worker; 0 where it has none."""
    if not text:
        return 0
    try:
        table = json.loads(text)
        count = int(str(table.get(_GPU) or 0)) if isinstance(table, dict) else -1
    except (ValueError, RecursionError):
        count = -1
    if not 0 <= count <= 10**6:
        raise BadInput("is no JSON object with a count of accelerators", where=where, remedy=f'write {{"{_GPU}": 8}}')
    return count


def _moment(text: str, where: str) -> float | None:
    """Seconds since 1970; None where nothing is written."""
    if not text:
        return None
    for form in _TIMES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    raise BadInput(f"{text[:40]!r} is no time", where=where, remedy="write it like 2023/8/1 09:30")


def _number(text: str, where: str, *, above: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 if above else value >= 0) or not value < _MOST_S:
        raise BadInput(f"{text[:40]!r} is out of range, or no number", where=where, remedy="write seconds")
    return value


def _count(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text)):
        raise BadInput(f"{text[:40]!r} is no count of accelerators", where=where, remedy="write a whole number from 1")
    return int(text)
