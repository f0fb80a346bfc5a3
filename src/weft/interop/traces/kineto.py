"""PyTorch's profiler (Kineto): the GPU kernels of a trace as tasks.

Kernels of NCCL are communications; what it knows of them it writes into their arguments.  The other kernels
are computations, joined between the points where one of them waits for a communication or is waited for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import Floats
from weft.interop.traces.torch_records import communication, kind_of, number, read_json
from weft.model.workload import Communication, Task, Workload

MOST_STREAMS = 256

_KEYS = {"in": "In msg nelems", "out": "Out msg nelems", "dtype": "dtype", "ranks": "Process Group Ranks"}
_ASSUMPTIONS = (
    "the rank of the trace stands for all ranks; kernels on one stream run in order",
    "a communication waits for the computations that were launched before it and had ended when it began",
    "a computation waits for the communications that had ended when it began",
    "what the host delayed, and copies to and from it, are left out; times of computations are as traced",
    "a receive counts as a message of its size",
)


def read_kineto(path: str | os.PathLike[str]) -> Workload:
    """The tasks of a trace (.json or .json.gz) of one rank, in the order in which they began.

    Of several devices in a file only the first counts.

    Raises:
        BadInput: the file is no trace, has no kernels, or does not say how large its collectives are.
        Unsupported: a collective that is not modelled.
    """
    where = os.fspath(path)
    events = _events(read_json(path, where=where), where)
    kernels = _kernels(events, where)
    if not kernels:
        raise BadInput("has no kernels of a GPU", where=where, remedy="profile with ProfilerActivity.CUDA")
    steps = len({event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#")})
    one = () if steps <= 1 else (f"the {steps} profiled steps count as one iteration",)
    return Workload(name=where, tasks=_tasks(kernels), assumptions=(*_ASSUMPTIONS, *one))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """Times in microseconds; ``launched`` is when the host launched it (its begin, where unknown)."""

    name: str
    stream: int
    begin: float
    end: float
    launched: float
    communication: Communication | None


@dataclass(slots=True, kw_only=True)
class _Piece:
    """A task with the pieces that it waits for; ``begin`` and ``launched`` order the tasks."""

    begin: float
    launched: float
    name: str
    seconds: float = 0.0
    communication: Communication | None = None
    waits: list[_Piece]


def _events(found: Any, where: str) -> list[dict[str, Any]]:
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise BadInput(
            "is no trace: it has no list of traceEvents", where=where, remedy="give a trace of torch.profiler"
        )
    return events


def _kernels(events: Sequence[dict[str, Any]], where: str) -> list[_Kernel]:
    """The kernels of the first device, in the order in which they began."""
    launches = _launches(events, where)
    found, device = [], None
    for number_, event in enumerate(events):
        if event.get("ph") != "X" or str(event.get("cat")).lower() != "kernel":
            continue
        place = f"{where}: event {number_}"
        arguments = event.get("args", {})
        if not isinstance(arguments, dict):
            raise BadInput("the arguments are no table", where=place)
        own = number(arguments.get("device", event.get("pid", 0)), f"{place}: device")
        device = own if device is None else device
        if own == device:
            found.append(_kernel(event, arguments, launches, place))
    if any(kernel.launched < 0 for kernel in found):
        found = [replace(kernel, launched=kernel.begin) for kernel in found]
    return sorted(found, key=lambda kernel: (kernel.begin, kernel.launched))


def _launches(events: Sequence[dict[str, Any]], where: str) -> dict[int, float]:
    """When the host made the calls with a correlation number."""
    found = {}
    for number_, event in enumerate(events):
        arguments = event.get("args")
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and isinstance(arguments, dict):
            correlation = arguments.get("correlation")
            if isinstance(correlation, int) and correlation > 0:
                found[correlation] = _time(event, "ts", f"{where}: event {number_}")
    return found


def _kernel(event: dict[str, Any], arguments: dict[str, Any], launches: dict[int, float], place: str) -> _Kernel:
    begin, length = _time(event, "ts", place), _time(event, "dur", place)
    name, correlation = str(event.get("name", ""))[:200], arguments.get("correlation")
    stream = number(arguments.get("stream", event.get("tid", 0)), f"{place}: stream")
    return _Kernel(
        name=name,
        stream=int(stream),
        begin=begin,
        end=begin + length,
        launched=launches.get(correlation, -1.0) if isinstance(correlation, int) else -1.0,
        communication=_communication(name, arguments, place),
    )


def _time(event: dict[str, Any], key: str, place: str) -> float:
    value = number(event.get(key), f"{place}: {key}")
    if value < 0:
        raise BadInput(f"{value:g} us is before the beginning", where=f"{place}: {key}")
    return value


def _communication(name: str, arguments: dict[str, Any], place: str) -> Communication | None:
    """The collective of a kernel of NCCL; None for other kernels."""
    if not name.lower().startswith("nccl") and "Collective name" not in arguments:
        return None
    stated = arguments.get("Collective name")
    kind = (kind_of(stated) if isinstance(stated, str) else None) or kind_of(name.split("(")[0])
    if kind is None:
        raise Unsupported(f"the collective {str(stated or name)[:80]!r} is not modelled", where=place)
    return communication(kind, arguments, _KEYS, place)


def _tasks(kernels: list[_Kernel]) -> tuple[Task, ...]:
    pieces = _communications([kernel for kernel in kernels if kernel.communication is not None])
    streams: dict[int, list[_Kernel]] = {}
    for kernel in kernels:
        if kernel.communication is None:
            streams.setdefault(kernel.stream, []).append(kernel)
    if len(streams) > MOST_STREAMS:
        raise BadInput(f"has {len(streams)} streams, more than a GPU", where="trace")
    made = [piece for _, piece in pieces]
    for stream, own in streams.items():
        made += _computations(stream, own, pieces)
    made.sort(key=lambda piece: (piece.begin, piece.launched))
    place = {id(piece): i for i, piece in enumerate(made)}
    return tuple(
        Task(
            name=piece.name,
            seconds=piece.seconds,
            communication=piece.communication,
            waits=tuple(sorted({place[id(other)] for other in piece.waits})),
        )
        for piece in made
    )


def _communications(kernels: list[_Kernel]) -> list[tuple[_Kernel, _Piece]]:
    last: dict[int, _Piece] = {}
    found = []
    for kernel in kernels:
        piece = _Piece(
            begin=kernel.begin,
            launched=kernel.launched,
            name=kernel.name.split("(")[0],
            communication=kernel.communication,
            waits=[last[kernel.stream]] if kernel.stream in last else [],
        )
        last[kernel.stream] = piece
        found.append((kernel, piece))
    return found


def _computations(stream: int, kernels: list[_Kernel], pieces: list[tuple[_Kernel, _Piece]]) -> list[_Piece]:
    """The kernels of a stream, joined where nothing waits between them; adds what communications wait for.

    Waits that the order of a stream implies are left out.
    """
    begins, ends = (np.array([getattr(kernel, name) for kernel in kernels]) for name in ("begin", "end"))
    before, after = _order(kernels, begins, ends, [kernel for kernel, _ in pieces])
    found: list[_Piece] = []
    starting: dict[int, _Piece] = {}
    ending: dict[int, _Piece] = {}
    for start, stop in pairwise(sorted({0, len(kernels), *before, *after})):
        piece = _Piece(
            begin=kernels[start].begin,
            launched=kernels[start].launched,
            name=f"compute on stream {stream}",
            seconds=_busy(begins[start:stop], ends[start:stop]) * 1e-6,
            waits=found[-1:],
        )
        starting[start] = ending[stop] = piece
        found.append(piece)
    waited: dict[int, int] = {}
    heard: dict[tuple[int, int], _Piece] = {}
    for (kernel, piece), last, first in zip(pieces, before, after, strict=True):
        if last > waited.get(kernel.stream, 0):
            waited[kernel.stream] = last
            piece.waits.append(ending[last])
        heard[first, kernel.stream] = piece
    for (first, _), piece in heard.items():
        if first in starting:
            starting[first].waits.append(piece)
    return found


def _order(
    kernels: list[_Kernel], begins: Floats, ends: Floats, communications: list[_Kernel]
) -> tuple[list[int], list[int]]:
    """Of each communication: how many kernels come before it, and the first of those that come behind it."""
    launched = np.maximum.accumulate(np.array([kernel.launched for kernel in kernels]))
    started, ended, called = (
        np.array([getattr(kernel, name) for kernel in communications], dtype=np.float64)
        for name in ("begin", "end", "launched")
    )
    before = np.minimum(
        np.searchsorted(np.maximum.accumulate(ends), started, side="right"),
        np.searchsorted(launched, called, side="left"),
    )
    after = np.maximum(np.searchsorted(begins, ended, side="left"), before)
    return before.tolist(), after.tolist()


def _busy(begins: Floats, ends: Floats) -> float:
    """Microseconds in which at least one of the kernels runs."""
    latest = np.maximum.accumulate(ends)
    free = np.concatenate([begins[:1], latest[:-1]])
    return float(np.maximum(ends - np.maximum(begins, free), 0.0).sum())
