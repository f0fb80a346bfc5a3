"""Schedules against Themis (arXiv 2110.04478), its simulator and its figures.

Figures: read off the vector graphics of figures 8, 10 and 11.  Simulator: branch ASTRA-sim-1.0 (07d5d19) on
the published inputs, whose links take 1 ns a hop.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.collectives.schedules.bound import best_shares
from weft.collectives.schedules.chunks import request, stages_of
from weft.collectives.schedules.policies import baseline, themis
from weft.collectives.schedules.queues import play
from weft.collectives.schedules.timing import per_dimension, time_schedule
from weft.fabric.dimension import Dimension

MIB, GIB, NS, US = 2.0**20, 2.0**30, 1e-9, 1e-6
NAMES = (
    "2D-SW_SW",
    "3D-SW_SW_SW_homo",
    "3D-SW_SW_SW_hetero",
    "3D-FC_Ring_SW",
    "4D-Ring_SW_SW_SW",
    "4D-Ring_FC_Ring_SW",
)
POLICIES = ("baseline", "fifo", "scf")
ASTRA_SIM_NS = {
    100: (
        (1_222_149, 884_947, 807_601),
        (1_832_453, 759_276, 665_227),
        (916_869, 569_656, 565_373),
        (976_901, 770_899, 628_583),
        (586_501, 363_075, 335_904),
        (391_429, 281_983, 257_783),
    ),
    1000: (
        (12_211_077, 8_833_203, 8_059_455),
        (18_314_501, 7_582_048, 6_640_848),
        (9_159_301, 5_687_819, 5_644_915),
        (9_766_661, 7_543_007, 6_353_034),
        (5_864_581, 3_529_629, 3_414_172),
        (3_911_557, 2_815_162, 2_572_949),
    ),
}
"""An all-reduce of so many MiB: platforms in the order of ``NAMES``, policies in that of ``POLICIES``."""
FIGURE_8_US = {
    100: ((1241, 903, 817), (1847, 774, 694), (932, 584, 588), (993, 787, 655), (600, 376, 356), (401, 292, 267)),
    500: (
        (6125, 4437, 4014),
        (9171, 3806, 3403),
        (4595, 2859, 2883),
        (4899, 3786, 3155),
        (2946, 1779, 1726),
        (1966, 1418, 1305),
    ),
    1000: (
        (12230, 8853, 8008),
        (18327, 7596, 6790),
        (9175, 5703, 5750),
        (9782, 7558, 6292),
        (5878, 3543, 3439),
        (3922, 2825, 2600),
    ),
}
LOOSE_FIFO = ("2D-SW_SW", "3D-FC_Ring_SW", "4D-Ring_SW_SW_SW")
"""At 1000 MiB their first-in-first-out times differ by up to 3 %: ties that ASTRA-sim breaks otherwise."""
FIGURE_10_CHUNKS = (4, 8, 16, 32, 64, 128, 256, 512)
FIGURE_10_FIFO = {
    "3D-SW_SW_SW_hetero": (47.3, 61.9, 53.8, 67.1, 93.0, 91.0, 91.5, 93.2),
    "4D-Ring_FC_Ring_SW": (38.9, 76.3, 67.3, 83.5, 80.8, 86.0, 87.5, 82.4),
}
"""Utilization in percent of an all-reduce of 100 MiB in so many chunks."""
FIGURE_10_SCF = {
    "3D-SW_SW_SW_hetero": (57.8, 74.0, 76.4, 88.7, 92.5, 93.1, 92.6, 93.2),
    "4D-Ring_FC_Ring_SW": (39.4, 59.2, 75.3, 81.8, 88.0, 89.7, 90.7, 89.2),
}
FIGURE_10_BASE = {"3D-SW_SW_SW_hetero": (59.0, 58.3), "4D-Ring_FC_Ring_SW": (59.4, 58.5)}
"""The baseline with 4 and with 512 chunks."""
LP_LOADS_US = (780.5, 650.4, 557.5, 600.4, 325.2, 243.9)
"""Of 100 MiB: the largest load of the best shares, by an LP that is not Weft's."""


def all_reduce(platform, name, mib, latency="1 ns"):
    return request("all-reduce", mib * MIB, platform(name, latency))


def as_astra(asked, policy):
    """ASTRA-sim's schedule and its rule within a dimension."""
    if policy == "baseline":
        return baseline(asked, fused=True), "astra-fifo"
    return themis(asked, variant="astra-sim"), f"astra-{policy}"


def as_published(asked, policy):
    return (baseline(asked), "fifo") if policy == "baseline" else (themis(asked), policy)


def cases(rows):
    """Platform, policy and value of a table."""
    return [
        (name, policy, value)
        for name, row in zip(NAMES, rows, strict=True)
        for policy, value in zip(POLICIES, row, strict=True)
    ]


def figure_8(mib):
    return cases(FIGURE_8_US[mib])


# The worked example (figures 5 and 7) ------------------------------------------------------------

UNIT_S = 1.0
"""A reduce-scatter of 64 MB on the first dimension."""


@pytest.fixture
def example():
    sizes = (Dimension(size=4, kind="switch", bandwidth_Bps=rate) for rate in (48e6, 24e6))
    return request("all-reduce", 256e6, tuple(sizes))


def test_worked_example_orders_and_loads(example):
    for variant in ("published", "astra-sim"):
        schedule = themis(example, chunks=4, variant=variant)
        assert (schedule.orders + 1).tolist() == [[1, 2], [2, 1], [1, 2], [1, 2]]
        assert schedule.gathers is not None
        assert (schedule.gathers + 1).tolist() == [[2, 1], [1, 2], [2, 1], [2, 1]]
        stages = stages_of(schedule)
        scatters = stages.after_bytes < stages.before_bytes
        loads = per_dimension(stages, np.where(scatters, stages.work_s, 0.0), 2)
        assert loads.tolist() == [3.25 * UNIT_S, 3.5 * UNIT_S]


@pytest.mark.parametrize(
    ("policy", "rule", "units"),
    [
        (baseline, "fifo", 8.0),
        (themis, "scf", 7.0),
        (themis, "fifo", 8.0),
        (themis, "astra-fifo", 8.0),
        (themis, "astra-scf", 8.0),
    ],
)
def test_worked_example_times(example, policy, rule, units):
    timed = time_schedule(policy(example, chunks=4), rule=rule, active=1)
    whole_ns = 10 * NS if rule.startswith("astra") else 0.0
    assert timed.time_s == pytest.approx(units * UNIT_S, rel=1e-12, abs=whole_ns)


# Against ASTRA-sim 1.0 ---------------------------------------------------------------------------


@pytest.mark.parametrize("mib", [100, 1000])
def test_times_are_those_of_astra_sim(platform, mib):
    for name, policy, ns in cases(ASTRA_SIM_NS[mib]):
        schedule, rule = as_astra(all_reduce(platform, name, mib), policy)
        timed = time_schedule(schedule, rule=rule, active=1)
        within = {"baseline": 0.002}.get(policy, 0.005)
        if mib == 1000 and policy == "fifo" and name in LOOSE_FIFO:
            within = 0.03
        assert timed.time_s == pytest.approx(ns * NS, rel=within), (name, policy)


def test_with_the_endpoint_delay_times_are_those_of_astra_sim_to_the_nanosecond(platform):
    """One more nanosecond a stage, and 5 ns once: 18 simulations of 640 to 1,408 stages."""
    for name, policy, ns in cases(ASTRA_SIM_NS[100]):
        schedule, rule = as_astra(all_reduce(platform, name, 100), policy)
        stages = stages_of(schedule, whole_ns=True).passages()
        delayed = replace(stages, latency_s=stages.latency_s + NS)
        seconds = play(delayed, len(schedule.request.dimensions), rule=rule, active=1).time_s
        assert ns - seconds / NS == pytest.approx(5.0, abs=0.5), (name, policy)


# Against the paper's figures ---------------------------------------------------------------------


def test_figure_8_at_1000_mib(platform):
    for name, policy, us in figure_8(1000):
        asked = all_reduce(platform, name, 1000)
        loose = policy == "scf" or (policy == "fifo" and name in LOOSE_FIFO)
        schedule, rule = as_astra(asked, policy)
        timed = time_schedule(schedule, rule=rule, active=1)
        assert timed.time_s == pytest.approx(us * US, rel=0.03 if loose else 0.005), (name, policy)
        schedule, rule = as_published(asked, policy)
        timed = time_schedule(schedule, rule=rule, active=1)
        assert timed.time_s == pytest.approx(us * US, rel=0.035 if loose else 0.005), (name, policy)


def test_figure_8_at_100_mib_in_the_order_found_without_latency(platform):
    """Themis fixes the order within the dimensions by a simulation; repeated with table 2's latencies
    overlapped, it takes the time of the figure within 2 %."""
    for name, policy, us in figure_8(100):
        if policy != "fifo":
            continue
        before = time_schedule(themis(all_reduce(platform, name, 100)), rule="astra-fifo", active=1)
        again = replace(before.schedule, request=all_reduce(platform, name, 100, "paper"), ranks=before.ranks)
        assert time_schedule(again, active=None).time_s == pytest.approx(us * US, rel=0.02), name


def passed_once_s(asked):
    """1.5 times the latency of a pass through all dimensions, a ring's both ways."""
    latencies = asked.latencies_s("reduce-scatter").tolist()
    return 1.5 * sum(
        one.size / 2 * one.latency_s if one.kind == "ring" else latency
        for one, latency in zip(asked.dimensions, latencies, strict=True)
    )


def test_figure_8_at_100_mib_pays_latency_once(platform):
    """The time without latency and 1.5 passes: a fit, of which baseline and FIFO differ by 0.2 %."""
    for name, policy, us in figure_8(100):
        schedule, rule = as_astra(all_reduce(platform, name, 100), policy)
        seconds = time_schedule(schedule, rule=rule, active=1).time_s
        seconds += passed_once_s(all_reduce(platform, name, 100, "paper"))
        assert seconds == pytest.approx(us * US, rel=0.0205 if policy == "scf" else 0.003), (name, policy)


def test_mean_speedups_and_utilizations(platform):
    """Geometric means 1.72 and 1.58, at most 2.70; utilizations 56.3, 87.7 and 95.1 % (section 6.1)."""
    timed = {}
    for mib in (100, 500, 1000):
        for name in NAMES:
            for policy in POLICIES:
                schedule, rule = as_published(all_reduce(platform, name, mib), policy)
                timed[policy, name, mib] = time_schedule(schedule, rule=rule, active=1)
    keys = [(name, mib) for name in NAMES for mib in (100, 500, 1000)]

    def speedups(policy):
        return np.array([timed["baseline", *key].time_s / timed[policy, *key].time_s for key in keys])

    assert np.exp(np.log(speedups("scf")).mean()) == pytest.approx(1.72, rel=0.03)
    assert np.exp(np.log(speedups("fifo")).mean()) == pytest.approx(1.58, rel=0.03)
    assert speedups("scf").max() == pytest.approx(2.70, rel=0.03)
    for policy, percent in (("baseline", 56.31), ("fifo", 87.67), ("scf", 95.14)):
        mean = np.mean([timed[policy, *key].utilization for key in keys])
        assert 100 * mean == pytest.approx(percent, rel=0.03), policy


def test_figure_8_is_of_the_smallest_before_its_operation(platform):
    """Smallest-chunk-first by the size before an operation, of equal chunks the newest first, is what the paper ran:
    within 0.3 % in 12 of 18 cases and 1.5 % in all, where the larger of both sizes is up to 2.8 % off."""
    off = []
    for mib in (100, 500, 1000):
        for name, policy, us in figure_8(mib):
            if policy == "scf":
                schedule = themis(all_reduce(platform, name, mib), variant="astra-sim")
                once_s = passed_once_s(all_reduce(platform, name, mib, "paper"))
                found = [time_schedule(schedule, rule=rule, active=1).time_s for rule in ("paper-scf", "scf")]
                off.append([abs((one + once_s) / (us * US) - 1) for one in found])
    paper, larger = np.array(off).T
    assert paper.max() < 0.015
    assert np.count_nonzero(paper < 0.003) == 12
    assert larger.max() > 0.027


def paid_s(asked, name, chunks):
    """What figure 10's own baseline takes beyond the bytes: it grows with the chunks, between its two ends."""
    usual = time_schedule(baseline(asked, fused=True), rule="astra-fifo", active=1)
    few, many = (usual.utilization * usual.time_s / (percent / 100) - usual.time_s for percent in FIGURE_10_BASE[name])
    return few + (many - few) * np.log(chunks / 4) / np.log(128)


def figure_10(platform, name, variant, rule):
    """Utilization in percent over the numbers of chunks."""
    asked, found = all_reduce(platform, name, 100), []
    for chunks in FIGURE_10_CHUNKS:
        timed = time_schedule(themis(asked, chunks=chunks, variant=variant), rule=rule, active=1)
        found.append(100 * timed.utilization * timed.time_s / (timed.time_s + paid_s(asked, name, chunks)))
    return np.array(found)


@pytest.mark.parametrize("name", FIGURE_10_FIFO)
def test_figure_10(platform, name):
    """Within 0.2 points up to 16 chunks and 1.8 beyond for most; more chunks are not always better."""
    fifo = figure_10(platform, name, "astra-sim", "astra-fifo")
    assert fifo == pytest.approx(FIGURE_10_FIFO[name], abs=5.1)
    assert fifo[:-1] == pytest.approx(FIGURE_10_FIFO[name][:-1], abs=1.4)
    assert fifo[2] < fifo[1]
    scf = figure_10(platform, name, "astra-sim", "paper-scf")
    assert scf == pytest.approx(FIGURE_10_SCF[name], abs=2.7)
    assert scf[:2] == pytest.approx(FIGURE_10_SCF[name][:2], abs=0.1)


# One dimension, by hand --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "mib", "ns"),
    [("reduce-scatter", 100, 610_352), ("all-gather", 1600, 9_765_625), ("all-reduce", 100, 1_220_703)],
)
@pytest.mark.parametrize("chunks", [1, 64])
def test_one_switch(kind, mib, ns, chunks):
    """100 MiB of each accelerator: an all-gather's buffer is the gathered one of 1600 MiB."""
    switch = Dimension(size=16, kind="switch", bandwidth_Bps=150 * GIB)
    asked = request(kind, mib * MIB, [switch])
    for schedule in (baseline(asked, chunks=chunks), themis(asked, chunks=chunks)):
        assert time_schedule(schedule, active=1).time_s == pytest.approx(ns * NS, rel=0.001)


@pytest.mark.parametrize("kind", ["reduce-scatter", "all-gather", "all-reduce"])
def test_one_switch_pays_the_latency_of_its_steps(kind):
    switch = Dimension(size=16, kind="switch", bandwidth_Bps=150 * GIB)
    asked = request(kind, 100 * MIB, [switch])
    late = request(kind, 100 * MIB, [replace(switch, latency_s=US)])
    more = (
        time_schedule(baseline(late, chunks=1), active=1).time_s
        - time_schedule(baseline(asked, chunks=1), active=1).time_s
    )
    assert more == pytest.approx(4 * US * (2 if kind == "all-reduce" else 1), rel=1e-6)


def test_all_to_all_through_a_switch():
    asked = request("all-to-all", 64 * MIB, [Dimension(size=64, kind="switch", bandwidth_Bps=100 * GIB)])
    for active in (1, 4, None):
        timed = time_schedule(baseline(asked), active=active)
        assert timed.time_s == pytest.approx(615_234 * NS, rel=0.001)


def test_a_switch_does_not_store_and_forward():
    switch = Dimension(size=8, kind="switch", bandwidth_Bps=100 * GIB, latency_s=1000 * NS)
    asked = request("all-reduce", 64 * MIB, [switch])
    timed = time_schedule(baseline(asked, chunks=1, fused=True), active=1)
    assert timed.time_s == pytest.approx(1_099_750 * NS, rel=0.001)


# Orders and loads --------------------------------------------------------------------------------


def test_equal_bandwidths_do_not_hang(platform):
    """ASTRA-sim 2 with Themis patched in waits for ever here: ranks break ties each in its own way."""
    asked = all_reduce(platform, "3D-SW_SW_SW_homo", 100)
    for rule in ("fifo", "scf", "astra-fifo", "astra-scf"):
        timed = time_schedule(themis(asked), rule=rule, active=1)
        repeated = time_schedule(replace(timed.schedule, ranks=timed.ranks), active=1)
        assert repeated.time_s == pytest.approx(timed.time_s, rel=1e-3 if "astra" in rule else 1e-12)
        for dimension in range(3):
            places = timed.ranks[timed.stages.dimension == dimension]
            assert sorted(places.tolist()) == list(range(len(places)))


def test_best_shares_reach_the_bandwidth(platform):
    for name, us in zip(NAMES, LP_LOADS_US, strict=True):
        asked = all_reduce(platform, name, 100, "none")
        found = best_shares(asked)
        assert found.bandwidth_s == pytest.approx(us * US, rel=0.001)
        total = sum(one.bandwidth_Bps for one in asked.dimensions)
        assert found.bandwidth_s == pytest.approx(2 * 100 * MIB * 1023 / 1024 / total, rel=1e-6)
        loads = [time_schedule(themis(asked), active=1).busy_s.max(), found.bandwidth_s]
        assert 0.957 - 0.001 <= loads[1] / loads[0] <= 0.988 + 0.001
