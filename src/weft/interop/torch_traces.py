"""PyTorch's two kinds of traces as workloads, told apart by their beginning: those of the profiler (``kineto``), and
execution traces.

``ExecutionTraceObserver`` (schema 1.0.3 or later) writes the operators of one rank as nodes.  A collective is a node
``record_param_comms`` with attributes; nodes ``## process_group:init ##`` list the groups.  Such a trace says neither
how long a node computes (unless a tool has added ``dur``) nor what waits for what on the GPU.
"""

from __future__ import annotations

import gzip
import json
import os
import reprlib
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from weft.errors import BadInput, Unsupported
from weft.interop.kineto import read_kineto
from weft.interop.torch_records import communication, kind_of, number, rank_list, read_json
from weft.model.workload import Communication, Task, Workload

PEEK_BYTES = 1_000_000


def read_torch_trace(path: str | os.PathLike[str]) -> Workload:
    """The workload of a profiler's trace (Kineto) or of an execution trace, JSON or gzipped JSON.

    Raises:
        Unsupported: a collective that Weft does not model.
    """
    start = b""
    with suppress(OSError, EOFError, zlib.error, ValueError), open(path, "rb") as file:  # the readers will say why
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        start = gzip.GzipFile(fileobj=file).read(PEEK_BYTES) if packed else file.read(PEEK_BYTES)
    execution = b'"traceEvents"' not in start and b'"nodes"' in start
    return read_pytorch_trace(path) if execution else read_kineto(path)


MOST_RANKS = 10**7
_GROUPS = "## process_group:init ##"
_COLLECTIVE = "record_param_comms"
_EXECUTION_KEYS = {"in": "in_msg_nelems", "out": "out_msg_nelems", "dtype": "dtype", "ranks": "ranks"}
_NO_TRAFFIC = ("wait", "init", "start_coalescing", "end_coalescing")
_EXECUTION_ASSUMPTIONS = (
    "the rank of the trace stands for all ranks",
    "tasks run one after the other: the trace does not say what overlaps",
    "a receive counts as a message of its size",
)


def read_pytorch_trace(path: str | os.PathLike[str]) -> Workload:
    """The collectives of a trace (.json or .json.gz) of one rank in program order, and its computations.

    Computations are the innermost nodes with a ``dur`` (microseconds), joined between collectives.

    Raises:
        Unsupported: a collective that is not modelled.
    """
    where = os.fspath(path)
    nodes = _nodes(read_json(path, where=where), where)
    groups = _groups(nodes, where)
    seconds = _seconds(nodes, where)
    tasks: list[Task] = []

    def add(name: str, computed_s: float = 0.0, communication: Communication | None = None) -> None:
        waits = (len(tasks) - 1,) if tasks else ()
        tasks.append(Task(name=name, seconds=computed_s, communication=communication, waits=waits))

    computed_s = 0.0
    for number_, node in nodes.items():
        computed_s += seconds.get(number_, 0.0)
        collective = None
        if node["name"] == _COLLECTIVE:
            collective = _of_node(node, groups, f"{where}: node {number_}")
        if collective is not None:
            if computed_s > 0:
                add("compute", computed_s)
            add(collective[0], communication=collective[1])
            computed_s = 0.0
    if computed_s > 0:
        add("compute", computed_s)
    if not tasks:
        raise BadInput(
            f"has neither collectives ({_COLLECTIVE}) nor durations",
            where=where,
            remedy="give an execution trace of a distributed run",
        )
    unknown = () if seconds else ("the trace has no durations: computations take 0 s",)
    return Workload(name=where, tasks=tuple(tasks), assumptions=(*_EXECUTION_ASSUMPTIONS, *unknown))


def _nodes(document: Any, where: str) -> dict[int, dict[str, Any]]:
    """Nodes by their numbers, in program order."""
    listed = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise BadInput(
            "is not an execution trace: it has no list of nodes",
            where=where,
            remedy="give a file of torch.profiler's ExecutionTraceObserver",
        )
    nodes: dict[int, dict[str, Any]] = {}
    for place, node in enumerate(listed):
        if not isinstance(node, dict) or type(node.get("id")) is not int or not isinstance(node.get("name"), str):
            raise BadInput("has no id and name", where=f"{where}: nodes[{place}]")
        if node["id"] in nodes:
            raise BadInput(f"the id {reprlib.repr(node['id'])} is given twice", where=f"{where}: nodes[{place}]")
        nodes[node["id"]] = node
    return dict(sorted(nodes.items()))


def _seconds(nodes: Mapping[int, dict[str, Any]], where: str) -> dict[int, float]:
    """Seconds of the innermost nodes that have a duration, apart from collectives and what holds them."""
    timed, outer = {}, set()
    for number_, node in nodes.items():
        if node["name"] == _COLLECTIVE or "dur" in node:
            parent = node.get("ctrl_deps", node.get("parent"))
            if type(parent) is int:
                outer.add(parent)
        if "dur" in node and node["name"] != _COLLECTIVE:
            timed[number_] = number(node["dur"], f"{where}: node {number_}: dur") * 1e-6
            if timed[number_] < 0:
                raise BadInput("takes less than no time", where=f"{where}: node {number_}: dur")
    return {number_: seconds for number_, seconds in timed.items() if number_ not in outer}


def _groups(nodes: Mapping[int, dict[str, Any]], where: str) -> dict[str, tuple[int, ...]]:
    """Ranks of the process groups that the trace lists."""
    ranks_of = {}
    for number_, node in nodes.items():
        if node["name"] != _GROUPS:
            continue
        place = f"{where}: node {number_}"
        inputs = node.get("inputs")
        values = inputs.get("values") if isinstance(inputs, dict) else inputs
        text = values[0] if isinstance(values, list) and values else None
        try:
            listed = json.loads(text) if isinstance(text, str) else text
        except (ValueError, RecursionError):
            listed = None
        if not isinstance(listed, list) or not all(isinstance(group, dict) for group in listed):
            raise BadInput("its first input is not a list of process groups", where=place)
        for group in listed:
            ranks = rank_list(group.get("ranks"))
            if ranks is not None:
                ranks_of[str(group.get("pg_name"))] = ranks
    return ranks_of


def _of_node(
    node: dict[str, Any], groups: Mapping[str, tuple[int, ...]], place: str
) -> tuple[str, Communication] | None:
    """Name and collective of a node; None for one that moves nothing."""
    listed = node.get("attrs", [])
    if not isinstance(listed, list) or not all(isinstance(attribute, dict) for attribute in listed):
        raise BadInput("attrs is not a list of attributes", where=place)
    record = {str(attribute.get("name")): attribute.get("value") for attribute in listed}
    name = record.get("collective_name")
    if not isinstance(name, str):
        raise BadInput(
            "the collective has no attribute collective_name",
            where=place,
            remedy="trace with a PyTorch that writes schema 1.0.3 or later",
        )
    if name in _NO_TRAFFIC:
        return None
    kind = kind_of(name)
    if kind is None:
        raise Unsupported(f"the collective {name[:80]!r} is not modelled", where=place)
    group = str(record.get("pg_name"))
    record["ranks"] = list(groups[group]) if group in groups else _strided(record)
    return name[:200], communication(kind, record, _EXECUTION_KEYS, place)


def _strided(record: Mapping[str, Any]) -> list[int] | None:
    """The ranks of a group by its first rank and stride, where the trace gives them."""
    start, stride, size = (record.get(key) for key in ("global_rank_start", "global_rank_stride", "pg_size"))
    if type(start) is not int or type(stride) is not int or type(size) is not int:
        return None
    if start < 0 or stride < 1 or not 0 < size <= MOST_RANKS:
        return None
    return list(range(start, start + size * stride, stride))
