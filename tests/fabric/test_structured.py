"""Dimension-order and UGAL routes; networkx as oracle."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster import load
from weft.errors import BadInput
from weft.fabric.catalogue import for_cluster
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, dragonfly, torus
from weft.fabric.paths import grid_of, routes
from weft.fabric.spec import SCALE_UP
from weft.fabric.traffic import joined

BPS = 50e9


def everyone(fabric):
    a, b = np.divmod(np.arange(fabric.accelerators**2), fabric.accelerators)
    return a[a != b], b[a != b]


def paths_of(fabric, found):
    for flow in range(len(found)):
        links = found.links[found.indptr[flow] : found.indptr[flow + 1]]
        yield [int(fabric.source[links[0]]), *fabric.target[links].tolist()]


def graph(fabric):
    return nx.DiGraph(zip(fabric.source[fabric.up].tolist(), fabric.target[fabric.up].tolist(), strict=True))


@given(
    dims=st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda d: np.prod(d) <= 60),
    rails=st.sampled_from([1, 2]),
    kind=st.sampled_from(["switch", "fully-connected"]),
)
def test_dimension_order(dims, rails, kind):
    domain = Dimension(kind=kind, size=rails, bandwidth_Bps=4e11) if rails > 1 else None
    fabric = torus.build(dims, bandwidth_Bps=BPS, scale_up=domain)
    source, target = everyone(fabric)
    if not len(source):
        return
    found = routes(fabric, source, target, mode="dimension-order")
    if np.prod(dims) > 1:
        grid = grid_of(fabric)
        assert grid == tuple(size for size in dims if size > 1)
    net = graph(fabric)
    for a, b, path in zip(source.tolist(), target.tolist(), paths_of(fabric, found), strict=True):
        assert (path[0], path[-1]) == (a, b)
        assert nx.is_path(net, path)
        domains = fabric.domain[[node for node in path if node < fabric.accelerators]]
        if np.prod(dims) > 1:
            changed = np.diff(np.stack(np.unravel_index(domains, grid, order="F")), axis=1).T != 0
            axes = [int(np.argmax(row)) for row in changed if row.any()]
            assert axes == sorted(axes)
        if rails == 1:
            assert len(path) - 1 == nx.shortest_path_length(net, a, b)
    assert found.latency_s == pytest.approx(
        [fabric.latency_s[each].sum() for each in np.split(found.links, found.indptr[1:-1])]
    )


FLIES = {
    "dragonfly": dragonfly.build(4, 2, 2, 9, accelerators=72, bandwidth_Bps=BPS),
    "dragonfly+": dragonfly.build(3, 2, 2, 7, spines=3, accelerators=42, bandwidth_Bps=BPS),
}


def crossings(fabric, found):
    """Global links of each flow."""
    flow = np.repeat(np.arange(len(found)), np.diff(found.indptr))
    return np.bincount(flow, fabric.tier[found.links] == dragonfly.GLOBAL_TIER, len(found)).astype(int)


@pytest.mark.parametrize("fabric", FLIES.values(), ids=FLIES)
def test_dragonflies(fabric):
    source, target = everyone(fabric)
    net = graph(fabric)
    found = routes(fabric, source, target, mode="ugal")
    for a, b, path in zip(source.tolist(), target.tolist(), paths_of(fabric, found), strict=True):
        assert (path[0], path[-1]) == (a, b)
        assert nx.is_path(net, path)
        assert min(path[1:-1]) >= fabric.accelerators
    assert set(crossings(fabric, found).tolist()) == {0, 1, 2}


def busiest(fabric, found):
    return np.bincount(found.links, found.usage, fabric.links).max()


@pytest.mark.parametrize("fabric", FLIES.values(), ids=FLIES)
def test_ugal_spreads_what_minimal_paths_pile_up(fabric):
    """All send to the next group: one cable (or a few) carries the minimal paths of a group (Kim et al. 2008)."""
    per_group = fabric.accelerators // 9 if fabric.name == "dragonfly" else fabric.accelerators // 7
    here = np.arange(fabric.accelerators)
    far = (here + per_group) % fabric.accelerators
    alone = joined([routes(fabric, here[i : i + 1], far[i : i + 1], mode="ugal") for i in here])  # each alone
    assert busiest(fabric, alone) >= 2 * busiest(fabric, routes(fabric, here, far, mode="ugal"))


def test_published_sizes():
    assert len(FLIES["dragonfly"].nodes_of("router")) == 36  # Kim et al., figure 5: 9 groups, 72 nodes
    for radix in (4, 6, 8):
        half = radix // 2
        full = half**2 * (half**2 + 1)
        *sizes, spines = dragonfly.balanced_plus(full, radix)
        assert (*sizes, spines) == (half, half, half, half**2 + 1, half)
        # Groups of k^2 / 4 hosts (Shpiner et al.), all pairs joined.
        whole = dragonfly.build(*sizes, spines=spines, accelerators=full, bandwidth_Bps=BPS)
        ports = np.bincount(whole.source, whole.cables, whole.nodes)[whole.accelerators :]
        assert ports.max() == ports.min() == radix
        with pytest.raises(BadInput, match="do not fit"):
            dragonfly.balanced_plus(full + 1, radix)


@pytest.mark.parametrize(
    ("kind", "mode"), [("dragonfly", "ugal"), ("dragonfly+", "ugal"), ("torus", "dimension-order")]
)
def test_failures_are_gone_around(kind, mode):
    fabric = for_cluster(kind, load("h100-128"), radix=16)
    source, target = everyone(fabric)
    healthy = routes(fabric, source, target, mode=mode)
    across = np.flatnonzero(fabric.tier == (1 if kind == "torus" else dragonfly.GLOBAL_TIER))
    for few in (across[:1], across[: len(across) // 3]):
        left = fabric.failed(links=few)
        found = routes(left, source, target, mode=mode)
        assert left.up[found.links].all()
        net = graph(left)
        for a, b, path in zip(source.tolist(), target.tolist(), paths_of(left, found), strict=True):
            assert (path[0], path[-1]) == (a, b)
            assert nx.is_path(net, path)
        if kind == "torus":
            kept = [i for i in range(len(healthy)) if left.up[links_of(healthy, i)].all()]
            assert all(links_of(found, i).tolist() == links_of(healthy, i).tolist() for i in kept)


def links_of(found, flow):
    return found.links[found.indptr[flow] : found.indptr[flow + 1]]


def test_other_networks_are_refused():
    tree = clos.build(32, radix=8, bandwidth_Bps=BPS)
    with pytest.raises(BadInput, match="not a torus"):
        routes(tree, *everyone(tree), mode="dimension-order")
    grid = torus.build((3, 3), bandwidth_Bps=BPS)
    with pytest.raises(BadInput, match="not a dragonfly"):
        routes(grid, *everyone(grid), mode="ugal")
    broken = replace(grid, tier=np.where(np.arange(grid.links) < 2, SCALE_UP, grid.tier))
    with pytest.raises(BadInput, match="not a torus"):
        grid_of(broken)


def test_same_seed_same_routes_and_domains_stay_inside():
    fabric = for_cluster("dragonfly+", load("h100-256"), radix=16)
    source, target = everyone(fabric)
    one, other, third = (routes(fabric, source, target, mode="ugal", seed=seed).links for seed in (1, 1, 2))
    assert np.array_equal(one, other)
    assert not np.array_equal(one, third)
    found = routes(fabric, source, target, mode="ugal")
    flow = np.repeat(np.arange(len(found)), np.diff(found.indptr))
    inside = fabric.domain[source] == fabric.domain[target]
    assert (fabric.tier[found.links][inside[flow]] == SCALE_UP).all()


def test_parallel_cables_of_a_torus_share_the_flows():
    """Two cables between neighbours, each a link, carry what one of twice the speed would, about half each."""
    whole = torus.build((4, 4), bandwidth_Bps=50e9)
    twice = np.repeat(np.arange(whole.links), 2)
    columns = ("source", "target", "capacity_Bps", "latency_s", "cables", "tier", "up")
    fabric = replace(whole, **{name: getattr(whole, name)[twice] for name in columns})
    source, target = np.divmod(np.arange(256), 16)
    apart = source != target
    found, single = (routes(each, source[apart], target[apart], mode="dimension-order") for each in (fabric, whole))
    flows = np.bincount(found.links, minlength=fabric.links).reshape(-1, 2)
    assert flows.sum(axis=1).tolist() == np.bincount(single.links, minlength=whole.links).tolist()
    assert np.count_nonzero(flows) > 0.9 * flows.size
    assert flows.sum(axis=0) == pytest.approx(flows.sum() / 2, rel=0.15)
