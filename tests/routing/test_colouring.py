"""Edge colouring: proper, as few colours as the busiest vertex needs, and optimal on Clos networks."""

import numpy as np
import pytest

from weft.errors import Unsupported
from weft.fabric.families import clos
from weft.routing import _kernels
from weft.routing.plan import plan
from weft.routing.problem import routing_problem
from weft.routing.routers import ROUTERS, _graph
from weft.routing.traffic import job_traffic

LEAVES, RADIX = 96, 128


def multigraph(draw, vertices):
    """Edges between different vertices, sparse to dense, sometimes around one busy vertex."""
    edges = int(draw.integers(1, 40))
    left, right = draw.integers(0, vertices, edges), draw.integers(0, vertices, edges)
    if draw.random() < 0.3:
        left = np.where(draw.random(edges) < 0.5, 0, left)
    if draw.random() < 0.3:
        right = np.where(draw.random(edges) < 0.6, vertices - 1, right)
    keep = left != right
    return left[keep], right[keep]


def delta(left, right):
    """Most edges at one vertex, on one side."""
    return max(np.bincount(left).max(), np.bincount(right).max()) if len(left) else 0


@pytest.mark.slow
def test_ten_thousand_multigraphs_need_no_more_colours_than_their_busiest_vertex():
    draw, cases = np.random.default_rng(0), 0
    while cases < 10_000:
        vertices, parts = int(draw.integers(2, 9)), int(draw.integers(1, 7))
        left, right = multigraph(draw, vertices)
        if not len(left):
            continue
        cases += 1
        graph = _graph(np.zeros((vertices, parts), dtype=np.int64), left, right)
        _kernels.insert_all(graph, np.arange(len(left)))
        assert graph.colour.min() >= 0
        for ends in (left, right):
            assert len(set(zip(ends.tolist(), graph.colour.tolist(), strict=True))) == len(left)
            links = np.bincount(ends * parts + graph.colour % parts)
            assert links.max() <= -(-delta(left, right) // parts)


def flows_between_leaves(draw, fabric, ports, count):
    leaves = len(fabric.nodes_of("leaf"))
    pairs = np.array([draw.choice(leaves, 2, replace=False) for _ in range(count)])
    source, target = (pairs * ports + np.arange(count)[:, None] % ports).T
    return job_traffic(source, target, np.ones(count), collective=np.arange(count), queue_pair=np.arange(count)), pairs


@pytest.mark.parametrize("seed", range(40))
def test_two_tiers_reach_the_busiest_leafs_share(seed):
    draw = np.random.default_rng(seed)
    spines, ratio = [(4, 1), (2, 3), (3, 1), (4, 3)][seed % 4]
    ports = spines * ratio
    fabric = clos.build(
        (spines + ports) * ports, radix=spines + ports, bandwidth_Bps=1e9, tiers=2, oversubscription=float(ratio)
    )
    assert len(fabric.nodes_of("spine")) == spines
    traffic, pairs = flows_between_leaves(draw, fabric, ports, int(draw.integers(1, 60)))
    found = plan(fabric, traffic, router="edge-coloring")
    least = -(-int(delta(*pairs.T)) // spines)
    inside = [found.load[link] for link in range(fabric.links) if fabric.tier[link] == 2]
    assert max(inside) == pytest.approx(least)
    assert found.alpha == found.alpha_bound


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [(54, 6, 3), (128, 8, 3), (32, 4, 4)])
def test_a_permutation_of_equal_flows_meets_no_collision_on_a_full_clos(seed, size, kit):
    hosts, radix, tiers = size
    fabric = clos.build(hosts, radix=radix, bandwidth_Bps=1e9, tiers=tiers)
    draw = np.random.default_rng(seed)
    order = draw.permutation(hosts)
    target = np.empty(hosts, dtype=np.int64)
    target[order] = np.roll(order, 1)
    found = plan(fabric, job_traffic(np.arange(hosts), target, np.ones(hosts)), router="edge-coloring")
    kit.assert_paths(fabric, found.traffic, found.routes)
    assert (found.alpha, found.alpha_bound) == (1.0, 1.0)


@pytest.mark.parametrize("seed", range(12))
def test_colouring_with_a_link_down_is_valid_and_tells_its_gap(seed, kit):
    whole = clos.build(54, radix=6, bandwidth_Bps=1e9, tiers=3)
    draw = np.random.default_rng(seed)
    fabric = kit.with_failures(whole, draw, 1, 0)
    order = draw.permutation(54)
    traffic = job_traffic(order, np.roll(order, 1), np.ones(54))
    found = plan(fabric, traffic, router="edge-coloring", bound="lp")
    kit.assert_paths(fabric, traffic, found.routes)
    assert found.alpha == pytest.approx(kit.recount(fabric, traffic, found.routes))
    assert found.gap == pytest.approx(found.alpha / found.alpha_bound - 1)
    assert 1 <= found.alpha_bound <= found.alpha <= 2
    assert found.alpha <= plan(fabric, traffic, router="greedy").alpha


def test_colouring_is_refused_where_it_does_not_apply(kit):
    draw = np.random.default_rng(0)
    pairs = np.array([draw.choice(24, 2, replace=False) for _ in range(20)])
    equal = job_traffic(*pairs.T, np.ones(20), collective=np.arange(20), queue_pair=np.arange(20))
    mixed = job_traffic(*pairs.T, draw.uniform(1, 2, 20), queue_pair=np.arange(20))
    for name, traffic, why in (
        ("torus", equal, "Clos"),
        ("two planes", equal, "one NIC"),
        ("two tiers", mixed, "equal flows"),
    ):
        with pytest.raises(Unsupported, match=why):
            ROUTERS["edge-coloring"](routing_problem(kit.ALL[name], traffic), 0)
