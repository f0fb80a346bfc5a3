"""Traces of PyTorch's profiler (Kineto), which has the GPU's kernels, as workloads.

Kernels of NCCL are communications; what NCCL's kernels know of them is in their arguments.  The other kernels are
computations, joined between the points where one of them waits for a communication or is waited for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Floats
from weft.interop.torch_records import communication, kind_of, number, read_events
from weft.model.workload import Communication, Task, Workload

MOST_STREAMS = 256

_ASSUMPTIONS = (
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
    events = read_events(path, where)
    kernels = _kernels(events, where)
    if not kernels:
        raise BadInput("has no kernels of a GPU", where=where, remedy="profile with ProfilerActivity.CUDA")
    steps = len({event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#")})
    joined = () if steps <= 1 else (f"the {steps} profiled steps count as one iteration",)
    return Workload(name=where, tasks=_tasks(kernels), assumptions=(*_ASSUMPTIONS, *joined))


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
    return communication(kind, arguments, place)


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
