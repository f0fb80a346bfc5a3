"""The trace of the last step, and what reads it."""

from __future__ import annotations

import json

import weft
from weft.interop.kernel_times import read_kernel_times

TRAINED = {"steps": 2, "batch": 2, "sequence": 16, "device": "cpu"}


def test_the_times_of_the_last_step_are_read_from_its_trace(tmp_path):
    path = tmp_path / "trace.json"
    weft.train("tiny-gpt", **TRAINED, profile=str(path))
    named = {event["name"] for event in json.loads(path.read_text())["traceEvents"] if "name" in event}
    assert {one for one in named if one.startswith("ProfilerStep#")} == {"ProfilerStep#2"}
    measured = read_kernel_times(path).measured
    assert {(one.m, one.n, one.k) for one in measured.products}
    assert all(one.seconds > 0 for one in measured.products)
