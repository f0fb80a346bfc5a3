"""Route plans as lists of paths: JSON (``weft.routes/1``), and a CSV table that is only read.

JSON has the path of every flow as names of nodes.  ``links`` stands only where several links join two nodes of a path:
which of them each hop takes, from 0.  A document of ``weft route --format json --paths`` (``weft.route/1``) has the
same flows.  Read back: the flows and their routes on a fabric whose nodes have the same names; rounds and pauses of
the jobs are not in the file.

A CSV table has a header with ``source``, ``target`` and ``path``: names of nodes from source to target with spaces
between.  Optional are ``queue_pair`` (0), ``job``, ``collective``, ``bytes`` (1), and ``links``: which of several
links between two nodes each hop takes, from 0, with spaces between.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from weft.codec import Range, decode
from weft.documents import csv_rows, parse_json
from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.fabric.traffic import Routes, whole_paths
from weft.interop.flow_tables import FlowRow, traffic_of
from weft.interop.plan_paths import planned_paths
from weft.routing.report import RouteReport, flow_rows
from weft.routing.traffic import JobTraffic, check_traffic
from weft.units import parse_bytes

SCHEMA = "weft.routes/1"
PATH_NEEDED = ("source", "target", "path")
PATH_COLUMNS = (*PATH_NEEDED, "queue_pair", "job", "collective", "bytes", "links")
_Name = Annotated[str, Range(0, 200)]
_Whole = Annotated[int, Range(0, 2**31, below=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFlow:
    """A flow of a document with its path."""

    source: str
    target: str
    queue_pair: _Whole
    job: _Name
    collective: _Name
    path: tuple[str, ...]
    bytes: float = 1.0
    cap_Bps: float | None = None
    links: tuple[_Whole, ...] = ()


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> str:
    """The plan as JSON; ``read`` gives the same flows and routes.

    Raises:
        Unsupported: a flow is split over several paths.
    """
    planned_paths(fabric, traffic, routes, where=SCHEMA)
    lines = [json.dumps(row) for row in flow_rows(fabric, traffic, routes)]
    head = f'"schema": {json.dumps(SCHEMA)}, "fabric": {json.dumps(fabric.name)}'
    return "{" + head + ', "flows": [\n' + ",\n".join(lines) + "\n]}\n"


def read(text: str, fabric: Fabric, *, where: str = "routes") -> tuple[JobTraffic, Routes]:
    """The flows of JSON and their routes; a flow without ``bytes`` has 1."""
    return _routed(_json_rows(text, where), fabric, where)


def read_paths(
    text: str, fabric: Fabric, traffic: JobTraffic | None = None, *, where: str = "routes"
) -> tuple[JobTraffic, Routes]:
    """The flows of JSON or a CSV table, or the given ones, and their routes.

    A flow of ``traffic`` takes the path of its ends and queue pair, or the only one of its ends.
    """
    rows = _json_rows(text, where) if text.lstrip().startswith("{") else _table_rows(text, where)
    listed, routes = _routed(rows, fabric, where)
    if traffic is None:
        return listed, routes
    number: dict[tuple[int, int, int], int] = {}
    alone: dict[tuple[int, int], int] = {}
    for flow, ends in enumerate(zip(listed.source.tolist(), listed.target.tolist(), strict=True)):
        number[(*ends, int(listed.queue_pair[flow]))] = flow
        alone[ends] = -1 if ends in alone else flow
    chosen = []
    columns = (traffic.source, traffic.target, traffic.queue_pair)
    for source, target, pair in zip(*(each.tolist() for each in columns), strict=True):
        flow = number.get((source, target, pair), alone.get((source, target), -1))
        if flow < 0:
            named = f"{fabric.names[source]} -> {fabric.names[target]} (queue pair {pair})"
            raise BadInput(f"has no path for {named}", where=where, remedy="list the path of each flow of the traffic")
        chosen.append(routes.links[routes.indptr[flow] : routes.indptr[flow + 1]].tolist())
    return traffic, routes_of_links(fabric, chosen)


def routes_of_links(fabric: Fabric, paths: list[list[int]]) -> Routes:
    """Routes from the links of every flow, in order."""
    lengths = np.array([len(path) for path in paths], dtype=np.int64)
    return whole_paths(fabric, lengths, np.array([link for path in paths for link in path], dtype=np.int64))


def _json_rows(text: str, where: str) -> Iterator[tuple[PathFlow, str]]:
    """The flows of JSON, each with its place."""
    table = parse_json(text, where)
    if not isinstance(table, dict) or table.get("schema") not in (SCHEMA, RouteReport.SCHEMA):
        raise BadInput(f"is not of schema {SCHEMA}", where=where, remedy=f'begin with "schema": "{SCHEMA}"')
    flows = table.get("flows")
    if isinstance(flows, int):
        raise BadInput("lists no paths", where=where, remedy="write it with weft route --format json --paths")
    place = f"{where}: flows"
    for number, row in enumerate(decode(tuple[PathFlow, ...], flows, place)):
        yield row, f"{place}[{number}]"


def _table_rows(text: str, where: str) -> Iterator[tuple[PathFlow, str]]:
    """The rows of a CSV table, each with its place."""
    for cells, place in csv_rows(text, where, PATH_NEEDED, PATH_COLUMNS):
        row: dict[str, Any] = {"job": "job", "collective": "flows"} | {
            key: cell for key, cell in cells.items() if cell
        }
        row |= {"path": cells["path"].split(), "queue_pair": _numbers(row.get("queue_pair", "0"), place)[0]}
        if "bytes" in row:
            row["bytes"] = parse_bytes(row["bytes"], f"{place}: bytes")
        if "links" in row:
            row["links"] = _numbers(row["links"], f"{place}: links")
        yield decode(PathFlow, row, place), place


def _numbers(text: str, place: str) -> list[int]:
    words = text.split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise BadInput(f"{text[:40]!r} is not a whole number", where=place, remedy="count from 0")
    return [int(word) for word in words]


def _routed(rows: Iterable[tuple[PathFlow, str]], fabric: Fabric, where: str) -> tuple[JobTraffic, Routes]:
    """The flows of rows and their routes."""
    between: dict[tuple[int, int], list[int]] = defaultdict(list)
    for link, ends in enumerate(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)):
        between[ends].append(link)
    number = {name: node for node, name in enumerate(fabric.names)}
    flows: list[FlowRow] = []
    paths: list[list[int]] = []
    for row, place in rows:
        if len(row.path) < 2 or (row.path[0], row.path[-1]) != (row.source, row.target):
            raise BadInput("the path does not lead from source to target", where=place, remedy="list its nodes")
        if unknown := [name for name in row.path if name not in number]:
            problem = f"there is no node {unknown[0][:60]!r}"
            raise BadInput(problem, where=place, remedy="use the fabric that was planned on")
        nodes = [number[name] for name in row.path]
        paths.append(_links(nodes, row.links, between, fabric, place))
        flows.append(
            FlowRow(
                source=nodes[0],
                target=nodes[-1],
                bytes=row.bytes,
                job=row.job,
                collective=row.collective,
                queue_pair=row.queue_pair,
                rate_Bps=math.inf if row.cap_Bps is None else row.cap_Bps,
            )
        )
    traffic = traffic_of(flows, where)
    check_traffic(fabric, traffic, where=where)
    return traffic, routes_of_links(fabric, paths)


def _links(
    nodes: list[int], turns: tuple[int, ...], between: dict[tuple[int, int], list[int]], fabric: Fabric, place: str
) -> list[int]:
    """The links of a path of nodes."""
    turns = turns or (0,) * (len(nodes) - 1)
    if len(turns) != len(nodes) - 1:
        raise BadInput("links does not give one number per hop", where=place)
    links = []
    for a, b, turn in zip(nodes, nodes[1:], turns, strict=False):
        parallel = between.get((a, b), [])
        hop = f"{fabric.names[a]} -> {fabric.names[b]}"
        if turn >= len(parallel):
            raise BadInput(f"no such link {hop}", where=place, remedy="use the fabric that was planned on")
        if not fabric.up[parallel[turn]]:
            raise BadInput(f"the link {hop} is down", where=place, remedy="plan again")
        links.append(parallel[turn])
    return links
