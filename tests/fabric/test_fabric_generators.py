"""Counts, ports, wiring and bisection of the generated fabrics."""

import time
from functools import partial

import networkx as nx
import numpy as np
import pytest
import soundness
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric import Fabric, catalogue
from weft.fabric.build import Builder
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, dragonfly, rail, torus

NIC = 50e9


def domain(size: int, kind: str = "switch") -> Dimension:
    return Dimension(size=size, kind=kind, bandwidth_Bps=450e9, latency_s=0.6e-6)


def switches(fabric: Fabric) -> int:
    return fabric.nodes - fabric.accelerators - len(fabric.nodes_of("scale-up"))


def ports(fabric: Fabric) -> np.ndarray:
    """Scale-out cables at each node."""
    outside = fabric.tier > 0
    counts = np.bincount(fabric.source[outside], weights=fabric.cables[outside], minlength=fabric.nodes)
    return counts.astype(int)


def graph(fabric: Fabric, *, scale_up: bool = True) -> nx.DiGraph:
    network = nx.DiGraph()
    network.add_nodes_from(range(fabric.nodes))
    for link in np.flatnonzero(fabric.up & (scale_up | (fabric.tier > 0))).tolist():
        ends = int(fabric.source[link]), int(fabric.target[link])
        beside = network.edges[ends]["capacity"] if network.has_edge(*ends) else 0.0
        network.add_edge(*ends, capacity=beside + fabric.capacity_Bps[link] / NIC)
    return network


def bisection(fabric: Fabric, seed: int = 0) -> float:
    """The most, in NICs, that a random half of the accelerators can send to the other half."""
    order = np.random.default_rng(seed).permutation(fabric.accelerators).tolist()
    network, half = graph(fabric, scale_up=False), fabric.accelerators // 2
    for node in order[:half]:
        network.add_edge("out", node)
    for node in order[half : 2 * half]:
        network.add_edge(node, "in")
    return nx.maximum_flow_value(network, "out", "in")


@given(
    count=st.integers(1, 700),
    radix=st.integers(2, 40),
    ratio=st.floats(1, 6),
    tiers=st.sampled_from([None, None, 2, 3]),
)
def test_fat_trees_of_any_size(count, radix, ratio, tiers):
    holds = radix > 3 and tiers is None
    try:
        fabric = clos.build(count, radix=radix, bandwidth_Bps=NIC, oversubscription=ratio, tiers=tiers)
    except BadInput:
        if holds:
            raise
        return
    soundness.check(fabric)
    used = ports(fabric)
    assert (used[:count] == 1).all()
    assert used.max() <= radix
    leaves = fabric.nodes_of("leaf")
    into = np.bincount(fabric.target[fabric.tier == 1], minlength=fabric.nodes)[leaves]
    if len(leaves) > 1:
        assert (into <= ratio * (used[leaves] - into) + 1e-9).all()


@given(count=st.integers(2, 60), radix=st.integers(4, 12), seed=st.integers(0, 100))
def test_bisection_is_whole_at_any_population(count, radix, seed):
    fabric = clos.build(count, radix=radix, bandwidth_Bps=NIC)
    assert bisection(fabric, seed) == pytest.approx(count // 2)


def test_oversubscription_narrows_the_bisection():
    options = {"radix": 16, "bandwidth_Bps": NIC}
    whole = clos.build(96, oversubscription=1, **options)
    third = clos.build(96, oversubscription=3, **options)
    halves = np.arange(96)
    between = graph(third, scale_up=False)
    between.add_edges_from([("out", node) for node in halves[:48].tolist()])
    between.add_edges_from([(node, "in") for node in halves[48:].tolist()])
    assert nx.maximum_flow_value(between, "out", "in") == pytest.approx(48 / 3)
    assert bisection(whole) == pytest.approx(48)


def test_oversubscription_per_tier():
    form = clos.shape(6 * 12 * 16, 16, tiers=3, oversubscription=(3, 3))
    assert form.uplinks == (4, 4, 0)
    assert form.joins[:2] == (12, 12)


def test_four_tiers_have_their_own_roles():
    fabric = clos.build(32, radix=4, bandwidth_Bps=NIC)
    assert fabric.roles == ("accelerator", "leaf", "spine", "core", "core-4")
    assert bisection(fabric) == pytest.approx(16)


def test_rail_optimized_units_share_leaves_by_rank():
    fabric = rail.optimized(256, radix=16, bandwidth_Bps=NIC, scale_up=domain(8), unit=4)
    outside = (fabric.tier == 1) & (fabric.source < fabric.accelerators)
    leaf = fabric.target[outside][np.argsort(fabric.source[outside])]
    unit = fabric.domain // 4
    for first in range(0, 256, 7):
        together = leaf == leaf[first]
        assert (together == ((unit == unit[first]) & (fabric.rail == fabric.rail[first]))).all()


@given(
    domains=st.integers(1, 60),
    size=st.sampled_from([1, 2, 3, 8]),
    radix=st.integers(4, 24),
    ratio=st.sampled_from([1, 2]),
)
def test_rails_of_any_size(domains, size, radix, ratio):
    options = {"radix": radix, "bandwidth_Bps": NIC, "scale_up": domain(size), "oversubscription": ratio}
    planes = partial(rail.optimized, planes=2)
    for build in (rail.optimized, rail.only, planes):
        if domains == 1 and build is rail.only:
            assert switches(build(size, **options)) == 0
            continue
        fabric = build(domains * size, **options)
        soundness.check(fabric)
        assert ports(fabric).max() <= radix
        assert (ports(fabric)[: domains * size] == (2 if build is planes else 1)).all()


def test_rails_are_joined_by_domains_alone():
    fabric = rail.only(128, radix=16, bandwidth_Bps=NIC, scale_up=domain(4))
    parts = list(nx.weakly_connected_components(graph(fabric, scale_up=False)))
    rails = [set(fabric.rail[sorted(node for node in part if node < 128)].tolist()) for part in parts]
    assert sorted(map(tuple, (each for each in rails if each))) == [(0,), (1,), (2,), (3,)]


def test_planes_share_no_switch():
    fabric = rail.optimized(256, radix=16, bandwidth_Bps=NIC, planes=2, scale_up=domain(8))
    inner = graph(fabric, scale_up=False)
    inner.remove_nodes_from(range(256))
    inner.remove_nodes_from(fabric.nodes_of("scale-up").tolist())
    parts = list(nx.weakly_connected_components(inner))
    assert len(parts) == 2
    for part in parts:
        into = np.isin(fabric.target, sorted(part)) & (fabric.source < 256)
        assert sorted(fabric.source[into].tolist()) == list(range(256))
        assert fabric.capacity_Bps[into].sum() == pytest.approx(256 * NIC / 2)


@pytest.mark.parametrize("dims", [(4, 3, 2), (5,), (3, 4), (2, 2)])
def test_grids_have_the_distances_of_their_coordinates(dims):
    fabric = torus.build(dims, bandwidth_Bps=NIC)
    coordinates = np.stack(np.unravel_index(np.arange(fabric.accelerators), dims, order="F"))
    apart = np.abs(coordinates - coordinates[:, :1])
    apart = np.minimum(apart, np.array(dims)[:, None] - apart)
    hops = nx.single_source_shortest_path_length(graph(fabric), 0)
    assert [hops[node] for node in range(fabric.accelerators)] == apart.sum(axis=0).tolist()


def test_canonical_dragonfly_joins_every_pair_of_groups_once():
    fabric = dragonfly.build(4, 2, 2, 9, accelerators=72, bandwidth_Bps=NIC)
    assert switches(fabric) == 36
    assert (ports(fabric)[72:] == 2 + 3 + 2).all()
    globally = (fabric.tier == dragonfly.GLOBAL_TIER) & (fabric.source < fabric.target)
    group = (np.stack([fabric.source, fabric.target]) - 72) // 4
    pairs = {tuple(pair) for pair in group[:, globally].T.tolist()}
    assert len(pairs) == np.count_nonzero(globally) == 9 * 8 // 2
    assert nx.diameter(graph(fabric)) == 5


@given(a=st.integers(1, 6), p=st.integers(1, 4), h=st.integers(0, 4), data=st.data())
def test_dragonflies_of_any_size(a, p, h, data):
    g = data.draw(st.integers(1, a * h + 1))
    count = data.draw(st.integers(1, a * p * g))
    fabric = dragonfly.build(a, p, h, g, bandwidth_Bps=NIC, accelerators=count)
    soundness.check(fabric)
    assert ports(fabric)[count:].max(initial=0) <= p + a - 1 + h
    globally = (fabric.tier == dragonfly.GLOBAL_TIER) & (fabric.source < fabric.target)
    group = (np.stack([fabric.source, fabric.target])[:, globally] - count) // a
    per_pair = np.zeros((g, g))
    np.add.at(per_pair, (group[0], group[1]), fabric.cables[globally])
    if g > 1:
        assert (per_pair[np.triu_indices(g, 1)] == a * h // (g - 1)).all()


def test_balanced_dragonfly_fits_its_radix():
    assert dragonfly.balanced(16384, 64) == (32, 16, 16, 32)
    with pytest.raises(BadInput, match="do not fit a balanced dragonfly"):
        dragonfly.balanced(10**6, 8)


THEMIS = {
    "2D-SW_SW": [(16, "switch", 1200), (64, "switch", 800)],
    "3D-FC_Ring_SW": [(8, "fully-connected", 1400), (16, "ring", 800), (8, "switch", 400)],
    "4D-Ring_FC_Ring_SW": [(4, "ring", 3000), (8, "fully-connected", 1400), (4, "ring", 1200), (8, "switch", 800)],
}
"""Themis (ISCA 2022), table 2: size, kind and Gb/s of an accelerator, dimension by dimension."""


@pytest.mark.parametrize("name", THEMIS)
def test_themis_topologies(name):
    rows = THEMIS[name]
    dimensions = [Dimension(size=n, kind=kind, bandwidth_Bps=b * 1e9 / 8) for n, kind, b in rows]
    fabric = catalogue.hierarchical(dimensions)
    assert fabric.accelerators == 1024
    for tier, (_, _, gigabits) in enumerate(rows):
        inside = (fabric.tier == tier) & (fabric.source < 1024)
        sent = np.bincount(fabric.source[inside], weights=fabric.capacity_Bps[inside], minlength=1024)
        np.testing.assert_allclose(sent, gigabits * 1e9 / 8)
    assert (np.bincount(fabric.domain) == rows[0][0]).all()
    soundness.check(fabric)


@pytest.mark.parametrize(("kind", "degree"), [("ring", 2), ("fully-connected", 7), ("switch", 1)])
def test_scale_up_domains(kind, degree):
    fabric = clos.build(64, radix=16, bandwidth_Bps=NIC, scale_up=domain(8, kind))
    inside = (fabric.tier == 0) & (fabric.source < 64)
    assert (np.bincount(fabric.source[inside]) == degree).all()
    sent = np.bincount(fabric.source[inside], weights=fabric.capacity_Bps[inside])
    np.testing.assert_allclose(sent, 450e9)
    assert len(fabric.nodes_of("scale-up")) == (8 if kind == "switch" else 0)


def test_every_cable_between_the_same_nodes_is_a_link():
    builder = Builder(name="x", accelerators=2)
    a, b = np.array([0, 0, 1]), np.array([1, 1, 0])
    builder.join(a, b, capacity_Bps=5.0, latency_s=1.0, tier=1, cables=2)
    fabric = builder.build()
    assert (fabric.links, fabric.cables.tolist(), fabric.capacity_Bps.tolist()) == (12, [1] * 12, [5.0] * 12)
    assert fabric.reverse.tolist() == [link ^ 1 for link in range(12)]
    assert (fabric.source[0], fabric.target[0]) == (fabric.target[1], fabric.source[1])


def test_large_fat_tree_is_built_soon():
    begin = time.process_time()
    fabric = clos.build(16384, radix=64, bandwidth_Bps=NIC, scale_up=domain(8))
    assert time.process_time() - begin < 2
    scale_up, nics, spines, cores = 16384, 16384, 512 * 32, 512 * 8 * 4
    assert fabric.links == 2 * (scale_up + nics + spines + cores)
    assert fabric.cables[fabric.tier == 3].sum() == 2 * 16384


BAD = [
    (lambda: clos.build(0, radix=8, bandwidth_Bps=NIC), "0 is not a whole number"),
    (lambda: clos.build(8.5, radix=8, bandwidth_Bps=NIC), "8.5 is not a whole number"),
    (lambda: clos.build(8, radix=1, bandwidth_Bps=NIC), "fat-tree: radix: 1 is not"),
    (lambda: clos.build(8, radix=8, bandwidth_Bps=0.0), "bandwidth: 0.0 is not a finite"),
    (lambda: clos.build(8, radix=8, bandwidth_Bps=float("nan")), "nan is not a finite"),
    (lambda: clos.build(80, radix=8, bandwidth_Bps=NIC, oversubscription=0.5), "0.5 is below 1"),
    (lambda: clos.build(80, radix=8, bandwidth_Bps=NIC, tiers=1), "do not fit a Clos of 1 tiers"),
    (lambda: clos.build(80, radix=2, bandwidth_Bps=NIC), "do not fit a Clos"),
    (lambda: clos.build(10, radix=8, bandwidth_Bps=NIC, scale_up=domain(4)), "do not fill .* domains of 4"),
    (lambda: rail.optimized(64, radix=8, bandwidth_Bps=NIC, scale_up=domain(4), unit=6), "exceeds the radix 8"),
    (lambda: dragonfly.build(2, 1, 1, 4, bandwidth_Bps=NIC, accelerators=8), "4 groups exceed the 3"),
    (lambda: dragonfly.build(2, 1, 1, 3, bandwidth_Bps=NIC, accelerators=7), "exceed 6 ports"),
    (lambda: torus.build((), bandwidth_Bps=NIC), "no dimensions"),
    (lambda: torus.build((4000, 4000), bandwidth_Bps=NIC), "16000000 is not a whole number"),
    (lambda: catalogue.hierarchical([]), "no dimensions"),
    (lambda: domain(-1), "-1 is not a whole number"),
]


@pytest.mark.parametrize(("build", "message"), BAD)
def test_bad_parameters_are_named(build, message):
    with pytest.raises(BadInput, match=message):
        build()
