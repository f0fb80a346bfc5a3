"""Paths over rails with forwarding inside the scale-up domains."""

import networkx as nx
import numpy as np
import pytest

from weft.errors import Unsupported
from weft.routing.plan import plan
from weft.routing.problem import routing_problem
from weft.routing.routers import rail_paths
from weft.routing.traffic import job_traffic

RAILS = ["rail-only", "rail-only, shared switches"]


def nodes_of(fabric, path):
    return [int(fabric.source[path[0]]), *fabric.target[list(path)].tolist()]


def drawn(fabric, count, seed=0, equal=True):
    draw = np.random.default_rng(seed)
    pairs = np.array([draw.choice(fabric.accelerators, 2, replace=False) for _ in range(count)])
    size = np.ones(count) if equal else draw.uniform(1, 3, count)
    return job_traffic(*pairs.T, size, queue_pair=np.arange(count))


@pytest.mark.parametrize("name", RAILS)
def test_every_rail_is_offered_once_the_targets_own_first(name, kit):
    """On a rail with one switch: to the accelerator on it, over it, and on to the target."""
    fabric = kit.ALL[name]
    paths = rail_paths(fabric)
    traffic = drawn(fabric, 30)
    for a, b in zip(traffic.source.tolist(), traffic.target.tolist(), strict=True):
        found = paths(a, b)
        assert len(set(found)) == len(found)
        if fabric.domain[a] == fabric.domain[b]:
            assert all(set(fabric.tier[list(path)]) == {0} for path in found)
            continue
        rails = []
        for path in found:
            outer = [link for link in path if fabric.tier[link] > 0]
            inner = [link for link in path if fabric.tier[link] == 0]
            ends = int(fabric.source[outer[0]]), int(fabric.target[outer[-1]])
            rails.append(int(fabric.rail[ends[0]]))
            assert fabric.rail[ends[0]] == fabric.rail[ends[1]]
            assert fabric.domain[ends[0]] == fabric.domain[a]
            assert fabric.domain[ends[1]] == fabric.domain[b]
            assert len(inner) == 2 * (ends[0] != a) + 2 * (ends[1] != b)
        assert sorted(set(rails)) == list(range(4))
        assert rails[0] == fabric.rail[b]


def test_over_a_rail_they_are_its_shortest_paths(kit):
    fabric = kit.ALL["rail-only"]
    network = nx.DiGraph()
    for link in np.flatnonzero(fabric.tier > 0).tolist():
        network.add_edge(int(fabric.source[link]), int(fabric.target[link]))
    a, b = 1, fabric.accelerators - 3
    assert fabric.rail[a] == fabric.rail[b]
    direct = [path for path in rail_paths(fabric)(a, b) if fabric.source[path[0]] == a]
    direct = [path for path in direct if np.all(fabric.tier[list(path)] > 0)]
    expected = nx.all_shortest_paths(network, a, b)
    assert sorted({tuple(nodes_of(fabric, path)) for path in direct}) == sorted(map(tuple, expected))


@pytest.mark.slow
@pytest.mark.parametrize("name", RAILS)
@pytest.mark.parametrize("equal", [True, False])
def test_routes_over_rails_are_valid_and_no_worse_than_the_targets_rail_alone(name, equal, kit):
    fabric = kit.ALL[name]
    for seed in range(3):
        traffic = drawn(fabric, 24, seed, equal)
        found = plan(fabric, traffic, router="rail")
        kit.assert_paths(fabric, traffic, found.routes)
        assert found.alpha == pytest.approx(kit.recount(fabric, traffic, found.routes))
        assert found.alpha >= found.alpha_bound * (1 - 1e-9)
        assert found.alpha <= plan(fabric, traffic, router="repair").alpha * 1.05


def test_other_rails_take_what_one_cannot(kit):
    """Every accelerator of a domain sends to the same accelerator number of its neighbour."""
    fabric = kit.ALL["rail-only"]
    traffic = job_traffic(np.array([0, 1, 2, 3]), np.array([4, 8, 12, 16]), np.ones(4), collective=np.arange(4))
    assert np.all(fabric.rail[traffic.target] == 0)
    assert plan(fabric, traffic, router="repair").alpha == pytest.approx(4.0)
    assert plan(fabric, traffic, router="rail").alpha == pytest.approx(1.0)


def test_a_rail_that_is_down_is_left_out(kit):
    whole = kit.ALL["rail-only, shared switches"]
    down = np.flatnonzero((whole.source == 0) & (whole.tier > 0))
    fabric = whole.failed(links=down)
    found = rail_paths(fabric)(0, 4)
    assert found
    assert all(fabric.up[list(path)].all() for path in found)
    first = [next(int(fabric.source[link]) for link in path if fabric.tier[link] > 0) for path in found]
    assert 0 not in first
    assert 1 in fabric.rail[first]
    traffic = job_traffic(np.array([0, 1]), np.array([4, 5]), np.ones(2))
    kit.assert_paths(fabric, traffic, plan(fabric, traffic, router="rail").routes)


def test_without_domains_there_are_no_rails(kit):
    for name in ("two tiers", "torus"):
        with pytest.raises(Unsupported, match="no scale-up domains"):
            plan(kit.ALL[name], drawn(kit.ALL[name], 3), router="rail")


def test_flows_that_a_table_serves_keep_its_ways(kit):
    """Where spines join the rails, flows take them: no forwarding inside the domains."""
    fabric = kit.ALL["rail-optimized"]
    traffic = drawn(fabric, 20)
    plain, rails = routing_problem(fabric, traffic), routing_problem(fabric, traffic, paths=rail_paths(fabric))
    for flow in range(len(traffic)):
        assert kit.listed(plain, flow) == kit.listed(rails, flow)
