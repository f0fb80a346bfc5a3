"""A stage's memory over an iteration, in the form that a file's name asks for.

``.json`` is Chrome's trace format (counters and slices; ui.perfetto.dev and chrome://tracing open it), ``.pickle`` or
``.pkl`` a snapshot as ``torch.cuda.memory._snapshot`` makes it (pytorch.org/memory_viz opens it), anything else
Perfetto's own format.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from weft.files import write_text, writing
from weft.simulation.iteration.memory import PARTS, Allocation, MemoryTimeline
from weft.views.files.perfetto import Counter, Slice, write_trace

ALIGNMENT = 512
"""Bytes to which PyTorch's allocator rounds."""
BASE = 1 << 40
"""Where addresses of a snapshot begin."""


def write_memory(path: str, timeline: MemoryTimeline) -> None:
    """Write a timeline.

    Raises:
        BadInput: the file cannot be written.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix == ".json":
        write_text(path, json.dumps(chrome_trace(timeline), separators=(",", ":")) + "\n")
    elif suffix in (".pickle", ".pkl"):
        with writing(path) as file:
            file.write(pickle.dumps(snapshot(timeline), protocol=4))
    else:
        write_trace(_slices(timeline), _counters(timeline), path)


def chrome_trace(timeline: MemoryTimeline) -> dict[str, Any]:
    """Operators as complete events, memory by part and in all as counters in bytes."""
    name = f"stage {timeline.stage}"
    named: dict[str, Any] = {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": name}}
    events = [named]
    for one in timeline.operators:
        span = {"ts": _us(one.begin_s), "dur": _us(one.end_s - one.begin_s)}
        events.append({"ph": "X", "pid": 0, "tid": 0, "name": one.name} | span)
    for level in timeline.levels:
        at = {"ph": "C", "pid": 0, "ts": _us(level.time_s)}
        parts = dict(zip(PARTS, map(round, level.bytes), strict=True))
        events.append(at | {"name": "memory by part (bytes)", "args": parts})
        events.append(at | {"name": "memory (bytes)", "args": {"total": round(level.total_bytes)}})
    ends = {"ph": "C", "pid": 0, "ts": _us(timeline.seconds)}
    events.append(ends | {"name": "memory (bytes)", "args": {"total": round(timeline.levels[-1].total_bytes)}})
    peak = timeline.peak
    about = {
        "stage": timeline.stage,
        "peak_bytes": round(peak.total_bytes),
        "peak_s": peak.time_s,
        "peak_operator": timeline.peak_operator,
    }
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)


def snapshot(timeline: MemoryTimeline) -> dict[str, Any]:
    """Allocations as the trace of one device; those that live on also as blocks of a segment each."""
    places, free = [], BASE
    for one in timeline.allocations:
        places.append(free)
        free += _rounded(one)
    changes = sorted(_changes(timeline), key=lambda change: change[:3])
    trace = []
    for time_s, begins, i in changes:
        one = timeline.allocations[i]
        entry = {
            "addr": places[i],
            "size": _rounded(one),
            "stream": 0,
            "device": 0,
            "time_us": round(time_s * 1e6),
            "frames": [{"name": one.name, "filename": one.part, "line": 0}],
        }
        trace += [
            {"action": what} | entry for what in (("alloc",) if begins else ("free_requested", "free_completed"))
        ]
    lasting = [i for i, one in enumerate(timeline.allocations) if one.end_s >= timeline.seconds]
    segments = [_segment(timeline.allocations[i], places[i]) for i in lasting]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {}, "external_annotations": []}


def _changes(timeline: MemoryTimeline) -> Iterator[tuple[float, bool, int]]:
    """Time, whether it begins, and number of each allocation; what lives on never ends."""
    for i, one in enumerate(timeline.allocations):
        yield one.begin_s, True, i
        if one.end_s < timeline.seconds:
            yield one.end_s, False, i


def _segment(one: Allocation, address: int) -> dict[str, Any]:
    size, frames = _rounded(one), [{"name": one.name, "filename": one.part, "line": 0}]
    block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [block],
    }


def _rounded(one: Allocation) -> int:
    return max(-(-round(one.bytes) // ALIGNMENT), 1) * ALIGNMENT


def _slices(timeline: MemoryTimeline) -> Iterator[Slice]:
    track = (f"stage {timeline.stage}", "operators")
    for one in timeline.operators:
        yield Slice(track=track, name=one.name, begin_s=one.begin_s, end_s=one.end_s)


def _counters(timeline: MemoryTimeline) -> Iterator[Counter]:
    stage = f"stage {timeline.stage}"
    for level in timeline.levels:
        yield Counter(track=(stage, "memory"), time_s=level.time_s, value=level.total_bytes, unit="B")
        for part, value in zip(PARTS, level.bytes, strict=True):
            yield Counter(track=(stage, part), time_s=level.time_s, value=value, unit="B")
