"""PyTorch's two kinds of traces as workloads, told apart by their beginning.

The profiler (Kineto) writes the GPU's kernels.  Kernels of NCCL are communications; what NCCL's kernels know
of them is in their arguments.  The other kernels are computations, joined between the points where one of
them waits for a communication or is waited for.

``ExecutionTraceObserver`` (schema 1.0.3 or later) writes the operators of one rank as nodes.  A collective is a node
``record_param_comms`` with attributes; nodes ``## process_group:init ##`` list the groups.  Such a trace says neither
how long a node computes (unless a tool has added ``dur``) nor what waits for what on the GPU.

Key names are those of ``torch/csrc/distributed/c10d/ParamCommsUtils`` as Kineto's ``output_json.cpp`` and the
execution trace observer write them.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import reprlib
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Floats
from weft.files import LARGEST_FILE_BYTES, read_bytes
from weft.model.workload import Communication, CommunicationKind, Task, Workload

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


_TYPES = {
    1: "byte char bool uint8 int8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu",
    2: "half bfloat16 float16 short uint16 int16",
    4: "float float32 int uint32 int32",
    8: "double float64 long uint64 int64 complexfloat",
    16: "complexdouble",
}
ELEMENT_BYTES = {name: size for size, names in _TYPES.items() for name in names.split()}
"""Bytes of the types, by their names in PyTorch in lower case."""

_KINDS: tuple[tuple[str, CommunicationKind], ...] = (
    ("reducescatter", "reduce-scatter"),
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("alltoall", "all-to-all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("sendrecv", "send"),
    ("send", "send"),
    ("recv", "send"),
)
MOST_ELEMENTS = 10**15


def read_json(path: str | os.PathLike[str], *, where: str) -> Any:
    """What a JSON file holds, compressed with gzip or not."""
    remedy = "check the path, or trace fewer steps, without stacks and shapes"
    raw = read_bytes(path, where=where, largest=LARGEST_FILE_BYTES, remedy=remedy)
    if raw[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
                raw = packed.read(LARGEST_FILE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(f"not a whole gzip file: {error}", where=where) from None
        if len(raw) > LARGEST_FILE_BYTES:
            raise BadInput(f"holds more than {LARGEST_FILE_BYTES // 10**6} MB", where=where, remedy=remedy)
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
    except RecursionError:
        raise BadInput("not valid JSON: nested too deeply", where=where) from None
    except ValueError as error:
        raise BadInput(f"not valid JSON: {error}", where=where, remedy="is the file complete?") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def number(value: object, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise BadInput(f"{reprlib.repr(value)} is not a number", where=where)
    return float(value)


def kind_of(name: str) -> CommunicationKind | None:
    """The kind of a collective of PyTorch or of a kernel of NCCL, by its name."""
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KINDS if part in plain), None)


def communication(
    kind: CommunicationKind, record: Mapping[str, Any], keys: Mapping[str, str], where: str
) -> Communication:
    """The collective of a record whose fields ``keys`` names: in, out, dtype and ranks.

    Raises:
        Unsupported: the type's size is not known.
    """
    ranks = rank_list(record.get(keys["ranks"]))
    if kind == "barrier":
        return Communication(kind=kind, bytes=0.0, ranks=ranks)
    missing = [keys[field] for field in ("in", "out", "dtype") if keys[field] not in record]
    if missing:
        raise BadInput(
            f"the {kind} does not say its size: {', '.join(map(repr, missing))} is missing",
            where=where,
            remedy="trace with a PyTorch (2.2 or later) that records collectives",
        )
    sent, received = (_elements(record[keys[field]], f"{where}: {keys[field]}") for field in ("in", "out"))
    name = record[keys["dtype"]]
    size = ELEMENT_BYTES.get(name.strip().lower()) if isinstance(name, str) else None
    if size is None:
        raise Unsupported(f"elements of type {reprlib.repr(name)} have no known size", where=where)
    # Whichever of both is the whole buffer.
    elements = {"all-gather": received, "broadcast": max(sent, received), "send": max(sent, received)}
    return Communication(kind=kind, bytes=float(elements.get(kind, sent) * size), ranks=ranks)


def rank_list(value: object) -> tuple[int, ...] | None:
    """The ranks of a list, or of a text like "[0, 1]"; None where they are not all told."""
    if isinstance(value, str) and len(value) < 10_000_000:
        parts = [part.strip() for part in value.strip().strip("[]").split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            return None
        return tuple(map(int, parts))
    if isinstance(value, list) and value and all(type(rank) is int and 0 <= rank < 10**9 for rank in value):
        return tuple(value)
    return None


def _elements(value: object, where: str) -> int:
    count = number(value, where)
    if not (0 <= count < MOST_ELEMENTS and math.floor(count) == count):
        raise BadInput(f"{count:g} is not a number of elements", where=where)
    return int(count)


MOST_STREAMS = 256

_KINETO_KEYS = {"in": "In msg nelems", "out": "Out msg nelems", "dtype": "dtype", "ranks": "Process Group Ranks"}
_KINETO_ASSUMPTIONS = (
    "the rank of the trace stands for all ranks; kernels on one stream run in order",
    "a communication waits for the computations that were launched before it and had ended when it began",
    "a computation waits for the communications that had ended when it began",
    "what the host delayed, and copies to and from it, are left out; times of computations are as traced",
    "a receive counts as a message of its size",
)


def read_kineto(path: str | os.PathLike[str]) -> Workload:
    """The tasks of a trace (.json or .json.gz) of one rank, in the order in which they began.

    Where a file has several devices, only the first counts.

    Raises:
        Unsupported: a collective that is not modelled.
    """
    where = os.fspath(path)
    events = events_of(read_json(path, where=where), where)
    kernels = _kernels(events, where)
    if not kernels:
        raise BadInput("has no kernels of a GPU", where=where, remedy="profile with ProfilerActivity.CUDA")
    steps = len({event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#")})
    joined = () if steps <= 1 else (f"the {steps} profiled steps count as one iteration",)
    return Workload(name=where, tasks=_tasks(kernels), assumptions=(*_KINETO_ASSUMPTIONS, *joined))


@dataclass(slots=True, kw_only=True, eq=False)
class _TracePiece:
    """A kernel, or kernels of a stream that become one task, with the pieces that it waits for; times in microseconds.
    ``launched`` is when the host launched the first (its begin, where unknown)."""

    name: str
    stream: int
    begin: float
    end: float
    launched: float
    communication: Communication | None = None
    seconds: float = 0.0
    waits: list[_TracePiece] = field(default_factory=list)


def events_of(document: Any, where: str) -> list[dict[str, Any]]:
    """The events of a document of the profiler."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise BadInput(
            "is not a trace: it has no list of traceEvents", where=where, remedy="give a trace of torch.profiler"
        )
    return events


def _kernels(events: Sequence[dict[str, Any]], where: str) -> list[_TracePiece]:
    """The kernels of the first device, in the order in which they began."""
    kernels, device, launches = [], None, _launches(events, where)
    for number_, event in enumerate(events):
        if event.get("ph") != "X" or str(event.get("cat")).lower() != "kernel":
            continue
        place, arguments = f"{where}: event {number_}", event.get("args", {})
        if not isinstance(arguments, dict):
            raise BadInput("the arguments are not a table", where=place)
        own = number(arguments.get("device", event.get("pid", 0)), f"{place}: device")
        device = own if device is None else device
        if own != device:
            continue
        begin, length = _time(event, "ts", place), _time(event, "dur", place)
        name, correlation = str(event.get("name", ""))[:200], arguments.get("correlation")
        kernel = _TracePiece(
            name=name,
            stream=int(number(arguments.get("stream", event.get("tid", 0)), f"{place}: stream")),
            begin=begin,
            end=begin + length,
            launched=launches.get(correlation, -1.0) if isinstance(correlation, int) else -1.0,
            communication=_of_kernel(name, arguments, place),
        )
        kernels.append(kernel)
    if any(kernel.launched < 0 for kernel in kernels):
        for kernel in kernels:
            kernel.launched = kernel.begin
    return sorted(kernels, key=lambda kernel: (kernel.begin, kernel.launched))


def _launches(events: Sequence[dict[str, Any]], where: str) -> dict[int, float]:
    """When the host made the calls with a correlation number."""
    launches = {}
    for number_, event in enumerate(events):
        arguments = event.get("args")
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and isinstance(arguments, dict):
            correlation = arguments.get("correlation")
            if isinstance(correlation, int) and correlation > 0:
                launches[correlation] = _time(event, "ts", f"{where}: event {number_}")
    return launches


def _time(event: dict[str, Any], key: str, place: str) -> float:
    value = number(event.get(key), f"{place}: {key}")
    if value < 0:
        raise BadInput(f"{value:g} us is before the beginning", where=f"{place}: {key}")
    return value


def _of_kernel(name: str, arguments: dict[str, Any], place: str) -> Communication | None:
    """The collective of a kernel of NCCL; None for other kernels."""
    if not name.lower().startswith("nccl") and "Collective name" not in arguments:
        return None
    stated = arguments.get("Collective name")
    kind = (kind_of(stated) if isinstance(stated, str) else None) or kind_of(name.split("(")[0])
    if kind is None:
        raise Unsupported(f"the collective {str(stated or name)[:80]!r} is not modelled", where=place)
    return communication(kind, arguments, _KINETO_KEYS, place)


def _tasks(kernels: list[_TracePiece]) -> tuple[Task, ...]:
    communications: list[_TracePiece] = []
    streams: dict[int, list[_TracePiece]] = {}
    last: dict[int, _TracePiece] = {}
    for kernel in kernels:
        if kernel.communication is None:
            streams.setdefault(kernel.stream, []).append(kernel)
            continue
        kernel.name = kernel.name.split("(")[0]
        if kernel.stream in last:
            kernel.waits.append(last[kernel.stream])
        last[kernel.stream] = kernel
        communications.append(kernel)
    if len(streams) > MOST_STREAMS:
        raise BadInput(f"has {len(streams)} streams, more than a GPU", where="trace")
    pieces = list(communications)
    for stream, tasks in streams.items():
        pieces += _computations(stream, tasks, communications)
    pieces.sort(key=lambda piece: (piece.begin, piece.launched))
    place = {id(piece): i for i, piece in enumerate(pieces)}
    return tuple(
        Task(
            name=piece.name,
            seconds=piece.seconds,
            communication=piece.communication,
            waits=tuple(sorted({place[id(wait)] for wait in piece.waits})),
        )
        for piece in pieces
    )


def _computations(stream: int, kernels: list[_TracePiece], communications: list[_TracePiece]) -> list[_TracePiece]:
    """The kernels of a stream, joined where nothing waits between them; adds what communications wait for."""
    begins, ends = (np.array([getattr(kernel, name) for kernel in kernels]) for name in ("begin", "end"))
    launched = np.maximum.accumulate(np.array([kernel.launched for kernel in kernels]))
    started, ended, called = (
        np.array([getattr(kernel, name) for kernel in communications], dtype=np.float64)
        for name in ("begin", "end", "launched")
    )
    # A communication waits for the kernels that were launched before it and had ended when it began: the first
    # ``before`` of them.  The kernels from ``after`` on began when it had ended, and wait for it.
    latest = np.maximum.accumulate(ends)
    before = np.minimum(np.searchsorted(latest, started, side="right"), np.searchsorted(launched, called, side="left"))
    after = np.maximum(np.searchsorted(begins, ended, side="left"), before)
    pieces: list[_TracePiece] = []
    starting: dict[int, _TracePiece] = {}
    ending: dict[int, _TracePiece] = {}
    for start, stop in pairwise(sorted({0, len(kernels), *before.tolist(), *after.tolist()})):
        piece = _TracePiece(
            name=f"compute on stream {stream}",
            stream=stream,
            begin=kernels[start].begin,
            end=kernels[stop - 1].end,
            launched=kernels[start].launched,
            seconds=_busy(begins[start:stop], ends[start:stop]) * 1e-6,
            waits=pieces[-1:],
        )
        starting[start] = ending[stop] = piece
        pieces.append(piece)
    # Waits that the order of a stream implies are left out.
    waited: dict[int, int] = {}
    latest_of: dict[tuple[int, int], _TracePiece] = {}
    for piece, last, first in zip(communications, before.tolist(), after.tolist(), strict=True):
        if last > waited.get(piece.stream, 0):
            waited[piece.stream] = last
            piece.waits.append(ending[last])
        latest_of[first, piece.stream] = piece
    for (first, _), piece in latest_of.items():
        if first in starting:
            starting[first].waits.append(piece)
    return pieces


def _busy(begins: Floats, ends: Floats) -> float:
    """Microseconds in which at least one of the kernels runs."""
    latest = np.maximum.accumulate(ends)
    free = np.concatenate([begins[:1], latest[:-1]])
    return float(np.maximum(ends - np.maximum(begins, free), 0.0).sum())


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
