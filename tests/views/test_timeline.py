"""Timelines read back from their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.views.files import Slice, write_trace


def events(path: Path, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == phase]


def test_a_slice(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(str(path), [Slice(process="job 0", thread="rank 1", name="all-reduce", begin_s=1e-6, end_s=0.5)])
    names = [(one["pid"], one.get("tid"), one["args"]["name"]) for one in events(path, "M")]
    assert names == [(1, None, "job 0"), (1, 1, "rank 1")]
    assert events(path, "X") == [{"ph": "X", "name": "all-reduce", "pid": 1, "tid": 1, "ts": 1.0, "dur": 499_999.0}]
    with pytest.raises(BadInput, match="written"):
        write_trace(str(tmp_path / "none" / "x"), [])


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40), st.integers(0, 20), st.sampled_from("xyz")),
        max_size=30,
    )
)
def test_slices_never_overlap_on_a_thread_and_none_is_lost(tmp_path_factory, rows) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    slices = [
        Slice(process="p", thread=thread, name=name, begin_s=begin * 1e-6, end_s=(begin + length) * 1e-6)
        for thread, begin, length, name in rows
    ]
    write_trace(str(path), slices)
    threads = {event["tid"]: event["args"]["name"] for event in events(path, "M") if "tid" in event}
    free: dict[int, float] = {}
    found = []
    for event in events(path, "X"):
        assert event["ts"] >= free.get(event["tid"], 0.0)
        free[event["tid"]] = event["ts"] + event["dur"]
        found.append((threads[event["tid"]], event["ts"], event["dur"], event["name"]))
    assert sorted(found) == sorted(rows)
