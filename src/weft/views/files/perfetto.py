"""Timelines for Perfetto (ui.perfetto.dev) as its native TrackEvent protocol buffers, written by hand.

Field numbers are those of Perfetto's ``trace_packet.proto``, ``track_event.proto``,
``track_descriptor.proto``, ``counter_descriptor.proto`` and ``interned_data.proto``, which never reuse one.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weft.errors import BadInput
from weft.files import writing

PACKET = 1
TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED_DATA, SEQUENCE_FLAGS, TRACK_DESCRIPTOR = 8, 10, 11, 12, 13, 60
EVENT_TYPE, EVENT_NAME_IID, EVENT_TRACK, EVENT_DOUBLE = 9, 10, 11, 44
TRACK_UUID, TRACK_NAME, TRACK_PARENT, TRACK_COUNTER = 1, 2, 5, 8
INTERNED_NAMES, NAME_IID, NAME_TEXT = 2, 1, 2
SLICE_BEGIN, SLICE_END, COUNTER = 1, 2, 4
STATE_CLEARED, STATE_NEEDED = 1, 2
LONGEST_S = 2.0**62 / 1e9
_SEQUENCE_ID = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that lasts: ``track`` is a path from the outermost group, as ("job 0", "rank 3")."""

    track: tuple[str, ...]
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A value that holds from ``time_s`` until the next of the same ``track``, in ``unit``."""

    track: tuple[str, ...]
    time_s: float
    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class _Event:
    time_ns: int
    body: bytes


def write_trace(slices: Iterable[Slice], counters: Iterable[Counter], path: str | os.PathLike[str]) -> None:
    """Writes a timeline that Perfetto opens.

    Raises:
        BadInput: a time or value is not finite, a slice ends before it begins, or the file cannot be written.
    """
    packets = _packets(list(slices), list(counters))
    with writing(path) as file:
        for packet in packets:
            file.write(_message(PACKET, packet))


def _packets(slices: list[Slice], counters: list[Counter]) -> list[bytes]:
    tracks = _Tracks()
    names: dict[str, int] = {}
    events = [*_slice_events(slices, tracks, names), *_counter_events(counters, tracks)]
    events.sort(key=lambda event: event.time_ns)
    sequence = _number(SEQUENCE, _SEQUENCE_ID)
    interned = b"".join(
        _message(INTERNED_NAMES, _number(NAME_IID, iid) + _text(NAME_TEXT, name)) for name, iid in names.items()
    )
    first = sequence + _number(SEQUENCE_FLAGS, STATE_CLEARED) + _message(INTERNED_DATA, interned)
    needed = sequence + _number(SEQUENCE_FLAGS, STATE_NEEDED)
    return [
        first,
        *(sequence + _message(TRACK_DESCRIPTOR, descriptor) for descriptor in tracks.descriptors),
        *(_number(TIMESTAMP, e.time_ns) + _message(TRACK_EVENT, e.body) + needed for e in events),
    ]


class _Tracks:
    """Numbers of tracks, each described once, after its parents."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[tuple[str, ...], int, bool], int] = {}
        self.descriptors: list[bytes] = []

    def number(self, path: tuple[str, ...], lane: int = 0, unit: str | None = None) -> int:
        """The track at a path; ``lane`` tells those of one name apart, ``unit`` makes it a counter."""
        key = (path, lane, unit is not None)
        if key not in self.numbers:
            parent = self.number(path[:-1]) if len(path) > 1 else None
            self.numbers[key] = len(self.numbers) + 1
            name = f"{path[-1]} ({unit})" if unit else path[-1]
            descriptor = _number(TRACK_UUID, self.numbers[key]) + _text(TRACK_NAME, name)
            if parent is not None:
                descriptor += _number(TRACK_PARENT, parent)
            if unit is not None:
                descriptor += _message(TRACK_COUNTER, b"")
            self.descriptors.append(descriptor)
        return self.numbers[key]


def _slice_events(slices: list[Slice], tracks: _Tracks, names: dict[str, int]) -> Iterator[_Event]:
    """Begin and end of every slice; where slices overlap on a track, on the first lane that is free."""
    ends: dict[tuple[str, ...], list[int]] = {}
    for item in sorted(slices, key=lambda item: (item.begin_s, item.end_s)):
        begin, end = (_nanoseconds(time, item.track) for time in (item.begin_s, item.end_s))
        if end < begin:
            problem = f"{item.name!r} ends at {item.end_s:g} s, before it begins at {item.begin_s:g} s"
            raise BadInput(problem, where=" / ".join(item.track))
        free = ends.setdefault(item.track, [])
        lane = next((i for i, until in enumerate(free) if until <= begin), len(free))
        free[lane : lane + 1] = [end]
        track = _number(EVENT_TRACK, tracks.number(item.track, lane))
        name = _number(EVENT_NAME_IID, names.setdefault(item.name, len(names) + 1))
        yield _Event(begin, _number(EVENT_TYPE, SLICE_BEGIN) + name + track)
        yield _Event(end, _number(EVENT_TYPE, SLICE_END) + track)


def _counter_events(counters: list[Counter], tracks: _Tracks) -> Iterator[_Event]:
    for item in counters:
        if not math.isfinite(item.value):
            raise BadInput(f"the value is {item.value}", where=" / ".join(item.track))
        track = _number(EVENT_TRACK, tracks.number(item.track, unit=item.unit))
        body = _number(EVENT_TYPE, COUNTER) + track + _double(EVENT_DOUBLE, item.value)
        yield _Event(_nanoseconds(item.time_s, item.track), body)


def _nanoseconds(time_s: float, track: tuple[str, ...]) -> int:
    if not track:
        raise BadInput("has no name", where="track")
    if not 0 <= time_s <= LONGEST_S:
        raise BadInput(f"the time is {time_s:g} s", where=" / ".join(track), remedy="give 0 or more seconds")
    return round(time_s * 1e9)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "replace"))
