"""Choices of paths: loads kept while flows move, local search, and repair against the linear program."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.paper_hash import paper_ecmp

from weft.fabric.families import clos
from weft.routing.bound import closed_bound
from weft.routing.choice import PathChoice, ordered
from weft.routing.plan import plan
from weft.routing.problem import routing_problem
from weft.routing.routers import improve, route_repaired
from weft.routing.traffic import job_traffic

CLOS = (
    {"accelerators": 128, "radix": 8},
    {"accelerators": 72, "radix": 8, "oversubscription": (3, 1)},
    {"accelerators": 192, "radix": 12},
    {"accelerators": 96, "radix": 8, "oversubscription": (1, 3)},
    {"accelerators": 160, "radix": 12, "oversubscription": (2, 1)},
)


def assert_consistent(choice):
    """Loads are those of the paths, and every link lists the flows on it."""
    asked, net = choice.problem, choice._net
    assert np.all(choice.up >= 0)
    loads = asked.loads(asked.routes(choice.up, choice.down))
    assert choice.load == pytest.approx(loads, rel=1e-9, abs=1e-9)
    width = asked.ways.up.shape[1]
    crossed = np.concatenate([asked.ways.up[choice.up], asked.ways.down[choice.down]], axis=1)
    for link in np.unique(crossed[crossed >= 0]).tolist():
        listed, place = [], int(net.head[link])
        while place >= 0:
            listed.append(place)
            place = int(net.after[place])
        flow, column = np.nonzero(crossed == link)
        assert sorted(listed) == (flow * 2 * width + column).tolist()


@given(seed=st.integers(0, 10_000), equal=st.booleans())
def test_search_keeps_loads_and_lists_and_never_makes_it_worse(seed, equal, kit):
    fabric, traffic = kit.random_case(seed, 30, equal=equal)
    asked = routing_problem(fabric, traffic)
    choice = PathChoice(asked, *paper_ecmp(asked))
    assert_consistent(choice)
    before, low = choice.congestion, closed_bound(asked)
    choice.relax(low, 5)
    assert_consistent(choice)
    relaxed = choice.congestion
    assert relaxed <= before * (1 + 1e-9)
    for target in (0.5 * (low + relaxed), low, 0.9 * low):
        reached = choice.reach(target, steps=20, failures=30)
        assert_consistent(choice)
        assert reached == (choice.congestion <= target * (1 + 1e-8))
        assert choice.congestion >= low * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_each_flow_gets_the_path_with_the_least_highest_load(seed, kit):
    fabric, traffic = kit.random_case(seed, 20, equal=False)
    asked = routing_problem(fabric, traffic)
    order = ordered(asked)
    assert np.all(np.diff(asked.demand_Bps[order]) <= 0)
    choice, load = PathChoice(asked), asked.fixed.copy()
    choice.place(order, smooth=True)
    routes = kit.links_of(asked.routes(choice.up, choice.down))
    ends = [{int(asked.ways.first[f]), int(asked.ways.last[f])} for f in range(len(traffic))]
    for flow in order.tolist():
        adds = asked.demand_Bps[flow] / fabric.capacity_Bps

        def highest(path, flow=flow, adds=adds):
            return max([load[link] + adds[link] for link in path if link not in ends[flow]], default=0.0)

        assert highest(routes[flow]) <= min(map(highest, kit.listed(asked, flow))) * (1 + 1e-8)
        inner = [link for link in routes[flow] if link not in ends[flow]]
        load[inner] += adds[inner]


def test_a_chain_displaces_where_no_single_move_helps():
    """Three leaves, two spines: A->B and B->C fill what A->C needs, whichever spine it takes."""
    fabric = clos.build(6, radix=4, bandwidth_Bps=1.0, tiers=2)
    source, target = np.array([0, 2, 1]), np.array([2, 4, 5])
    asked = routing_problem(fabric, job_traffic(source, target, np.ones(3), collective=np.arange(3)))
    spine = {int(s): n for n, s in enumerate(fabric.nodes_of("spine"))}
    wanted = [0, 1, 0]
    up, down = asked.ways.up_first.copy(), asked.ways.down_first.copy()
    for flow, number in enumerate(wanted):
        for ways in (up, down):
            while spine[int(asked.ways.top[ways[flow]])] != number:
                ways[flow] += 1
    choice = PathChoice(asked, up, down)
    assert choice.congestion == pytest.approx(2.0)
    assert choice.reach(1.0)
    assert choice.congestion == pytest.approx(1.0)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("seed", range(40))
def test_repair_of_unequal_flows_is_within_5_percent_of_the_linear_program(seed, kit):
    """Every host sends to a few others in one round, unequal amounts: several flows on each link."""
    draw = np.random.default_rng(seed)
    fabric = clos.build(**CLOS[seed % len(CLOS)], bandwidth_Bps=kit.NIC, tiers=3)
    fabric = kit.with_failures(fabric, draw, (0, 1, 3)[seed // 5 % 3], (0, 0, 1)[seed // 15 % 3])
    hosts, degree = fabric.accelerators, 6
    order = [draw.permutation(hosts) for _ in range(degree)]
    source = np.concatenate(order)
    target = np.concatenate([np.roll(each, 1) for each in order])
    size = [draw.uniform(0.2, 2, len(source)), draw.lognormal(0, 0.7, len(source))][seed % 2]
    traffic = job_traffic(source, target, size, queue_pair=np.arange(len(source)))
    found = plan(fabric, traffic, router="repair", bound="lp")
    kit.assert_paths(fabric, traffic, found.routes)
    assert found.gap <= 0.05


@pytest.mark.slow_but(10)
@pytest.mark.parametrize("seed", range(30))
def test_repair_is_near_the_optimum_of_few_flows(seed, kit):
    fabric, traffic = kit.random_case(seed, 7, equal=seed % 2 == 0)
    asked = routing_problem(fabric, traffic)
    found = asked.loads(route_repaired(asked, 0).routes).max()
    least = kit.least_congestion(asked)
    assert least * (1 - 1e-9) <= found <= 1.1 * least


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("name", ["torus", "torus of domains", "rail-only"])
def test_search_ends_where_no_bound_is_known(name, kit):
    """Halving the way to a bound of 0 would never end."""
    fabric = kit.ALL[name]
    draw = np.random.default_rng(0)
    pairs = np.array([draw.choice(fabric.accelerators, 2, replace=False) for _ in range(30)])
    for size in (np.ones(30), draw.uniform(1, 2, 30)):
        asked = routing_problem(fabric, job_traffic(*pairs.T, size, queue_pair=np.arange(30)))
        choice = PathChoice(asked, *paper_ecmp(asked))
        before = choice.congestion
        improve(choice, 0.0)
        assert_consistent(choice)
        assert choice.congestion <= before
