"""Plans: what they report, and what is refused."""

import numpy as np
import pytest

from weft.errors import BadInput, UnknownName
from weft.fabric.families.clos import two_layers
from weft.routing.plan import plan, route
from weft.routing.routers import ROUTERS
from weft.routing.traffic import job_traffic


@pytest.mark.parametrize("seed", range(10))
def test_figures_of_a_plan_belong_together(seed, kit):
    fabric, traffic = kit.random_case(seed, 25, equal=seed % 2 == 0)
    found = plan(fabric, traffic, seed=seed)
    assert (found.fabric, found.router, found.seed) == (fabric, "auto", seed)
    assert found.alpha == pytest.approx(found.load.max())
    assert found.gap == pytest.approx(found.alpha / found.alpha_bound - 1, abs=1e-12)
    assert found.solve_s >= 0
    assert [job.job for job in found.jobs] == list(traffic.jobs)
    assert sum(job.flows for job in found.jobs) == len(traffic)
    assert found.efficiency.bound == pytest.approx(1 / max(1.0, found.alpha_bound))
    demand = np.array(kit.demands_of(fabric, traffic))
    for number, job in enumerate(found.jobs):
        mine = traffic.flow_job == number
        assert job.slowdown == pytest.approx((demand / found.rates_Bps)[mine].max())


@pytest.mark.slow_but(7)
@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_split_flows_reach_what_whole_ones_cannot(seed, parts, kit):
    fabric, traffic = kit.random_case(seed, 20)
    split = plan(fabric, traffic, router="split", split=parts)
    assert len(split.traffic) == parts * len(traffic)
    assert split.alpha == pytest.approx(kit.recount(fabric, split.traffic, split.routes))
    spray = plan(fabric, traffic, router="spray", bound="lp")
    whole = plan(fabric, traffic, router="repair", bound="lp")
    assert split.alpha >= spray.alpha_bound * (1 - 1e-6)
    assert split.alpha_bound <= whole.alpha_bound * (1 + 1e-6)
    if parts == 1:
        assert split.alpha == whole.alpha


def test_splitting_in_two_halves_a_collision_of_three_flows():
    """Three flows over two spines: 2 whole, 1.5 in halves."""
    fabric = two_layers(2, 2, 3)
    traffic = job_traffic(np.arange(3), np.arange(3, 6), np.ones(3))
    assert plan(fabric, traffic, router="repair").alpha == pytest.approx(2.0)
    halved = plan(fabric, traffic, router="split", split=2)
    assert (halved.alpha, halved.alpha_bound) == (pytest.approx(1.5), pytest.approx(1.5))
    sprayed = plan(fabric, traffic, router="spray")
    assert (sprayed.alpha, sprayed.alpha_bound) == (pytest.approx(1.5), pytest.approx(1.5))


def test_unknown_names_are_refused_with_a_hint(kit):
    fabric, traffic = kit.random_case(0, 5)
    with pytest.raises(UnknownName, match="repair"):
        plan(fabric, traffic, router="repiar")
    with pytest.raises(UnknownName, match="cuts"):
        plan(fabric, traffic, bound="cut")
    with pytest.raises(UnknownName, match="router"):
        route(fabric, traffic, router="best")
    for parts in (0, 65, -1):
        with pytest.raises(BadInput, match=f"{parts} parts"):
            plan(fabric, traffic, router="split", split=parts)


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_a_fabric_cut_in_two_names_the_pair_whatever_the_router(router, kit):
    whole = kit.ALL["two tiers"]
    cut = whole.failed(nodes=whole.nodes_of("spine"))
    traffic = job_traffic(np.array([0, 0]), np.array([1, 31]), np.ones(2))
    with pytest.raises(BadInput, match=f"no path: {whole.names[0]} -> {whole.names[31]}"):
        plan(cut, traffic, router=router)
