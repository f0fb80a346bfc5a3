"""The paths of flows against networkx and ``weft.fabric.paths``."""

from dataclasses import replace

import numpy as np
import pytest

from weft.errors import Unsupported
from weft.fabric.families import clos
from weft.fabric.paths import Paths
from weft.routing import ways
from weft.routing.problem import routing_problem
from weft.routing.traffic import job_traffic


def some_flows(fabric, count=30, seed=0):
    draw = np.random.default_rng(seed)
    pairs = [draw.choice(fabric.accelerators, 2, replace=False).tolist() for _ in range(count)]
    source, target = np.unique(np.array([[0, 1], [0, fabric.accelerators - 1], *pairs]), axis=0).T
    return job_traffic(source, target, np.ones(len(source)), queue_pair=np.arange(len(source)))


def test_the_ways_of_a_flow_are_its_shortest_paths(network, kit):
    traffic = some_flows(network)
    asked, every = routing_problem(network, traffic), Paths(network)
    for flow, ends in enumerate(zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)):
        found = kit.listed(asked, flow)
        assert len(found) == len(set(found))
        assert set(found) == set(every.every(*ends))


@pytest.mark.slow_but(20)
@pytest.mark.parametrize("seed", range(60))
def test_the_ways_on_any_clos_are_its_shortest_paths_up_and_down(seed, kit):
    fabric, traffic = kit.random_case(seed, 12)
    asked = routing_problem(fabric, traffic)
    for flow, ends in enumerate(zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)):
        found = kit.listed(asked, flow)
        assert sorted(found) == sorted(kit.up_paths(fabric, *ends))
        assert set(found) <= set(Paths(fabric).every(*ends))


def test_a_link_that_is_down_in_one_direction_is_not_used(kit):
    whole = kit.ALL["two tiers"]
    spine = int(whole.nodes_of("spine")[0])
    down = np.flatnonzero((whole.source == spine) & (whole.target == whole.nodes_of("leaf")[0]))
    fabric = replace(whole, up=~np.isin(np.arange(whole.links), down))
    traffic = job_traffic(np.array([0, 31]), np.array([31, 0]), np.ones(2))
    found = [path for flow in (0, 1) for path in kit.listed(routing_problem(fabric, traffic), flow)]
    touched = {int(node) for path in found for node in fabric.target[list(path)]}
    assert spine not in touched
    assert len(found) == 2 * (len(whole.nodes_of("spine")) - 1)


def test_routes_are_the_chosen_ways_with_their_latency(kit):
    fabric = clos.build(24, radix=6, bandwidth_Bps=1e9, nic_latency_s=3e-6, switch_latency_s=1e-6)
    traffic = some_flows(fabric)
    asked = routing_problem(fabric, traffic)
    up, down = asked.ways.up_first.copy(), asked.ways.down_first.copy()
    for flow in range(len(traffic)):
        while asked.ways.top[up[flow]] != asked.ways.top[down[flow]]:
            less = asked.ways.top[up[flow]] < asked.ways.top[down[flow]]
            up[flow], down[flow] = up[flow] + less, down[flow] + (not less)
    routes = asked.routes(up, down)
    kit.assert_paths(fabric, traffic, routes)
    for flow, links in enumerate(kit.links_of(routes)):
        assert tuple(links) == kit.listed(asked, flow)[0]
        assert routes.latency_s[flow] == pytest.approx(fabric.latency_s[links].sum())


def test_too_many_ways_are_refused(kit, monkeypatch):
    monkeypatch.setattr(ways, "MOST_WAYS", 10)
    with pytest.raises(Unsupported, match="ways up"):
        ways.climbs(kit.ALL["three tiers"])
