"""Timelines, read back by a decoder that knows the wire format of protocol buffers only."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.views.files.perfetto import Counter, Slice, write_trace


def fields(data):
    """(number, value) of every field: int for varints, bytes for the rest."""
    at, found = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        else:
            length = {1: 8, 2: None, 5: 4}[key & 7]
            length = varint() if length is None else length
            assert at + length <= len(data)
            found.append((key >> 3, data[at : at + length]))
            at += length
    return found


def decode(data):
    """Tracks (uuid -> name, parent, is counter) and events (time, type, track, name or value), in order."""
    tracks, names, events = {}, {}, []
    for number, packet in fields(data):
        assert number == 1
        parts = dict(fields(packet))
        assert parts[10] == 1
        if 12 in parts:
            assert parts[13] == 1
            for field, entry in fields(parts[12]):
                assert field == 2
                row = dict(fields(entry))
                names[row[1]] = row[2].decode()
        elif 60 in parts:
            row = dict(fields(parts[60]))
            assert row.get(5) is None or row[5] in tracks
            tracks[row[1]] = (row[2].decode(), row.get(5), 8 in row)
        else:
            assert parts[13] == 2
            row = dict(fields(parts[11]))
            value = struct.unpack("<d", row[44])[0] if 44 in row else names.get(row.get(10))
            events.append((parts[8], row[9], row[11], value))
    return tracks, events


def written(tmp_path, slices, counters=()):
    write_trace(slices, counters, tmp_path / "trace.pftrace")
    return decode((tmp_path / "trace.pftrace").read_bytes())


def test_a_slice_and_a_counter(tmp_path):
    tracks, events = written(
        tmp_path,
        [Slice(track=("job 0", "rank 1"), name="all-reduce", begin_s=1e-6, end_s=0.5)],
        [Counter(track=("leaf-0 - spine-1",), time_s=0.25, value=0.75, unit="share")],
    )
    assert tracks == {1: ("job 0", None, False), 2: ("rank 1", 1, False), 3: ("leaf-0 - spine-1 (share)", None, True)}
    assert events == [(1000, 1, 2, "all-reduce"), (250_000_000, 4, 3, 0.75), (500_000_000, 2, 2, None)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40), st.integers(0, 20), st.sampled_from("xyz")),
        max_size=30,
    )
)
def test_slices_never_overlap_on_a_track_and_none_is_lost(tmp_path_factory, rows):
    slices = [
        Slice(track=(track,), name=name, begin_s=begin * 1e-6, end_s=(begin + length) * 1e-6)
        for track, begin, length, name in rows
    ]
    tracks, events = written(tmp_path_factory.mktemp("trace"), slices)
    running, found = {}, []
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    for time, kind, track, name in events:
        if kind == 1:
            assert track not in running
            running[track] = (time, name)
        else:
            begin, name = running.pop(track)
            found.append((tracks[track][0], begin, time, name))
    assert not running
    assert sorted(found) == sorted(
        (track, begin * 1000, (begin + length) * 1000, name) for track, begin, length, name in rows
    )


def test_an_empty_timeline(tmp_path):
    assert written(tmp_path, []) == ({}, [])


@pytest.mark.parametrize(
    "item",
    [
        Slice(track=("a",), name="x", begin_s=2, end_s=1),
        Slice(track=("a",), name="x", begin_s=math.nan, end_s=1),
        Slice(track=("a",), name="x", begin_s=0, end_s=math.inf),
        Slice(track=("a",), name="x", begin_s=-1, end_s=1),
        Slice(track=(), name="x", begin_s=0, end_s=1),
    ],
)
def test_times_that_cannot_be(tmp_path, item):
    with pytest.raises(BadInput):
        write_trace([item], [], tmp_path / "x")


def test_bad_values_and_places(tmp_path):
    with pytest.raises(BadInput, match="nan"):
        write_trace([], [Counter(track=("a",), time_s=0, value=math.nan)], tmp_path / "x")
    for path in (tmp_path, tmp_path / "none" / "x", "\0"):
        with pytest.raises(BadInput, match="written"):
            write_trace([], [], path)
