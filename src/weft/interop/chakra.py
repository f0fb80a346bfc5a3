"""Execution traces of MLCommons Chakra, read and written: work of one rank as nodes that wait for each other.

ASTRA-sim reads PREFIX.<rank>.et, one file per rank, and a file of process groups.  A node is seconds of work
or a communication, with the attributes that ASTRA-sim reads.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Annotated

from weft.codec import Range, decode
from weft.documents import parse_json
from weft.errors import BadInput
from weft.fabric import checks
from weft.files import CONFIGURATION_BYTES, read_bytes, read_text, write_folder
from weft.interop import chakra_schema
from weft.interop.chakra_nodes import COLLECTIVES, TraceContext, TraceNode, network_sizes
from weft.model.workload import Communication, CommunicationKind, Task, Workload

_RANK = re.compile(r"\.(0|[1-9][0-9]{0,6})\.et\Z")
LARGEST_TRACE_BYTES = 256_000_000
MOST_WAITS = 20_000_000
_Rank = Annotated[int, Range(0, checks.MAX_ACCELERATORS)]
_Groups = dict[str, Annotated[tuple[_Rank, ...], Range(1, checks.MAX_ACCELERATORS)]]
_NOTES = {
    "received": "{} messages that are received take no time: what comes from other ranks is not waited for",
    "host": "{} operations of the host run among the accelerator's",
    "memory": "{} loads and stores of memory run among the computations",
    "empty": "{} nodes without duration and without work take no time",
    "recorded": "recorded durations of {} communications are not used",
    "gone": "{} control dependencies on nodes that the trace does not have are left out",
    "circle": "control dependencies are left out: with those on data they make a circle",
    "kernels": "{} communications say neither kind nor size, and take the time that was recorded",
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
        peak_flops: FLOP/s of the accelerator, for nodes that state work but no duration.
        memory_Bps: bytes/s of its memory, for the same nodes.
        sizes: of the network's dimensions, inner to outer: for all-gathers, which state one rank's share.
        groups: ranks per process group, as ``read_groups`` reads them.

    Raises:
        MissingExtra: protobuf is not installed.
        Unsupported: a gather or a scatter.
    """
    where = os.fspath(path)
    rank = _RANK.search(where)
    context = TraceContext(
        where=where,
        peak_flops=None if peak_flops is None else checks.positive(peak_flops, "peak_flops"),
        memory_Bps=None if memory_Bps is None else checks.positive(memory_Bps, "memory_Bps"),
        sizes=network_sizes(sizes),
        groups=groups,
        rank=int(rank[1]) if rank else None,
    )
    chakra_schema.schema()
    remedy = "check the path, or cut the trace to fewer iterations"
    return _TraceReader(context).read(read_bytes(path, where=where, largest=LARGEST_TRACE_BYTES, remedy=remedy))


def read_groups(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Ranks per process group, from ASTRA-sim's ``{"1": [0, 1]}``."""
    where = os.fspath(path)
    document = parse_json(read_text(path, where=where, largest=CONFIGURATION_BYTES), where)
    groups = decode(_Groups, document, where)
    for name, ranks in groups.items():
        place = f"{where}: group {name[:40]!r}"
        if not re.fullmatch("[0-9]{1,9}", name):
            raise BadInput("has no number as its name", where=place, remedy='write it like {"1": [0, 1]}')
        if len(set(ranks)) < len(ranks):
            raise BadInput("names a rank twice", where=place, remedy="remove one")
    return groups


@dataclass(slots=True)
class _TraceReader:
    """Tasks of one trace, and counts of what its reading assumes."""

    context: TraceContext
    assumed: Counter[str] = field(default_factory=Counter)
    at: dict[int, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    work: list[tuple[float, Communication | None]] = field(default_factory=list)
    waits: list[list[int]] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    dependencies: int = 0

    def read(self, raw: bytes) -> Workload:
        for message in chakra_schema.decode(raw, self.context.where):
            self.add(TraceNode(message, self.context))
        if not self.work:
            raise BadInput("holds no nodes", where=self.context.where, remedy="give a trace with nodes")
        try:
            try:
                return self.workload()
            except CycleError:
                if not any(self.after):
                    raise
                # Chakra's feeder waits for data alone; the converter's control dependencies may close circles.
                self.after = [[] for _ in self.after]
                self.assumed["gone"], self.assumed["circle"] = 0, 1
                return self.workload()
        except CycleError as error:
            circle = error.args[1]
            problem = f"is one of {len(circle) - 1:,} nodes that wait for each other in a circle"
            raise BadInput(problem, where=self.place(circle[0]), remedy="remove one dependency") from None

    def workload(self) -> Workload:
        waits = [self.tasks_before(number) for number in range(len(self.work))]
        tasks = tuple(
            Task(name=name, seconds=seconds, communication=communication, waits=before)
            for name, (seconds, communication), before in zip(self.names, self.work, waits, strict=True)
        )
        notes = [note.format(self.assumed[name]) for name, note in _NOTES.items() if self.assumed[name]]
        try:
            return Workload(name=Path(self.context.where).name, tasks=tasks, assumptions=tuple(notes))
        except BadInput:
            TopologicalSorter(dict(enumerate(waits))).prepare()
            raise

    def add(self, node: TraceNode) -> None:
        if node.id in self.at:
            raise node.bad("has the id of an earlier node", "give every node its own id")
        data, control = node.message.data_deps, node.message.ctrl_deps
        self.dependencies += len(data) + len(control)
        if self.dependencies > MOST_WAITS:
            problem = f"has more than {MOST_WAITS:,} dependencies"
            raise BadInput(problem, where=self.context.where, remedy="split the trace")
        self.at[node.id] = len(self.work)
        self.names.append(node.name or f"node {node.id}")
        self.waits.append(list(dict.fromkeys(data)))
        self.after.append(list(dict.fromkeys(control)))
        self.work.append(self.work_of(node))

    def work_of(self, node: TraceNode) -> tuple[float, Communication | None]:
        """Seconds or the communication of a node."""
        self.assumed["host"] += node.on_host
        if node.communicates:
            self.assumed["recorded"] += node.message.duration_micros > 0
            return 0.0, node.collective() if node.kind == chakra_schema.COLLECTIVE else node.message_sent()
        if node.kind in (chakra_schema.METADATA, chakra_schema.RECEIVE):
            self.assumed["received"] += node.kind == chakra_schema.RECEIVE
            return 0.0, None
        seconds, moves = node.seconds(), node.kind in (chakra_schema.LOAD, chakra_schema.STORE)
        if seconds is None and moves:
            raise node.bad("has neither a duration nor a tensor_size", "give one of them")
        self.assumed["memory"] += moves
        self.assumed["kernels"] += node.kind in (chakra_schema.COLLECTIVE, chakra_schema.SEND) and not node.on_host
        self.assumed["empty"] += seconds is None
        return seconds or 0.0, None

    def tasks_before(self, number: int) -> tuple[int, ...]:
        known = [task for task in self.after[number] if task in self.at]
        self.assumed["gone"] += len(self.after[number]) - len(known)
        try:
            return tuple([self.at[task] for task in dict.fromkeys([*self.waits[number], *known])])
        except KeyError as missing:
            problem = f"waits for node {missing.args[0]}, which the trace does not have"
            raise BadInput(problem, where=self.place(number), remedy="give the whole trace") from None

    def place(self, number: int) -> str:
        return f"{self.context.where}: node {list(self.at)[number]} ({self.names[number][:60]})"


def write_traces(
    kind: CommunicationKind, bytes_: float, folder: str | os.PathLike[str], sizes: Sequence[int]
) -> tuple[Path, ...]:
    """Write one collective of all nodes of a network as a folder, and say the files: a trace.<rank>.et for each node,
    all alike.  Sizes are whole bytes, as Chakra has them.

    Args:
        bytes_: the full buffer.
        sizes: of the network's dimensions, inner to outer.

    Raises:
        MissingExtra: protobuf is not installed.
    """
    ranks = prod(sizes)
    numbers = {name: number for number, name in reversed(COLLECTIVES.items())}
    node = chakra_schema.schema().node(name=kind, type=chakra_schema.COLLECTIVE)
    node.attr.add(name="is_cpu_op").bool_val = False
    node.attr.add(name="comm_type").int64_val = numbers[kind]
    node.attr.add(name="comm_priority").int32_val = 0
    node.attr.add(name="involved_dim").bool_list.values.extend([True] * len(sizes))
    # An all-gather states one rank's share.
    node.attr.add(name="comm_size").int64_val = round(bytes_ / ranks if kind == "all-gather" else bytes_)
    trace = chakra_schema.encode([node])
    traces = {f"trace.{rank}.et": trace for rank in range(ranks)}
    write_folder(folder, traces)
    return tuple(Path(folder) / name for name in traces)
