"""The sorted list of paces against every choice of paths, and the certificate behind the slowest."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from weft.fabric.families import clos
from weft.fabric.traffic import Routes
from weft.interop.traffic.routing_jobs import Numbering, paper_fabric
from weft.routing.plan import efficiency, flow_rates, plan
from weft.routing.problem import problem
from weft.routing.traffic import job_traffic

NIC = 50e9
MOST = 20_000


def case(kit, seed: int):
    """A few equal flows, some of them in groups, on a small Clos that is short of links."""
    draw = np.random.default_rng(seed)
    fabric = clos.build(12, radix=6, bandwidth_Bps=NIC, tiers=2, oversubscription=float(draw.choice([1, 2])))
    fabric = kit.with_failures(fabric, draw, int(draw.integers(4)), int(draw.integers(2)))
    count = int(draw.integers(4, 10))
    hosts = np.array([draw.permutation(fabric.accelerators)[:2] for _ in range(count)])
    hosts = np.array([pair for pair in hosts.tolist() if kit.up_paths(fabric, *pair)]).reshape(-1, 2)
    group = draw.integers(0, 4, len(hosts))
    _, group = np.unique(group, return_inverse=True)
    sizes = 1e9 * np.ones(len(hosts))
    return fabric, hosts, group, sizes


def traffic_of(hosts, group, sizes, cap):
    groups = int(group.max()) + 1
    return job_traffic(
        hosts[:, 0],
        hosts[:, 1],
        sizes,
        collective=group,
        queue_pair=np.arange(len(hosts)),
        cap_Bps=np.full(len(hosts), cap),
        names=[f"c{i}" for i in range(groups)],
        job=np.zeros(groups, dtype=np.int64),
        jobs=("one",),
    )


def best_of_all(kit, asked) -> np.ndarray | None:
    """The lexicographically largest sorted paces of any choice of paths; None where there are too many."""
    paths = [kit.listed(asked, flow) for flow in range(len(asked.traffic))]
    if np.prod([float(len(each)) for each in paths]) > MOST:
        return None
    found: tuple[float, ...] = ()
    for chosen in product(*paths):
        links = np.array([link for path in chosen for link in path])
        routes = Routes(
            indptr=np.cumsum([0, *map(len, chosen)]),
            links=links,
            usage=np.ones(len(links)),
            latency_s=np.zeros(len(chosen)),
        )
        pace = flow_rates(asked.fabric, asked.traffic, routes) / asked.demand_Bps
        reached = efficiency(asked.traffic, pace, 1.0)
        found = max(found, tuple(np.round(reached.paces, 9).tolist()))
    return np.array(found)


@pytest.mark.parametrize("seed", range(30))
def test_against_every_choice(kit, seed) -> None:
    """No choice is above the bounds, none above what is proved; the router is seldom below the best."""
    fabric, hosts, group, sizes = case(kit, seed)
    if len(hosts) < 2:
        return
    unit = np.arange(len(hosts)) if seed % 2 else group
    _, unit = np.unique(unit, return_inverse=True)
    traffic = traffic_of(hosts, unit, sizes, cap=NIC / 3 if seed % 3 == 0 else np.inf)
    asked = problem(fabric, traffic)
    best = best_of_all(kit, asked)
    found = plan(fabric, traffic, router="lexicographic")
    paces = found.efficiency.paces
    if best is None:
        return
    assert tuple(np.round(paces, 9)) <= tuple(best)
    if found.alpha == found.alpha_bound:
        assert np.all(best <= found.efficiency.bounds + 1e-8)
        proved = found.efficiency.proved
        assert np.allclose(paces[:proved], best[:proved])
    if found.efficiency.proved == len(paces):
        assert np.allclose(paces, best)


def test_collisions_come_together_in_few_collectives() -> None:
    """8 flows of 4 collectives over 6 spines: two links carry two flows each, of two collectives at best."""
    fabric = paper_fabric(Numbering(tors=2, spines=6, hosts_per_tor=8))
    hosts = np.stack([np.arange(8), 8 + np.arange(8)], axis=1)
    traffic = traffic_of(hosts, np.arange(8) % 4, np.full(8, 1e9), np.inf)
    plain, found = (plan(fabric, traffic, router=name).efficiency for name in ("auto", "lexicographic"))
    assert found.paces.tolist() == [0.5, 0.5, 1, 1]
    assert (found.proved, plain.proved) == (4, 1)
    assert found.better_than(plain)
    assert found.bounds.tolist() == found.paces.tolist()
    of_job = plan(fabric, traffic, router="lexicographic", objective="job").efficiency
    assert (of_job.paces.tolist(), of_job.proved) == ([0.5], 1)


def test_unequal_flows_prove_the_slowest_alone(kit) -> None:
    fabric, traffic = kit.random_case(4, 12, equal=False)
    found = plan(fabric, traffic, router="lexicographic")
    assert found.alpha == plan(fabric, traffic).alpha
    assert found.efficiency.proved <= 1


def test_the_command_says_what_is_proved() -> None:
    import weft

    found = weft.route(generate="BLOOM:4,GPT_3:4", failed_spines=4, router="lexicographic")
    objective = found.to_dict()["objective"]
    assert objective["groups"] == objective["proved"] == 112
    assert found.plan.efficiency.value == found.plan.efficiency.bound == 0.5
