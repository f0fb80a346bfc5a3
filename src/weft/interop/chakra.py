"""Execution traces of MLCommons Chakra, read and written: work of one rank as nodes that wait for each other.

ASTRA-sim reads PREFIX.<rank>.et, one file per rank, and a file of process groups.  A node is seconds of work
or a communication, with the attributes that ASTRA-sim reads.
"""

from __future__ import annotations

import io
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Annotated, Any

from weft.codec import Range, decode
from weft.documents import parse_json
from weft.errors import BadInput, MissingExtra, UnknownName, Unsupported
from weft.fabric import checks
from weft.files import CONFIGURATION_BYTES, read_bytes, read_text, write_folder
from weft.model.workload import Communication, CommunicationKind, Task, Workload

# Schema --------------------------------------------------------------------------------------------------------

VERSION = "0.0.4"
PACKAGE = "ChakraProtoMsg"
MOST_NODES = 2_000_000

METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)

ATTRIBUTE = "AttributeProto"
SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Kinds of values of an attribute: kind number k has field 3 + 2 k, and its list the next one."""
MESSAGES = {
    "GlobalMetadata": (("version", 1, "string", False), ("attr", 2, ATTRIBUTE, True)),
    "Node": (
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "int32", False),
        ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True),
        ("start_time_micros", 6, "uint64", False),
        ("duration_micros", 7, "uint64", False),
        ("attr", 10, ATTRIBUTE, True),
    ),
}
"""Fields of the messages: name, number, type, and whether they repeat.  ``type`` of a node is an enumeration,
which has an int32's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The classes of protobuf's messages, what reads and writes them, and the error of bytes that are none."""

    metadata: Any
    node: Any
    proto: Any
    error: type[Exception]


@cache
def schema() -> Schema:
    """The messages as protobuf's classes.

    Raises:
        MissingExtra: protobuf is not installed.
    """
    try:
        names = ("descriptor_pb2", "message_factory", "message", "proto")
        descriptors, factory, message, proto = (import_module(f"google.protobuf.{name}") for name in names)
    except ImportError:
        raise MissingExtra("a Chakra trace", "chakra") from None
    file = descriptors.FileDescriptorProto(name="weft/chakra.proto", package=PACKAGE, syntax="proto3")
    _add_attribute(file, descriptors.FieldDescriptorProto)
    for name, fields in MESSAGES.items():
        _add(file.message_type.add(name=name), fields, descriptors.FieldDescriptorProto)
    classes = factory.GetMessages([file])
    metadata, node = (classes[f"{PACKAGE}.{name}"] for name in MESSAGES)
    return Schema(metadata=metadata, node=node, proto=proto, error=message.DecodeError)


def _add(message: Any, fields: Any, kinds: Any) -> None:
    for name, number, kind, repeated in fields:
        field = message.field.add(name=name, number=number)
        field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        if kind[0].isupper():
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        else:
            field.type = getattr(kinds, f"TYPE_{kind.upper()}")


def _add_attribute(file: Any, kinds: Any) -> None:
    """An attribute: a name, and one value of any kind, or a list of such."""
    attribute = file.message_type.add(name=ATTRIBUTE)
    _add(attribute, (("name", 1, "string", False), ("doc_string", 2, "string", False)), kinds)
    attribute.oneof_decl.add(name="value")
    for position, kind in enumerate(SCALARS):
        number, values = 3 + 2 * position, f"{kind.capitalize()}List"
        _add(file.message_type.add(name=values), (("values", 1, kind, True),), kinds)
        _add(attribute, ((f"{kind}_val", number, kind, False), (f"{kind}_list", number + 1, values, False)), kinds)
    for value in attribute.field[2:]:
        value.oneof_index = 0


def decode_messages(raw: bytes, where: str) -> Iterator[Any]:
    """The nodes of a trace's bytes, in order; the metadata before them is checked and left out.

    Raises:
        MissingExtra: protobuf is not installed.
    """
    messages, stream = schema(), io.BytesIO(raw)
    if raw[:2] == b"\x1f\x8b":
        raise BadInput("is compressed with gzip", where=where, remedy="unpack it first")

    def parsed(kind: Any, name: str) -> Any:
        try:
            return messages.proto.parse_length_prefixed(kind, stream)
        except (messages.error, ValueError, RecursionError):
            remedy = "check that the file is a whole .et file"
            raise BadInput("is not a message of a Chakra trace", where=f"{where}: {name}", remedy=remedy) from None

    metadata = parsed(messages.metadata, "metadata")
    if metadata is None:
        raise BadInput("is empty", where=where, remedy="give a Chakra trace (.et)")
    if stream.tell() > 1 and not metadata.version and not metadata.attr:
        raise BadInput("does not begin with a trace's metadata", where=where, remedy="give a Chakra trace (.et)")
    number = 0
    while (node := parsed(messages.node, f"message {number + 1}")) is not None:
        number += 1
        if number > MOST_NODES:
            raise BadInput(f"has more than {MOST_NODES:,} nodes", where=where, remedy="split the trace")
        yield node


def encode_messages(nodes: list[Any]) -> bytes:
    """A trace's bytes: the metadata, then the nodes, each after its length."""
    messages, stream = schema(), io.BytesIO()
    for message in (messages.metadata(version=VERSION), *nodes):
        messages.proto.serialize_length_prefixed(message, stream)
    return stream.getvalue()


# Nodes ---------------------------------------------------------------------------------------------------------

Sizes = tuple[int, ...]
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
USED = frozenset(
    [
        "is_cpu_op",
        "num_ops",
        "tensor_size",
        "comm_type",
        "comm_size",
        "comm_src",
        "comm_dst",
        "pg_name",
        "involved_dim",
    ]
)
MOST_DIMENSIONS = 64
LONGEST_S, MOST = 1e9, 1e18


def network_sizes(sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    """Sizes of a network's dimensions, checked."""
    if sizes is None:
        return None
    checked = tuple(checks.whole(size, "sizes") for size in sizes)
    checks.whole(prod(checked), "sizes: nodes in all")
    return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """The file, and what a trace leaves to others: the accelerator's rates, the sizes of the network's dimensions, the
    ranks of process groups, and whose trace it is."""

    where: str
    peak_flops: float | None
    memory_Bps: float | None
    sizes: Sizes | None
    groups: Mapping[str, tuple[int, ...]] | None
    rank: int | None


class TraceNode:
    """One node's message, with its attributes by name."""

    __slots__ = ("attributes", "context", "id", "kind", "message", "name")

    def __init__(self, message: Any, context: TraceContext) -> None:
        self.message, self.context = message, context
        self.id, self.name, self.kind = int(message.id), str(message.name), int(message.type)
        self.attributes: dict[str, tuple[str | None, Any]] = {}
        if not METADATA <= self.kind <= COLLECTIVE:
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
        return f"{self.context.where}: node {self.id} ({self.name[:60]})"

    @property
    def on_host(self) -> bool:
        """Whether it runs on the host's processor."""
        return bool(self.attributes.get("is_cpu_op", ("", False))[1])

    @property
    def communicates(self) -> bool:
        """Whether it communicates itself: the host's call that only launches a collective states neither its
        kind nor its size, and nor does a kernel of which only the duration was recorded."""
        if self.kind not in (COLLECTIVE, SEND):
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
        micros = int(self.message.duration_micros)
        if micros:
            seconds = micros / 1e6
        else:
            operations, moved = self.number("num_ops"), self.number("tensor_size")
            if not operations and not moved:
                return None
            rates = (("peak_flops", operations), ("memory_Bps", moved))
            seconds = max(self._share(work, name, getattr(self.context, name)) for name, work in rates)
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
        source = self.context.rank if source is None else source
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
            sizes = self.context.sizes
            if ranks is None and sizes is None:
                problem = "is an all-gather of a group whose size the trace does not say"
                raise self.bad(problem, "pass sizes, those of the network's dimensions")
            spanned = sizes or ()
            if dimensions is not None:
                spanned = tuple(spanned[dimension] for dimension in dimensions)
            members = prod(spanned) if ranks is None else len(ranks)
        total = float(size * members)
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
        sizes = self.context.sizes
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
        groups = self.context.groups
        if groups is None:
            problem = f"is of process group {name[:40]!r}, whose members the trace does not say"
            raise self.bad(problem, "pass groups, as read_groups reads them")
        if name not in groups:
            raise UnknownName("process group", name[:40], groups, where=self.where)
        return groups[name]


# Traces --------------------------------------------------------------------------------------------------------

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
    schema()
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
        for message in decode_messages(raw, self.context.where):
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
            return 0.0, node.collective() if node.kind == COLLECTIVE else node.message_sent()
        if node.kind in (METADATA, RECEIVE):
            self.assumed["received"] += node.kind == RECEIVE
            return 0.0, None
        seconds, moves = node.seconds(), node.kind in (LOAD, STORE)
        if seconds is None and moves:
            raise node.bad("has neither a duration nor a tensor_size", "give one of them")
        self.assumed["memory"] += moves
        self.assumed["kernels"] += node.kind in (COLLECTIVE, SEND) and not node.on_host
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
    node = schema().node(name=kind, type=COLLECTIVE)
    node.attr.add(name="is_cpu_op").bool_val = False
    node.attr.add(name="comm_type").int64_val = numbers[kind]
    node.attr.add(name="comm_priority").int32_val = 0
    node.attr.add(name="involved_dim").bool_list.values.extend([True] * len(sizes))
    # An all-gather states one rank's share.
    node.attr.add(name="comm_size").int64_val = round(bytes_ / ranks if kind == "all-gather" else bytes_)
    trace = encode_messages([node])
    traces = {f"trace.{rank}.et": trace for rank in range(ranks)}
    write_folder(folder, traces)
    return tuple(Path(folder) / name for name in traces)
