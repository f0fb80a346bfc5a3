"""Two layers of max-min fairness, and what they mean for jobs."""

import numpy as np
import pytest

from weft.routing.plan import efficiency, plan
from weft.routing.traffic import job_traffic
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
        found = plan(fabric, traffic, router=router)
        assert found.efficiency.value >= 1 / max(1.0, found.alpha) * (1 - 1e-9)
        assert found.efficiency.value == pytest.approx(1 / max(1.0, found.alpha))
        assert found.efficiency.value <= found.efficiency.bound * (1 + 1e-9)
        assert 0 <= found.efficiency.gap < 1


@pytest.mark.slow_but(2)
@pytest.mark.parametrize("seed", range(20))
def test_the_slowest_pace_never_beats_its_bound(seed, kit):
    fabric, traffic = kit.random_case(seed, 25, equal=False)
    for router in ROUTERS:
        found = plan(fabric, traffic, router=router, bound="lp").efficiency
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
    assert efficiency(traffic, pace, 2.0).paces.tolist() == [0.125, 0.25, 1.0, 1.0]
    assert efficiency(traffic, pace, 4.0).gap == 0.5
    assert efficiency(traffic, pace, 0.5).bound == 1.0
