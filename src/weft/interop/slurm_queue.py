"""SLURM's jobs and nodes as JSON: of ``squeue`` or ``scontrol show job``, of ``sinfo`` or ``scontrol show node``.

From 22.05 on, versions differ: a state is a word, a word beside flags, or a list of words; a number is plain, or a
table that says whether it is set; ``sinfo`` has a list of nodes, or of rows with several nodes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput
from weft.interop.slurm_topology import MOST_NAMES, expand

_WRITE = "write it with squeue --json, or sinfo --json"
_RUNS = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "STOPPED", "SIGNALING"})
_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
_OUT = frozenset(
    {"DOWN", "ERROR", "FUTURE", "UNKNOWN", "INVALID", "DRAIN", "FAIL", "NOT_RESPONDING", "MAINT", "MAINTENANCE"}
)
"""States of nodes that start no jobs."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job on ``nodes``, or one that waits (none) for ``count`` of them, 0 where SLURM does not say."""

    name: str
    number: int
    nodes: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Queue:
    """Jobs that run or wait, and whether each node may start jobs."""

    jobs: tuple[QueuedJob, ...]
    nodes: Mapping[str, bool]


def read(text: str, *, where: str = "SLURM") -> Queue:
    """The jobs or the nodes of a document.

    Raises:
        BadInput: it is of another command, or a job or node lacks a name or a state.
    """
    document = parse_json(text, where, remedy=_WRITE)
    tables: dict[str, list[Any]] = {}
    if isinstance(document, dict):
        tables = {name: rows for name, rows in document.items() if isinstance(rows, list)}
    kind = next((name for name in ("jobs", "nodes", "sinfo") if name in tables), None)
    if kind is None:
        raise BadInput("has neither jobs nor nodes of SLURM", where=where, remedy=_WRITE)
    rows = [(row, f"{where}: {kind}[{number}]") for number, row in enumerate(tables[kind])]
    for row, place in rows:
        if not isinstance(row, dict):
            raise BadInput("is not a table", where=place, remedy=_WRITE)
    if kind == "jobs":
        jobs = (_job(row, place) for row, place in rows)
        return Queue(tuple(job for job in jobs if job is not None), {})
    nodes: dict[str, bool] = {}
    for row, place in rows:
        names, up = _nodes(row, place)
        nodes |= {name: up and nodes.get(name, True) for name in names}
    return Queue((), nodes)


def _job(row: Mapping[str, Any], place: str) -> QueuedJob | None:
    """A job that runs or waits; None where it has ended."""
    states, name, number = _states(row.get("job_state"), f"{place}: job_state"), row.get("name"), row.get("job_id")
    if not isinstance(name, str) or not isinstance(number, int):
        raise BadInput("has no name and number", where=place, remedy=_WRITE)
    if states & _WAITS:
        return QueuedJob(name, number, (), _count(row.get("node_count")))
    if not states & _RUNS:
        return None
    nodes = tuple(_expanded(row.get("nodes"), f"{place}: nodes"))
    return QueuedJob(name, number, nodes, len(nodes))


def _nodes(row: Mapping[str, Any], place: str) -> tuple[list[str], bool]:
    """The nodes of a row, and whether they may start jobs."""
    name, state, flags = row.get("name"), row.get("state"), row.get("state_flags", [])
    if name is None:  # sinfo since 23.02
        listed, node = row.get("nodes"), row.get("node")
        name = listed.get("nodes") if isinstance(listed, dict) else None
        state = node.get("state") if isinstance(node, dict) else None
        if name == []:  # a partition without nodes
            return [], False
        if isinstance(name, list):
            name = ",".join(item for item in name if isinstance(item, str))
    states = _states(state, f"{place}: state") | _states(flags, f"{place}: state_flags", least=0)
    return _expanded(name, f"{place}: name"), not states & _OUT


def _expanded(hostlist: object, place: str) -> list[str]:
    if not isinstance(hostlist, str) or not hostlist:
        raise BadInput("names no nodes", where=place, remedy=_WRITE)
    return expand(hostlist, where=place, most=MOST_NAMES)


def _states(value: object, place: str, *, least: int = 1) -> frozenset[str]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or len(words) < least or not all(isinstance(word, str) for word in words):
        raise BadInput("is not a state of SLURM's", where=place, remedy=_WRITE)
    return frozenset(word.upper() for word in words)


def _count(value: object) -> int:
    """A number, plain or as a table; 0 where it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") is True else 0
    return value if isinstance(value, int) and 0 < value <= MOST_NAMES else 0
