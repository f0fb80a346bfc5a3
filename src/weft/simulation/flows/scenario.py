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
from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Routes, Traffic, at_once
from weft.files import read_bytes
from weft.results import Result
from weft.simulation.flows.engine import Simulation

LARGEST_BYTES = 2**30
"""Size of the largest file that is read."""
LARGEST_COUNT = 10**8
"""Most hosts, links or flows of a scenario."""
PROBLEMS = 4
"""Problems named before the rest is counted."""
_NUMERIC = b"0123456789.eE+- \t\r\n"
_LAYOUT = 'line 1 "nhosts nlinks nflows bytes_per_second", "src dst bytes n l1 .. ln" a flow, "from to" a link'


def read_scenario(path: str | Path) -> tuple[Floats, Traffic, Routes]:
    """Capacities in bytes/s, traffic and routes of a scenario file."""
    rows = [line.split() for line in _lines(Path(path))]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    numbers = _numbers(rows, path)
    hosts, links, flows, bandwidth = _header(numbers, counts, len(rows), path)
    begin = np.cumsum(counts) - counts
    first, lengths = begin[1 : flows + 1], counts[1 : flows + 1] - 4
    # Each check relies on those before it, so that the first one that finds anything ends the reading.
    _refuse(_shape_problems(counts, numbers, begin, flows), path)
    line, places = np.repeat(np.arange(flows), lengths), np.cumsum(lengths) - lengths
    route = numbers[np.repeat(first + 4 - places, lengths) + np.arange(lengths.sum())]
    ends = numbers[begin[flows + 1] :] if links else numbers[:0]
    source, target, size = (numbers[first + column] for column in range(3))
    problems = [(2 + at, f"source {source[at]:g} is none of {hosts} hosts") for at in _not_below(source, hosts)]
    problems += [(2 + at, f"destination {target[at]:g} is none of {hosts} hosts") for at in _not_below(target, hosts)]
    problems += [(2 + at, f"{size[at]:g} bytes") for at in np.flatnonzero(~((size >= 0) & (size < np.inf))).tolist()]
    problems += [
        (2 + int(line[at]), f"link {route[at]:g} is none of {links} links") for at in _not_below(route, links)
    ]
    _refuse(problems, path)
    bad_ends = _not_below(ends, LARGEST_COUNT + 1)
    _refuse([(flows + 2 + at // 2, f"node {ends[at]:g}") for at in bad_ends], path)
    indptr, route = np.concatenate([[0], np.cumsum(lengths)]), route.astype(np.int64)
    traffic = at_once(source.astype(np.int64), target.astype(np.int64), size)
    _refuse(_path_problems(traffic, indptr, route, ends.reshape(-1, 2).astype(np.int64)), path)
    routes = Routes(indptr=indptr, links=route, usage=np.ones(len(route)), latency_s=np.zeros(flows))
    return np.full(links, bandwidth), traffic, routes


def _not_below(values: Floats, limit: int) -> list[int]:
    """Where values are not whole numbers from 0 on below a limit."""
    return np.flatnonzero(~((values >= 0) & (values < limit) & (values == np.floor(values)))).tolist()


def _lines(path: Path) -> list[bytes]:
    """Lines of a file of numbers, without blank ones at the end."""
    data = read_bytes(path, where=str(path).replace("\0", "?"), largest=LARGEST_BYTES, remedy=_LAYOUT)
    if data.translate(None, _NUMERIC):
        for number, line in enumerate(data.split(b"\n"), start=1):
            strange = line.translate(None, _NUMERIC)
            if strange:
                sample = strange[:20].decode("ascii", "backslashreplace")
                raise BadInput(f"line {number} holds {sample!r}", where=str(path), remedy=f"write numbers: {_LAYOUT}")
    return data.rstrip().split(b"\n") if data.strip() else []


def _numbers(rows: list[list[bytes]], path: str | Path) -> Floats:
    """All numbers of the file in one array."""
    try:
        return np.array(list(chain.from_iterable(rows)), dtype=np.float64)
    except ValueError:
        for number, row in enumerate(rows, start=1):
            for word in row:
                try:
                    float(word)
                except ValueError:
                    problem = f"line {number}: {word[:20].decode('ascii')!r} is not a number"
                    raise BadInput(problem, where=str(path), remedy=f"write numbers: {_LAYOUT}") from None
        raise


def _header(numbers: Floats, counts: Ints, lines: int, path: str | Path) -> tuple[int, int, int, float]:
    if lines == 0:
        raise BadInput("holds nothing", where=str(path), remedy=_LAYOUT)
    if counts[0] != 4:
        raise BadInput(f"line 1 has {counts[0]} numbers, not 4", where=str(path), remedy=_LAYOUT)
    *whole, bandwidth = numbers[:4].tolist()
    if _not_below(numbers[:3], LARGEST_COUNT + 1) or not 0 < bandwidth < np.inf:
        raise BadInput(
            f"line 1 has {whole[0]:g} hosts, {whole[1]:g} links, {whole[2]:g} flows, {bandwidth:g} bytes/s",
            where=str(path),
            remedy=f"give counts of at most {LARGEST_COUNT:,} and a positive bandwidth",
        )
    hosts, links, flows = map(int, whole)
    if lines != 1 + flows + links:
        raise BadInput(
            f"has {lines:,} lines, but line 1 announces {flows:,} flows and {links:,} links",
            where=str(path),
            remedy=f"give {1 + flows + links:,} lines: {_LAYOUT}",
        )
    return hosts, links, flows, bandwidth


def _shape_problems(counts: Ints, numbers: Floats, begin: Ints, flows: int) -> list[tuple[int, str]]:
    """Lines with too few or too many numbers."""
    flow, link = counts[1 : flows + 1], counts[flows + 1 :]
    announced = np.full(flows, np.nan)
    announced[flow >= 4] = numbers[begin[1 : flows + 1][flow >= 4] + 3]
    problems = []
    for at in np.flatnonzero(announced != flow - 4).tolist():
        wanted = "4 or more" if flow[at] < 4 else f"4 + {announced[at]:g}"
        problems.append((2 + at, f"has {flow[at]} numbers, not {wanted}"))
    bad = np.flatnonzero(link != 2).tolist()
    return problems + [(flows + 2 + at, f"has {link[at]} numbers, not 2") for at in bad]


def _path_problems(traffic: Traffic, indptr: Ints, route: Ints, ends: Ints) -> list[tuple[int, str]]:
    """Flows to themselves, and paths that do not lead from source to destination or pass a node twice."""
    source, target, lengths = traffic.source, traffic.target, np.diff(indptr)
    flow = np.repeat(np.arange(len(source)), lengths)
    # A path passes its source, then the end of each link; a link must begin where the one before it ended.
    passed, enters = ends[route, 1], np.zeros(len(route), dtype=np.int64)
    enters[1:] = passed[:-1]
    some = lengths > 0
    enters[indptr[:-1][some]] = source[some]
    last = source.copy()
    last[some] = passed[indptr[1:][some] - 1]
    nodes, number = np.unique(np.append(passed, source), return_inverse=True)
    visits = np.append(flow, np.arange(len(source))) * max(len(nodes), 1) + number.reshape(-1)
    visit, times = np.unique(visits, return_counts=True)
    # The first problem of a flow is told.
    problems = {at: f"goes from {source[at]} to itself" for at in np.flatnonzero(source == target).tolist()}
    for at in np.flatnonzero(~some).tolist():
        problems.setdefault(at, "has no path")
    for at in np.flatnonzero(ends[route, 0] != enters).tolist():
        left = f"link {route[at]} leaves {ends[route[at], 0]}, not {enters[at]}"
        problems.setdefault(int(flow[at]), left)
    for at in np.flatnonzero(last != target).tolist():
        problems.setdefault(at, f"path ends at {last[at]}, not {target[at]}")
    for at, node in zip(*divmod(visit[times > 1], max(len(nodes), 1)), strict=True):
        problems.setdefault(int(at), f"path passes {nodes[node]} twice")
    return [(2 + at, text) for at, text in problems.items()]


def _refuse(problems: list[tuple[int, str]], path: str | Path) -> None:
    if problems:
        words = "; ".join(f"line {line}: {text}" for line, text in sorted(problems)[:PROBLEMS])
        more = f"; and {len(problems) - PROBLEMS} more" if len(problems) > PROBLEMS else ""
        raise BadInput(f"{words}{more}", where=str(path), remedy=_LAYOUT)


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
