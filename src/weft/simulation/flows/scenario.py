"""Reader of plain flow scenarios.

Line 1 is ``nhosts nlinks nflows bytes_per_second``.  Then comes a line a flow, ``src dst bytes n l1 .. ln``
with directed link numbers, then a line a link, ``from to``.  Nodes are numbers, those of hosts first.  All links
have the same capacity, all flows start at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from weft.codec import encode
from weft.errors import BadInput
from weft.fabric.spec import Floats
from weft.fabric.traffic import Routes, Traffic, at_once
from weft.files import read_bytes
from weft.results import Result
from weft.simulation.flows.engine import Simulation

LARGEST_BYTES = 2**30
"""Size of the largest file that is read."""
LARGEST_COUNT = 10**8
"""Most hosts, links or flows of a scenario."""
_LAYOUT = 'line 1 "nhosts nlinks nflows bytes_per_second", "src dst bytes n l1 .. ln" a flow, "from to" a link'


def read_scenario(path: str | Path) -> tuple[Floats, Traffic, Routes]:
    """Capacities in bytes/s, traffic and routes of a scenario file.

    Raises:
        BadInput: it cannot be read, or says something that cannot be; its first problem is told.
    """
    where = str(path).replace("\0", "?")
    data = read_bytes(Path(path), where=where, largest=LARGEST_BYTES, remedy=_LAYOUT)
    rows: list[list[float]] = []
    problem = None
    for line in data.decode("ascii", "backslashreplace").rstrip().split("\n"):
        try:
            rows.append([float(word) for word in line.split()])
        except ValueError as error:
            problem = f"{str(error).partition(': ')[2][:40]} is not a number"
            raise BadInput(f"line {len(rows) + 1}: {problem}", where=where, remedy=_LAYOUT) from None
    if problem := _header_problem(rows):
        raise BadInput(problem, where=where, remedy=_LAYOUT)
    hosts, links, flows = map(int, rows[0][:3])
    ends, paths = rows[flows + 1 :], [row[4:] for row in rows[1 : flows + 1]]
    for number, row in enumerate([*ends, *rows[1 : flows + 1]]):
        problem = _link_problem(row) if number < links else _flow_problem(row, hosts, ends)
        if problem:
            at = number + flows + 2 if number < links else number - links + 2
            raise BadInput(f"line {at}: {problem}", where=where, remedy=_LAYOUT)
    source, target, size = np.array([row[:3] for row in rows[1 : flows + 1]]).reshape(-1, 3).T
    places = np.array(list(chain.from_iterable(paths)), dtype=np.int64)
    indptr = np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64)
    routes = Routes(indptr=indptr, links=places, usage=np.ones(len(places)), latency_s=np.zeros(flows))
    traffic = at_once(source.astype(np.int64), target.astype(np.int64), size.copy())
    return np.full(links, rows[0][3]), traffic, routes


def _is_below(value: float, limit: int) -> bool:
    """Whether a value is a whole number from 0 on below a limit."""
    return 0 <= value < limit and value == int(value)


def _header_problem(rows: list[list[float]]) -> str | None:
    header = rows[0]
    if len(rows) == 1 and not header:
        return "holds nothing"
    if len(header) != 4:
        return f"line 1: has {len(header)} numbers, not 4"
    hosts, links, flows, bandwidth = header
    if not (all(_is_below(count, LARGEST_COUNT + 1) for count in header[:3]) and 0 < bandwidth < np.inf):
        counts = f"{hosts:g} hosts, {links:g} links, {flows:g} flows, {bandwidth:g} bytes/s"
        return f"line 1: {counts}: counts go up to {LARGEST_COUNT:,}, the bandwidth is positive"
    if len(rows) != 1 + flows + links:
        return f"has {len(rows):,} lines, but line 1 announces {flows:,g} flows and {links:,g} links"
    return None


def _link_problem(row: list[float]) -> str | None:
    if len(row) != 2:
        return f"has {len(row)} numbers, not 2"
    return next((f"node {node:g}" for node in row if not _is_below(node, LARGEST_COUNT + 1)), None)


def _flow_problem(row: list[float], hosts: int, ends: list[list[float]]) -> str | None:
    """What is wrong with a flow: its numbers, or a path that does not lead from source to destination, or twice over a
    node."""
    if len(row) < 4 or row[3] != len(row) - 4:
        return f"has {len(row)} numbers, not 4 and as many links as the fourth says"
    source, target, size, _, *path = row
    for name, host in (("source", source), ("destination", target)):
        if not _is_below(host, hosts):
            return f"{name} {host:g} is none of {hosts} hosts"
    if not 0 <= size < np.inf:
        return f"{size:g} bytes"
    if source == target:
        return f"goes from {source:g} to itself"
    if not path:
        return "has no path"
    passed = [source]
    for link in path:
        if not _is_below(link, len(ends)):
            return f"link {link:g} is none of {len(ends)} links"
        begin, end = ends[int(link)]
        if begin != passed[-1]:
            return f"link {link:g} leaves {begin:g}, not {passed[-1]:g}"
        if end in passed:
            return f"path passes {end:g} twice"
        passed.append(end)
    return None if passed[-1] == target else f"path ends at {passed[-1]:g}, not {target:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEnd:
    """A flow in time."""

    begin_s: float
    completion_s: float
    bottleneck_link: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Bytes over a link, and the share of its capacity that they took."""

    bytes: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ScenarioReport(Result):
    """Flows on links of ``capacity_Bps``, and when they ended."""

    SCHEMA = "weft.simulate/1"
    DOCUMENT = "makespan_s flows links"

    capacity_Bps: Floats
    traffic: Traffic
    result: Simulation

    @property
    def makespan_s(self) -> float:
        return self.result.makespan_s

    @property
    def utilization(self) -> Floats:
        """Share of what each link could have carried until the end."""
        able = self.capacity_Bps * self.result.makespan_s
        return np.divide(self.result.link_bytes, able, out=np.zeros_like(able), where=able > 0)

    @property
    def flows(self) -> tuple[FlowEnd, ...]:
        """When each flow began and ended, and the link that held it back."""
        result = self.result
        columns = zip(result.begin_s.tolist(), result.completion_s.tolist(), result.bottleneck.tolist(), strict=True)
        return tuple(FlowEnd(begin_s=begin, completion_s=end, bottleneck_link=link) for begin, end, link in columns)

    @property
    def links(self) -> tuple[LinkUse, ...]:
        """What each link carried."""
        columns = zip(self.result.link_bytes.tolist(), self.utilization.tolist(), strict=True)
        return tuple(LinkUse(bytes=carried, utilization=share) for carried, share in columns)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every flow, in order."""
        return [encode(flow) for flow in self.flows]
