"""Route plans as JSON (``weft.routes/1``): the path of every flow as names of nodes.

``links`` stands only where several links join two nodes of a path: which of them each hop takes, from 0.
A document of ``weft route --format json --paths`` (``weft.route/1``) has the same flows.

Read back: the flows and their routes on a fabric whose nodes have the same names; rounds and pauses of the
jobs are not in the file.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from weft.documents import parse_json
from weft.errors import BadInput
from weft.fabric.assemble import finite
from weft.fabric.spec import Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.plan_paths import planned_paths
from weft.routing.report import RouteReport, flow_rows
from weft.routing.traffic import JobTraffic, check_traffic, job_traffic

SCHEMA = "weft.routes/1"
MOST_FLOWS = 5_000_000
_REQUIRED = {"source", "target", "queue_pair", "job", "collective", "path"}
_FIELDS = {*_REQUIRED, "bytes", "cap_Bps", "links"}


def write(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> str:
    """The plan as JSON; ``read`` gives the same flows and routes.

    Raises:
        Unsupported: a flow is split over several paths.
        BadInput: the routes are not of this traffic and fabric.
    """
    planned_paths(fabric, traffic, routes, where=SCHEMA)
    lines = [json.dumps(row) for row in flow_rows(fabric, traffic, routes)]
    head = f'"schema": {json.dumps(SCHEMA)}, "fabric": {json.dumps(fabric.name)}'
    return "{" + head + ', "flows": [\n' + ",\n".join(lines) + "\n]}\n"


def read(text: str, fabric: Fabric, *, where: str = "routes") -> tuple[JobTraffic, Routes]:
    """The flows of a file and their routes; a flow without ``bytes`` has 1.

    Raises:
        BadInput: not in this format, an unknown node, a missing link or one that is down, or flows that
            cannot be (see ``check_traffic``).
    """
    return routed(_rows(text, where), fabric, where=where)


def routed(rows: Iterable[tuple[dict[str, Any], str]], fabric: Fabric, *, where: str) -> tuple[JobTraffic, Routes]:
    """The flows of rows as ``flow_rows`` makes them, each with its place in a file, and their routes.

    Raises:
        BadInput: an unknown node, a missing link or one that is down, or flows that cannot be.
    """
    between: dict[tuple[int, int], list[int]] = defaultdict(list)
    for link, ends in enumerate(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)):
        between[ends].append(link)
    node = {name: i for i, name in enumerate(fabric.names)}
    jobs: dict[str, int] = {}
    collectives: dict[tuple[int, str], int] = {}
    columns: list[tuple[int, int, int, int, float, float]] = []
    paths: list[list[int]] = []
    for row, place in rows:
        names = row["path"]
        if not isinstance(names, list) or len(names) < 2 or [names[0], names[-1]] != _ends(row):
            raise BadInput("the path is no list of names from source to target", where=place, remedy="list its nodes")
        nodes = [_node(name, node, place) for name in names]
        paths.append(_links(nodes, row, between, fabric, place))
        job = jobs.setdefault(_word(row, "job", place), len(jobs))
        group = collectives.setdefault((job, _word(row, "collective", place)), len(collectives))
        cap = _number(row, "cap_Bps", place) if "cap_Bps" in row else np.inf
        size = _number(row, "bytes", place) if "bytes" in row else 1.0
        columns.append((nodes[0], nodes[-1], group, _count(row["queue_pair"], place), size, cap))
    traffic = _traffic(columns, jobs, collectives)
    check_traffic(fabric, traffic, where=where)
    return traffic, routes_of_links(fabric, paths)


def lint(text: str) -> tuple[str, ...]:
    """What is wrong with a file, as far as it shows without the fabric: fields, paths, repeated flows."""
    found = []
    seen = set()
    try:
        for row, place in _rows(text, SCHEMA):
            path = row["path"]
            words = [*path] if isinstance(path, list) else []
            if len(words) < 2 or not all(isinstance(word, str) for word in words):
                found.append(f"{place}: the path is no list of names")
            elif [words[0], words[-1]] != _ends(row):
                found.append(f"{place}: the path does not join source and target")
            elif len(set(words)) < len(words):
                found.append(f"{place}: the path comes to a node twice")
            key = json.dumps([row[name] for name in ("job", "collective", "source", "target", "queue_pair")])
            found += [f"{place}: the flow is listed twice"] if key in seen else []
            seen.add(key)
    except BadInput as error:
        found.append(str(error))
    return tuple(found)


def _rows(text: str, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    table = parse_json(text, where)
    if not isinstance(table, dict) or table.get("schema") not in (SCHEMA, RouteReport.SCHEMA):
        raise BadInput(f"is not of schema {SCHEMA}", where=where, remedy=f'begin with "schema": "{SCHEMA}"')
    flows = table.get("flows")
    if isinstance(flows, int):
        raise BadInput("lists no paths", where=where, remedy="write it with weft route --format json --paths")
    if not isinstance(flows, list) or len(flows) > MOST_FLOWS:
        raise BadInput(f"has no list of flows, or more than {MOST_FLOWS:,}", where=where)
    for number, row in enumerate(flows):
        place = f"{where}: flows[{number}]"
        missing = sorted(_REQUIRED - set(row)) if isinstance(row, dict) else sorted(_REQUIRED)
        if missing:
            raise BadInput(f"has no {missing[0]}", where=place, remedy=f"give {', '.join(sorted(_REQUIRED))}")
        if not set(row) <= _FIELDS:
            strange = min(set(row) - _FIELDS)
            raise BadInput(f"{strange[:40]!r} is not a known field", where=place, remedy="remove it")
        yield row, place


def _ends(row: dict[str, Any]) -> list[Any]:
    return [row["source"], row["target"]]


def _word(row: dict[str, Any], key: str, place: str) -> str:
    value = row[key]
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise BadInput(f"{key} is no name", where=place, remedy="use up to 200 printable characters")
    return value


def _number(row: dict[str, Any], key: str, place: str) -> float:
    if not isinstance(row[key], int | float):
        raise BadInput(f"{key} is no number", where=place)
    return finite(row[key], key, place)


def _count(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise BadInput("queue_pair is no whole number from 0", where=place)
    return value


def _node(name: object, node: dict[str, int], place: str) -> int:
    if not isinstance(name, str) or name not in node:
        raise BadInput(
            f"there is no node {str(name)[:60]!r}", where=place, remedy="use the fabric that was planned on"
        )
    return node[name]


def _links(
    nodes: list[int], row: dict[str, Any], between: dict[tuple[int, int], list[int]], fabric: Fabric, place: str
) -> list[int]:
    among = row.get("links", [0] * (len(nodes) - 1))
    if not isinstance(among, list) or len(among) != len(nodes) - 1:
        raise BadInput("links does not give one number per hop", where=place)
    found = []
    for a, b, nth in zip(nodes, nodes[1:], among, strict=False):
        links = between.get((a, b), [])
        hop = f"{fabric.names[a]} -> {fabric.names[b]}"
        if not links or isinstance(nth, bool) or not isinstance(nth, int) or not 0 <= nth < len(links):
            raise BadInput(f"no such link {hop}", where=place, remedy="use the fabric that was planned on")
        if not fabric.up[links[nth]]:
            raise BadInput(f"the link {hop} is down", where=place, remedy="plan again")
        found.append(links[nth])
    return found


def _traffic(
    columns: list[tuple[int, int, int, int, float, float]],
    jobs: dict[str, int],
    collectives: dict[tuple[int, str], int],
) -> JobTraffic:
    source, target, group, pair, size, cap = zip(*columns, strict=True) if columns else ((),) * 6
    return job_traffic(
        np.array(source, dtype=np.int64),
        np.array(target, dtype=np.int64),
        np.array(size, dtype=np.float64),
        collective=np.array(group, dtype=np.int64),
        job=np.array([job for job, _ in collectives], dtype=np.int64),
        names=[name for _, name in collectives],
        jobs=list(jobs),
        cap_Bps=np.array(cap, dtype=np.float64),
        queue_pair=np.array(pair, dtype=np.int64),
    )


def routes_of_links(fabric: Fabric, paths: list[list[int]]) -> Routes:
    """Routes from the links of every flow, in order."""
    counts = np.array([len(path) for path in paths], dtype=np.int64)
    links = np.array([link for path in paths for link in path], dtype=np.int64)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    latency = np.add.reduceat(fabric.latency_s[links], indptr[:-1]) if paths else np.zeros(0)
    return Routes(indptr=indptr, links=links, usage=np.ones(len(links)), latency_s=latency)
