"""Execution traces of MLCommons Chakra, read and written: work of one rank as nodes that wait for each other.

ASTRA-sim reads PREFIX.<rank>.et, one file per rank, and a file of process groups.  A node is seconds of work
or a communication, with the attributes that ASTRA-sim reads.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric import checks
from weft.files import CONFIGURATION_BYTES, read_bytes, read_text, write_folder
from weft.interop import chakra_schema
from weft.model.workload import Communication, CommunicationKind, Task, Workload

_RANK = re.compile(r"\.(0|[1-9][0-9]{0,6})\.et\Z")
LARGEST_TRACE_BYTES = 256_000_000
MOST_WAITS = 20_000_000
Sizes = tuple[int, ...]
Groups = Mapping[tuple[int, ...], str]
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
        BadInput: the file cannot be read, is not a trace, or holds a node that cannot be used; or an argument
            that a node needs is not given.
        Unsupported: a gather or a scatter.
    """
    where = os.fspath(path)
    rank = _RANK.search(where)
    reader = _TraceReader(
        where=where,
        peak_flops=None if peak_flops is None else checks.positive(peak_flops, "peak_flops"),
        memory_Bps=None if memory_Bps is None else checks.positive(memory_Bps, "memory_Bps"),
        sizes=network_sizes(sizes),
        groups=groups,
        rank=int(rank[1]) if rank else None,
    )
    chakra_schema.schema()
    remedy = "check the path, or cut the trace to fewer iterations"
    return reader.read(read_bytes(path, where=where, largest=LARGEST_TRACE_BYTES, remedy=remedy))


def read_groups(path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Ranks per process group, from ASTRA-sim's ``{"1": [0, 1]}``.

    Raises:
        BadInput: the file cannot be read, or is something else.
    """
    where = os.fspath(path)
    table = parse_json(read_text(path, where=where, largest=CONFIGURATION_BYTES), where)
    if not isinstance(table, dict):
        raise BadInput("is not a table of process groups", where=where, remedy='write it like {"1": [0, 1]}')
    groups = {}
    for name, ranks in table.items():
        place = f"{where}: group {name[:40]!r}"
        if not re.fullmatch("[0-9]{1,9}", name):
            raise BadInput("has no number as its name", where=place, remedy='write it like {"1": [0, 1]}')
        if not isinstance(ranks, list) or not ranks:
            raise BadInput("has no list of ranks", where=place, remedy='write it like {"1": [0, 1]}')
        groups[name] = tuple(checks.whole(rank, place, low=0) for rank in ranks)
        if len(set(ranks)) < len(ranks):
            raise BadInput("names a rank twice", where=place, remedy="remove one")
    return groups


@dataclass(slots=True, kw_only=True)
class _TraceReader:
    """Tasks of one trace, and counts of what its reading assumes; what a trace leaves to others stands first: the
    accelerator, the network's dimensions, the groups, its own rank."""

    where: str
    peak_flops: float | None
    memory_Bps: float | None
    sizes: tuple[int, ...] | None
    groups: Mapping[str, tuple[int, ...]] | None
    rank: int | None
    assumed: Counter[str] = field(default_factory=Counter)
    at: dict[int, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    work: list[tuple[float, Communication | None]] = field(default_factory=list)
    waits: list[list[int]] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    dependencies: int = 0

    def read(self, raw: bytes) -> Workload:
        for message in chakra_schema.decode(raw, self.where):
            self.add(TraceNode(message, self))
        if not self.work:
            raise BadInput("holds no nodes", where=self.where, remedy="give a trace with nodes")
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
            return Workload(name=Path(self.where).name, tasks=tasks, assumptions=tuple(notes))
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
            raise BadInput(problem, where=self.where, remedy="split the trace")
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
        return f"{self.where}: node {list(self.at)[number]} ({self.names[number][:60]})"


COLLECTIVES: dict[int, CommunicationKind] = {
    0: "all-reduce",
    1: "reduce",
    2: "all-gather",
    5: "broadcast",
    6: "all-to-all",
    7: "reduce-scatter",
    8: "reduce-scatter",
    9: "barrier",
}
"""``comm_type`` of the collectives that are modelled."""
NOT_MODELLED = {3: "gather", 4: "scatter"}
ALL_RANKS = ("", "0")
"""Names of the process group of all ranks."""
EXACT_SECONDS, EXACT_BYTES = "weft_seconds", "weft_bytes"
"""Attributes of our own: what ``duration_micros`` and ``comm_size`` round."""
USED = frozenset(
    {
        *("is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_size", "comm_src", "comm_dst"),
        *("pg_name", "involved_dim", EXACT_SECONDS, EXACT_BYTES),
    }
)
MOST_DIMENSIONS = 64
LONGEST_S, MOST = 1e9, 1e18


def network_sizes(sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    """Sizes of a network's dimensions, checked.

    Raises:
        BadInput: one that is not a whole number from 1, or too many nodes in all.
    """
    if sizes is None:
        return None
    checked = tuple(checks.whole(size, "sizes") for size in sizes)
    checks.whole(prod(checked), "sizes: nodes in all")
    return checked


def group_size(sizes: tuple[int, ...], dimensions: tuple[int, ...] | None) -> int:
    """Nodes of a network that a collective over some of its dimensions spans; None: over all."""
    return prod(sizes if dimensions is None else (sizes[dimension] for dimension in dimensions))


def wire_size(kind: CommunicationKind, bytes_: float, members: int) -> int:
    """``comm_size`` of a communication: an all-gather's is one member's share, else it is the buffer."""
    return round(bytes_ / members) if kind == "all-gather" else round(bytes_)


class TraceNode:
    """One node's message, with its attributes by name.

    Raises:
        BadInput: a type that is unknown, or an attribute that is given twice.
    """

    __slots__ = ("attributes", "id", "kind", "message", "name", "reader")

    def __init__(self, message: Any, reader: _TraceReader) -> None:
        self.message, self.reader = message, reader
        self.id, self.name, self.kind = int(message.id), str(message.name), int(message.type)
        self.attributes: dict[str, tuple[str | None, Any]] = {}
        if not chakra_schema.METADATA <= self.kind <= chakra_schema.COLLECTIVE:
            raise self.bad(f"has type {self.kind}, which Chakra does not have", "use types 1 to 7")
        for attribute in message.attr:
            name = str(attribute.name)
            if name in self.attributes:
                raise self.bad(f"has two attributes {name}", "remove one")
            if name in USED:
                kind = attribute.WhichOneof("value")
                self.attributes[name] = kind, getattr(attribute, kind) if kind else None

    def bad(self, problem: str, remedy: str) -> BadInput:
        """A ``BadInput`` about this node."""
        return BadInput(problem, where=self.where, remedy=remedy)

    @property
    def where(self) -> str:
        """The file and the node, for people."""
        return f"{self.reader.where}: node {self.id} ({self.name[:60]})"

    @property
    def on_host(self) -> bool:
        """Whether it runs on the host's processor."""
        return bool(self.attributes.get("is_cpu_op", ("", False))[1])

    @property
    def communicates(self) -> bool:
        """Whether it communicates itself: the host's call that only launches a collective states neither its
        kind nor its size, and nor does a kernel of which only the duration was recorded."""
        if self.kind not in (chakra_schema.COLLECTIVE, chakra_schema.SEND):
            return False
        marked = "comm_type" in self.attributes or "comm_size" in self.attributes
        return marked or not (self.on_host or self.message.duration_micros)

    def number(self, name: str) -> float | None:
        """A number from 0 to below 1e18, None where the node has no such attribute."""
        if name not in self.attributes:
            return None
        value = self.attributes[name][1]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MOST:
            raise self.bad(f"{name} is {reprlib.repr(value)}", "give a number from 0 to below 1e18")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number, None where the node has no such attribute."""
        value = self.number(name)
        if value is not None and value != int(value):
            raise self.bad(f"{name} is {value}", "give a whole number")
        return None if value is None else int(value)

    def seconds(self) -> float | None:
        """Seconds of a computation or of a memory access; None where it says nothing of its work."""
        exact, micros = self.number(EXACT_SECONDS), int(self.message.duration_micros)
        if exact is not None and round(exact * 1e6) == micros:
            seconds = exact
        elif micros:
            seconds = micros / 1e6
        else:
            operations, moved = self.number("num_ops"), self.number("tensor_size")
            if not operations and not moved:
                return None
            rates = (("peak_flops", operations), ("memory_Bps", moved))
            seconds = max(self._share(work, name, getattr(self.reader, name)) for name, work in rates)
        if not seconds < LONGEST_S:
            raise self.bad(f"takes {seconds:g} s", "give less than 1e9 s")
        return seconds

    def _share(self, work: float | None, name: str, rate: float | None) -> float:
        """Seconds of operations or bytes at the accelerator's rate."""
        if work and rate is None:
            raise self.bad("has work but no duration", f"pass {name}, or give the trace durations")
        return work / rate if work and rate else 0.0

    def collective(self) -> Communication:
        number = self.whole("comm_type")
        if number is None:
            raise self.bad("has no comm_type", "say which collective it is")
        if number in NOT_MODELLED:
            problem = f"a {NOT_MODELLED[number]} is not modelled"
            raise Unsupported(problem, where=self.where, remedy="send messages instead")
        if number not in COLLECTIVES:
            raise self.bad(f"has comm_type {number}, which Chakra does not have", "use 0 to 9")
        kind, dimensions, ranks = COLLECTIVES[number], self._dimensions(), self._ranks()
        bytes_ = 0.0 if kind == "barrier" else self._bytes(kind, dimensions, ranks)
        return Communication(kind=kind, bytes=bytes_, dimensions=dimensions, ranks=ranks)

    def message_sent(self) -> Communication:
        """The message that a sending node sends; with both ranks where the trace says them."""
        source, target = self.whole("comm_src"), self.whole("comm_dst")
        source = self.reader.rank if source is None else source
        ranks = None if source is None or target is None else (source, target)
        return Communication(kind="send", bytes=self._bytes("send", None, ranks), ranks=ranks)

    def _bytes(
        self, kind: CommunicationKind, dimensions: tuple[int, ...] | None, ranks: tuple[int, ...] | None
    ) -> float:
        size = self.whole("comm_size")
        if size is None:
            raise self.bad("has no comm_size", "give its bytes")
        members = 1
        if kind == "all-gather":
            sizes = self.reader.sizes
            if ranks is None and sizes is None:
                problem = "is an all-gather of a group whose size the trace does not say"
                raise self.bad(problem, "pass sizes, those of the network's dimensions")
            members = len(ranks) if ranks is not None else group_size(sizes or (), dimensions)
        exact, total = self.number(EXACT_BYTES), float(size * members)
        if exact is not None and wire_size(kind, exact, members) == size:
            return float(exact)
        if total >= MOST:
            raise self.bad(f"moves {total:g} bytes", "give less than 1e18")
        return total

    def _dimensions(self) -> tuple[int, ...] | None:
        """Dimensions that ``involved_dim`` names; None for all."""
        if "involved_dim" not in self.attributes:
            return None
        kind, value = self.attributes["involved_dim"]
        if kind != "bool_list" or not 0 < len(value.values) <= MOST_DIMENSIONS:
            raise self.bad("involved_dim is not a list of 1 to 64 truth values", "give one per dimension")
        sizes = self.reader.sizes
        flags = list(value.values)[: len(sizes) if sizes is not None else None]
        if not any(flags):
            raise self.bad("involves no dimension of the network", "correct involved_dim or sizes")
        everywhere = all(flags) and (sizes is None or len(flags) == len(sizes))
        return None if everywhere else tuple(at for at, flag in enumerate(flags) if flag)

    def _ranks(self) -> tuple[int, ...] | None:
        """Members of the process group; None for the group of all."""
        kind, name = self.attributes.get("pg_name", ("string_val", ""))
        if kind != "string_val":
            raise self.bad("pg_name is not a text", "give the group's name")
        if name in ALL_RANKS:
            return None
        groups = self.reader.groups
        if groups is None:
            problem = f"is of process group {name[:40]!r}, whose members the trace does not say"
            raise self.bad(problem, "pass groups, as read_groups reads them")
        if name not in groups:
            raise UnknownName("process group", name[:40], groups, where=self.where)
        return groups[name]


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
    checks.whole(rank, "rank", low=0)
    network, groups, make = network_sizes(sizes), _groups(workload), chakra_schema.schema().node
    nodes = []
    for number, task in enumerate(workload.tasks):
        node = make(id=number, name=task.name.encode(errors="replace").decode(), data_deps=task.waits)
        if task.communication is None:
            node.type, node.duration_micros = chakra_schema.COMPUTE, round(task.seconds * 1e6)
            values: dict[str, Any] = {EXACT_SECONDS: float(task.seconds)}
        else:
            where = f"{workload.name}: task {number} ({task.name[:60]})"
            part = _message if task.communication.kind == "send" else _collective
            node.type, values = part(task.communication, rank, number, network, groups, where)
        for name, value in {"is_cpu_op": False, **values}.items():
            attribute = node.attr.add(name=name)
            if isinstance(value, list):
                attribute.bool_list.values.extend(value)
            else:
                setattr(attribute, _VALUES[name], value)
        nodes.append(node)
    return chakra_schema.encode(nodes)


def write_traces(
    workload: Workload, folder: str | os.PathLike[str], ranks: int, *, sizes: Sequence[int] | None = None
) -> tuple[Path, ...]:
    """Write trace.0.et to trace.<ranks - 1>.et as a folder and say which; arguments as for ``write_trace``.

    Raises:
        BadInput: as ``write_trace`` and ``weft.files.write_folder``.
    """
    traces = {
        f"trace.{rank}.et": write_trace(workload, rank=rank, sizes=sizes)
        for rank in range(checks.whole(ranks, "ranks"))
    }
    write_folder(folder, traces)
    return tuple(Path(folder) / name for name in traces)


def write_groups(workload: Workload) -> str:
    """ASTRA-sim's file of process groups: the named ranks of collectives, numbered from 1 as they appear."""
    return json.dumps({name: list(ranks) for ranks, name in _groups(workload).items()}) + "\n"


def _groups(workload: Workload) -> dict[tuple[int, ...], str]:
    groups: dict[tuple[int, ...], str] = {}
    for task in workload.tasks:
        communication = task.communication
        if communication is not None and communication.kind != "send" and communication.ranks is not None:
            groups.setdefault(communication.ranks, str(len(groups) + 1))
    return groups


def _message(
    communication: Communication, rank: int, number: int, network: Sizes | None, groups: Groups, where: str
) -> tuple[int, dict[str, Any]]:
    """Type and attributes of a message's node on a rank."""
    if communication.ranks is None or len(communication.ranks) != 2:
        remedy = "give its ranks: the one that sends and the one that receives"
        raise Unsupported("a message without its two ranks has no trace", where=where, remedy=remedy)
    source, target = (checks.whole(end, where, low=0) for end in communication.ranks)
    if rank not in communication.ranks:
        return chakra_schema.METADATA, {}
    values = {"comm_src": source, "comm_dst": target, "comm_tag": number, **_exact_size(communication, 1)}
    return chakra_schema.SEND if rank == source else chakra_schema.RECEIVE, values


def _collective(
    communication: Communication, rank: int, number: int, network: Sizes | None, groups: Groups, where: str
) -> tuple[int, dict[str, Any]]:
    """Type and attributes of a collective's node on a rank."""
    if communication.ranks is not None and rank not in communication.ranks and communication.dimensions is None:
        return chakra_schema.METADATA, {}
    remedy = "pass sizes, those of the network's dimensions"
    count = DIMENSIONS if network is None else len(network)
    picked = tuple(range(count)) if communication.dimensions is None else communication.dimensions
    if not picked or any(not 0 <= dimension < count for dimension in picked):
        raise BadInput(f"spans the dimensions {tuple(picked)} of {count}", where=where, remedy=remedy)
    values = {
        "comm_type": _NUMBERS[communication.kind],
        "comm_priority": 0,
        "involved_dim": [dimension in picked for dimension in range(count)],
    }
    if communication.ranks is not None and rank in communication.ranks:
        values["pg_name"] = groups[communication.ranks]
    if communication.kind != "all-gather":
        return chakra_schema.COLLECTIVE, values | _exact_size(communication, 1)
    if communication.ranks is None and network is None:
        raise BadInput("is an all-gather of a group of unknown size", where=where, remedy=remedy)
    members = len(communication.ranks) if communication.ranks is not None else group_size(network or (), picked)
    return chakra_schema.COLLECTIVE, values | _exact_size(communication, members)


def _exact_size(communication: Communication, members: int) -> dict[str, Any]:
    """The size in whole bytes, and the exact communication where that differs."""
    size = wire_size(communication.kind, communication.bytes, members)
    rounded = size * members != communication.bytes
    return {"comm_size": size} | ({EXACT_BYTES: float(communication.bytes)} if rounded else {})
