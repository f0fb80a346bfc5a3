"""Schedules on ranks that differ, against a simulator that follows every message of every rank."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.messages.flows import expand
from weft.collectives.schedules.chunks import Schedule, request
from weft.collectives.schedules.per_rank import play_ranks, rank_bandwidths
from weft.collectives.schedules.themis import baseline, themis
from weft.collectives.schedules.timing import time_schedule
from weft.collectives.stages import STAGE_KINDS
from weft.errors import BadInput, Unsupported
from weft.fabric.dimension import KINDS, Dimension

ACTIVE = (1, None)
EVERY_ALGORITHM = [
    ("ring", "ring"),
    ("line", "line"),
    ("fully-connected", "direct"),
    ("fully-connected", "ring"),
    ("switch", "halving-doubling"),
    ("switch", "ring"),
    ("switch", "direct"),
    ("switch", "double-tree"),
    ("switch", "in-switch"),
]


def some_dimension(rng, most):
    kind = str(rng.choice([*KINDS, "switch"]))
    return Dimension(
        size=int(rng.integers(1, most + 1)),
        kind=kind,
        bandwidth_Bps=float(rng.uniform(1e9, 9e9)),
        latency_s=float(rng.choice([0.0, 1.0])) * float(rng.uniform(1e-7, 3e-6)),
        reduces=bool(kind == "switch" and rng.random() < 0.3),
    )


def some_timed(rng, *, active, most=5):
    """A schedule of a random collective on a few ranks."""
    dimensions = [some_dimension(rng, most) for _ in range(int(rng.integers(1, 4)))]
    if prod(one.size for one in dimensions) == 1:
        dimensions[0] = replace(dimensions[0], size=2)
    kind = str(rng.choice(["all-reduce", *STAGE_KINDS]))
    wanted = [
        str(rng.choice(["ring", "direct", "double-tree", "halving-doubling"]))
        if one.kind == "switch" and rng.random() < 0.4
        else None
        for one in dimensions
    ]
    asked = request(kind, float(10 ** rng.uniform(3, 6)), dimensions, algorithms=wanted)
    chunks = int(rng.integers(1, 7))
    if rng.random() < 0.3:
        schedule = baseline(asked, chunks=chunks, fused=bool(rng.random() < 0.5))
    elif rng.random() < 0.5:
        schedule = themis(asked, chunks=chunks)
    else:
        schedule = shuffled(rng, asked, chunks)
    return time_schedule(schedule, rule=str(rng.choice(["fifo", "scf"])), active=active)


def shuffled(rng, asked, chunks):
    def orders():
        found = [rng.permutation(np.array(asked.used, dtype=np.int64)) for _ in range(chunks)]
        return np.array(found, dtype=np.int64).reshape(chunks, -1)

    part = rng.uniform(0.1, 1, chunks)
    return Schedule(
        request=asked,
        policy="random",
        chunk_bytes=part / part.sum() * asked.bytes,
        orders=orders(),
        gathers=orders() if asked.kind == "all-reduce" else None,
        fused=bool(rng.random() < 0.5),
    )


def some_ranks(rng, timed):
    asked = timed.schedule.request
    starts = rng.uniform(0, timed.time_s, asked.accelerators) * (rng.random(asked.accelerators) < 0.5)
    return starts, rank_bandwidths(timed) * rng.uniform(0.3, 1.5, (len(asked.dimensions), asked.accelerators))


# A slow simulator --------------------------------------------------------------------------------


def slow_ranks(timed, starts, speeds):
    """When each rank has its result: recursion from the end of each stage back to the starts."""
    asked, stages = timed.schedule.request, timed.stages
    sizes = [one.size for one in asked.dimensions]
    ops = range(len(stages.chunk))
    earlier_in_chunk = {op: op - 1 if op and stages.chunk[op - 1] == stages.chunk[op] else None for op in ops}
    place = {(int(stages.dimension[op]), int(timed.ranks[op])): op for op in ops}
    earlier_in_dimension = {op: place.get((int(stages.dimension[op]), int(timed.ranks[op]) - 1)) for op in ops}

    def group(rank, dimension):
        below = prod(sizes[:dimension])
        first = rank - rank // below % sizes[dimension] * below
        return [first + i * below for i in range(sizes[dimension])]

    def begin(op, rank):
        before, ahead = earlier_in_chunk[op], earlier_in_dimension[op]
        ready = starts[rank] if before is None else end(before, rank)
        return max(ready, starts[rank] if ahead is None else free(ahead, rank))

    def free(op, rank):
        if timed.active == 1:
            return end(op, rank)
        return begin(op, rank) + stages.sent_bytes[op] / speeds[stages.dimension[op], rank]

    def end(op, rank):
        members = group(rank, int(stages.dimension[op]))
        return ends(op, members[0])[members.index(rank)]

    @cache
    def ends(op, first):
        dimension = int(stages.dimension[op])
        members = group(first, dimension)
        one, kind = asked.dimensions[dimension], STAGE_KINDS[stages.kind[op]]
        cost = asked.stage(kind, dimension)
        now = [begin(op, rank) for rank in members]
        slowness = [1 / speeds[dimension, rank] for rank in members]
        buffer = max(stages.before_bytes[op], stages.after_bytes[op])
        if kind in STAGE_KINDS[:3] and cost.algorithm in ("ring", "halving-doubling"):
            for half in ("reduce-scatter", "all-gather") if kind == "all-reduce" else (kind,):
                steps = expand(half, cost.algorithm, np.arange(len(members)), buffer)
                now = by_messages(steps, now, slowness, one.latency_s)
            return now
        sent = [t + stages.sent_bytes[op] * s for t, s in zip(now, slowness, strict=True)]
        if cost.algorithm == "direct" and kind != "all-reduce":
            others = [max(sent[:i] + sent[i + 1 :]) + one.latency_s for i in range(len(sent))]
            return [max(pair) for pair in zip(sent, others, strict=True)]
        last = max(sent)
        return [last + cost.steps * one.latency_s] * len(members)

    last_of = {int(stages.chunk[op]): op for op in ops}
    return np.array(
        [max([starts[rank], *(end(op, rank) for op in last_of.values())]) for rank in range(asked.accelerators)]
    )


def by_messages(steps, now, slowness, latency_s):
    """A rank goes on when it has sent its messages of a step and has those that come to it."""
    for one in steps.one_by_one():
        after, sent = list(now), [0.0] * len(now)
        for source, bytes_ in zip(one.source.tolist(), one.bytes.tolist(), strict=True):
            sent[source] += bytes_
        for rank, bytes_ in enumerate(sent):
            after[rank] = now[rank] + bytes_ * slowness[rank]
        for source, target in zip(one.source.tolist(), one.target.tolist(), strict=True):
            arrives = now[source] + sent[source] * slowness[source] + latency_s
            after[target] = max(after[target], arrives)
        now = after
    return now


@pytest.mark.parametrize("active", ACTIVE)
@given(st.integers(0, 2**32 - 1))
def test_as_the_slow_simulator(active, seed):
    rng = np.random.default_rng(seed)
    timed = some_timed(rng, active=active)
    starts, speeds = some_ranks(rng, timed)
    found = play_ranks(timed, start_s=starts, bandwidth_Bps=speeds)
    np.testing.assert_allclose(found.finish_s, slow_ranks(timed, starts, speeds), rtol=1e-9, atol=1e-18)
    assert found.alike_s == timed.time_s
    assert found.time_s == found.finish_s.max()


# Ranks alike -------------------------------------------------------------------------------------


@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize(("of", "algorithm"), EVERY_ALGORITHM)
def test_ranks_alike_take_the_symmetric_time(of, algorithm, active):
    for kind in STAGE_KINDS:
        for size in (2, 3, 8):
            one = Dimension(size=size, kind=of, bandwidth_Bps=3e9, latency_s=1e-6, reduces=algorithm == "in-switch")
            other = Dimension(size=3, kind="ring", bandwidth_Bps=1e9, latency_s=2e-6)
            asked = request(kind, 7e5, (one, other, one), algorithms=(algorithm, None, algorithm))
            for schedule in (baseline(asked, chunks=7), baseline(asked, chunks=3, fused=True)):
                timed = time_schedule(schedule, active=active)
                found = play_ranks(timed)
                np.testing.assert_allclose(found.finish_s, timed.time_s, rtol=1e-12)


@pytest.mark.parametrize("active", ACTIVE)
@given(st.integers(0, 2**32 - 1))
def test_any_schedule_on_ranks_alike_takes_the_symmetric_time(active, seed):
    rng = np.random.default_rng(seed)
    timed = some_timed(rng, active=active, most=8)
    np.testing.assert_allclose(play_ranks(timed).finish_s, timed.time_s, rtol=1e-12, atol=0)
    whole = play_ranks(timed, start_s=np.full(timed.schedule.request.accelerators, 1e-3))
    np.testing.assert_allclose(whole.finish_s, timed.time_s + 1e-3, rtol=1e-12)


def test_the_platforms_of_themis(platform, platforms):
    for name in platforms:
        asked = request("all-reduce", 100 * 2**20, platform(name, "1 ns"))
        for rule in ("fifo", "scf"):
            timed = time_schedule(themis(asked), rule=rule, active=1)
            np.testing.assert_allclose(play_ranks(timed).finish_s, timed.time_s, rtol=1e-12)


def test_in_whole_nanoseconds_ranks_are_as_fast_to_a_nanosecond_a_step():
    """ASTRA-sim's rules round the symmetric time up, ranks do not."""
    one = Dimension(size=8, kind="switch", bandwidth_Bps=7e9, latency_s=1e-6)
    timed = time_schedule(baseline(request("all-reduce", 1e6, (one, one))), rule="astra-fifo", active=1)
    steps = 64 * 4 * 3
    assert timed.time_s - steps * 1e-9 <= play_ranks(timed).time_s <= timed.time_s * (1 + 1e-12)


# Ranks that differ -------------------------------------------------------------------------------


@pytest.mark.parametrize("active", ACTIVE)
@given(st.integers(0, 2**32 - 1))
def test_a_late_rank_delays_by_its_delay_less_the_slack(active, seed):
    """Whoever is late still has all of its bytes to send: at most the idle time of the busiest dimension
    can be made good."""
    rng = np.random.default_rng(seed)
    timed = some_timed(rng, active=active)
    late = int(rng.integers(timed.schedule.request.accelerators))
    delay = float(rng.uniform(0, 2)) * timed.time_s
    starts = np.zeros(timed.schedule.request.accelerators)
    starts[late] = delay
    found = play_ranks(timed, start_s=starts)
    slack = timed.time_s - timed.busy_s.max()
    assert found.time_s <= (timed.time_s + delay) * (1 + 1e-12)
    assert found.time_s - timed.time_s >= delay - slack - 1e-9 * timed.time_s
    assert (found.finish_s >= timed.time_s * (1 - 1e-12)).all()


@pytest.mark.parametrize("active", ACTIVE)
@given(st.integers(0, 2**32 - 1))
def test_later_starts_and_slower_links_never_help(active, seed):
    rng = np.random.default_rng(seed)
    timed = some_timed(rng, active=active)
    starts, speeds = some_ranks(rng, timed)
    before = play_ranks(timed, start_s=starts, bandwidth_Bps=speeds).finish_s
    shape = speeds.shape
    later = starts + rng.uniform(0, timed.time_s + 1e-9, shape[1]) * (rng.random(shape[1]) < 0.4)
    slower = speeds * np.where(rng.random(shape) < 0.4, rng.uniform(0.2, 1, shape), 1.0)
    for start_s, bandwidth_Bps in ((later, speeds), (starts, slower), (later, slower)):
        after = play_ranks(timed, start_s=start_s, bandwidth_Bps=bandwidth_Bps).finish_s
        assert (after >= before * (1 - 1e-12)).all()


def test_twice_as_slow_everywhere_without_latency_takes_twice_as_long():
    rng = np.random.default_rng(4)
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=3e9)
    timed = time_schedule(themis(request("all-reduce", 1e6, (ring, ring)), chunks=8))
    speeds = rank_bandwidths(timed) * rng.uniform(0.5, 1, (2, 16))
    once = play_ranks(timed, bandwidth_Bps=speeds).finish_s
    np.testing.assert_allclose(play_ranks(timed, bandwidth_Bps=speeds / 2).finish_s, 2 * once, rtol=1e-12)


def test_a_ring_looks_alike_from_everywhere():
    rng = np.random.default_rng(5)
    ring = Dimension(size=6, kind="ring", bandwidth_Bps=3e9, latency_s=1e-6)
    timed = time_schedule(baseline(request("all-reduce", 1e6, (ring,)), chunks=5))
    starts, speeds = rng.uniform(0, 1e-3, 6), rng.uniform(1e9, 3e9, (1, 6))
    found = play_ranks(timed, start_s=starts, bandwidth_Bps=speeds).finish_s
    turned = play_ranks(timed, start_s=np.roll(starts, 2), bandwidth_Bps=np.roll(speeds, 2, axis=1)).finish_s
    np.testing.assert_allclose(turned, np.roll(found, 2), rtol=1e-15)


def test_one_slow_link_of_a_ring_by_hand():
    """A reduce-scatter of 4 blocks in one chunk: 3 steps, paced by the slow sender as it gets there."""
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=4.0)
    timed = time_schedule(baseline(request("reduce-scatter", 16.0, (ring,)), chunks=1))
    assert timed.time_s == pytest.approx(3.0)
    found = play_ranks(timed, bandwidth_Bps=np.array([[1.0, 4.0, 4.0, 4.0]]))
    assert found.finish_s == pytest.approx([12.0, 12.0, 9.0, 6.0])


# What cannot be ----------------------------------------------------------------------------------


def test_arrays_of_another_shape_or_with_other_values():
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=1e9)
    timed = time_schedule(baseline(request("all-reduce", 1e6, (ring, ring)), chunks=2))
    good = rank_bandwidths(timed)
    assert good.shape == (2, 16)
    assert (good == 1e9).all()
    for starts in (np.zeros(15), np.zeros((1, 16)), np.full(16, -1.0), np.full(16, np.nan), np.full(16, np.inf)):
        with pytest.raises(BadInput, match="16 times"):
            play_ranks(timed, start_s=starts)
    for speeds in (good[:1], good.T, good * 0, -good, good * np.nan, good * np.inf):
        with pytest.raises(BadInput, match="2 x 16 positive bandwidths"):
            play_ranks(timed, bandwidth_Bps=speeds)


def test_too_many_active_chunks_or_too_large():
    ring = Dimension(size=4, kind="ring", bandwidth_Bps=1e9)
    asked = request("all-reduce", 1e6, (ring, ring))
    for active in (2, 64):
        with pytest.raises(Unsupported, match=f"{active} active chunks"):
            play_ranks(time_schedule(baseline(asked), active=active))
    wide = request("all-reduce", 1e9, (replace(ring, size=2**14), replace(ring, size=2**8)))
    with pytest.raises(Unsupported, match="steps of all ranks"):
        play_ranks(time_schedule(baseline(wide)))
    with pytest.raises(Unsupported, match="256 chunks on 4194304 ranks"):
        play_ranks(time_schedule(baseline(wide, chunks=256)))
