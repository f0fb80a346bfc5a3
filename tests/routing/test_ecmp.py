"""Hashed paths."""

import numpy as np
import pytest
from tests.paper_jobs import paper_jobs

from weft.fabric.assemble import Cable, Node, assemble
from weft.routing import routers
from weft.routing.plan import plan, route
from weft.routing.problem import routing_problem
from weft.routing.traffic import job_traffic


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("cables", [1, 8, 2, 4, 32])
def test_flows_are_hashed_to_cables_as_balls_to_bins(cables):
    """32 flows up over 32 cables: the busiest has 3.53 on average, however many end at one spine."""
    nodes = [Node(name=f"h{i}", role="accelerator", place="") for i in range(64)]
    nodes += [Node(name=f"leaf{i}", role="leaf", place="") for i in range(2)]
    nodes += [Node(name=f"spine{i}", role="spine", place="") for i in range(32 // cables)]
    pairs = [(f"h{i}", f"leaf{i // 32}", 1) for i in range(64)]
    pairs += [(f"leaf{leaf}", f"spine{i}", cables) for leaf in (0, 1) for i in range(32 // cables)]
    links = [Cable(source=a, target=b, capacity_Bps=n * 1e9, cables=n, place="") for a, b, n in pairs]
    fabric = assemble("x", nodes, links, where="test")
    traffic = job_traffic(np.arange(32), np.arange(32, 64), np.ones(32))
    up = (fabric.source == 64) & (fabric.target > 65)
    assert up.sum() == 32
    asked = routing_problem(fabric, traffic)
    loads = [asked.loads(routers.route_hashed(asked, seed).routes)[up].max() for seed in range(300)]
    draw = np.random.default_rng(1)
    drawn = [np.bincount(draw.integers(0, 32, 32)).max() for _ in range(5000)]
    assert np.mean(loads) == pytest.approx(np.mean(drawn), abs=0.12)


def test_queue_pairs_of_a_pair_spread_over_paths(kit):
    fabric = kit.ALL["two tiers"]
    pair = job_traffic(np.array([0]), np.array([31]), np.ones(1)).split(64)
    middle = [links[1] for links in kit.links_of(route(fabric, pair, router="ecmp"))]
    assert len(set(middle)) == len(fabric.nodes_of("spine"))


def drawn_alpha(traffic, spines, per_tor, times):
    """Mean highest count of a link when flows draw their spine (balls in bins)."""
    draw, ends = np.random.default_rng(0), np.stack([traffic.source, traffic.target]) // per_tor
    ends = ends[:, ends[0] != ends[1]]
    highest = []
    for _ in range(times):
        spine = draw.integers(0, spines, ends.shape[1])
        highest.append(max(np.bincount(side * spines + spine).max() for side in ends))
    return np.mean(highest)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("sizes", [[(48, 2)], [(48, 4), (128, 4), (64, 4), (128, 4), (64, 4)]])
def test_hashed_paths_collide_as_balls_in_bins_do(sizes, spines_down, kit):
    traffic = kit.placed_jobs(1, sizes)
    alphas = [plan(spines_down(0), traffic, router="ecmp", seed=seed, bound="cuts").alpha for seed in range(80)]
    assert np.mean(alphas) == pytest.approx(drawn_alpha(traffic, 32, 32, 2000), abs=0.3)


@pytest.mark.parametrize(("jobs", "ring", "expected"), [(1, 2, 4.3), (5, 4, 5.8)])
def test_mean_congestion_of_hashed_paths_is_that_of_the_papers_workloads(jobs, ring, expected, spines_down):
    """The printed figures are means of 20 draws, so uncertain by their standard error."""
    traffic = paper_jobs(jobs, ring)
    alphas = [plan(spines_down(0), traffic, router="ecmp", seed=seed, bound="cuts").alpha for seed in range(100)]
    assert np.mean(alphas) == pytest.approx(expected, abs=3 * np.std(alphas) / np.sqrt(20))
