"""Flows of jobs: repetitions in the simulator, splitting, choosing, joining, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.fabric.paths import Paths
from weft.routing import job_traffic, merged
from weft.routing.problem import demands, routing_problem
from weft.routing.traffic import check_traffic
from weft.simulation.flows import engine

RATE = 10e9
ONE_SWITCH = clos.build(8, radix=8, bandwidth_Bps=RATE, nic_latency_s=0.0, switch_latency_s=0.0)


def ring(hosts, size, *, pause=0.0, start=0.0, name="job"):
    """A ring all-reduce whose flows carry ``size`` bytes a round."""
    members = np.array(hosts)
    return job_traffic(
        members,
        np.roll(members, -1),
        np.full(len(members), size),
        rounds=np.array([2 * (len(members) - 1)]),
        jobs=(name,),
        start_s=np.array([start]),
        pause_s=np.array([pause]),
    )


def simulated(traffic, count, fabric=ONE_SWITCH):
    flows = traffic.epochs(count)
    routes = Paths(fabric).routes(flows.source, flows.target)
    return flows, engine.run(fabric.capacity_Bps, flows, routes)


@given(
    length=st.integers(2, 8),
    count=st.integers(1, 4),
    pause=st.sampled_from([0.0, 0.25, 1.5]),
    start=st.sampled_from([0.0, 2.0]),
)
def test_a_ring_alone_takes_its_rounds_and_pauses(length, count, pause, start):
    size = 3e9
    flows, found = simulated(ring(range(length), size, pause=pause, start=start), count)
    rounds = 2 * (length - 1)
    once = rounds * size / RATE
    assert len(flows) == rounds * length * count
    assert found.makespan_s == pytest.approx(start + count * (once + pause))
    every = start + np.arange(count)[:, None] * (once + pause) + np.arange(rounds) * size / RATE
    rounds_only = flows.phases.label == flows.phases.labels.index("round")
    assert found.phase_begin_s[rounds_only] == pytest.approx(every.ravel())


def test_collectives_of_a_job_wait_for_each_other_and_jobs_do_not():
    two = job_traffic(
        np.array([0, 1, 2, 3]),
        np.array([1, 0, 3, 2]),
        np.array([1e9, 1e9, 5e9, 5e9]),
        collective=np.array([0, 0, 1, 1]),
        rounds=np.array([2, 3]),
        job=np.array([0, 0]),
        jobs=("long",),
        pause_s=np.array([1.0]),
    )
    traffic = merged([two, ring([4, 5], 1e9, pause=0.5, name="short")])
    flows, found = simulated(traffic, 3)
    begin, labels = found.phase_begin_s, flows.phases.label
    first = np.flatnonzero((flows.phases.job == 0) & (labels == 0))
    # epoch: rounds of 0.1 s twice beside rounds of 0.5 s three times, then the pause
    assert begin[first].reshape(3, 5) == pytest.approx(
        np.array([0.0, 0.1, 0.0, 0.5, 1.0]) + 2.5 * np.arange(3)[:, None]
    )
    second = np.flatnonzero((flows.phases.job == 1) & (labels == 0))
    assert begin[second].reshape(3, 2) == pytest.approx(np.array([0, 0.1]) + 0.7 * np.arange(3)[:, None])
    assert found.makespan_s == pytest.approx(7.5)
    assert found.link_bytes.sum() == pytest.approx(2 * flows.bytes.sum())


@given(seed=st.integers(0, 200), parts=st.integers(1, 9))
def test_a_split_keeps_bytes_and_demand(seed, parts, kit):
    fabric, traffic = kit.random_case(seed, 8, equal=False, fabric=kit.ALL["two tiers"])
    split = traffic.split(parts)
    check_traffic(fabric, split)
    assert len(split) == parts * len(traffic)
    flow = np.arange(len(split)) // parts
    assert np.array_equal(split.source, traffic.source[flow])
    assert np.bincount(flow, split.bytes) == pytest.approx(traffic.bytes)
    assert np.bincount(flow, demands(fabric, split)) == pytest.approx(demands(fabric, traffic))
    key = np.stack([split.collective, split.source, split.target, split.queue_pair])
    assert np.unique(key, axis=1).shape == key.shape


@given(seed=st.integers(0, 500))
def test_jobs_chosen_from_merged_ones_are_the_jobs(seed, kit):
    draw = np.random.default_rng(seed)
    parts = [
        ring(draw.permutation(8)[: draw.integers(2, 8)], float(n + 1), pause=n, start=2 * n, name=f"{n}")
        for n in range(int(draw.integers(1, 5)))
    ]
    together = merged(parts)
    chosen = draw.permutation(len(parts))[: draw.integers(1, len(parts) + 1)].tolist()
    expected, found = merged([parts[n] for n in sorted(chosen)]), together.only(chosen)
    assert found.jobs == tuple(parts[n].jobs[0] for n in chosen)
    assert np.array_equal(found.pause_s, chosen)
    assert np.array_equal(found.start_s, 2 * np.array(chosen))
    for field in ("source", "target", "bytes", "cap_Bps", "queue_pair"):
        assert np.array_equal(getattr(found, field), getattr(expected, field))
    for number, job in enumerate(chosen):
        mine = found.flow_job == number
        assert np.all(found.bytes[mine] == job + 1)
        assert mine.sum() == len(parts[job])


def test_merging_refuses_nothing_and_names_given_twice():
    with pytest.raises(BadInput, match="no job"):
        merged([])
    with pytest.raises(BadInput, match="two jobs are called same"):
        merged([ring([0, 1], 1.0, name="same"), ring([2, 3], 1.0, name="same")])


@pytest.mark.parametrize(
    ("source", "target", "size", "what"),
    [
        ([0, 8], [1, 2], [1.0, 1.0], "8 is not one of the 8 accelerators"),
        ([0, 1], [-1, 2], [1.0, 1.0], "-1 is not one of"),
        ([0, 1], [1, 1], [1.0, 1.0], "flows to themselves: accelerator-1 -> accelerator-1|to themselves"),
        ([0, 1], [1, 2], [0.0, 1.0], "without bytes"),
        ([0, 1], [1, 2], [1.0, np.nan], "without bytes"),
        ([0, 1], [1, 2], [1.0, np.inf], "without bytes"),
        ([0, 1], [1, 2], [1.0, -5.0], "without bytes"),
        ([0, 1, 0], [1, 2, 1], [1.0, 1.0, 2.0], "listed twice"),
    ],
)
def test_flows_that_cannot_be_routed_are_refused(source, target, size, what):
    traffic = job_traffic(np.array(source), np.array(target), np.array(size))
    with pytest.raises(BadInput, match=what):
        routing_problem(ONE_SWITCH, traffic)


def test_a_flow_without_rate_is_refused_and_pairs_may_repeat_over_queue_pairs():
    pair = np.array([0, 0]), np.array([1, 1]), np.ones(2)
    with pytest.raises(BadInput, match="rate"):
        check_traffic(ONE_SWITCH, job_traffic(*pair, cap_Bps=np.array([1.0, 0.0]), queue_pair=np.arange(2)))
    check_traffic(ONE_SWITCH, job_traffic(*pair, queue_pair=np.arange(2)))
    check_traffic(ONE_SWITCH, job_traffic(*pair, collective=np.arange(2)))


@pytest.mark.parametrize("seed", range(25))
def test_demands_are_the_rates_of_collectives_alone(seed, kit):
    fabric, traffic = kit.random_case(seed, 15, equal=False)
    assert demands(fabric, traffic) == pytest.approx(kit.demands_of(fabric, traffic))
