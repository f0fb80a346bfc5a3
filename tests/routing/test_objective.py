"""Two layers of max-min fairness, and what they mean for jobs."""

import numpy as np
import pytest

from weft.routing.plan import efficiency, plan
from weft.routing.traffic import job_traffic
from weft.solvers import maxmin

ROUTERS = ("ecmp", "greedy", "repair", "spray", "split")


@pytest.mark.slow_but(4)
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair_and_the_slowest_pace_never_beats_its_bound(seed, equal, kit):
    """Equal flows, each a collective, are as fast as congestion says."""
    fabric, traffic = kit.random_case(seed, 30, equal=equal)
    for router in ROUTERS:
        found = plan(fabric, traffic, router=router, bound="lp")
        routes, flows, reached = found.routes, found.traffic, found.efficiency
        capacity = np.where(fabric.up, fabric.capacity_Bps, 0.0)
        shares = (routes.indptr, routes.links, routes.usage, np.ones(len(flows)))
        assert maxmin.check(found.rates_Bps, capacity, *shares, flows.cap_Bps) is None
        assert np.all(np.diff(reached.paces) >= 0)
        assert reached.value <= reached.bound * (1 + 1e-6)
        if equal and router in ("ecmp", "greedy", "repair"):
            assert reached.value == pytest.approx(1 / max(1.0, found.alpha))
            assert 0 <= reached.gap < 1


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
