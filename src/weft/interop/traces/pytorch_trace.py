"""PyTorch's execution traces (``ExecutionTraceObserver``): their collectives as tasks.

A trace records the operators of one rank as nodes.  A collective is a node ``record_param_comms``; nodes
``## process_group:init ##`` list the groups.  It says neither how long a node computes (unless a tool has
added ``dur``) nor what waits for what on the GPU.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping
from typing import Any

from weft.errors import BadInput, Unsupported
from weft.interop.traces.torch_records import communication, kind_of, number, rank_list, read_json
from weft.model.workload import Communication, Task, Workload

MOST_RANKS = 10**7
_GROUPS = "## process_group:init ##"
_COLLECTIVE = "record_param_comms"
_KEYS = {"in": "in_msg_nelems", "out": "out_msg_nelems", "dtype": "dtype", "ranks": "ranks"}
_NO_TRAFFIC = ("wait", "init", "start_coalescing", "end_coalescing")
_ASSUMPTIONS = (
    "the rank of the trace stands for all ranks",
    "tasks run one after the other: the trace does not say what overlaps",
    "a receive counts as a message of its size",
)


def read_pytorch_trace(path: str | os.PathLike[str]) -> Workload:
    """The collectives of a trace (.json or .json.gz) of one rank in program order, and its computations.

    Computations are the innermost nodes with a ``dur`` (microseconds), joined between collectives.

    Raises:
        BadInput: the file is no execution trace, has no tasks, or does not say how large a collective is.
        Unsupported: a collective that is not modelled.
    """
    where = os.fspath(path)
    nodes = _nodes(read_json(path, where=where), where)
    groups = _groups(nodes, where)
    seconds = _seconds(nodes, where)
    unknown = () if seconds else ("the trace has no durations: computations take 0 s",)
    tasks: list[Task] = []
    computed = 0.0
    for number_, node in nodes.items():
        computed += seconds.get(number_, 0.0)
        if node["name"] != _COLLECTIVE:
            continue
        found = _communication(node, groups, f"{where}: node {number_}")
        if found is not None:
            name, what = found
            tasks += _computation(computed, tasks)
            tasks.append(Task(name=name, communication=what, waits=_after(tasks)))
            computed = 0.0
    tasks += _computation(computed, tasks)
    if not tasks:
        raise BadInput(
            f"has neither collectives ({_COLLECTIVE}) nor durations",
            where=where,
            remedy="give an execution trace of a distributed run",
        )
    return Workload(name=where, tasks=tuple(tasks), assumptions=(*_ASSUMPTIONS, *unknown))


def _computation(seconds: float, tasks: list[Task]) -> list[Task]:
    return [Task(name="compute", seconds=seconds, waits=_after(tasks))] if seconds > 0 else []


def _after(tasks: list[Task]) -> tuple[int, ...]:
    return (len(tasks) - 1,) if tasks else ()


def _nodes(found: Any, where: str) -> dict[int, dict[str, Any]]:
    """Nodes by their numbers, in program order."""
    listed = found.get("nodes") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise BadInput(
            "is no execution trace: it has no list of nodes",
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
    found = {}
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
            raise BadInput("its first input is no list of process groups", where=place)
        for group in listed:
            ranks = rank_list(group.get("ranks"))
            if ranks is not None:
                found[str(group.get("pg_name"))] = ranks
    return found


def _communication(
    node: dict[str, Any], groups: Mapping[str, tuple[int, ...]], place: str
) -> tuple[str, Communication] | None:
    """Name and collective of a node; None for one that moves nothing."""
    record = _attributes(node, place)
    name = record.get("collective_name")
    if not isinstance(name, str):
        raise BadInput(
            "the collective has no attribute collective_name",
            where=place,
            remedy="trace with a PyTorch whose schema is 1.0.3 or later",
        )
    if name in _NO_TRAFFIC:
        return None
    kind = kind_of(name)
    if kind is None:
        raise Unsupported(f"the collective {name[:80]!r} is not modelled", where=place)
    group = str(record.get("pg_name"))
    record = {**record, "ranks": list(groups[group])} if group in groups else {**record, "ranks": _strided(record)}
    return name[:200], communication(kind, record, _KEYS, place)


def _strided(record: Mapping[str, Any]) -> list[int] | None:
    """The ranks of a group by its first rank and stride, where the trace gives them."""
    start, stride, size = (record.get(key) for key in ("global_rank_start", "global_rank_stride", "pg_size"))
    if type(start) is not int or type(stride) is not int or type(size) is not int:
        return None
    if start < 0 or stride < 1 or not 0 < size <= MOST_RANKS:
        return None
    return list(range(start, start + size * stride, stride))


def _attributes(node: dict[str, Any], place: str) -> dict[str, Any]:
    listed = node.get("attrs", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise BadInput("attrs is no list of attributes", where=place)
    return {str(one.get("name")): one.get("value") for one in listed}
