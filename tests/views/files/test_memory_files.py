"""A stage's memory as files: what is read back is what was recorded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from weft.cluster.catalogue import load as load_cluster
from weft.layout.spec import Layout
from weft.model import Job, Recipe
from weft.model.catalogue import load as load_model
from weft.simulation.iteration.memory import MemoryTimeline, memory_timeline
from weft.views.files.memory import write_memory


@pytest.fixture(scope="module")
def timeline() -> MemoryTimeline:
    job = Job(model=load_model("gpt2-xl").model, recipe=Recipe(global_batch=16, sequence=1024))
    return memory_timeline(job, load_cluster("h100-8"), Layout(pipeline=4, data=2))


def test_chrome_trace(timeline: MemoryTimeline, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    write_memory(str(path), timeline)
    found = json.loads(path.read_text())
    counters = [event for event in found["traceEvents"] if event["ph"] == "C"]
    totals = [event["args"]["total"] for event in counters if "total" in event["args"]]
    assert max(totals) == found["otherData"]["peak_bytes"] == round(timeline.peak.total_bytes)
    for event in counters:
        if "total" not in event["args"]:
            assert set(event["args"]) == {
                "weights", "gradients", "optimizer", "activations", "buffers", "communicators", "reserve"
            }  # fmt: skip
    spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in spans] == [one.name for one in timeline.operators]
    assert all(event["dur"] >= 0 for event in spans)
    at = 1e6 * timeline.peak.time_s
    running = [event["name"] for event in spans if event["ts"] <= at + 1e-3 and at < event["ts"] + event["dur"]]
    assert found["otherData"]["peak_operator"] in running


def test_snapshot_replays_to_the_peak(timeline: MemoryTimeline, tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    write_memory(str(path), timeline)
    found = pickle.loads(path.read_bytes())
    live: dict[int, int] = {}
    most = 0
    for entry in found["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
        most = max(most, sum(live.values()))
    assert most == pytest.approx(timeline.peak.total_bytes, abs=512 * len(timeline.allocations))
    assert live == {segment["address"]: segment["total_size"] for segment in found["segments"]}


def test_torch_reads_the_snapshot(timeline: MemoryTimeline, tmp_path: Path) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    path = tmp_path / "memory.pkl"
    write_memory(str(path), timeline)
    found = pickle.loads(path.read_bytes())
    assert f"{len(found['device_traces'][0])} entries" in viz.trace(found)
    assert "total_free: 0.0B" in viz.segsum(found)
    assert "snapshot.pickle" in viz.trace_plot(found)


def test_other_names_are_perfetto_s_own_format(timeline: MemoryTimeline, tmp_path: Path) -> None:
    path = tmp_path / "memory.pftrace"
    write_memory(str(path), timeline)
    body = path.read_bytes()
    assert body[0] == 0x0A
    assert b"activations (B)" in body
    assert timeline.peak_operator.encode() in body
