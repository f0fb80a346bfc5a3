"""Traces: read from both formats, and replayed with results that a hand can compute."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from online_sites import idle_site

from weft.arrangement.replay import replay
from weft.arrangement.sharing import POLICIES
from weft.arrangement.trace import DAY_S, TraceJob, read_trace, work_of
from weft.errors import BadInput

HEADING = "job,arrival_s,duration_s,accelerators\n"
JOB = ["id", "job_name", "model", "status", "gmt_job_submitted", "gmt_job_running", "gmt_job_stopped",
       "gmt_job_finished"]  # fmt: skip


def test_two_jobs_on_one_leaf_do_not_feel_each_other(tmp_path):
    """Two hosts each, in leaves of six: slowdown 1, the second ends at 500 + 2000 s, and nobody waits."""
    trace = [
        TraceJob(name="a", arrival_s=0.0, duration_s=1000.0, accelerators=16),
        TraceJob(name="b", arrival_s=500.0, duration_s=2000.0, accelerators=16),
    ]
    found = replay(idle_site(tmp_path), trace)
    assert [one.policy.name for one in found.outcomes] == [policy.name for policy in POLICIES]
    for one in found.outcomes:
        assert one.slowdown.tolist() == pytest.approx([1.0, 1.0], rel=1e-6)
        assert one.queued_s.tolist() == [0.0, 0.0]
        assert one.makespan_s == pytest.approx(2500.0, rel=1e-6)
        assert one.utilization == pytest.approx((2 * 1000 + 2 * 2000) / (16 * 2500), rel=1e-6)


def test_a_job_waits_for_another_and_a_smaller_one_passes(tmp_path):
    """12 of 16 hosts for 100 s; 8 hosts wait for them 90 s; 4 hosts that come later begin at once."""
    trace = [
        TraceJob(name="a", arrival_s=0.0, duration_s=100.0, accelerators=96),
        TraceJob(name="b", arrival_s=10.0, duration_s=100.0, accelerators=64),
        TraceJob(name="c", arrival_s=20.0, duration_s=10.0, accelerators=32),
        TraceJob(name="d", arrival_s=20.0, duration_s=1.0, accelerators=999),
    ]
    site = idle_site(tmp_path)
    site = replace(site, fabric=replace(site.fabric, capacity_Bps=site.fabric.capacity_Bps * 1e6))
    found = replay(site, trace, ["first-fit + ecmp", "arrange"])
    assert found.too_large == ("d",)
    for one in found.outcomes:
        ran = one.slowdown * [100.0, 100.0, 10.0]
        assert one.queued_s.tolist() == pytest.approx([0.0, ran[0] - 10.0, 0.0], abs=1e-9)
        assert one.makespan_s == pytest.approx(ran[0] + ran[1])
        assert (one.slowdown <= 1.0 + 1e-9).all()


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("seed", range(12))
def test_arrange_on_random_traces(tmp_path, seed):
    """One event is never worse than first fit with ECMP (``test_online``).  Over a trace choices are greedy,
    so that is no theorem; these traces do not show the difference."""
    draw = np.random.default_rng(seed)
    trace = [
        TraceJob(
            name=f"job-{n}",
            arrival_s=float(draw.uniform(0, 3000)),
            duration_s=float(draw.uniform(300, 3000)),
            accelerators=int(draw.integers(1, 60)),
        )
        for n in range(10)
    ]
    trace.sort(key=lambda job: job.arrival_s)
    site = idle_site(tmp_path, cluster="a100-128", radix=32)
    found = {one.policy.name: one for one in replay(site, trace, ["first-fit + ecmp", "arrange"]).outcomes}
    assert found["arrange"].slowdown.mean() <= found["first-fit + ecmp"].slowdown.mean() + 1e-6


def test_the_same_bytes_again(tmp_path):
    trace = read_trace(Path(__file__).parents[2] / "examples" / "arrivals.csv")[:5]
    site = idle_site(tmp_path)
    assert replay(site, trace, ["arrange"]).to_json() == replay(site, trace, ["arrange"]).to_json()


@pytest.mark.parametrize("accelerators", [1, 8, 9, 32, 40, 128, 136, 144, 176])
def test_every_size_has_a_model(tmp_path, accelerators):
    site = idle_site(tmp_path, cluster="h100-256")
    job = work_of(TraceJob(name="a", arrival_s=0.0, duration_s=1.0, accelerators=accelerators), site)
    assert job.domains == -(-accelerators // 8)
    assert job.layout.world == 8 * job.domains


def public(folder: Path, jobs: list[list[str]], workers: list[tuple[str, str]]) -> Path:
    """A trace in the public format, with columns that are not read."""
    folder.mkdir()
    with (folder / "job.csv").open("w", newline="") as file:
        csv.writer(file).writerows([JOB, *jobs])
    with (folder / "worker.csv").open("w", newline="") as file:
        rows = [["", job, f"{job}-worker", "0c9d", res] for job, res in workers]
        csv.writer(file).writerows([["", "job_name", "worker_name", "host_ip", "RES"], *rows])
    return folder


def gpus(count: int) -> str:
    return json.dumps({"cpu": "90", "nvidia.com/gpu": str(count)})


def test_the_public_format(tmp_path):
    jobs = [
        ["1", "a", "gpt", "Succeeded", "2023/8/1 09:00", "2023/8/1 09:05", "", "2023/8/1 10:05"],
        ["2", "b", "gpt", "Stopped", "2023/8/1 08:30", "2023/8/1 08:30", "2023/8/1 08:40", ""],
        ["3", "late", "gpt", "Succeeded", "2023/8/2 08:30", "2023/8/2 08:31", "", "2023/8/2 09:31"],
        ["4", "never ran", "gpt", "Failed", "2023/8/1 09:00", "", "2023/8/1 09:05", ""],
        ["5", "no end", "gpt", "Running", "2023/8/1 09:00", "2023/8/1 09:01", "", ""],
        ["6", "no workers", "gpt", "Succeeded", "2023/8/1 09:00", "2023/8/1 09:01", "", "2023/8/1 09:30"],
        ["7", "before it came", "gpt", "Succeeded", "2023/8/1 09:00", "2023/7/20 09:01", "", "2023/8/1 09:30"],
    ]
    workers = [("a", gpus(8)), ("a", gpus(8)), ("b", gpus(1)), ("late", gpus(8)), ("no end", gpus(8)), ("b", "")]
    workers += [("never ran", gpus(8)), ("before it came", gpus(8))]
    folder = public(tmp_path / "trace", jobs, workers)
    early = (
        TraceJob(name="b", arrival_s=0.0, duration_s=600.0, accelerators=1),
        TraceJob(name="a", arrival_s=1800.0, duration_s=3600.0, accelerators=16),
    )
    late = TraceJob(name="late", arrival_s=DAY_S, duration_s=3600.0, accelerators=8)
    assert read_trace(folder) == (*early, late)
    assert read_trace(folder, day=1) == early
    assert read_trace(folder, day=2) == (replace(late, arrival_s=0.0),)
    with pytest.raises(BadInput, match="holds no job -- take another --day"):
        read_trace(folder, day=3)


BAD = {
    "no column": ("job,arrival_s,duration_s\na,0,1\n", "column accelerators is missing"),
    "no jobs": (HEADING, "holds no job"),
    "twice": (f"{HEADING}a,0,1,8\na,1,1,8\n", "line 3: job 'a' is given twice"),
    "no number": (f"{HEADING}a,soon,1,8\n", "line 2: arrival_s: 'soon' is out of range, or no number"),
    "negative": (f"{HEADING}a,-1,1,8\n", "arrival_s: '-1' is out of range"),
    "no duration": (f"{HEADING}a,0,0,8\n", "duration_s: '0' is out of range"),
    "not finite": (f"{HEADING}a,0,inf,8\n", "duration_s: 'inf' is out of range"),
    "no count": (f"{HEADING}a,0,1,8.5\n", "'8.5' is no count of accelerators"),
    "none": (f"{HEADING}a,0,1,0\n", "'0' is no count of accelerators"),
    "short": (f"{HEADING}a,0,1\n", "line 2: has not as many cells"),
    "long": (f"{HEADING}a,0,1,8,9\n", "line 2: has not as many cells"),
    "no name": (f"{HEADING},0,1,8\n", "line 2: job: has no name"),
    "no csv": (f'{HEADING}"a,0,1,8\n', "is no CSV"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_traces_are_named(tmp_path, name):
    text, message = BAD[name]
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(BadInput, match=message.replace("[", r"\[")):
        read_trace(tmp_path / "trace.csv")


@pytest.mark.parametrize(
    ("moment", "res", "message"),
    [
        ("yesterday", gpus(8), "job.csv: line 2: 'yesterday' is no time"),
        ("2023/8/1 09:00", "{", "worker.csv: line 2: RES: is no JSON object"),
        ("2023/8/1 09:00", '{"nvidia.com/gpu": "-1"}', "RES: is no JSON object with a count"),
    ],
)
def test_bad_public_traces_are_named(tmp_path, moment, res, message):
    row = ["1", "a", "gpt", "Succeeded", moment, "2023/8/1 09:05", "", "2023/8/1 10:05"]
    folder = public(tmp_path / "trace", [row], [("a", res)])
    with pytest.raises(BadInput, match=message):
        read_trace(folder)


def test_a_replay_that_cannot_be(tmp_path):
    site = idle_site(tmp_path)
    with pytest.raises(BadInput, match="every job of the trace is larger than the 16 hosts"):
        replay(site, [TraceJob(name="a", arrival_s=0.0, duration_s=1.0, accelerators=129)])
    held = '[[jobs]]\nname = "old"\nmodel = "gpt2-124m"\nlayout = "dp=8"\nbatch = 8\nhosts = ["host-3"]\n'
    with pytest.raises(BadInput, match="has jobs of its own"):
        replay(idle_site(tmp_path, jobs=held), [TraceJob(name="a", arrival_s=0.0, duration_s=1.0, accelerators=8)])
