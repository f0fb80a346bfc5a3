"""Timelines as Chrome traces (JSON), the format of PyTorch's profiler; ui.perfetto.dev opens them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.files import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that lasts from ``begin_s`` to ``end_s``, on a thread of a process as viewers group them."""

    process: str
    thread: str
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """Values of a process, stacked under one name, from ``time_s`` until the next of that name."""

    process: str
    name: str
    time_s: float
    values: Mapping[str, float]


def write_trace(
    path: str, slices: Iterable[Slice], counters: Iterable[Counter] = (), *, about: Mapping[str, Any] | None = None
) -> None:
    """Write a timeline; ``about`` is kept beside its events.

    Raises:
        BadInput: the file cannot be written.
    """
    processes: dict[str, int] = {}
    threads: dict[tuple[str, str, int], int] = {}
    ends_us: dict[tuple[str, str], list[float]] = {}
    events: list[dict[str, Any]] = []
    for part in sorted(slices, key=lambda part: (part.begin_s, part.end_s)):
        begin_us, end_us = _us(part.begin_s), _us(part.end_s)
        # Viewers nest slices of one thread: those that overlap get separate threads, each the first that is free.
        busy = ends_us.setdefault((part.process, part.thread), [])
        lane = next((i for i, until_us in enumerate(busy) if until_us <= begin_us), len(busy))
        busy[lane : lane + 1] = [end_us]
        pid = processes.setdefault(part.process, len(processes) + 1)
        tid = threads.setdefault((part.process, part.thread, lane), len(threads) + 1)
        duration_us = round(end_us - begin_us, 3)
        events.append({"ph": "X", "name": part.name, "pid": pid, "tid": tid, "ts": begin_us, "dur": duration_us})
    for level in counters:
        pid = processes.setdefault(level.process, len(processes) + 1)
        events.append({"ph": "C", "name": level.name, "pid": pid, "ts": _us(level.time_s), "args": level.values})
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for name, pid in processes.items()
    ]
    names += [
        {"ph": "M", "name": "thread_name", "pid": processes[process], "tid": tid, "args": {"name": thread}}
        for (process, thread, _), tid in threads.items()
    ]
    document = {"displayTimeUnit": "ms", "otherData": dict(about or {}), "traceEvents": [*names, *events]}
    write_text(path, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)
