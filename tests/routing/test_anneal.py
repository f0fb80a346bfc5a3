"""Simulated annealing over one path number per destination."""

from itertools import permutations

import numpy as np
import pytest

from weft.fabric.families import clos
from weft.routing.ecmp import picked
from weft.routing.plan import plan
from weft.routing.problem import problem
from weft.routing.routers import _energy, _place, anneal
from weft.routing.traffic import job_traffic


@pytest.mark.slow_but(3)
@pytest.mark.parametrize("seed", range(10))
def test_flows_to_a_host_share_a_path_number_that_only_swaps_gave(seed, kit):
    fabric, traffic = kit.random_case(seed, 40, fabric=kit.ALL["two tiers"])
    asked = problem(fabric, traffic)
    up, _ = anneal(asked, seed=seed)
    top, hosts = asked.ways.top[up], np.unique(traffic.target)
    spines = np.full(len(hosts), -1)
    leaf = np.arange(fabric.accelerators) // 4
    for at, host in enumerate(hosts.tolist()):
        mine = (traffic.target == host) & (leaf[traffic.source] != leaf[host])
        assert len(np.unique(top[mine])) <= 1
        spines[at] = top[mine][0] if mine.any() else -1
    numbers = np.searchsorted(fabric.nodes_of("spine"), spines[spines >= 0])
    before = np.bincount(_place(asked)[hosts], minlength=4)
    assert np.all(np.bincount(numbers, minlength=4) <= before)


@pytest.mark.slow_but(3)
@pytest.mark.parametrize("seed", range(10))
def test_it_ends_no_worse_than_it_began(seed, kit):
    fabric, traffic = kit.random_case(seed, 40)
    asked = problem(fabric, traffic)
    start = _place(asked)[traffic.target]
    found = plan(fabric, traffic, router="anneal", seed=seed)

    def energy(routes):
        load = asked.loads(routes)
        inner = np.setdiff1d(routes.links, np.concatenate([asked.ways.first, asked.ways.last]))
        load = load[inner]
        highest = load.max(initial=0.0)
        return highest * np.count_nonzero(load >= highest * (1 - 1e-9))

    begun = asked.routes(*picked(asked, start))
    assert energy(found.routes) <= energy(begun) * (1 + 1e-9)
    if len(np.setdiff1d(begun.links, np.concatenate([asked.ways.first, asked.ways.last]))):
        assert _energy(asked, start) == pytest.approx(energy(begun))


def test_hosts_begin_with_their_place_below_their_switch():
    fabric = clos.build(24, radix=8, bandwidth_Bps=1e9, tiers=2)
    asked = problem(fabric, job_traffic(np.array([0]), np.array([9]), np.ones(1)))
    assert _place(asked).tolist() == [host % 4 for host in range(24)]


def test_one_destination_has_nothing_to_swap(kit):
    fabric = kit.ALL["two tiers"]
    traffic = job_traffic(np.array([0, 4]), np.array([31, 31]), np.ones(2))
    found = plan(fabric, traffic, router="anneal")
    kit.assert_paths(fabric, traffic, found.routes)


@pytest.mark.slow_but(4)
@pytest.mark.parametrize("seed", range(12))
def test_of_few_destinations_it_finds_the_least_energy(seed, kit):
    """Every order of the numbers that the destinations begin with, tried."""
    fabric, traffic = kit.random_case(seed, 4, fabric=kit.ALL["two tiers"])
    asked = problem(fabric, traffic)
    hosts, at = np.unique(traffic.target, return_inverse=True)
    orders = permutations(_place(asked)[hosts].tolist())
    least = min(_energy(asked, np.array(order)[at]) for order in orders)
    found = plan(fabric, traffic, router="anneal", seed=seed)
    loads = asked.loads(found.routes) - np.where(np.isfinite(asked.fixed), asked.fixed, 0)
    highest = loads.max()
    assert highest * np.count_nonzero(loads >= highest * (1 - 1e-9)) == pytest.approx(least)


def test_annealing_the_papers_jobs_is_better_than_hashing(spines_down, kit):
    traffic = kit.placed_jobs(0, [(48, 2), (64, 2)])
    annealed = plan(spines_down(0), traffic, router="anneal").alpha
    assert annealed <= np.mean([plan(spines_down(0), traffic, router="random", seed=seed).alpha for seed in range(10)])
