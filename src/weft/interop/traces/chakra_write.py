"""Workloads as execution traces of MLCommons Chakra, with the attributes that ASTRA-sim reads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from weft.errors import BadInput, Unsupported
from weft.fabric import checks
from weft.interop.traces import chakra_schema
from weft.interop.traces.chakra_nodes import COLLECTIVES, EXACT_BYTES, EXACT_SECONDS, network_sizes, wire_size
from weft.model.workload import Communication, Task, Workload

DIMENSIONS = 4
"""Entries of ``involved_dim`` where the network's dimensions are not given: as many as ASTRA-sim assumes."""
_NUMBERS = {kind: number for number, kind in reversed(COLLECTIVES.items())}
_VALUES = {
    "is_cpu_op": "bool_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_priority": "int32_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
    EXACT_SECONDS: "double_val",
    EXACT_BYTES: "double_val",
}
"""The kind that each attribute has in the traces of Chakra's own tools."""


def write_trace(workload: Workload, *, rank: int = 0, sizes: Sequence[int] | None = None) -> bytes:
    """The trace of one rank: a node per task, with the task's number as its id.

    Durations are whole microseconds, and sizes whole bytes, as Chakra has them; attributes of our own keep
    what that rounds, for ``read_trace``.  (ASTRA-sim takes 1 ns for a duration of 0, and runs all-reduces,
    all-gathers, reduce-scatters, all-to-alls and messages only.)  A group whose ranks are named becomes a
    process group of ``write_groups``; a rank outside it gets a node without work, or its own group where the
    dimensions are named.  A message becomes a receiving node on the rank it goes to.

    Args:
        workload: tasks of every rank.
        rank: whose trace.
        sizes: of the network's dimensions, inner to outer: for all-gathers without named ranks.

    Raises:
        MissingExtra: protobuf is not installed.
        BadInput: an all-gather of a group of unknown size, or a dimension that the network does not have.
        Unsupported: a message without its two ranks.
    """
    return chakra_schema.encode(_Writer(workload, rank, sizes).nodes())


def write_traces(
    workload: Workload, prefix: str | os.PathLike[str], ranks: int, *, sizes: Sequence[int] | None = None
) -> tuple[Path, ...]:
    """Write PREFIX.0.et to PREFIX.<ranks - 1>.et and say which; arguments and errors as for ``write_trace``.

    Raises:
        BadInput: besides, a file cannot be written.
    """
    paths = []
    for rank in range(checks.whole(ranks, "ranks")):
        path = Path(f"{os.fspath(prefix)}.{rank}.et")
        trace = write_trace(workload, rank=rank, sizes=sizes)
        try:
            path.write_bytes(trace)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise BadInput(f"cannot be written: {reason}", where=str(path), remedy="check the path") from None
        paths.append(path)
    return tuple(paths)


def write_groups(workload: Workload) -> str:
    """ASTRA-sim's file of process groups: the named ranks of collectives, numbered from 1 as they appear."""
    return json.dumps({name: list(ranks) for ranks, name in _groups(workload).items()}) + "\n"


def _groups(workload: Workload) -> dict[tuple[int, ...], str]:
    found: dict[tuple[int, ...], str] = {}
    for task in workload.tasks:
        one = task.communication
        if one is not None and one.kind != "send" and one.ranks is not None:
            found.setdefault(one.ranks, str(len(found) + 1))
    return found


class _Writer:
    def __init__(self, workload: Workload, rank: int, sizes: Sequence[int] | None) -> None:
        self.workload, self.rank = workload, checks.whole(rank, "rank", low=0)
        self.sizes = network_sizes(sizes)
        self.groups = _groups(workload)
        self.make = chakra_schema.schema().node

    def nodes(self) -> list[Any]:
        return [self.node(number, task) for number, task in enumerate(self.workload.tasks)]

    def node(self, number: int, task: Task) -> Any:
        one, where = task.communication, f"{self.workload.name}: task {number} ({task.name[:60]})"
        kind, values = chakra_schema.COMPUTE, dict[str, Any]()
        name = task.name.encode(errors="replace").decode()
        node = self.make(id=number, name=name, data_deps=task.waits)
        if one is None:
            node.duration_micros = round(task.seconds * 1e6)
            values[EXACT_SECONDS] = float(task.seconds)
        elif one.kind == "send":
            kind, values = self.message(number, one, where)
        elif one.ranks is not None and self.rank not in one.ranks and one.dimensions is None:
            kind = chakra_schema.METADATA
        else:
            kind, values = chakra_schema.COLLECTIVE, self.collective(one, where)
        node.type = kind
        _set(node, {"is_cpu_op": False, **values})
        return node

    def message(self, number: int, one: Communication, where: str) -> tuple[int, dict[str, Any]]:
        if one.ranks is None or len(one.ranks) != 2:
            remedy = "give its ranks: the one that sends and the one that receives"
            raise Unsupported("a message without its two ranks has no trace", where=where, remedy=remedy)
        source, target = (checks.whole(rank, where, low=0) for rank in one.ranks)
        if self.rank not in one.ranks:
            return chakra_schema.METADATA, {}
        values = {"comm_src": source, "comm_dst": target, "comm_tag": number, **_sizes(one, 1)}
        return chakra_schema.SEND if self.rank == source else chakra_schema.RECEIVE, values

    def collective(self, one: Communication, where: str) -> dict[str, Any]:
        involved = self.involved(one, where)
        values = {"comm_type": _NUMBERS[one.kind], "comm_priority": 0, "involved_dim": involved}
        if one.ranks is not None and self.rank in one.ranks:
            values["pg_name"] = self.groups[one.ranks]
        members = self.members(one, involved, where) if one.kind == "all-gather" else 1
        return values | _sizes(one, members)

    def involved(self, one: Communication, where: str) -> list[bool]:
        count = len(self.sizes) if self.sizes is not None else DIMENSIONS
        picked = range(count) if one.dimensions is None else one.dimensions
        if not picked or any(not 0 <= dimension < count for dimension in picked):
            problem = f"spans the dimensions {tuple(picked)} of {count}"
            raise BadInput(problem, where=where, remedy="pass sizes, those of the network's dimensions")
        return [dimension in picked for dimension in range(count)]

    def members(self, one: Communication, involved: list[bool], where: str) -> int:
        if one.ranks is not None:
            return len(one.ranks)
        if self.sizes is None:
            problem = "is an all-gather of a group of unknown size"
            raise BadInput(problem, where=where, remedy="pass sizes, those of the network's dimensions")
        return prod(size for size, inside in zip(self.sizes, involved, strict=True) if inside)


def _sizes(one: Communication, members: int) -> dict[str, Any]:
    """The size in whole bytes, and the exact one where that differs."""
    size = wire_size(one.kind, one.bytes, members)
    rounded = size * members != one.bytes
    return {"comm_size": size} | ({EXACT_BYTES: float(one.bytes)} if rounded else {})


def _set(node: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        attribute = node.attr.add(name=name)
        if isinstance(value, list):
            attribute.bool_list.values.extend(value)
        else:
            setattr(attribute, _VALUES[name], value)
