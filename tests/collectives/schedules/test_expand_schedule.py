"""Messages of whole schedules, executed symbolically and played on the links of meshes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.collectives.schedules.chunks import request
from weft.collectives.schedules.messages import equal, schedule_plan
from weft.collectives.schedules.policies import baseline, schedule
from weft.collectives.schedules.timing import time_schedule
from weft.collectives.stages import BALANCED_KINDS
from weft.errors import Unsupported
from weft.fabric.dimension import KINDS as DIMENSION_KINDS
from weft.fabric.dimension import Dimension

GIB = 2.0**30


def dimension(kind, size, Bps=50e9, latency_s=1e-6, **more):
    return Dimension(size=size, kind=kind, bandwidth_Bps=Bps, latency_s=latency_s, **more)


def shaped(*parts):
    """A network of parts like ("ring", 3)."""
    return [dimension(kind, size, Bps=50e9 / (i + 1)) for i, (kind, size) in enumerate(parts)]


def coordinates(rank, sizes):
    """Coordinates, the innermost first."""
    found = []
    for size in sizes:
        rank, inside = divmod(rank, size)
        found.append(inside)
    return found


networks = st.lists(
    st.tuples(
        st.sampled_from(DIMENSION_KINDS),
        st.integers(1, 5),
        st.sampled_from([1e9, 7e9, 50e9, 400e9]),
        st.sampled_from([0.0, 1e-6, 1e-4]),
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: [dimension(*part) for part in parts])


def timed(policy, asked, chunks):
    if policy == "fused":
        return time_schedule(baseline(asked, chunks=chunks, fused=True))
    return schedule(asked, policy, chunks=chunks)


POLICIES = ("baseline", "fused", "themis", "weft")


@given(networks, st.sampled_from(BALANCED_KINDS), st.sampled_from(POLICIES), st.integers(1, 4))
def test_messages_stay_in_their_groups_and_chunks_keep_their_orders(network, kind, policy, chunks):
    """Ranks of a message differ in one coordinate, and a chunk takes the dimensions one after the other."""
    sizes = [one.size for one in network]
    ranks = int(np.prod(sizes))
    assume(2 <= ranks <= 60)
    same = equal(timed(policy, request(kind, 1e6, network), chunks), chunks)
    plan = schedule_plan(same)
    spans = {}
    for step, source, target, first in zip(plan.step, plan.source, plan.target, plan.first, strict=True):
        here, there = coordinates(int(source), sizes), coordinates(int(target), sizes)
        apart = [i for i in range(len(sizes)) if here[i] != there[i]]
        assert len(apart) == 1
        spans.setdefault(int(first) // ranks, []).append((int(step), apart[0]))
    for chunk, seen in spans.items():
        once = [[d for s, d in seen if s == step] for step in sorted({s for s, _ in seen})]
        assert all(len(set(one)) == 1 for one in once)
        visited = [one[0] for one in once]
        turns = [visited[0], *(b for a, b in pairwise(visited) if a != b)]
        order = same.schedule.orders[chunk].tolist()
        if kind == "all-reduce":
            back = same.schedule.gathers[chunk].tolist()
            order = [*order, *back[1:]] if back[0] == order[-1] else [*order, *back]
        assert turns == order


# Equal chunks -----------------------------------------------------------------------------------


def test_equal_chunks_stay_as_they_are():
    asked = request("all-reduce", 1e6, shaped(("ring", 4), ("switch", 4)))
    for policy in ("baseline", "themis"):
        one = timed(policy, asked, 8)
        assert equal(one, 8) is one
        assert equal(one, 3) is one


def test_shares_are_cut_right():
    """Shares of 1/2, 1/3 and 1/6 in 12 chunks: 6, 4 and 2."""
    network = [dimension(kind, 4, Bps=50e9) for kind in ("ring", "switch", "fully-connected")]
    asked = request("all-reduce", 12.0e6, network)
    once = baseline(asked, chunks=3)
    orders = np.array([[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    shares = np.array([1 / 2, 1 / 3, 1 / 6])
    odd = replace(once, chunk_bytes=shares * 12e6, orders=orders, gathers=np.ascontiguousarray(orders[:, ::-1]))
    cut = equal(time_schedule(odd), 12).schedule
    assert cut.chunk_bytes == pytest.approx(1e6)
    assert [cut.orders.tolist().count(order) for order in orders.tolist()] == [6, 4, 2]
    assert (cut.gathers == cut.orders[:, ::-1]).all()


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_each_order_has_its_share_of_the_chunks(count, seed):
    """At most one chunk more or less than the bytes ask for, for each run of an order."""
    random = np.random.default_rng(seed)
    asked = request("all-gather", 1e6, shaped(("ring", 4), ("switch", 4)))
    parts = int(random.integers(2, 6))
    shares = random.dirichlet(np.ones(parts))
    assume(np.ptp(shares) > 1e-3)
    which = random.integers(0, 2, parts)
    odd = replace(baseline(asked, chunks=parts), chunk_bytes=shares * 1e6, orders=np.array([[0, 1], [1, 0]])[which])
    cut = equal(time_schedule(odd), count)
    assert len(cut.schedule) == count
    assert cut.schedule.chunk_bytes.sum() == pytest.approx(1e6)
    found = (cut.schedule.orders[:, 0] == 0).mean()
    assert found == pytest.approx(shares[which == 0].sum(), abs=parts / count)


def test_a_schedule_of_weft_is_cut_and_timed_anew():
    network = [dimension("switch", 4, Bps=150e9), dimension("ring", 4, Bps=100e9)]
    one = schedule(request("all-reduce", 64e6, network), "weft", chunks=6)
    assert np.ptp(one.schedule.chunk_bytes) > 1.0
    cut = equal(one, 32)
    assert (cut.rule, cut.active, len(cut.schedule)) == ("scf", one.active, 32)
    assert cut.time_s == pytest.approx(one.time_s, rel=0.2)


# Errors -----------------------------------------------------------------------------------------


def test_too_many_blocks():
    asked = request("all-gather", 1e9, shaped(("switch", 1024), ("switch", 1024)))
    with pytest.raises(Unsupported, match="fewer chunks"):
        schedule_plan(time_schedule(baseline(asked, chunks=2)))


def test_too_many_messages():
    asked = request("all-gather", 1e9, shaped(("fully-connected", 512)))
    with pytest.raises(Unsupported, match="4,000,000 messages"):
        schedule_plan(time_schedule(baseline(asked, chunks=16)))


# Links ------------------------------------------------------------------------------------------


def on_links(plan, block_bytes, link_Bps, latency_s):
    """When the last message has arrived, on links of their own for each pair of neighbours and direction.

    A link moves one message at a time in the order of the steps; a message sets out when its sender has its
    blocks, and arrives a latency after its bytes have gone.
    """
    order = np.argsort(plan.step, kind="stable")
    ranks = int(plan.owner.max()) + 1
    ready = np.full((ranks, len(plan.owner)), np.inf)
    ready[plan.owner, np.arange(len(plan.owner))] = 0.0
    free = {}
    last = 0.0
    for at in order.tolist():
        source, target = int(plan.source[at]), int(plan.target[at])
        blocks = slice(int(plan.first[at]), int(plan.first[at] + plan.blocks[at]))
        begin = max(float(ready[source, blocks].max()), free.get((source, target), 0.0))
        assert np.isfinite(begin)
        gone = begin + int(plan.blocks[at]) * block_bytes / link_Bps
        free[source, target] = gone
        ready[target, blocks] = gone + latency_s
        last = max(last, gone + latency_s)
    assert np.isfinite(ready).all()
    return last


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("policy", ["baseline", "themis", "weft"])
@pytest.mark.parametrize("side", [5, 8])
def test_an_all_gather_on_the_links_of_a_mesh(side, policy):
    """1 GiB, 50 GiB/s a link and direction, 0.5 us a hop: a node of a line has 100 GiB/s for both sides."""
    network = [dimension("line", side, Bps=100 * GIB, latency_s=0.5e-6) for _ in range(2)]
    one = schedule(request("all-gather", GIB, network), policy)
    one = equal(one, len(one.schedule))
    plan = schedule_plan(one)
    sizes = [side, side]
    for source, target in zip(plan.source.tolist(), plan.target.tolist(), strict=True):
        here, there = coordinates(source, sizes), coordinates(target, sizes)
        assert sum(abs(a - b) for a, b in zip(here, there, strict=True)) == 1
    took = on_links(plan, GIB / len(plan.owner), 50 * GIB, 0.5e-6)
    assert took == pytest.approx(one.time_s, rel=0.015)


def test_no_all_gather_on_a_mesh_beats_its_corner():
    """A corner has two links, through which all but its own part must come."""
    network = [dimension("line", 5, Bps=100 * GIB, latency_s=0.0) for _ in range(2)]
    one = schedule(request("all-gather", GIB, network), "weft")
    assert one.time_s >= 24 / 25 / 100 * (1 - 1e-9)
