"""Every kind for every kind of cluster."""

from dataclasses import replace

import numpy as np
import pytest
import soundness

from weft.cluster import load
from weft.errors import BadInput, UnknownName
from weft.fabric import catalogue
from weft.fabric.catalogue import for_cluster, parse_kind
from weft.fabric.checks import components
from weft.fabric.cost import bill, preset
from weft.fabric.dimension import Dimension
from weft.fabric.families import rail
from weft.fabric.paths import routes


@pytest.mark.parametrize("kind", catalogue.kinds())
@pytest.mark.parametrize("name", ["h100-8", "h100-64", "a100-512", "v100-256", "gh200-rail-only-1024"])
def test_every_kind_joins_every_cluster(kind, name):
    cluster = load(name)
    fabric = catalogue.for_cluster(kind, cluster)
    soundness.check(fabric)
    assert (fabric.name, fabric.accelerators) == (kind, cluster.count)
    size = cluster.tiers[0].size
    assert np.array_equal(fabric.domain, np.arange(cluster.count) // size)
    draw = np.random.default_rng(0)
    source = draw.integers(cluster.count, size=50)
    target = (source + draw.integers(1, cluster.count, size=50)) % cluster.count
    assert (np.diff(routes(fabric, source, target).indptr) >= 1).all()


@pytest.mark.parametrize("kind", [kind for kind in catalogue.kinds() if kind != "hierarchical"])
def test_accelerators_send_what_their_nic_carries(kind):
    cluster = load("h100-512")
    fabric = catalogue.for_cluster(kind, cluster)
    outside = (fabric.tier > 0) & (fabric.source < cluster.count)
    sent = np.bincount(fabric.source[outside], weights=fabric.capacity_Bps[outside])
    np.testing.assert_allclose(sent, cluster.tiers[1].bandwidth_Bps)


def latency(kind: str, name: str, source: int, target: int) -> float:
    fabric = catalogue.for_cluster(kind, load(name))
    return float(routes(fabric, np.array([source]), np.array([target])).latency_s[0])


def test_latencies_are_those_of_the_tiers():
    tiers = load("h100-1024").tiers
    assert latency("rail-optimized", "h100-1024", 0, 1) == pytest.approx(tiers[0].latency_s)
    assert latency("rail-optimized", "h100-1024", 0, 8) == pytest.approx(tiers[1].latency_s)
    assert latency("rail-optimized", "h100-1024", 0, 1016) == pytest.approx(tiers[2].latency_s)


def test_oversubscription_of_the_cluster_is_taken():
    cluster = load("h100-1024")
    tiers = (*cluster.tiers[:2], replace(cluster.tiers[2], oversubscription=2.0))
    narrow = catalogue.for_cluster("fat-tree", replace(cluster, tiers=tiers))
    wide = catalogue.for_cluster("fat-tree", cluster)
    assert 2 * narrow.cables[narrow.tier == 2].sum() <= 1.1 * wide.cables[wide.tier == 2].sum()


def test_default_kinds():
    assert catalogue.default_kind(load("gh200-rail-only-1024")) == "rail-only"
    assert catalogue.default_kind(load("h100-1024")) == "rail-optimized"
    assert catalogue.default_kind(load("h100-8")) == "fat-tree"


def test_names_say_oversubscription() -> None:
    cluster = load("h100-1024")
    for kind in ("fat-tree", "rail-optimized", "rail-only", "multi-plane-4"):
        named = for_cluster(f"{kind} 3:1", cluster, radix=16)
        asked = for_cluster(kind, cluster, radix=16, oversubscription=3.0)
        assert (named.links, named.names) == (asked.links, asked.names)
        assert named.links < for_cluster(kind, cluster, radix=16).links
    assert parse_kind("fat-tree") == ("fat-tree", None)
    for text in ("torus 2:1", "fat-tree 0:1", "fat-tree 0.5:1"):
        with pytest.raises(BadInput, match="oversubscription"):
            parse_kind(text)
    for text in ("fat-tree 2", "fat-tree  2:1", "fat-tree 2:2", "fat-tree 1e3:1"):
        with pytest.raises(BadInput, match="is not a ratio to 1 -- write ports down to ports up, like fat-tree 2:1"):
            parse_kind(text)
    for text in ("fat 2:1", ""):
        with pytest.raises(UnknownName):
            parse_kind(text)


def test_a_pod_of_alibaba_hpn() -> None:
    """15 segments of 128 hosts, dual ToRs of 128 x 200G down and 60 x 400G up, 60 aggregation switches a plane:
    15,360 GPUs (Qian et al., SIGCOMM 2024)."""
    domain = Dimension(kind="switch", size=8, bandwidth_Bps=450e9)
    pod = rail.optimized(
        15_360, radix=256, bandwidth_Bps=50e9, planes=2, unit=128, scale_up=domain, oversubscription=128 / 120
    )
    leaves, spines = pod.nodes_of("leaf"), pod.nodes_of("spine")
    assert (len(leaves), len(spines)) == (15 * 16, 2 * 60)
    nics = (pod.source < pod.accelerators) & (pod.tier == 1)
    assert (np.bincount(pod.source[nics]) == 2).all()
    assert set(np.bincount(pod.target[nics], minlength=pod.nodes)[leaves].tolist()) == {128}
    up = (pod.tier == 2) & np.isin(pod.source, leaves)
    assert set(np.bincount(pod.source[up], pod.cables[up])[leaves].tolist()) == {120.0}
    plane = components(pod.nodes, pod.source[pod.tier > 0], pod.target[pod.tier > 0])
    assert len({plane[leaf] for leaf in leaves.tolist()}) == 1, "planes meet in the accelerators"
    between = pod.tier > 1
    assert len(set(components(pod.nodes, pod.source[between], pod.target[between])[leaves].tolist())) == 2


@pytest.mark.parametrize(("kind", "count"), rail.PLANES.items())
def test_planes_divide_a_nic(kind: str, count: int) -> None:
    cluster = load("h100-512")
    fabric = for_cluster(kind, cluster, radix=16)
    nics = (fabric.source < fabric.accelerators) & (fabric.tier == 1)
    assert (np.bincount(fabric.source[nics]) == count).all()
    assert fabric.capacity_Bps[nics] == pytest.approx(cluster.tiers[1].bandwidth_Bps / count)
    prices = preset("rail-only-v5")
    found = bill(fabric, prices, radix=16, kind=kind)
    assert found.switch_ports == found.switches * 16 * count
    assert found.prices.usd_per_switch_port * count == prices.usd_per_switch_port
