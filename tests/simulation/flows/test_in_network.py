"""All-reduces that switches add up, in time: closed form on one and two levels of switches, max-min beside others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import Cluster, resolve
from weft.cluster.calibration import Calibration
from weft.collectives.cost import PROTOCOLS, Network, candidates, in_switch_share, slowest
from weft.fabric import Fabric
from weft.fabric.catalogue import for_cluster
from weft.fabric.paths import routes
from weft.fabric.reduction import Trees
from weft.fabric.traffic import Routes, at_once, joined
from weft.layout.mesh import Spread
from weft.simulation.flows.engine import run
from weft.solvers import maxmin

BYTES = 1e9


def sharp(count: int) -> Cluster:
    cluster = resolve(f"h100-{count}")
    return replace(cluster, tiers=tuple(replace(tier, in_network_reduction=True) for tier in cluster.tiers))


def seconds(fabric: Fabric, groups: np.ndarray, domains: int, *, spread: bool = True) -> float:
    found = Trees(fabric, spread=spread).reductions(groups, domains)
    traffic = at_once(found.source, found.target, found.bytes * BYTES)
    return run(fabric.capacity_Bps, traffic, found.routes.without_latency()).makespan_s


def closed_s(cluster: Cluster, size: int, members: tuple[int, ...]) -> float:
    """The bytes' part of the closed form: each goes up once and comes down once."""
    network = Network.of(cluster, Calibration())
    spread = Spread(size=np.array([float(size)]), members=tuple(np.array([float(one)]) for one in members))
    return float(slowest(np.full(1, BYTES), spread, network.peak_Bps)[0])


@pytest.mark.parametrize("size", [4, 8])
def test_one_domain_takes_the_closed_form_of_the_scale_up_switch(size: int) -> None:
    """NVLS: (P + 1) / P of the buffer over each port; the closed form's bytes without its latency."""
    cluster = resolve("h100-16")
    fabric = for_cluster("rail-only", cluster)
    groups = np.arange(8).reshape(-1, size)
    found = seconds(fabric, groups, 1)
    assert found == pytest.approx(in_switch_share(size) * BYTES / cluster.tiers[0].bandwidth_Bps)
    network = replace(Network.of(cluster, Calibration()), switch_efficiency=1.0)
    spread = Spread(size=np.array([float(size)]), members=(np.array([float(size)]),) * len(cluster.tiers))
    twice, once = (
        candidates("all-reduce", np.full(1, one), spread, network)["nvls", PROTOCOLS[-1].name][0]
        for one in (2 * BYTES, BYTES)
    )
    assert twice - once == pytest.approx(found)


@pytest.mark.parametrize("kind", ["rail-only", "rail-optimized", "fat-tree"])
@pytest.mark.parametrize("radix", [64, 16], ids=["one level", "two levels"])
def test_groups_over_domains_take_the_closed_form(kind: str, radix: int) -> None:
    cluster = sharp(64)
    fabric = for_cluster(kind, cluster, radix=radix)
    rails = np.arange(64).reshape(8, 8).T
    assert seconds(fabric, rails, 8) == pytest.approx(closed_s(cluster, 8, (1, 8)))
    whole = np.arange(64)[None]
    inside = in_switch_share(8) * BYTES / cluster.tiers[0].bandwidth_Bps
    assert seconds(fabric, whole, 8) == pytest.approx(max(closed_s(cluster, 64, (8, 64)), inside))


def test_an_oversubscribed_spine_slows_rings_and_not_a_tree() -> None:
    """A leaf sends what it has added up once, whatever the ranks below it."""
    cluster = sharp(64)
    narrow = replace(cluster, tiers=(cluster.tiers[0], replace(cluster.tiers[1], oversubscription=3.0)))
    fabric = for_cluster("fat-tree", narrow, radix=16)
    assert seconds(fabric, np.arange(0, 64, 8)[None], 8) == pytest.approx(BYTES / cluster.tiers[1].bandwidth_Bps)


def with_others(fabric: Fabric, source: np.ndarray, target: np.ndarray) -> tuple[Routes, np.ndarray]:
    """A tree over eight domains and other flows, and their bytes; the tree comes first."""
    tree = Trees(fabric).reductions(np.arange(0, 64, 8)[None], 8)
    other = routes(fabric, source, target, mode="ecmp")
    return joined([tree.routes, other]).without_latency(), np.full(1 + len(source), BYTES)


def test_a_flow_that_shares_one_link_halves_the_whole_tree() -> None:
    fabric = for_cluster("fat-tree", sharp(64), radix=64)
    both, bytes_ = with_others(fabric, np.array([8]), np.array([17]))
    done = run(fabric.capacity_Bps, at_once(np.array([0, 8]), np.array([56, 17]), bytes_), both)
    assert done.completion_s == pytest.approx([2 * BYTES / 50e9] * 2)


@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), min_size=1, max_size=24))
def test_rates_beside_other_flows_are_max_min_fair(pairs: list[tuple[int, int]]) -> None:
    fabric = for_cluster("fat-tree", sharp(64), radix=16)
    ends = np.array([(a, b) for a, b in pairs if a // 8 != b // 8], dtype=np.int64).reshape(-1, 2)
    both, bytes_ = with_others(fabric, ends[:, 0], ends[:, 1])
    count = len(both)
    terms = (both.usage, np.ones(count), np.full(count, np.inf))
    rates = maxmin.solve(fabric.capacity_Bps, both.indptr, both.links, *terms)
    assert maxmin.check(rates, fabric.capacity_Bps, both.indptr, both.links, *terms) is None
    assert rates == pytest.approx(maxmin.reference(fabric.capacity_Bps, both.indptr, both.links, *terms))
    source, target = np.concatenate([[0], ends[:, 0]]), np.concatenate([[56], ends[:, 1]])
    done = run(fabric.capacity_Bps, at_once(source, target, bytes_), both)
    assert done.completion_s.min() == pytest.approx(BYTES / rates.max())
    assert done.completion_s[0] >= BYTES / 50e9 * (1 - 1e-9)
