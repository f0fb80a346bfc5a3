"""Execution traces of MLCommons Chakra: work of one rank as nodes that wait for each other.

ASTRA-sim reads PREFIX.<rank>.et, one file per rank, and a file of process groups.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.edge import parse_json, read_text
from weft.interop.text.settings import LARGEST_FILE_BYTES
from weft.interop.traces import chakra_schema
from weft.interop.traces.chakra_nodes import Context, Node, network_sizes
from weft.interop.traces.chakra_write import write_groups, write_trace, write_traces
from weft.model.workload import Communication, Task, Workload

__all__ = ["read_groups", "read_trace", "read_traces", "write_groups", "write_trace", "write_traces"]

LARGEST_TRACE_BYTES = 256_000_000
MOST_WAITS = 20_000_000
_RANK = re.compile(r"\.(0|[1-9][0-9]{0,6})\.et")
_NOTES = {
    "received": "{} messages that are received take no time: what comes from other ranks is not waited for",
    "host": "{} operations of the host run among the accelerator's",
    "memory": "{} loads and stores of memory run among the computations",
    "empty": "{} nodes without duration and without work take no time",
    "recorded": "recorded durations of {} communications are not used",
}


def read_trace(
    path: str | os.PathLike[str],
    *,
    peak_flops: float | None = None,
    memory_Bps: float | None = None,
    sizes: Sequence[int] | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
) -> Workload:
    """The workload of one rank's trace; tasks are in the file's order.

    Args:
        path: the .et file.
        peak_flops: FLOP/s, and
        memory_Bps: bytes/s, of the accelerator: for nodes that state work but no duration.
        sizes: of the network's dimensions, inner to outer: for all-gathers, which state one rank's share.
        groups: ranks per process group, as ``read_groups`` reads them.

    Raises:
        MissingExtra: protobuf is not installed.
        BadInput: the file cannot be read, is no trace, or holds a node that cannot be used; or an argument
            that a node needs is not given.
        Unsupported: a gather or a scatter.
    """
    rank = _RANK.search(os.fspath(path))
    context = Context(
        where=os.fspath(path),
        peak_flops=None if peak_flops is None else checks.positive(peak_flops, "peak_flops"),
        memory_Bps=None if memory_Bps is None else checks.positive(memory_Bps, "memory_Bps"),
        sizes=network_sizes(sizes),
        groups=groups,
        rank=int(rank[1]) if rank and rank.end() == len(os.fspath(path)) else None,
    )
    chakra_schema.schema()
    return _Reader(context).read(_bytes(path))


def read_traces(
    prefix: str | os.PathLike[str],
    *,
    peak_flops: float | None = None,
    memory_Bps: float | None = None,
    sizes: Sequence[int] | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[Workload, ...]:
    """The workloads of PREFIX.0.et, PREFIX.1.et and so on, by rank; arguments as for ``read_trace``.

    Raises:
        MissingExtra: protobuf is not installed.
        BadInput: there is none, one between is missing, or one cannot be used.
    """
    paths = _paths(os.fspath(prefix))
    return tuple(
        read_trace(path, peak_flops=peak_flops, memory_Bps=memory_Bps, sizes=sizes, groups=groups) for path in paths
    )


def read_groups(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Ranks per process group, from ASTRA-sim's ``{"1": [0, 1]}``.

    Raises:
        BadInput: the file cannot be read, or is something else.
    """
    where = os.fspath(path)
    table = parse_json(read_text(path, where=where, largest=LARGEST_FILE_BYTES), where)
    if not isinstance(table, dict):
        raise BadInput("is no table of process groups", where=where, remedy='write it like {"1": [0, 1]}')
    found = {}
    for name, ranks in table.items():
        place = f"{where}: group {name[:40]!r}"
        if not re.fullmatch("[0-9]{1,9}", name):
            raise BadInput("has no number as its name", where=place, remedy='write it like {"1": [0, 1]}')
        if not isinstance(ranks, list) or not ranks:
            raise BadInput("has no list of ranks", where=place, remedy='write it like {"1": [0, 1]}')
        found[name] = tuple(checks.whole(rank, place, low=0) for rank in ranks)
        if len(set(ranks)) < len(ranks):
            raise BadInput("names a rank twice", where=place, remedy="remove one")
    return found


def _paths(prefix: str) -> list[Path]:
    folder, start = Path(prefix).parent, f"{Path(prefix).name}."
    try:
        names = [name for name in os.listdir(folder) if name.startswith(start)]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot be read: {reason}", where=str(folder), remedy="check the path") from None
    matches = [_RANK.fullmatch(name[len(start) - 1 :]) for name in names]
    ranks = sorted(int(match[1]) for match in matches if match)
    if not ranks:
        raise BadInput("no traces", where=f"{prefix}.<rank>.et", remedy="give the path up to the rank")
    missing = next((rank for rank, found in enumerate(ranks) if rank != found), None)
    if missing is not None:
        raise BadInput(f"rank {missing} has no trace", where=f"{prefix}.{missing}.et", remedy="add the file")
    return [Path(f"{prefix}.{rank}.et") for rank in ranks]


def _bytes(path: str | os.PathLike[str]) -> bytes:
    where = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_TRACE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot be read: {reason}", where=where, remedy="check the path") from None
    if len(raw) > LARGEST_TRACE_BYTES:
        problem = f"is larger than {LARGEST_TRACE_BYTES // 10**6} MB"
        raise BadInput(problem, where=where, remedy="cut the trace to fewer iterations")
    return raw


class _Reader:
    """Tasks of one trace, and counts of what its reading assumes."""

    def __init__(self, context: Context) -> None:
        self.context, self.where = context, context.where
        self.assumed: Counter[str] = Counter()
        self.at: dict[int, int] = {}
        self.names: list[str] = []
        self.work: list[tuple[float, Communication | None]] = []
        self.waits: list[list[int]] = []
        self.dependencies = 0

    def read(self, raw: bytes) -> Workload:
        for message in chakra_schema.decode(raw, self.where):
            self._add(Node(message, self.context))
        if not self.work:
            raise BadInput("holds no nodes", where=self.where, remedy="give a trace with nodes")
        waits = [self._tasks_before(number) for number in range(len(self.work))]
        try:
            return self._workload(waits)
        except CycleError as error:
            circle = error.args[1]
            problem = f"is one of {len(circle) - 1:,} nodes that wait for each other in a circle"
            raise BadInput(problem, where=self._place(circle[0]), remedy="remove one dependency") from None

    def _workload(self, waits: list[tuple[int, ...]]) -> Workload:
        tasks = tuple(
            Task(name=name, seconds=seconds, communication=communication, waits=before)
            for name, (seconds, communication), before in zip(self.names, self.work, waits, strict=True)
        )
        notes = [note.format(self.assumed[name]) for name, note in _NOTES.items() if self.assumed[name]]
        try:
            return Workload(name=Path(self.where).name, tasks=tasks, assumptions=tuple(notes))
        except BadInput:
            TopologicalSorter(dict(enumerate(waits))).prepare()
            raise

    def _add(self, node: Node) -> None:
        if node.id in self.at:
            raise node.bad("has the id of an earlier node", "give every node its own id")
        self.dependencies += len(node.message.data_deps) + len(node.message.ctrl_deps)
        if self.dependencies > MOST_WAITS:
            problem = f"has more than {MOST_WAITS:,} dependencies"
            raise BadInput(problem, where=self.where, remedy="split the trace")
        self.at[node.id] = len(self.work)
        self.names.append(node.name or f"node {node.id}")
        self.waits.append(list(dict.fromkeys([*node.message.data_deps, *node.message.ctrl_deps])))
        self.work.append(self._work(node))

    def _work(self, node: Node) -> tuple[float, Communication | None]:
        self.assumed["host"] += node.on_host
        if node.communicates:
            self.assumed["recorded"] += node.message.duration_micros > 0
            collective = node.kind == chakra_schema.COLLECTIVE
            return 0.0, node.collective() if collective else node.message_sent()
        if node.kind in (chakra_schema.METADATA, chakra_schema.RECEIVE):
            self.assumed["received"] += node.kind == chakra_schema.RECEIVE
            return 0.0, None
        seconds, moves = node.seconds(), node.kind in (chakra_schema.LOAD, chakra_schema.STORE)
        if seconds is None and moves:
            raise node.bad("has neither a duration nor a tensor_size", "give one of them")
        self.assumed["memory"] += moves
        self.assumed["empty"] += seconds is None
        return seconds or 0.0, None

    def _tasks_before(self, number: int) -> tuple[int, ...]:
        try:
            return tuple([self.at[other] for other in self.waits[number]])
        except KeyError as missing:
            problem = f"waits for node {missing.args[0]}, which the trace does not have"
            raise BadInput(problem, where=self._place(number), remedy="give the whole trace") from None

    def _place(self, number: int) -> str:
        ids = list(self.at)
        return f"{self.where}: node {ids[number]} ({self.names[number][:60]})"
