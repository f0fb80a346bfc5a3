"""Every router's contract; the paper's greedy against its definition and published figures."""

from dataclasses import replace

import numpy as np
import pytest
from tests.paper_hash import route_paper_ecmp
from tests.paper_jobs import paper_jobs

from weft.errors import Unsupported
from weft.fabric.families.clos import two_layers
from weft.routing.bound import closed_bound
from weft.routing.plan import plan, route
from weft.routing.problem import routing_problem
from weft.routing.routers import ROUTERS, by_leaves, route_best
from weft.routing.traffic import job_traffic

CHOOSING = [name for name in ROUTERS if name != "spray"]
STATIC = {
    (1, 2): ((4, 1, 4.000, 1.000), (4, 2, 4.000, 2.000)),
    (1, 8): ((4, 1, 4.000, 1.000), (4, 2, 4.000, 2.000)),
    (2, 8): ((5, 2, 5.000, 1.500), (7, 2, 6.000, 2.000)),
    (3, 4): ((6, 1, 6.000, 1.000), (7, 2, 5.333, 2.000)),
    (3, 8): ((6, 2, 5.333, 1.333), (7, 2, 6.000, 2.000)),
    (5, 2): ((5, 1, 4.400, 1.000), (6, 2, 5.000, 2.000)),
    (5, 4): ((7, 1, 6.200, 1.000), (7, 2, 5.400, 2.000)),
}
"""By jobs and ring, with 0 and 8 spines down: alpha of the hash and of greedy, mean slowdown with each."""


def applies(router, asked):
    """Whether a router takes a problem at all."""
    try:
        ROUTERS[router](asked, 0)
    except Unsupported:
        return False
    return True


@pytest.mark.slow_but(12)
@pytest.mark.parametrize("router", CHOOSING)
@pytest.mark.parametrize("seed", range(8))
def test_routes_are_valid_repeatable_and_counted(router, seed, kit):
    fabric, traffic = kit.random_case(seed, 14, equal=seed % 2 == 0)
    try:
        found = plan(fabric, traffic, router=router, seed=seed, bound="lp")
    except Unsupported:
        assert router == "edge-coloring"
        assert not applies(router, routing_problem(fabric, traffic))
        return
    kit.assert_paths(fabric, found.traffic, found.routes)
    assert found.alpha == pytest.approx(kit.recount(fabric, found.traffic, found.routes))
    assert found.alpha >= found.alpha_bound * (1 - 1e-6)
    again = plan(fabric, traffic, router=router, seed=seed, bound="cuts")
    assert np.array_equal(again.routes.links, found.routes.links)
    assert np.array_equal(again.routes.indptr, found.routes.indptr)
    assert np.array_equal(route(fabric, traffic, router=router, seed=seed).links, found.routes.links)


@pytest.mark.slow_but(49)
@pytest.mark.parametrize("router", ["auto", "ecmp", "greedy", "repair", "split"])
def test_routers_take_any_network(router, network, kit):
    draw = np.random.default_rng(4)
    pairs = np.array([draw.choice(network.accelerators, 2, replace=False) for _ in range(25)])
    traffic = job_traffic(*pairs.T, np.full(25, 1e9), queue_pair=np.arange(25), collective=np.arange(25))
    found = plan(network, traffic, router=router, seed=1)
    kit.assert_paths(network, found.traffic, found.routes)
    assert found.alpha == pytest.approx(kit.recount(network, found.traffic, found.routes))
    assert found.alpha >= found.alpha_bound


def test_spraying_uses_all_paths_and_loses_nothing(kit):
    for seed in range(8):
        fabric, traffic = kit.random_case(seed, 10)
        found = plan(fabric, traffic, router="spray")
        asked = routing_problem(fabric, traffic)
        assert found.alpha == pytest.approx(kit.recount(fabric, traffic, found.routes))
        for flow, links in enumerate(kit.links_of(found.routes)):
            share = found.routes.usage[found.routes.indptr[flow] : found.routes.indptr[flow + 1]]
            assert set(links) == {link for path in kit.listed(asked, flow) for link in path}
            into = np.bincount(fabric.target[links], share, fabric.nodes)
            out = np.bincount(fabric.source[links], share, fabric.nodes)
            expected = np.zeros(fabric.nodes)
            expected[[traffic.target[flow], traffic.source[flow]]] = 1, -1
            assert into - out == pytest.approx(expected)


def test_a_seed_changes_what_is_hashed(kit):
    fabric, traffic = kit.random_case(5, 40, fabric=kit.ALL["two tiers"])
    links = [tuple(route(fabric, traffic, router="ecmp", seed=seed).links) for seed in range(6)]
    assert len(set(links)) > 1


@pytest.mark.parametrize("router", CHOOSING)
def test_no_flows_need_no_routes(router, kit):
    traffic = job_traffic(np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros(0), names=[])
    found = plan(kit.ALL["two tiers"], traffic, router=router)
    assert (found.alpha, found.alpha_bound, found.gap) == (0.0, 0.0, 0.0)
    assert len(found.routes.links) == 0


def paper_greedy(tors, flows, live):
    """Section "greedy" of the paper's code in plain Python.

    ``flows`` are pairs of ToRs, ``live[t]`` the spines that ToR t reaches; the spine of each flow, None below
    one ToR.
    """
    sets = {}
    for number, (a, b) in enumerate(flows):
        sets.setdefault(f"a_{a}", []).append(number)
        sets.setdefault(f"b_{b}", []).append(number)
    up, down, spine = {}, {}, {}
    for key in sorted(sets, key=lambda key: (-len(sets[key]), key)):
        for number in sets[key]:
            a, b = flows[number]
            if number in spine:
                continue
            spine[number] = None
            if a == b:
                continue
            choices = [s for s in live[a] if s in live[b]]
            best = min(choices, key=lambda s: max(up.get((a, s), 0), down.get((b, s), 0)))
            up[a, best], down[b, best] = up.get((a, best), 0) + 1, down.get((b, best), 0) + 1
            spine[number] = best
    return [spine[number] for number in range(len(flows))]


def spines_of(fabric, routes, kit):
    """The spine of every flow on two tiers."""
    middle = set(fabric.nodes_of("spine").tolist())
    return [
        next((int(fabric.target[link]) for link in links if int(fabric.target[link]) in middle), None)
        for links in kit.links_of(routes)
    ]


@pytest.mark.slow_but(12)
@pytest.mark.parametrize("seed", range(40))
def test_greedy_chooses_as_its_definition_does(seed, kit):
    draw = np.random.default_rng(seed)
    tors, spines = int(draw.integers(2, 25)), int(draw.integers(1, 7))
    whole, hosts = two_layers(tors, spines, spines), tors * spines
    fabric = kit.with_failures(whole, draw, *((0, 0), (0, spines // 2), (3, 0))[seed % 3])
    leaf_of = np.arange(hosts) // spines
    pairs = np.array([draw.choice(hosts, 2, replace=False) for _ in range(int(draw.integers(1, 120)))])
    pairs = np.array([p for p in pairs.tolist() if kit.up_paths(fabric, *p)]).reshape(-1, 2)
    pairs = np.array([p for p in pairs.tolist() if len(kit.up_paths(fabric, *p)[0]) <= 4]).reshape(-1, 2)
    count = len(pairs)
    traffic = job_traffic(*pairs.T, np.full(count, 1e9), collective=np.arange(count), queue_pair=np.arange(count))
    leaves = fabric.nodes_of("leaf").tolist()
    live = [
        sorted(fabric.target[(fabric.source == leaf) & fabric.up & (fabric.tier == 2)].tolist()) for leaf in leaves
    ]
    flows = [(int(leaf_of[a]), int(leaf_of[b])) for a, b in pairs.tolist()]
    found = route(fabric, traffic, router="greedy")
    assert spines_of(fabric, found, kit) == paper_greedy(tors, flows, live)


def test_greedy_walks_the_sets_by_size_then_by_the_text_of_their_key():
    # sets of one flow each but for what leaves ToR 3: a_3 first, then a_10 before a_2, and b last
    source, target = np.array([4, 20, 6, 7]), np.array([0, 1, 10, 12])
    traffic = job_traffic(source, target, np.ones(4))
    assert by_leaves(routing_problem(two_layers(12, 2, 2), traffic)).tolist() == [2, 3, 0, 1]
    assert sorted(["b_0", "a_10", "a_2"]) == ["a_10", "a_2", "b_0"]


@pytest.mark.parametrize("seed", range(6))
def test_greedy_is_optimal_for_small_jobs_alone_in_any_order(seed, spines_down, kit):
    copy, rings = [(48, 2), (48, 4), (64, 2), (64, 4), (128, 2), (128, 4)][seed]
    traffic = kit.placed_jobs(seed, [(copy, rings)])
    for order in range(4):
        found = plan(spines_down(0), kit.shuffled(traffic, order), router="greedy")
        assert (found.alpha, found.jobs[0].slowdown) == (1.0, pytest.approx(1.0))


@pytest.mark.slow_but(6)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("down", [0, 4])
def test_greedy_is_within_twice_the_optimum_and_repair_reaches_it(seed, down, spines_down, kit):
    traffic = kit.shuffled(kit.placed_jobs(seed, [(48, 8), (64, 8), (128, 4)][: 1 + seed % 3]), seed)
    greedy, repaired = (plan(spines_down(down), traffic, router=router) for router in ("greedy", "repair"))
    assert repaired.alpha == repaired.alpha_bound <= greedy.alpha <= 2 * repaired.alpha


@pytest.mark.parametrize("router", ["edge-coloring", "repair", "auto"])
@pytest.mark.parametrize("seed", range(4))
def test_jobs_like_the_papers_meet_no_collision_in_any_order(router, seed, spines_down, kit):
    four_jobs = [(48, 2), (128, 2), (128, 2), (48, 2)]
    sizes = (four_jobs, [(48, 8), (64, 8)], [(48, 4), (128, 4), (64, 4)])[seed % 3]
    traffic = kit.shuffled(kit.placed_jobs(seed, sizes), seed)
    found = plan(spines_down(0), traffic, router=router)
    assert (found.alpha, found.alpha_bound) == (1.0, 1.0)
    assert [job.slowdown for job in found.jobs] == pytest.approx([1.0] * len(sizes))


@pytest.mark.parametrize("seed", range(3))
def test_repair_helps_where_greedy_collides(seed, spines_down, kit):
    traffic = kit.shuffled(kit.placed_jobs(seed, [(48, 4), (128, 4), (64, 4), (128, 4), (64, 4)]), seed)
    assert plan(spines_down(0), traffic, router="greedy").alpha == 2
    assert plan(spines_down(0), traffic, router="repair").alpha == 1


@pytest.mark.parametrize("down", [0, 8])
@pytest.mark.parametrize(("jobs", "ring"), STATIC)
def test_static_table_of_the_papers_workloads(jobs, ring, down, spines_down, monkeypatch):
    monkeypatch.setitem(ROUTERS, "ecmp", route_paper_ecmp)
    hash_alpha, greedy_alpha, hash_slow, greedy_slow = STATIC[jobs, ring][down > 0]
    for router, alpha, slowdown in (("ecmp", hash_alpha, hash_slow), ("greedy", greedy_alpha, greedy_slow)):
        found = plan(spines_down(down), paper_jobs(jobs, ring), router=router)
        assert found.alpha == alpha
        assert np.mean([job.slowdown for job in found.jobs]) == pytest.approx(slowdown, abs=1e-3)
        assert found.alpha_bound == (2 if down else 1)


@pytest.mark.parametrize("down", [0, 1, 4, 8])
@pytest.mark.parametrize("jobs", [1, 2, 3, 5])
def test_least_congestion_of_the_papers_workloads_with_spines_down(jobs, down, spines_down, kit):
    least = 2 if down else 1
    for ring in (ring for count, ring in kit.WORKLOADS if count == jobs):
        traffic = paper_jobs(jobs, ring)
        for order in (traffic, *(kit.shuffled(traffic, seed) for seed in range(2))):
            for router in ("edge-coloring", "repair"):
                found = plan(spines_down(down), order, router=router)
                assert (found.alpha, found.alpha_bound, found.gap) == (least, least, 0)
                assert [job.slowdown for job in found.jobs] == pytest.approx([least] * jobs)
        greedy = plan(spines_down(down), traffic, router="greedy").alpha
        assert greedy == (2 if down or (jobs, ring) in ((2, 8), (3, 8)) else 1)


def test_greedy_on_the_papers_single_jobs_in_any_order(spines_down, kit):
    for ring in (2, 4, 8):
        for seed in range(5):
            traffic = kit.shuffled(paper_jobs(1, ring), seed)
            assert plan(spines_down(0), traffic, router="greedy").alpha == 1


@pytest.mark.parametrize(("down", "ecmp"), [(1, 3.520), (4, 4.693), (8, 4.693)])
def test_one_job_with_spines_down(down, ecmp, spines_down, monkeypatch):
    monkeypatch.setitem(ROUTERS, "ecmp", route_paper_ecmp)
    for router, seconds in (("ecmp", ecmp), ("greedy", 2.347), ("edge-coloring", 2.347)):
        found = plan(spines_down(down), paper_jobs(1, 2), router=router)
        assert found.alpha_bound == 2
        assert found.jobs[0].all_reduce_s == pytest.approx(seconds, abs=1e-3)
        assert found.jobs[0].alone_s == pytest.approx(1.17333, rel=1e-5)


@pytest.mark.slow_but(6)
@pytest.mark.parametrize("seed", range(20))
def test_the_best_router_is_no_worse_than_greedy(seed, kit):
    fabric, traffic = kit.random_case(seed, 40)
    asked = routing_problem(fabric, traffic)
    best = asked.loads(route_best(asked, 0).routes).max()
    assert best <= plan(fabric, traffic, router="greedy").alpha + 1e-9
    assert best >= closed_bound(asked) - 1e-9


def ways_out(fabric, traffic, paths):
    """The links by which flows to each destination leave each switch."""
    taken = {}
    for target, links in zip(traffic.target.tolist(), paths, strict=True):
        for link in links[1:]:
            taken.setdefault((target, int(fabric.source[link])), set()).add(link)
    return taken


@pytest.mark.slow_but(8)
def test_routes_by_destination_leave_a_switch_one_way(network, kit):
    draw = np.random.default_rng(6)
    pairs = np.array([draw.choice(network.accelerators, 2, replace=False) for _ in range(60)])
    traffic = job_traffic(*pairs.T, draw.uniform(1e9, 2e9, 60), queue_pair=np.arange(60), collective=np.arange(60) % 3)
    found = plan(network, traffic, router="destination", bound="cuts")
    kit.assert_paths(network, traffic, found.routes)
    assert {len(links) for links in ways_out(network, traffic, kit.links_of(found.routes)).values()} == {1}


@pytest.mark.parametrize("name", ["two tiers", "three tiers", "parallel cables in drawn order"])
def test_routes_by_destination_are_the_best_trees(name, kit):
    """Six flows to two hosts on links that are slow between switches: beside every choice of paths that fits."""
    fabric = kit.ALL[name]
    hosts = fabric.accelerators
    slow = np.where((fabric.source >= hosts) & (fabric.target >= hosts), 0.1, 1.0)
    fabric, ratios = replace(fabric, capacity_Bps=slow * fabric.capacity_Bps), []
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(hosts)
        traffic = job_traffic(order[2:8], order[np.arange(6) % 2], np.full(6, 1e9), collective=np.arange(6) % 2)
        found = plan(fabric, traffic, router="destination", bound="cuts")
        ratios.append(found.alpha / least_of_trees(fabric, routing_problem(fabric, traffic), kit))
    assert ratios == pytest.approx([1.0] * 10)


def least_of_trees(fabric, asked, kit):
    """The least congestion of all choices in which flows to a destination leave each switch by one link."""
    paths = [kit.listed(asked, flow) for flow in range(len(asked.traffic))]
    targets, loads, best = asked.traffic.target.tolist(), np.zeros(fabric.links), np.inf
    taken = {}

    def place(flow):
        nonlocal best
        if loads.max() >= best * (1 - 1e-12):
            return
        if flow == len(paths):
            best = loads.max()
            return
        for path in map(list, paths[flow]):
            ways = {(targets[flow], int(fabric.source[link])): link for link in path[1:]}
            if all(taken.get(key, link) == link for key, link in ways.items()):
                new = ways.keys() - taken.keys()
                taken.update(ways)
                add = asked.demand_Bps[flow] / fabric.capacity_Bps[path]
                loads[path] += add
                place(flow + 1)
                loads[path] -= add
                for key in new:
                    del taken[key]

    place(0)
    return best
