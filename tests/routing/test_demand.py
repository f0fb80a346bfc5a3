"""Jobs recognised in flows as measured: clocks that differ, records that are lost, and background."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from weft.commands.route import TrafficOptions, traffic_of
from weft.fabric.families import clos
from weft.fabric.spec import Fabric
from weft.routing.demand import FlowRecords, recognised
from weft.routing.plan import plan
from weft.routing.problem import demands
from weft.routing.traffic import JobTraffic, generate

PAPER = (("BLOOM", 4), ("GPT_3", 8), ("LLaMA2_70B", 2), ("BLOOM", 2))
PLANNED = (
    "llama-3.1-8b tp=8,dp=8 0",
    "llama-3.1-8b tp=8,pp=2,dp=4 64",
    "llama-3.1-8b tp=2,pp=4,dp=8 128",
    "mixtral-8x7b tp=4,dp=16,ep=4,sp 192",
)
"""Data parallel; with a pipeline of 2 and of 4; with experts."""


@cache
def planned() -> tuple[Fabric, JobTraffic]:
    options = TrafficOptions(cluster="h100-256", fabric="fat-tree", radix=16, job=PLANNED)
    return traffic_of(options)[:2]


def period_of(traffic: JobTraffic, fabric: Fabric) -> np.ndarray:
    """Seconds of an iteration of each job alone."""
    seconds = traffic.bytes / demands(fabric, traffic) * traffic.rounds[traffic.collective]
    longest = np.zeros(len(traffic.jobs))
    np.maximum.at(longest, traffic.flow_job, seconds)
    return longest + traffic.pause_s


def alone(traffic: JobTraffic, fabric: Fabric, seconds: float) -> FlowRecords:
    """Each round of each flow, as if its job were alone."""
    lasts, period = traffic.bytes / demands(fabric, traffic), period_of(traffic, fabric)
    rows = []
    for flow, group in enumerate(traffic.collective.tolist()):
        job = traffic.job[group]
        iterations = np.arange(int((seconds - traffic.start_s[job]) / period[job]) + 1)
        rounds = np.arange(traffic.rounds[group]) * lasts[flow]
        start = (traffic.start_s[job] + iterations[:, None] * period[job] + rounds).ravel()
        rows.append((np.full(len(start), flow), start, start + lasts[flow]))
    flow, start, end = (np.concatenate(column) for column in zip(*rows, strict=True))
    return records(traffic.source[flow], traffic.target[flow], traffic.bytes[flow], start, end)


def records(source, target, size, start, end) -> FlowRecords:
    return FlowRecords(source=source, target=target, bytes=size, start_s=start, end_s=end)


def measured(
    exact: FlowRecords, accelerators: int, draw: np.random.Generator, *, noise: int = 400, lost: float = 0.05
) -> FlowRecords:
    """With background between any two, records lost, clocks off by 4 ms and 50 ppm, and jitter of 1 ms."""
    columns = exact.source, exact.target, exact.bytes, exact.start_s, exact.end_s - exact.start_s
    ends = draw.integers(0, accelerators, (2, noise))
    size = 10 ** draw.uniform(4, 7, noise)
    more = *ends, size, draw.uniform(0, exact.end_s.max(), noise), size / 1e9
    together = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
    kept = (draw.random(len(together[0])) >= lost) & (together[0] != together[1])
    source, target, size, start, lasts = (column[kept] for column in together)
    drift, offset = draw.uniform(-50e-6, 50e-6, accelerators), draw.uniform(-4e-3, 4e-3, accelerators)
    start = 1 + start * (1 + drift[source]) + offset[source] + draw.normal(0, 1e-3, len(start))
    return records(source, target, size, start, start + lasts)


def members(traffic: JobTraffic) -> list[tuple[int, ...]]:
    ends = [np.concatenate([end[traffic.flow_job == j] for end in (traffic.source, traffic.target)]) for j in range(4)]
    return [tuple(np.unique(end).tolist()) for end in ends]


def assert_recognised(traffic: JobTraffic, fabric: Fabric, found) -> None:
    """All jobs with exactly their members, periods within 1 %, and routes as congested as those of the true flows."""
    true = dict(zip(members(traffic), period_of(traffic, fabric), strict=True))
    assert {job.accelerators for job in found.jobs} == set(true)
    for job in found.jobs:
        assert job.period_s == pytest.approx(true[job.accelerators], rel=0.01)
        assert job.confidence > 0.6
    assert found.background < 1e-3
    assert plan(fabric, found.traffic).alpha == plan(fabric, traffic).alpha


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 24))])
def test_the_papers_jobs_are_recognised(paper_network, seed):
    traffic = generate(paper_network, PAPER, seed=seed)
    exact = alone(traffic, paper_network, seconds=60)
    found = recognised(measured(exact, paper_network.accelerators, np.random.default_rng(seed)), paper_network)
    assert_recognised(traffic, paper_network, found)
    size = {len(job.accelerators): job for job in found.jobs}
    assert size[192].collectives == {"ring of 4": 48}
    assert size[512].collectives == {"ring of 8": 64}
    assert size[96].collectives == {"ring of 2": 48}
    # Rounds, bytes and pause of the model of the first job.
    number = found.jobs.index(size[192])
    flows = found.traffic.only([number])
    assert set(flows.rounds.tolist()) == {6}
    assert set(flows.bytes.tolist()) == {3666666667.0}
    assert flows.pause_s[0] == pytest.approx(1.23877, rel=0.01)


@pytest.mark.parametrize(
    ("seed", "seconds"),
    [(0, 160), (1, 250), *(pytest.param(s, t, marks=pytest.mark.slow) for s in range(2, 12) for t in (160, 300, 900))],
)
def test_planned_jobs_with_pipelines_and_experts_are_recognised(seed, seconds):
    fabric, traffic = planned()
    exact = alone(traffic, fabric, seconds)
    found = recognised(measured(exact, fabric.accelerators, np.random.default_rng(seed)), fabric)
    assert_recognised(traffic, fabric, found)
    kinds = [set(job.collectives) for job in found.jobs]
    assert kinds == [{"ring of 8"}, {"ring of 4", "ring of 2"}, {"ring of 2", "pipeline of 4"}, {"ring of 8"}]


def ring(size: int, period: float, *, first: int = 0, count: int = 20, begin: float = 0.0) -> list[tuple]:
    """One flow a period from each of some accelerators to the next."""
    return [
        (first + k, first + (k + 1) % size, 1e9, begin + n * period, begin + n * period + 0.2)
        for k in range(size)
        for n in range(count)
    ]


def of_rows(rows: list[tuple]) -> FlowRecords:
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    return records(*table[:, :2].T.astype(np.int64), *table[:, 2:].T)


SMALL = clos.build(32, radix=16, bandwidth_Bps=50e9)


def test_jobs_of_one_period_are_told_apart_by_their_phase():
    rows = ring(4, 2.0) + ring(4, 2.0, first=8, begin=0.7)
    assert [job.accelerators for job in recognised(of_rows(rows), SMALL).jobs] == [(0, 1, 2, 3), (8, 9, 10, 11)]
    rows = ring(4, 2.0) + ring(4, 2.0, first=8, begin=0.01)
    assert len(recognised(of_rows(rows), SMALL).jobs) == 1


def test_all_to_all_tree_and_chain():
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    tree = [(8, 9), (8, 10), (9, 11), (9, 12)]
    chain = [(16, 17), (17, 18), (18, 19)]
    both = [*tree, *((b, a) for a, b in tree)]
    rows = [
        (a, b, 1e9, period * n, period * n + 0.1)
        for edges, period in ((pairs, 1.0), (both, 1.3), (chain, 1.7))
        for a, b in edges
        for n in range(30)
    ]
    found = recognised(of_rows(rows), SMALL)
    assert [job.collectives for job in found.jobs] == [{"all-to-all of 4": 1}, {"tree of 5": 1}, {"pipeline of 4": 1}]
    assert [job.period_s for job in found.jobs] == pytest.approx([1.0, 1.3, 1.7])


def test_flows_of_a_pair_with_nearly_equal_sizes_are_one():
    """A pair sends 1.00 and 1.07 GB; sizes of other pairs lie between."""
    rows = [
        (k, (k + 1) % 4, size, 2.0 * n, 2.0 * n + 0.2) for k in range(4) for n in range(20) for size in (1e9, 1.07e9)
    ]
    rows += [(9 + k, 9 + (k + 1) % 5, 1e9 + 1.4e7 * k, 2.0 * n, 2.0 * n + 0.2) for k in range(5) for n in range(20)]
    found = recognised(of_rows(rows), SMALL)
    (job,) = found.jobs
    assert job.collectives == {"ring of 4": 1, "ring of 5": 1}
    assert plan(SMALL, found.traffic).alpha == 1.0
    assert sorted(set(found.traffic.bytes[:4].tolist())) == [pytest.approx(2.07e9, rel=0.04)]


def test_counters_of_queue_pairs_in_fixed_intervals():
    """Bytes of each 0.13 s: sizes change from interval to interval, the period of 1.7 s shows in their sums."""
    draw = np.random.default_rng(1)
    rows = []
    for source in range(4):
        flow_s = np.arange(0, 60, 1.7)[:, None] + np.linspace(0, 0.6, 600) + draw.normal(0, 1e-3)
        sent, edges = np.histogram(flow_s.ravel(), np.arange(0, 62, 0.13))
        rows += [(source, (source + 1) % 4, n * 1e6, t, t + 0.13) for n, t in zip(sent, edges, strict=False) if n]
    (job,) = recognised(of_rows(rows), SMALL).jobs
    assert job.period_s == pytest.approx(1.7, rel=0.01)
    assert job.collectives == {"ring of 4": 1}
    assert job.bytes == pytest.approx(4 * 600e6, rel=0.05)


def test_flows_that_never_repeat_count_whole_without_a_period():
    found = recognised(of_rows([(0, 1, 5e9, 0.0, 1.0), (1, 0, 5e9, 3.0, 4.0), (4, 5, 1e6, 0.0, 0.1)]), SMALL)
    (job,) = found.jobs
    assert (job.accelerators, job.period_s, job.bytes, job.confidence) == ((0, 1), None, 1e10, 0.0)
    assert found.background == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("rows", [[], [(0, 0, 5e9, 0.0, 1.0), (1, 0, 0.0, 3.0, 4.0)]])
def test_without_bytes_between_two_there_is_no_job(rows):
    found = recognised(of_rows(rows), SMALL)
    assert (found.jobs, len(found.traffic), found.background, found.records) == ((), 0, 1.0, len(rows))
