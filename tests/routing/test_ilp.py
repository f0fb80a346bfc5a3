"""The integer program against trying every choice of paths."""

import numpy as np
import pytest

from weft.errors import Unsupported
from weft.routing.plan import plan
from weft.routing.problem import routing_problem
from weft.routing.routers import route_exact, route_repaired


@pytest.mark.slow_but(12)
@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_of_few_flows_is_that_of_every_choice_tried(seed, kit):
    fabric, traffic = kit.random_case(seed, 7, equal=seed % 2 == 0)
    asked = routing_problem(fabric, traffic)
    best = kit.least_congestion(asked)
    found = route_exact(asked, 0)
    assert asked.loads(found.routes).max() == pytest.approx(best, rel=1e-6)
    assert found.bound <= best * (1 + 1e-6)
    solved = plan(fabric, traffic, router="ilp")
    assert solved.alpha == pytest.approx(best, rel=1e-6)
    assert solved.alpha_bound == pytest.approx(best, rel=1e-5)


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("seed", range(16))
def test_it_is_never_worse_than_the_routes_it_begins_with(seed, kit):
    fabric, traffic = kit.random_case(seed, 40, equal=seed % 2 == 0)
    asked = routing_problem(fabric, traffic)
    repaired = route_repaired(asked, 0)
    start = asked.loads(repaired.routes).max()
    for seconds in (0.0, 1.0):
        found = route_exact(asked, 0, seconds)
        kit.assert_paths(fabric, traffic, found.routes)
        assert asked.loads(found.routes).max() <= start * (1 + 1e-6)
    assert found.bound <= start * (1 + 1e-6)


@pytest.mark.parametrize("name", ["torus", "two planes", "rail-only"])
def test_networks_without_a_table_of_ways_are_solved_too(name, kit):
    fabric, draw = kit.ALL[name], np.random.default_rng(1)
    pairs = np.array([draw.choice(fabric.accelerators, 2, replace=False) for _ in range(6)])
    traffic = kit.job_traffic(*pairs.T, np.ones(6), collective=np.arange(6), queue_pair=np.arange(6))
    asked = routing_problem(fabric, traffic)
    found = plan(fabric, traffic, router="ilp")
    assert found.alpha == pytest.approx(kit.least_congestion(asked), rel=1e-6)
    assert found.gap == pytest.approx(0.0, abs=1e-6)


def test_too_large_a_program_is_refused(kit, monkeypatch):
    monkeypatch.setattr("weft.routing.bound.MOST_COLUMNS", 5)
    with pytest.raises(Unsupported, match="flows times paths"):
        plan(*kit.random_case(0, 20), router="ilp")
