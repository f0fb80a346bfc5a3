"""The bound is below everything that any schedule does, and its bandwidth part is the optimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import prod

import highspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.schedules.bound import best_shares, ideal_s
from weft.collectives.schedules.chunks import Schedule, mirrored, request, stages_of
from weft.collectives.schedules.policies import balanced, baseline, themis
from weft.collectives.schedules.queues import play
from weft.collectives.schedules.timing import time_schedule
from weft.collectives.stages import ONE_OPERATION, STAGE_KINDS
from weft.fabric.dimension import KINDS, Dimension

RULES = ("fifo", "scf", "paper-scf", "astra-fifo", "astra-scf")
ACTIVE = (1, 2, 3, None)
BELOW = 1 - 1e-6
"""The bound is an LP's: exact to its tolerance."""


def some_dimensions(rng, *, most=4, latency=True, reduces=True):
    def one():
        kind = str(rng.choice([*KINDS, "switch"]))
        slow = float(rng.choice([0.0, 1e-8, 1e-6, 2e-6])) * float(rng.uniform(0.5, 1.5))
        return Dimension(
            size=int(rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 16])),
            kind=kind,
            bandwidth_Bps=float(10 ** rng.uniform(9, 11.5)),
            latency_s=slow if latency else 0.0,
            reduces=bool(reduces and kind == "switch" and rng.random() < 0.4),
        )

    found = tuple(one() for _ in range(int(rng.integers(1, most + 1))))
    return found if prod(dimension.size for dimension in found) > 1 else (replace(found[0], size=2),)


def some_request(rng, **more):
    dimensions = some_dimensions(rng, **more)
    kind = str(rng.choice(["all-reduce", *STAGE_KINDS]))
    names = ["ring", "direct", "halving-doubling", *(["double-tree"] if more.get("reduces", True) else [])]
    wanted = [str(rng.choice(names)) if one.kind == "switch" and rng.random() < 0.4 else None for one in dimensions]
    return request(kind, float(10 ** rng.uniform(4, 10)), dimensions, algorithms=wanted)


def shuffled(rng, asked, *, mirror):
    """Chunks of random sizes in random orders."""
    chunks = int(rng.choice([1, 2, 3, 7, 20]))
    used = np.array(asked.used, dtype=np.int64)

    def orders():
        return np.array([rng.permutation(used) for _ in range(chunks)], dtype=np.int64).reshape(chunks, -1)

    part, there = rng.uniform(0.1, 1, chunks), orders()
    gathers = None
    if asked.kind == "all-reduce":
        gathers = mirrored(there) if mirror else orders()
    return Schedule(
        request=asked,
        policy="random",
        chunk_bytes=part / part.sum() * asked.bytes,
        orders=there,
        gathers=gathers,
        fused=bool(rng.random() < 0.3),
    )


def some_schedules(rng, asked, *, mirror=None):
    yield baseline(asked, chunks=int(rng.choice([1, 3, 17])))
    yield baseline(asked, chunks=5, fused=True)
    yield themis(asked, chunks=int(rng.choice([1, 2, 9, 30])))
    yield themis(asked, chunks=int(rng.choice([4, 30])), variant="astra-sim")
    yield shuffled(rng, asked, mirror=True)
    yield shuffled(rng, asked, mirror=not any(name in ONE_OPERATION for name in asked.algorithms))
    yield balanced(asked, chunks=int(rng.choice([2, 6])))


@given(st.integers(0, 2**32 - 1))
def test_nothing_is_faster_than_the_bound(seed):
    rng = np.random.default_rng(seed)
    asked = some_request(rng)
    found = best_shares(asked)
    assert ideal_s(asked) * BELOW <= found.bandwidth_s
    assert found.bandwidth_s * BELOW <= found.bound_s
    for schedule in some_schedules(rng, asked):
        rule = str(rng.choice(RULES))
        for active in ACTIVE:
            timed = time_schedule(schedule, rule=rule, active=active)
            assert timed.time_s >= found.bound_s * BELOW, (schedule.policy, rule, active)


def test_the_bound_where_a_switch_that_reduces_saves_latency():
    """The order decides where the single operation is, and so how much latency there is in all."""
    switches = (
        Dimension(size=7, kind="fully-connected", bandwidth_Bps=43e9, latency_s=1.05e-6),
        Dimension(size=16, kind="switch", bandwidth_Bps=107e9, latency_s=5e-9),
        Dimension(size=4, kind="switch", bandwidth_Bps=5.7e9, latency_s=1.07e-6, reduces=True),
    )
    asked = request("all-reduce", 24e3, switches)
    one = time_schedule(baseline(asked, chunks=1), active=None)
    assert one.time_s >= best_shares(asked).bound_s * BELOW
    by_trees = request("all-reduce", 24e3, switches[:2] + switches[1:2], algorithms=[None, None, "double-tree"])
    for schedule in (baseline(by_trees, chunks=1), themis(by_trees, chunks=4)):
        for active in ACTIVE:
            timed = time_schedule(schedule, active=active)
            assert timed.time_s >= best_shares(by_trees).bound_s * BELOW


@pytest.mark.parametrize(("algorithm", "size"), [("double-tree", 4), ("in-switch", 2)])
def test_the_bound_where_single_operations_cost_more_than_their_halves(algorithm, size):
    """Gathers that do not mirror avoid them: all-gather orders that repeat the reduce-scatter's."""
    one = Dimension(size=size, kind="switch", bandwidth_Bps=1e9, reduces=algorithm == "in-switch")
    asked = request("all-reduce", 1e9, (one, one), algorithms=(algorithm, algorithm))
    orders = np.tile([[0, 1], [1, 0]], (100, 1))
    schedule = Schedule(request=asked, policy="test", chunk_bytes=np.full(200, 5e6), orders=orders, gathers=orders)
    bound_s = best_shares(asked).bound_s
    assert time_schedule(schedule, active=1).time_s >= bound_s * BELOW


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("kind", STAGE_KINDS)
def test_dimensions_of_one_change_nothing(kind):
    alone = Dimension(size=1, kind="ring", bandwidth_Bps=1e9, latency_s=1e-6)
    ring, switch = replace(alone, size=4), replace(alone, size=8, kind="switch", bandwidth_Bps=3e8)
    asked = request(kind, 1e6, (ring, switch))
    padded = request(kind, 1e6, (alone, ring, alone, switch, alone))
    assert best_shares(padded).bound_s == pytest.approx(best_shares(asked).bound_s, rel=1e-9)
    for policy in (baseline, themis, balanced):
        for rule in RULES:
            times = [time_schedule(policy(one), rule=rule).time_s for one in (asked, padded)]
            assert times[0] == pytest.approx(times[1], rel=1e-9)


# The bandwidth part, by other means --------------------------------------------------------------


def loads_of(asked):
    """Seconds of work of each order on each dimension, all bytes in it: stage by stage."""
    sizes, rows = [one.size for one in asked.dimensions], []
    for order in permutations(asked.used):
        work = [0.0] * len(sizes)
        held = asked.bytes / prod(sizes) if asked.kind == "all-gather" else asked.bytes
        for dimension in order:
            one = asked.dimensions[dimension]
            buffer = held * one.size if asked.kind == "all-gather" else held
            share = (one.size - 1) / one.size
            links = 2 if one.kind == "line" else 1
            work[dimension] = links * share * buffer / one.bandwidth_Bps
            work[dimension] *= 2 if asked.kind == "all-reduce" else 1
            held = buffer if asked.kind == "all-gather" else held / one.size
        rows.append(work)
    return np.array(rows)


def by_the_dual(loads):
    """The largest z with z <= the loads of every order, weighted by prices of the dimensions."""
    scale = loads.max()
    model = highspy.Highs()
    model.silent()
    z = model.addVariable(lb=0.0)
    prices = [model.addVariable(lb=0.0, ub=1.0) for _ in range(loads.shape[1])]
    model.addConstr(sum(prices) == 1.0)
    for row in loads / scale:
        model.addConstr(z <= sum(float(load) * price for load, price in zip(row, prices, strict=True)))
    model.maximize(z)
    found = np.clip(model.vals(prices), 0.0, None)
    return float((loads @ (found / found.sum())).min())


def plain_request(rng, *, sizes):
    """No line of two nodes: it has one link, not two."""
    dimensions = tuple(
        Dimension(
            size=int(size),
            kind=str(rng.choice([kind for kind in KINDS if size > 2 or kind != "line"])),
            bandwidth_Bps=float(10 ** rng.uniform(9, 11.5)),
        )
        for size in sizes
    )
    kind = str(rng.choice(["all-reduce", "reduce-scatter", "all-gather"]))
    return request(kind, float(10 ** rng.uniform(5, 10)), dimensions)


@given(st.integers(0, 2**32 - 1))
def test_the_bandwidth_bound_is_the_optimum(seed):
    """Prices of the dimensions prove that no shares of the orders load the network less."""
    rng = np.random.default_rng(seed)
    asked = plain_request(rng, sizes=rng.integers(2, 17, int(rng.integers(2, 6))))
    loads, found = loads_of(asked), best_shares(asked)
    assert found.bandwidth_s == pytest.approx(by_the_dual(loads), rel=1e-6)
    assert found.bound_s == found.bandwidth_s
    assert found.share.sum() == pytest.approx(1.0)
    assert (found.share >= 0).all()


@given(st.integers(0, 2**32 - 1))
def test_one_dimension_by_hand(seed):
    """Work and latency one after the other; a single chunk reaches it."""
    rng = np.random.default_rng(seed)
    dimensions = some_dimensions(rng, most=1)
    asked = request(str(rng.choice(STAGE_KINDS)), float(10 ** rng.uniform(4, 9)), dimensions)
    one = baseline(asked, chunks=1)
    stages = stages_of(one)
    whole = float((stages.work_s + stages.latency_s).sum())
    assert time_schedule(one, active=1).time_s == pytest.approx(whole, rel=1e-9)
    assert best_shares(asked).bandwidth_s == pytest.approx(float(stages.work_s.sum()), rel=1e-9)
    assert best_shares(asked).bound_s <= whole * (1 + 1e-9)
    if len(stages.chunk) == 1:
        assert best_shares(asked).bound_s == pytest.approx(whole, rel=1e-9)


@given(st.integers(0, 2**32 - 1))
def test_latency_and_bandwidth_both_bound(seed):
    """At least the bandwidth's time, and the latency of the order that has least."""
    rng = np.random.default_rng(seed)
    asked = some_request(rng, reduces=False)
    found = best_shares(asked)
    latencies = asked.latencies_s("reduce-scatter" if asked.kind == "all-reduce" else asked.kind)
    total = float(latencies[list(asked.used)].sum()) * (2 if asked.kind == "all-reduce" else 1)
    assert found.bound_s >= max(total, found.bandwidth_s) * BELOW


def test_shares_load_the_dimensions_as_the_bound_says():
    """Chunks of exactly the shares, latency none: the largest load is the bound."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        asked = plain_request(rng, sizes=rng.integers(2, 9, 3))
        found = best_shares(asked)
        used = np.flatnonzero(found.share > 1e-12)
        orders = found.orders[used]
        schedule = Schedule(
            request=asked,
            policy="test",
            chunk_bytes=found.share[used] * asked.bytes,
            orders=orders,
            gathers=mirrored(orders) if asked.kind == "all-reduce" else None,
        )
        timed = time_schedule(schedule)
        assert timed.busy_s.max() == pytest.approx(found.bound_s, rel=1e-6)
        assert play(timed.stages.passages(), 3).time_s >= found.bound_s * BELOW
