"""Iterations of workloads: by hand, and by what must hold for every workload."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives.schedules.bound import ideal_s
from weft.collectives.schedules.chunks import request
from weft.errors import BadInput, UnknownName, Unsupported, WeftError
from weft.fabric.dimension import Dimension
from weft.model.workload import Communication, CommunicationKind, Task, Workload
from weft.simulation.workload import run_policies

POLICIES = ("baseline", "themis", "weft", "ideal")


def switch(size, Bps=100e9, latency_s=0.0):
    return Dimension(size=size, kind="switch", bandwidth_Bps=Bps, latency_s=latency_s)


def ring(size, Bps=100e9, latency_s=0.0):
    return Dimension(size=size, kind="ring", bandwidth_Bps=Bps, latency_s=latency_s)


def compute(seconds, *waits, name="compute"):
    return Task(name=name, seconds=seconds, waits=waits)


def reduce(bytes_, *waits, kind="all-reduce", **group):
    return Task(name=kind, communication=Communication(kind=kind, bytes=bytes_, **group), waits=waits)


def run(tasks, dimensions, policy="baseline", **options):
    return run_policies(Workload(name="test", tasks=tuple(tasks)), dimensions, [policy], **options)[policy]


def time(tasks, dimensions, policy="baseline", **options):
    return run(tasks, dimensions, policy, **options).iteration_s


@pytest.mark.parametrize("policy", POLICIES)
def test_without_communication_an_iteration_is_its_computation(policy):
    tasks = [compute(1.5), compute(0.25, 0), compute(0.5), compute(0.0, 1, 2)]
    found = run(tasks, [switch(4), ring(4)], policy)
    assert found.iteration_s == pytest.approx(2.25)
    assert found.compute_s == pytest.approx(2.25)
    assert found.exposed_s == pytest.approx(0.0, abs=1e-12)
    assert found.busy_s == pytest.approx([0.0, 0.0])


REDUCE_S = 2 * 3 / 4 * 1e9 / 100e9
"""1 GB over a switch of 4 at 100 GB/s, without latency."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("beside_s", [0.001, REDUCE_S, 0.1])
def test_a_collective_hides_behind_computation(policy, beside_s):
    tasks = [compute(0.01), reduce(1e9, 0), compute(beside_s, 0), compute(0.002, 1, 2)]
    found = run(tasks, [switch(4)], policy)
    assert found.iteration_s == pytest.approx(0.01 + max(REDUCE_S, beside_s) + 0.002)
    assert found.exposed_s == pytest.approx(max(REDUCE_S - beside_s, 0.0), abs=1e-12)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_blocking_collective_adds_its_time(policy):
    tasks = [compute(0.01), reduce(1e9, 0), compute(0.02, 1), reduce(2e9, 2), compute(0.03, 3)]
    assert time(tasks, [switch(4)], policy) == pytest.approx(0.06 + 3 * REDUCE_S)


@pytest.mark.parametrize("policy", POLICIES)
def test_disjoint_dimensions_do_not_slow_each_other(policy):
    dimensions = [switch(4), switch(4, 50e9)]
    both = [reduce(1e9, dimensions=(0,)), reduce(1e9, dimensions=(1,))]
    found = run(both, dimensions, policy)
    assert found.end_s == pytest.approx([REDUCE_S, 2 * REDUCE_S])
    if policy != "ideal":
        assert found.busy_s == pytest.approx([REDUCE_S, 2 * REDUCE_S])


@pytest.mark.parametrize("policy", ["baseline", "themis", "weft"])
@pytest.mark.parametrize("active", [1, 2, 7, None])
def test_the_same_dimension_is_shared(policy, active):
    both = [reduce(1e9), reduce(3e9)]
    found = run(both, [switch(4)], policy, active=active)
    assert found.iteration_s == pytest.approx(4 * REDUCE_S)
    assert found.busy_s == pytest.approx([4 * REDUCE_S])


GROUPS = {
    "neighbours": {"factors": ((4, 1),)},
    "strided": {"factors": ((4, 2),)},
    "nested": {"factors": ((2, 1), (2, 4))},
    "named": {"ranks": (0, 2, 4, 6)},
    "named in another order": {"ranks": (6, 0, 4, 2)},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_a_switch_have_all_its_bandwidth(policy, name):
    """Nested or not, a rank sends 2 (P - 1)/P of the buffer over the one dimension."""
    found = time([reduce(1e9, **GROUPS[name])], [switch(8)], policy)
    if (name, policy) == ("nested", "ideal"):
        assert found <= REDUCE_S
    else:
        assert found == pytest.approx(REDUCE_S)


def test_a_group_across_dimensions():
    """16 ranks 2 apart on 8 x 8: four of the inner dimension, four of the outer."""
    dimensions = [switch(8), switch(8, 50e9)]
    by_factors = time([reduce(1e9, factors=((16, 2),))], dimensions)
    assert by_factors == time([reduce(1e9, ranks=tuple(range(0, 32, 2)))], dimensions)
    assert by_factors == time([reduce(1e9)], [switch(4), switch(4, 50e9)])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "task",
    [
        reduce(1e9, factors=((1, 1),)),
        reduce(1e9, ranks=(5,)),
        reduce(1e9, dimensions=(1,)),
        reduce(0.0),
        reduce(0.0, kind="barrier"),
        reduce(1e9, kind="barrier"),
    ],
    ids=["factor", "rank", "dimension", "no bytes", "barrier", "barrier of bytes"],
)
def test_what_takes_no_time(policy, task):
    found = run([compute(0.5), *[task] * 2, compute(0.25, 1, 2)], [switch(4), ring(1)], policy)
    assert found.iteration_s == pytest.approx(0.75)


@pytest.mark.parametrize("ranks", [(0, 5), (0, 15), (3, 4), (0, 2), (1, 9)])
@pytest.mark.parametrize("kind", ["ring", "switch"])
def test_a_message_may_go_between_any_two_ranks(kind, ranks):
    """It takes a link of the outermost dimension in which their coordinates on 4 x 4 differ."""
    dimensions = [Dimension(kind=kind, size=4, bandwidth_Bps=Bps) for Bps in (100e9, 50e9)]
    widest = 50e9 if ranks[0] // 4 != ranks[1] // 4 else 100e9
    link_Bps = widest / 2 if kind == "ring" else widest
    assert time([reduce(1e9, kind="send", ranks=ranks)], dimensions) == pytest.approx(1e9 / link_Bps)


@pytest.mark.parametrize("kind", ["fully-connected", "line", "ring", "switch"])
@pytest.mark.parametrize("wide", [1.0, 100.0])
def test_no_message_is_faster_than_the_ideal(kind, wide):
    dimensions = [switch(2, 10e9), Dimension(size=4, kind=kind, bandwidth_Bps=10e9 * wide)]
    tasks = [reduce(1e9, kind="send")]
    assert time(tasks, dimensions, "ideal") <= time(tasks, dimensions) * (1 + 1e-9)


@pytest.mark.parametrize("kind", [kind for kind in get_args(CommunicationKind) if kind not in ("send", "barrier")])
def test_the_ideal_of_one_collective_is_the_ideal(kind):
    dimensions = [switch(4), ring(4, 30e9)]
    found = time([reduce(1e9, kind=kind)], dimensions, "ideal")
    assert found == pytest.approx(ideal_s(request(kind, 1e9, dimensions)))


# Random workloads -------------------------------------------------------------------------------

NETWORKS = (
    (switch(4, 100e9, 1e-6), ring(4, 20e9, 2e-6)),
    (ring(3, 50e9, 1e-6), switch(4, 50e9, 1e-6), switch(2, 10e9, 1e-6)),
    (Dimension(size=8, kind="fully-connected", bandwidth_Bps=1e11, latency_s=1e-7),),
)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@st.composite
def chains(draw):
    """Computations one after the other, collectives that begin behind any of them and are waited for."""
    network = draw(st.sampled_from(NETWORKS))
    tasks, last, open_ = [], (), []
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            seconds = draw(st.floats(0.0, 0.02))
            waits = (*last, *draw(st.lists(st.sampled_from(open_), unique=True))) if open_ else last
            tasks.append(compute(seconds, *waits))
            last = (len(tasks) - 1,)
        else:
            chosen = draw(st.sampled_from([None, *((i,) for i in range(len(network)))]))
            kind, bytes_ = draw(st.sampled_from(COLLECTIVES)), draw(st.floats(1e3, 1e9))
            tasks.append(reduce(bytes_, *last, kind=kind, dimensions=chosen))
            open_.append(len(tasks) - 1)
    return tasks, network


def critical_path_s(tasks, network):
    """No iteration is shorter: each collective with all bandwidth of its dimensions, without latency."""
    ends = []
    for task in tasks:
        took, one = task.seconds, task.communication
        if one is not None:
            own = network if one.dimensions is None else [network[i] for i in one.dimensions]
            count = np.prod([dimension.size for dimension in own])
            share = (count - 1) / count * (2 if one.kind == "all-reduce" else 1)
            took = one.bytes * share / sum(dimension.bandwidth_Bps for dimension in own)
        ends.append(took + max((ends[other] for other in task.waits), default=0.0))
    return max(ends)


@pytest.mark.slow
@given(chains())
def test_ideal_weft_and_the_others_are_in_order(case):
    tasks, network = case
    found = {policy: time(tasks, network, policy, chunks=8) for policy in POLICIES}
    least = critical_path_s(tasks, network)
    assert found["ideal"] >= least * (1 - 1e-9)
    assert found["ideal"] <= found["weft"] * (1 + 1e-9) + 1e-15
    assert found["weft"] <= min(found["themis"], found["baseline"]) * (1 + 1e-12)
    assert found["ideal"] >= sum(task.seconds for task in tasks) * (1 - 1e-9)


@pytest.mark.slow
@given(chains(), st.sampled_from(["baseline", "themis", "weft"]))
def test_waits_are_kept_and_no_dimension_is_overfull(case, policy):
    tasks, network = case
    found = run(tasks, network, policy, chunks=4)
    for number, task in enumerate(tasks):
        for other in task.waits:
            assert found.begin_s[number] >= found.end_s[other] - 1e-12
        assert found.end_s[number] >= found.begin_s[number] + task.seconds - 1e-12
    assert found.iteration_s == pytest.approx(found.end_s.max(), abs=1e-12)
    assert (found.busy_s <= found.iteration_s * (1 + 1e-9)).all()
    again = run(tasks, network, policy, chunks=4)
    assert (again.end_s == found.end_s).all()


@given(chains(), st.floats(1.1, 4.0))
def test_a_faster_network_makes_the_ideal_no_slower(case, factor):
    tasks, network = case
    fast = [Dimension(size=one.size, kind=one.kind, bandwidth_Bps=one.bandwidth_Bps * factor) for one in network]
    assert time(tasks, fast, "ideal") <= time(tasks, network, "ideal") * (1 + 1e-9)


# Errors -----------------------------------------------------------------------------------------


def test_errors():
    one = [switch(4), ring(4)]
    with pytest.raises(UnknownName, match="policy"):
        time([reduce(1e9)], one, "tacos")
    with pytest.raises(BadInput, match="dimension 3"):
        time([reduce(1e9, dimensions=(2,))], one)
    with pytest.raises(BadInput, match="fit"):
        time([reduce(1e9, factors=((32, 1),))], one)
    with pytest.raises(Unsupported, match="neighbours"):
        time([reduce(1e9, factors=((2, 8),))], one)
    with pytest.raises(Unsupported, match="not a block of 4 x 4"):
        time([reduce(1e9, ranks=(0, 1, 4))], one)
    with pytest.raises(BadInput, match="not a group of 16"):
        time([reduce(1e9, ranks=(0, 1, 1))], one)
    for chunks in (0, -1, 10**6):
        with pytest.raises(BadInput, match="chunks"):
            time([reduce(1e9)], one, chunks=chunks)
    for active in (0, -1, 10**6):
        with pytest.raises(BadInput, match="active"):
            time([reduce(1e9)], one, active=active)
    with pytest.raises(UnknownName):
        time([reduce(1e9, kind="gossip")], one)


@pytest.mark.parametrize("names", [["ring"], ["ring", None, None]])
def test_algorithms_of_another_network(names):
    with pytest.raises(WeftError):
        time([reduce(1e9)], [switch(4), ring(4)], algorithms=names)


def test_too_many_stages():
    many = [reduce(1e9) for _ in range(1000)]
    with pytest.raises(Unsupported, match="stages of chunks"):
        time(many, [switch(4), ring(4)], chunks=8192)
