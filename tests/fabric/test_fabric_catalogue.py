"""Every kind for every kind of cluster."""

from dataclasses import replace

import numpy as np
import pytest

from weft.cluster import load
from weft.errors import BadInput, UnknownName
from weft.fabric import catalogue, checks
from weft.fabric.paths import routes


@pytest.mark.parametrize("kind", catalogue.kinds())
@pytest.mark.parametrize("name", ["h100-8", "h100-64", "a100-512", "v100-256", "gh200-rail-only-1024"])
def test_every_kind_joins_every_cluster(kind, name):
    cluster = load(name)
    fabric = catalogue.for_cluster(kind, cluster)
    checks.check(fabric)
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
    if kind == "mesh":
        assert sent.max() == pytest.approx(cluster.tiers[1].bandwidth_Bps)
    else:
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


def test_unknown_kinds_and_sizes():
    with pytest.raises(UnknownName, match="did you mean rail-only"):
        catalogue.for_cluster("rails-only", load("h100-64"))
    with pytest.raises(BadInput, match=r"12 scale-up domains are not a power of two.*use 8 or 16"):
        catalogue.for_cluster("hypercube", load("h100-96"))
