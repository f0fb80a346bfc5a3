"""Two layers of max-min fairness, and what they mean for jobs."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import UnknownName
from weft.routing.plan import OBJECTIVES, Efficiency, by_collective, by_flow, by_job, efficiency, plan
from weft.routing.traffic import job_traffic
from weft.simulation.flows import engine
from weft.solvers import maxmin

ROUTERS = ("ecmp", "greedy", "repair", "spray", "split")


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("seed", range(15))
def test_rates_are_max_min_fair(seed, kit):
    fabric, traffic = kit.random_case(seed, 30, equal=seed % 2 == 0)
    for router in ROUTERS:
        found = plan(fabric, traffic, router=router)
        routes = found.routes
        capacity = np.where(fabric.up, fabric.capacity_Bps, 0.0)
        weight = np.ones(len(found.traffic))
        assert (
            maxmin.check(
                found.rates_Bps, capacity, routes.indptr, routes.links, routes.usage, weight, found.traffic.cap_Bps
            )
            is None
        )


@pytest.mark.slow_but(6)
@pytest.mark.parametrize("seed", range(20))
def test_equal_flows_are_at_least_as_fast_as_congestion_says(seed, kit):
    fabric, traffic = kit.random_case(seed, 40)
    for router in ("ecmp", "greedy", "repair"):
        found = plan(fabric, traffic, router=router, objective="flow")
        assert found.efficiency.value >= 1 / max(1.0, found.alpha) * (1 - 1e-9)
        assert found.efficiency.value == pytest.approx(1 / max(1.0, found.alpha))
        assert found.efficiency.value <= found.efficiency.bound * (1 + 1e-9)
        assert 0 <= found.efficiency.gap < 1


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("seed", range(20))
def test_the_slowest_pace_never_beats_its_bound(seed, kit):
    fabric, traffic = kit.random_case(seed, 25, equal=False)
    for router in ROUTERS:
        for objective in OBJECTIVES:
            found = plan(fabric, traffic, router=router, objective=objective, bound="lp").efficiency
            assert found.objective == objective
            assert np.all(np.diff(found.paces) >= 0)
            assert found.value <= found.bound * (1 + 1e-6)


def test_groups_move_with_their_slowest_flow():
    traffic = job_traffic(
        np.arange(5),
        np.arange(1, 6),
        np.ones(5),
        collective=np.array([0, 0, 1, 2, 2]),
        names=["a", "b", "c", "without flows"],
        job=np.array([0, 0, 1, 1]),
        jobs=("one", "two"),
    )
    pace = np.array([0.5, 0.25, 1.0, 0.75, 0.125])
    assert by_flow(traffic, pace).tolist() == pace.tolist()
    assert by_collective(traffic, pace).tolist() == [0.25, 1.0, 0.125, 1.0]
    assert by_job(traffic, pace).tolist() == [0.25, 0.125]
    assert efficiency(traffic, pace, 2.0).paces.tolist() == [0.125, 0.25, 1.0, 1.0]
    assert efficiency(traffic, pace, 4.0).gap == 0.5
    assert efficiency(traffic, pace, 0.5).bound == 1.0


PACES = st.lists(st.sampled_from([0.125, 0.25, 0.5, 1.0]), min_size=4, max_size=4)


def of(paces):
    return Efficiency(objective="flow", paces=np.sort(paces), bound=1.0)


@given(PACES, PACES, PACES)
def test_better_is_the_lexicographic_order_of_sorted_paces(a, b, c):
    one, two, three = of(a), of(b), of(c)
    assert one.better_than(two) == (sorted(a) > sorted(b))
    assert not one.better_than(one)
    assert not (one.better_than(two) and two.better_than(one))
    if one.better_than(two) and two.better_than(three):
        assert one.better_than(three)
    if one.value > two.value:
        assert one.better_than(two)


@given(PACES, st.integers(0, 3), st.sampled_from([1e-10, 1e-6]))
def test_rounding_makes_nothing_better(paces, at, more):
    raised = np.sort(paces)
    raised[at] += more
    assert of(raised).better_than(of(paces)) == (more > 1e-9)
    assert not of(paces).better_than(of(raised))


def test_any_function_serves_as_objective(kit):
    fabric, traffic = kit.random_case(2, 20)

    def by_sender(flows, pace):
        return np.array([pace[flows.source == host].min() for host in np.unique(flows.source)])

    found = plan(fabric, traffic, objective=by_sender).efficiency
    assert found.objective == "by_sender"
    assert len(found.paces) == len(np.unique(traffic.source))
    assert found.value == plan(fabric, traffic, objective="flow").efficiency.value
    halves = partial(lambda share, _, pace: share * pace, 0.5)
    half = plan(fabric, traffic, objective=halves).efficiency
    assert half.objective == "custom"
    assert half.value == pytest.approx(0.5 * plan(fabric, traffic, objective="flow").efficiency.value)
    with pytest.raises(UnknownName, match="colective"):
        plan(fabric, traffic, objective="colective")


@pytest.mark.parametrize("router", ["ecmp", "greedy", "repair"])
@pytest.mark.parametrize("seed", range(6))
def test_a_round_of_all_jobs_at_once_is_as_slow_as_the_simulator_says(router, seed, kit):
    fabric = kit.random_clos(seed)
    draw = np.random.default_rng(seed)
    members = draw.permutation(fabric.accelerators)[:8]
    joined = [host for host in members[1:] if kit.up_paths(fabric, int(members[0]), int(host))]
    members = np.array([members[0], *joined])
    count = len(members)
    traffic = job_traffic(
        members, np.roll(members, -1), np.full(count, 1e9), rounds=np.array([2 * count - 2]), pause_s=np.array([0.25])
    )
    found = plan(fabric, traffic, router=router)
    epoch = traffic.epochs(1)
    flow = np.concatenate([np.flatnonzero(traffic.source == host) for host in epoch.source])
    links = [kit.links_of(found.routes)[number] for number in flow]
    routes = kit.Routes(
        indptr=np.concatenate([[0], np.cumsum([len(each) for each in links])]),
        links=np.concatenate(links),
        usage=np.ones(sum(map(len, links))),
        latency_s=np.zeros(len(links)),
    )
    outcome = found.jobs[0]
    simulated = engine.run(np.where(fabric.up, fabric.capacity_Bps, 0.0), epoch, routes)
    assert outcome.slowdown == pytest.approx(1 / found.efficiency.value)
    assert outcome.alone_s == pytest.approx((2 * count - 2) * 1e9 / kit.NIC)
    assert outcome.all_reduce_s == pytest.approx((2 * count - 2) * 1e9 / found.rates_Bps.min())
    assert outcome.iteration_s == pytest.approx(outcome.all_reduce_s + 0.25)
    assert outcome.alone_iteration_s == pytest.approx(outcome.alone_s + 0.25)
    assert outcome.flows == count
    assert simulated.makespan_s == pytest.approx(outcome.iteration_s)
