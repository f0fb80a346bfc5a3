"""Weft's own schedule: never slower than the others, and close to the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.schedules.bound import best_shares
from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.policies import balanced, baseline, themis
from weft.collectives.schedules.queues import order_of
from weft.collectives.schedules.timing import time_schedule
from weft.collectives.stages import STAGE_KINDS
from weft.fabric.dimension import KINDS, Dimension

MIB, GIB, US = 2.0**20, 2.0**30, 1e-6
TACOS = [
    ("line", (5, 5), 9606.00),
    ("ring", (8, 8), 5321.00),
    ("line", (8, 8), 10016.00),
    ("line", (4, 4, 4), 6573.00),
    ("ring", (4, 4, 4), 3443.00),
    ("line", (16, 16), 10064.00),
    ("ring", (16, 16), 5110.62),
    ("line", (8, 8, 4), 6683.12),
    ("ring", (8, 8, 4), 3380.88),
    ("ring", (32, 16), 5143.12),
    ("ring", (8, 8, 8), 3402.38),
    ("ring", (16, 8, 8), 3425.34),
    ("ring", (32, 32), 5168.06),
    ("line", (32, 32), 10256.00),
]
"""Tori and meshes, and the microseconds of an all-gather of 1024 MiB that TACOS 1.3.0 (1811f1f) synthesizes
for links of 50 GiB/s and 0.5 us, one chunk each, best of its runs."""


def peers(asked, active, chunks=64):
    """Times of the other policies on the same machine."""
    for fused in (False, True):
        yield time_schedule(baseline(asked, chunks=chunks, fused=fused), active=active).time_s
    for variant, rules in (("published", ("fifo", "scf")), ("astra-sim", ("paper-scf", "astra-fifo", "astra-scf"))):
        for rule in rules:
            yield time_schedule(themis(asked, chunks=chunks, variant=variant), rule=rule, active=active).time_s


def topology(rng):
    """2 to 5 dimensions; neighbours' bandwidths in ratios of 0.25 to 128, latencies of 20 ns to 1.7 us."""
    bandwidth, found = float(rng.uniform(200e9, 400e9)), []
    for _ in range(int(rng.integers(2, 6))):
        found.append(
            Dimension(
                size=int(rng.choice([2, 4, 8, 16])),
                kind=str(rng.choice(["ring", "fully-connected", "switch"])),
                bandwidth_Bps=bandwidth,
                latency_s=float(np.exp(rng.uniform(np.log(20e-9), np.log(1.7e-6)))),
            )
        )
        bandwidth /= 2 ** float(rng.uniform(-2, 7))
    return tuple(found)


def gaps(seeds, rng_key):
    """How far schedules are from the bound, and that none is slower than its peers: rows of MiB and gap."""
    rows = []
    for seed in seeds:
        rng = np.random.default_rng([rng_key, seed])
        mib = float(2 ** rng.uniform(0, np.log2(10_240)))
        kind = str(rng.choice(["all-reduce", "reduce-scatter", "all-gather"]))
        asked = request(kind, mib * MIB, topology(rng))
        schedule = balanced(asked)
        seconds = time_schedule(schedule).time_s
        assert seconds <= min(peers(asked, schedule.active)) * (1 + 1e-9), seed
        rows.append((mib, seconds / best_shares(asked).bound_s - 1))
    return np.array(rows)


def assert_close(found, largest):
    assert (found[:, 1] > -1e-6).all()
    big = found[found[:, 0] >= 100, 1]
    assert big.mean() <= 0.03
    assert big.max() <= largest
    assert found[:, 1].mean() <= 0.05


@pytest.mark.slow
def test_close_to_the_bound_on_many_topologies():
    assert_close(gaps(range(500), 22), 0.25)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["auto", 1, 2, 4, None]), st.sampled_from(STAGE_KINDS))
def test_never_slower_than_the_others(seed, active, kind):
    """Any kind of dimension, size and collective, switches that reduce, small buffers, few chunks."""
    rng = np.random.default_rng(seed)
    dimensions = []
    for _ in range(int(rng.integers(1, 4))):
        of = str(rng.choice([*KINDS, "switch"]))
        dimensions.append(
            Dimension(
                size=int(rng.integers(1, 10)),
                kind=of,
                bandwidth_Bps=float(10 ** rng.uniform(9, 11.5)),
                latency_s=float(rng.choice([0.0, 1e-7, 2e-6])),
                reduces=bool(of == "switch" and rng.random() < 0.4),
            )
        )
    dimensions.append(replace(dimensions[0], size=2))
    asked = request(kind, float(10 ** rng.uniform(3, 9)), dimensions)
    for chunks in (None, 12):
        schedule = balanced(asked, chunks=chunks, active=active)
        seconds = time_schedule(schedule).time_s
        assert seconds <= min(peers(asked, schedule.active, chunks or 64)) * (1 + 1e-9)
        assert active == "auto" or schedule.active == active
        assert schedule.chunk_bytes.sum() == pytest.approx(asked.bytes)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, None]))
def test_the_order_repeats_itself(seed, active):
    """A chart of the schedule has the order that the schedule fixes; policies repeat to the bit."""
    rng = np.random.default_rng(seed)
    asked = request("all-reduce", float(10 ** rng.uniform(5, 9)), topology(rng))
    schedule, again = balanced(asked, active=active), balanced(asked, active=active)
    np.testing.assert_array_equal(schedule.orders, again.orders)
    np.testing.assert_array_equal(schedule.ranks, again.ranks)
    timed = time_schedule(schedule)
    assert (timed.rule, timed.active) == ("fixed", active)
    assert timed.time_s == time_schedule(again).time_s
    assert schedule.ranks is not None
    found = order_of(timed.chart, timed.stages.passages(), len(asked.dimensions))
    for dimension in range(len(asked.dimensions)):
        here = np.flatnonzero(timed.stages.dimension == dimension)
        assert sorted(schedule.ranks[here].tolist()) == list(range(len(here)))
        in_order = here[np.argsort(schedule.ranks[here])]
        assert (np.diff(timed.chart.admitted_s[in_order]) >= 0).all()
        assert (timed.chart.admitted_s[here[np.argsort(found[here])]] == timed.chart.admitted_s[in_order]).all()


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter", "all-gather"])
def test_loads_are_those_of_the_lp(platform, platforms, kind):
    """The chunks load the dimensions as the best shares do, and the pipeline is full."""
    for name in platforms:
        for latency in ("none", "1 ns") if kind == "all-reduce" else ("none",):
            asked = request(kind, 100 * MIB, platform(name, latency))
            timed = time_schedule(balanced(asked))
            assert timed.busy_s.max() == pytest.approx(best_shares(asked).bandwidth_s, rel=0.001), name
            assert timed.utilization > 0.97


def test_latency_is_overlapped_on_the_platforms_of_themis(platform, platforms):
    """Within 1.5 % of the bound with table 2's latencies."""
    for name in platforms:
        for mib in (100, 1000):
            asked = request("all-reduce", mib * MIB, platform(name))
            seconds = time_schedule(balanced(asked)).time_s
            assert seconds <= 1.015 * best_shares(asked).bound_s, (name, mib)


@pytest.mark.slow_but(8)
@pytest.mark.parametrize("active", ["auto", None])
@pytest.mark.parametrize(("kind", "sizes", "us"), TACOS)
def test_all_gathers_are_not_slower_than_tacos(kind, sizes, us, active):
    """In both machines: the one that is chosen by itself, and the one that overlaps latencies."""
    dimensions = [Dimension(size=size, kind=kind, bandwidth_Bps=2 * 50 * GIB, latency_s=0.5 * US) for size in sizes]
    timed = time_schedule(balanced(request("all-gather", 1024 * MIB, dimensions), active=active))
    assert timed.time_s <= us * US
    accelerators = int(np.prod(sizes))
    poorest = len(sizes) * 50 * GIB * (1 if kind == "line" else 2)
    assert timed.time_s >= 1024 * MIB * (accelerators - 1) / accelerators / poorest


def test_small_requests_need_no_chunks_to_be_named():
    """64 chunks are only what others take by default: a few bytes go in fewer."""
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=1e9, latency_s=1e-6)
    asked = request("all-reduce", 16.0, [ring, ring])
    timed = time_schedule(balanced(asked))
    assert timed.time_s == pytest.approx(time_schedule(baseline(asked, chunks=1)).time_s, rel=0.01)
