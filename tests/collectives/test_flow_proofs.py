"""Schedules executed symbolically: every rank must end with every contribution exactly once."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collectives.proofs import prove

from weft.collectives.messages import expand, plan
from weft.collectives.schedules.chunks import Schedule, mirrored, request
from weft.collectives.schedules.messages import equal, schedule_plan
from weft.collectives.schedules.policies import balanced, baseline, themis
from weft.collectives.schedules.timing import per_dimension, time_schedule
from weft.errors import Unsupported
from weft.fabric.dimension import KINDS, Dimension

REDUCING = ("all-reduce", "reduce-scatter", "all-gather")


# One dimension -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reduce-scatter", "all-gather"])
def test_a_line_talks_to_neighbours_and_each_block_crosses_each_link_once(kind):
    for size in range(2, 65):
        messages = plan(kind, "line", size)
        assert (np.abs(messages.source - messages.target) == 1).all()
        assert (messages.blocks == 1).all()
        crossings = np.stack([messages.source, messages.target, messages.first])
        assert len(np.unique(crossings, axis=1).T) == len(messages.step) == size * (size - 1)
        assert messages.steps == size - 1


def test_a_line_uses_a_link_once_a_step():
    for size in range(2, 65):
        steps = expand("all-gather", "line", np.arange(size), 1.0)
        pairs = np.stack([steps.step, steps.source, steps.target])
        assert len(np.unique(pairs, axis=1).T) == len(steps)
        assert steps.bytes == pytest.approx(1 / size)


# Schedules over several dimensions ---------------------------------------------------------------


def some_dimensions(rng, most_ranks):
    found, ranks = [], 1
    for _ in range(int(rng.integers(1, 5))):
        size = int(rng.integers(1, 7))
        if ranks * size <= most_ranks:
            ranks *= size
            found.append(
                Dimension(
                    size=size,
                    kind=str(rng.choice(KINDS)),
                    bandwidth_Bps=float(10 ** rng.uniform(9, 11)),
                    latency_s=float(rng.choice([0.0, 1e-6])),
                )
            )
    if ranks == 1:
        found.append(Dimension(size=2, kind="ring", bandwidth_Bps=1e9))
    return found


def some_schedule(rng, asked):
    chunks = int(rng.integers(1, 6))
    which = rng.random()
    if which < 0.25:
        return baseline(asked, chunks=chunks, fused=bool(rng.random() < 0.5))
    if which < 0.5:
        return themis(asked, chunks=chunks)
    used = np.array(asked.used)
    orders = np.array([rng.permutation(used) for _ in range(chunks)], dtype=np.int64)
    return Schedule(
        request=asked,
        policy="random",
        chunk_bytes=np.full(chunks, asked.bytes / chunks),
        orders=orders,
        gathers=mirrored(orders) if asked.kind == "all-reduce" else None,
        fused=bool(rng.random() < 0.3),
    )


def some_timed(seed, kind, most_ranks):
    rng = np.random.default_rng(seed)
    asked = request(kind, 1e6, some_dimensions(rng, most_ranks))
    return time_schedule(
        some_schedule(rng, asked), rule=str(rng.choice(["fifo", "scf"])), active=[1, None][rng.integers(2)]
    )


@pytest.mark.parametrize("kind", REDUCING)
@given(st.integers(0, 2**32 - 1))
def test_schedules_reduce_and_gather_everything_once(kind, seed):
    """Any order of the dimensions, chunk by chunk, all messages in the steps that they are put in."""
    timed = some_timed(seed, kind, 36)
    prove(kind, schedule_plan(timed), timed.schedule.request.accelerators)


@pytest.mark.parametrize("kind", REDUCING)
@given(st.integers(0, 2**32 - 1))
def test_messages_of_a_schedule_send_the_bytes_of_its_stages(kind, seed):
    """Between ranks that differ in one coordinate alone; ranks on a line send different amounts."""
    timed = some_timed(seed, kind, 60)
    asked, messages = timed.schedule.request, schedule_plan(timed)
    bytes_ = messages.blocks * (asked.bytes / messages.parts)
    sizes = asked.sizes
    ranks = np.arange(asked.accelerators)
    digits = np.array(np.unravel_index(ranks, sizes[::-1]))[::-1]
    differs = digits[:, messages.source] != digits[:, messages.target]
    assert (differs.sum(axis=0) == 1).all()
    expected = per_dimension(timed.stages, timed.stages.sent_bytes, len(sizes))
    for i, one in enumerate(asked.dimensions):
        here = differs[i]
        if one.kind != "line":
            sent = np.bincount(messages.source[here], weights=bytes_[here], minlength=len(ranks))
            np.testing.assert_allclose(sent, expected[i], rtol=1e-9)


@pytest.mark.parametrize("kind", REDUCING)
@given(st.integers(0, 2**32 - 1))
def test_stages_of_a_dimension_follow_each_other_in_the_order_of_the_schedule(kind, seed):
    timed = some_timed(seed, kind, 36)
    asked, messages = timed.schedule.request, schedule_plan(timed)
    digits = np.array(np.unravel_index(np.arange(asked.accelerators), asked.sizes[::-1]))[::-1]
    chunk = messages.first // asked.accelerators
    assert (chunk == (messages.first + messages.blocks - 1) // asked.accelerators).all()
    for i in asked.used:
        here = digits[i, messages.source] != digits[i, messages.target]
        at_work = sorted(set(zip(messages.step[here].tolist(), chunk[here].tolist(), strict=True)))
        assert len({step for step, _ in at_work}) == len(at_work), "two chunks at once"
        stages = np.flatnonzero(timed.stages.dimension == i)
        order = timed.stages.chunk[stages[np.argsort(timed.ranks[stages])]].tolist()
        assert [one for one, _ in groupby(c for _, c in at_work)] == [one for one, _ in groupby(order)]


@pytest.mark.parametrize("kind", REDUCING)
def test_balanced_schedules_are_exact(kind):
    dimensions = [
        Dimension(size=4, kind="switch", bandwidth_Bps=4e11, latency_s=1e-7),
        Dimension(size=3, kind="ring", bandwidth_Bps=1e11, latency_s=1e-7),
        Dimension(size=3, kind="line", bandwidth_Bps=5e10, latency_s=1e-6),
    ]
    asked = request(kind, 1e8, dimensions)
    timed = equal(time_schedule(balanced(asked, chunks=8)), 16)
    assert np.ptp(timed.schedule.chunk_bytes) <= 1e-9 * timed.schedule.chunk_bytes.max()
    assert timed.schedule.chunk_bytes.sum() == pytest.approx(asked.bytes)
    prove(kind, schedule_plan(timed), 36)


def test_schedules_whose_messages_are_not_known():
    switch = Dimension(size=4, kind="switch", bandwidth_Bps=1e9, reduces=True)
    for algorithm in ("in-switch", "double-tree"):
        asked = request("all-reduce", 1e6, [switch, switch], algorithms=[algorithm, "ring"])
        with pytest.raises(Unsupported, match="in the switch or over trees"):
            schedule_plan(time_schedule(baseline(asked)))
        scatter = request("reduce-scatter", 1e6, [switch, switch], algorithms=[algorithm, "ring"])
        prove("reduce-scatter", schedule_plan(time_schedule(baseline(scatter, chunks=4))), 16)
    asked = request("all-to-all", 1e6, [switch, switch])
    with pytest.raises(Unsupported, match="all-to-all"):
        schedule_plan(time_schedule(baseline(asked)))
    asked = request("all-reduce", 1e6, [switch, switch], algorithms=["ring", "ring"])
    once = baseline(asked)
    with pytest.raises(Unsupported, match="orders that do not mirror"):
        schedule_plan(time_schedule(replace(once, gathers=once.orders)))
