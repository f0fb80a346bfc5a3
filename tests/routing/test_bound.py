"""Bounds on congestion: closed form <= linear program <= optimum, the program as flow on links."""

from collections import defaultdict
from dataclasses import replace

import highspy
import numpy as np
import pytest

from weft.errors import Unsupported
from weft.fabric.families import clos
from weft.routing.bound import closed_bound, lp_bound, paths_of, solve
from weft.routing.plan import plan
from weft.routing.problem import routing_problem
from weft.routing.routers import ROUTERS
from weft.routing.traffic import job_traffic


def least_by_links(fabric, traffic, kit):
    """The least congestion of flows that split, as flow conservation on links: a variable per pair and link.

    Pairs use the links of their shortest paths.
    """
    demand, pairs = kit.demands_of(fabric, traffic), defaultdict(float)
    for a, b, rate in zip(traffic.source.tolist(), traffic.target.tolist(), demand, strict=True):
        pairs[a, b] += rate / kit.NIC
    model = highspy.Highs()
    model.silent()
    least, on = model.addVariable(lb=0.0), defaultdict(list)
    for (a, b), rate in pairs.items():
        used = sorted({link for path in kit.up_paths(fabric, a, b) for link in path})
        carried = {link: model.addVariable(lb=0.0) for link in used}
        for link, amount in carried.items():
            on[link].append(amount)
        for node in {int(fabric.source[link]) for link in used}:
            leaving = sum(carried[link] for link in used if fabric.source[link] == node)
            entering = [carried[link] for link in used if fabric.target[link] == node]
            model.addConstr(leaving == rate if node == a else leaving == sum(entering))
    for link, amounts in on.items():
        model.addConstr(sum(amounts) <= float(fabric.capacity_Bps[link] / kit.NIC) * least)
    model.minimize(least)
    return float(model.val(least))


@pytest.mark.slow_but(12)
@pytest.mark.parametrize("seed", range(40))
def test_the_linear_program_is_that_of_flow_conservation(seed, kit):
    fabric, traffic = kit.random_case(seed, 10, equal=seed % 2 == 0)
    asked = routing_problem(fabric, traffic)
    paths = paths_of(asked)
    assert paths is not None
    least, rates = solve(asked, paths)
    assert least == pytest.approx(least_by_links(fabric, traffic, kit), rel=1e-6)
    carried = np.bincount(paths.commodity, asked.demand_Bps, len(paths.count))
    assert np.bincount(paths.owner, rates, len(paths.count)) == pytest.approx(carried)


@pytest.mark.slow_but(20)
@pytest.mark.parametrize("seed", range(60))
def test_bounds_are_in_order_and_below_the_optimum(seed, kit):
    fabric, traffic = kit.random_case(seed, 7, equal=seed % 2 == 0)
    asked = routing_problem(fabric, traffic)
    cuts, fluid, best = closed_bound(asked), lp_bound(asked), kit.least_congestion(asked)
    assert fluid is not None
    assert cuts <= fluid * (1 + 1e-9)
    assert fluid <= best * (1 + 1e-6)
    assert lp_bound(asked, whole=False) <= fluid * (1 + 1e-9)
    assert closed_bound(asked, whole=False) <= cuts * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_bounds_hold_where_links_between_switches_have_another_speed(seed, kit):
    """The unit of the links that are a choice is not that of the NICs."""
    draw = np.random.default_rng(seed)
    whole = kit.random_clos(seed)
    speed = np.where(whole.tier > 1, draw.choice([0.4, 0.6, 0.8, 1.7, 3.0]), 1.0)
    fabric = replace(whole, capacity_Bps=whole.capacity_Bps * speed)
    _, traffic = kit.random_case(seed, 6, fabric=fabric)
    asked = routing_problem(fabric, traffic)
    best = kit.least_congestion(asked)
    fluid = lp_bound(asked)
    assert fluid is not None
    assert max(closed_bound(asked), fluid) <= best * (1 + 1e-6)


@pytest.mark.slow_but(6)
@pytest.mark.parametrize("seed", range(20))
def test_the_closed_form_is_the_optimum_of_equal_flows_on_two_tiers(seed, kit):
    draw = np.random.default_rng(seed)
    fabric = clos.build(32, radix=8, bandwidth_Bps=1e9, tiers=2)
    pairs = np.array([draw.choice(32, 2, replace=False) for _ in range(7)])
    traffic = job_traffic(*pairs.T, np.ones(7), collective=np.arange(7), queue_pair=np.arange(7))
    asked = routing_problem(fabric, traffic)
    assert closed_bound(asked) == pytest.approx(kit.least_congestion(asked))


def test_the_cut_of_a_pod_binds_where_its_leaves_do_not(kit):
    """Two pods of six leaves, 24 hosts each: 4 spines with 2 cables up, for 4 x 6 cables from the leaves."""
    fabric = clos.build(48, radix=8, bandwidth_Bps=1e9, tiers=3, oversubscription=(1, 3))
    asked = routing_problem(fabric, job_traffic(np.arange(24), np.arange(24, 48), np.ones(24)))
    assert closed_bound(asked) == pytest.approx(3.0)
    assert closed_bound(asked, whole=False) == pytest.approx(3.0)
    assert plan(fabric, asked.traffic, router="repair").alpha == pytest.approx(3.0)


def test_too_large_a_program_is_not_solved(kit):
    fabric, traffic = kit.random_case(1, 20)
    asked = routing_problem(fabric, traffic)
    assert lp_bound(asked, most=3) is None
    assert paths_of(asked, most=3) is None


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 200))])
def test_no_router_goes_below_a_bound_on_parallel_cables(seed, kit):
    """Any router's congestion, counted by plain loops, against every bound on that of whole or split flows."""
    fabric = kit.parallel_leaf_spine(seed)
    _, traffic = kit.random_case(seed, 14, equal=seed % 2 == 0, fabric=fabric)
    asked = routing_problem(fabric, traffic)
    bounds = {one: max(closed_bound(asked, whole=one), lp_bound(asked, whole=one) or 0) for one in (True, False)}
    assert bounds[False] <= bounds[True] * (1 + 1e-9)
    for name in sorted(ROUTERS.keys() - {"ilp"}) + ["ilp"] * (seed % 10 == 0):
        try:
            found = plan(fabric, traffic, router=name, seed=seed)
        except Unsupported:
            assert name == "edge-coloring"
            continue
        highest = kit.recount(fabric, found.traffic, found.routes)
        assert found.alpha == pytest.approx(highest), name
        assert highest >= max(found.alpha_bound, bounds[name not in ("spray", "split")]) * (1 - 1e-6), name


@pytest.mark.parametrize("cables", [1, 2, 4, 8])
@pytest.mark.parametrize("router", ["auto", "edge-coloring", "repair", "ilp"])
def test_a_permutation_on_a_non_blocking_network_has_congestion_one(router, cables, kit):
    """Two leaves of eight hosts and as many cables up, to 8, 4, 2, 1 spines."""
    fabric = kit.non_blocking(cables)
    hosts = np.random.default_rng(cables).permutation(8)
    traffic = job_traffic(np.arange(16), np.concatenate([8 + hosts, hosts[::-1]]), np.ones(16))
    found = plan(fabric, traffic, router=router)
    assert (found.alpha, found.alpha_bound) == (1.0, 1.0)
    assert kit.recount(fabric, traffic, found.routes) == 1.0
