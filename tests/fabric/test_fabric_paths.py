"""Paths and routes against networkx, and what every route must keep."""

import time
from collections import defaultdict
from itertools import pairwise, product

import networkx as nx
import numpy as np
import pytest

from weft.errors import BadInput, UnknownName
from weft.fabric import Fabric, catalogue
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, dragonfly, rail, torus
from weft.fabric.paths import Paths, routes

NIC = 50e9
RELAY, ARRIVAL = 10**8, 10**4


def domain(size: int, kind: str = "switch") -> Dimension:
    return Dimension(size=size, kind=kind, bandwidth_Bps=450e9, latency_s=0.6e-6)


def options(size: int = 4, kind: str = "switch", radix: int = 8) -> dict:
    return {"radix": radix, "bandwidth_Bps": NIC, "scale_up": domain(size, kind)}


SMALL = {
    "fat-tree": clos.build(48, **options()),
    "fat-tree without domains": clos.build(24, radix=6, bandwidth_Bps=NIC),
    "uneven fat-tree": clos.build(22, radix=10, bandwidth_Bps=NIC, tiers=3, oversubscription=2),
    "ring domains": clos.build(24, **options(kind="ring")),
    "rail-optimized": rail.optimized(64, **options()),
    "rail-only": rail.only(48, **options()),
    "rail-only, ring domains": rail.only(40, **options(kind="ring")),
    "rail-only, shared switches": rail.only(16, **options()),
    "rail-only, all pairs": rail.only(48, **options(kind="fully-connected")),
    "multi-plane": rail.optimized(48, planes=2, **options()),
    "torus": torus.build((4, 3, 2), bandwidth_Bps=NIC),
    "torus per rail": torus.build((4, 3), bandwidth_Bps=NIC, scale_up=domain(2)),
    "dragonfly": dragonfly.build(3, 2, 1, 4, accelerators=24, bandwidth_Bps=NIC, scale_up=domain(2)),
    "hierarchical": catalogue.hierarchical([domain(3, "ring"), domain(3, "fully-connected"), domain(2)]),
}
SMALL["rail-only, failures"] = SMALL["rail-only"].failed(
    links=np.flatnonzero((SMALL["rail-only"].source == 5) & (SMALL["rail-only"].tier > 0))
)
SMALL["fat-tree, failures"] = SMALL["fat-tree"].failed(nodes=SMALL["fat-tree"].nodes_of("spine")[:3])
SMALL["domain, failures"] = SMALL["fat-tree"].failed(nodes=SMALL["fat-tree"].nodes_of("scale-up")[:1])


def graph(fabric: Fabric, keep, end: int) -> nx.DiGraph:
    """Links that ``keep`` admits, weighted by relays, arrivals at relays over scale-out links, and links."""
    network = nx.DiGraph()
    network.add_nodes_from(range(fabric.nodes))
    for link in np.flatnonzero(fabric.up).tolist():
        a, b = int(fabric.source[link]), int(fabric.target[link])
        if keep(link, a, b):
            relay = b < fabric.accelerators and b != end
            cost = RELAY + ARRIVAL * (fabric.tier[link] > 0) if relay else 0
            beside = network.edges[a, b]["links"] if network.has_edge(a, b) else []
            network.add_edge(a, b, links=[*beside, link], weight=int(1 + cost))
    return network


def shortest(network: nx.DiGraph, source: int, target: int) -> tuple[float, list[tuple[int, ...]]]:
    """The cost and the paths, as links."""
    try:
        found = list(nx.all_shortest_paths(network, source, target, weight="weight"))
    except nx.NetworkXNoPath:
        return np.inf, []
    cost = sum(network[a][b]["weight"] for a, b in pairwise(found[0]))
    hops = [[network[a][b]["links"] for a, b in pairwise(path)] for path in found]
    return cost, [links for path in hops for links in product(*path)]


def oracle(fabric: Fabric, source: int, target: int) -> set[tuple[int, ...]]:
    """All shortest paths by the four rules of ``weft.fabric.paths``."""
    hosts = fabric.accelerators
    inside = graph(fabric, lambda link, a, b: fabric.tier[link] == 0, target)
    if fabric.domain[source] == fabric.domain[target]:
        _, found = shortest(inside, source, target)
        if found:
            return set(found)

    def without_relay(begin: int) -> tuple[float, list[tuple[int, ...]]]:
        def keep(link: int, *ends: int) -> bool:
            return bool(fabric.tier[link] > 0) and all(n >= hosts or n in (begin, target) for n in ends)

        return shortest(graph(fabric, keep, target), begin, target)

    _, found = without_relay(source)
    if found:
        return set(found)
    best: dict[float, set[tuple[int, ...]]] = defaultdict(set)
    for peer in np.flatnonzero(fabric.domain == fabric.domain[source]).tolist():
        if peer not in (source, target):
            first, heads = shortest(inside, source, peer)
            second, tails = without_relay(peer)
            if heads and tails:
                best[first + second] |= {head + tail for head in heads for tail in tails}
    if best:
        return best[min(best)]
    return set(shortest(graph(fabric, lambda link, a, b: True, target), source, target)[1])


def some_pairs(fabric: Fabric, count: int = 14) -> list[tuple[int, int]]:
    draw = np.random.default_rng(3)
    drawn = [tuple(draw.choice(fabric.accelerators, 2, replace=False).tolist()) for _ in range(count)]
    return [(0, 1), (0, fabric.accelerators - 1), (5, 2), *drawn]


def outside(fabric: Fabric) -> np.ndarray:
    """Links out of accelerators into the scale-out network."""
    return np.flatnonzero((fabric.source < fabric.accelerators) & (fabric.tier > 0))


@pytest.mark.parametrize("radix", [8, 16, 32])
@pytest.mark.parametrize("build", [rail.only, rail.optimized])
def test_flows_of_lost_nics_are_striped_and_more_failures_are_no_faster(build, radix):
    """Neighbours on a ring of domains of 4: what is left of a domain's NICs carries the traffic of all of them, which
    no routing can better.  A switch that takes a NIC with it, takes no less time than the NIC alone."""
    fabric = build(32, **options(radix=radix))
    source = np.arange(32)
    target = (source + 4) % 32
    (nic,) = outside(fabric)[fabric.source[outside(fabric)] == 5]
    switch = int(fabric.target[nic])
    below = np.unique(fabric.source[outside(fabric)[fabric.target[outside(fabric)] == switch]] % 4)
    alone, whole = fabric.failed(links=np.array([nic])), fabric.failed(nodes=np.array([switch]))
    loads = []
    for left, nics in ((fabric, 4), (alone, 3), (whole, 4 - len(below))):
        if not nics:
            continue
        found = routes(left, source, target, mode="spray")
        net = np.zeros((32, fabric.nodes))
        flow = np.repeat(np.arange(32), np.diff(found.indptr))
        np.add.at(net, (flow, fabric.source[found.links]), found.usage)
        np.add.at(net, (flow, fabric.target[found.links]), -found.usage)
        expected = np.zeros_like(net)
        expected[np.arange(32), source], expected[np.arange(32), target] = 1.0, -1.0
        assert net == pytest.approx(expected)
        assert left.up[found.links].all()
        loads.append(np.bincount(found.links, found.usage, minlength=fabric.links)[outside(fabric)].max())
        assert loads[-1] == pytest.approx(4 / nics)
        assert len(np.unique(flow * fabric.links + found.links)) == len(found.links)
        expected_s = np.bincount(flow, found.usage * fabric.latency_s[found.links], minlength=32)
        assert found.latency_s == pytest.approx(expected_s)
    assert loads == sorted(loads)


@pytest.mark.slow_but(8)
@pytest.mark.parametrize("name", SMALL)
def test_paths_are_those_of_networkx(name):
    fabric = SMALL[name]
    paths = Paths(fabric)
    for source, target in some_pairs(fabric):
        expected = oracle(fabric, source, target)
        found = paths.every(source, target)
        assert len(found) == len(set(found))
        assert set(found) == expected, (source, target)


@pytest.mark.parametrize("name", SMALL)
def test_spraying_splits_evenly_at_every_node(name):
    fabric = SMALL[name]
    paths = Paths(fabric)
    pairs = np.array(some_pairs(fabric))
    spread = paths.routes(pairs[:, 0], pairs[:, 1], mode="spray")
    wired = np.zeros(fabric.accelerators, dtype=bool)
    wired[fabric.source[fabric.up & (fabric.tier > 0) & (fabric.source < fabric.accelerators)]] = True
    for flow, (source, target) in enumerate(pairs.tolist()):
        if not (wired[source] and wired[target]):
            continue  # striped, see below
        following = defaultdict(set)
        for path in paths.every(source, target):
            for link in path:
                following[int(fabric.source[link])].add(link)
        expected: dict[int, float] = defaultdict(float)
        for path in paths.every(source, target):
            share = 1.0
            for link in path:
                others = following[int(fabric.source[link])]
                share *= fabric.cables[link] / sum(fabric.cables[other] for other in others)
            for link in path:
                expected[link] += share
        here = slice(spread.indptr[flow], spread.indptr[flow + 1])
        assert dict(zip(spread.links[here].tolist(), spread.usage[here].tolist(), strict=True)) == (
            pytest.approx(dict(expected))
        )
        latency = sum(fabric.latency_s[link] * share for link, share in expected.items())
        assert spread.latency_s[flow] == pytest.approx(latency)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("mode", ["ecmp", "random"])
def test_single_routes_are_among_the_paths(name, mode):
    fabric = SMALL[name]
    paths = Paths(fabric)
    pairs = np.array(some_pairs(fabric))
    found = paths.routes(pairs[:, 0], pairs[:, 1], mode=mode, seed=5)
    assert (found.usage == 1).all()
    for flow, (source, target) in enumerate(pairs.tolist()):
        links = found.links[found.indptr[flow] : found.indptr[flow + 1]]
        assert tuple(links.tolist()) in paths.every(source, target)
        assert found.latency_s[flow] == pytest.approx(fabric.latency_s[links].sum())


def test_published_counts_of_paths():
    """A k-ary fat-tree joins hosts of different pods over (k/2)^2 paths (Al-Fares et al., SIGCOMM 2008)."""
    paths = Paths(clos.build(1024, radix=16, bandwidth_Bps=NIC))
    assert [len(paths.every(0, host)) for host in (1023, 8, 1)] == [64, 8, 1]
    assert len(paths.every(0, 1023, limit=10)) == 10


def test_unreachable_pairs_are_named():
    fabric = clos.build(24, radix=8, bandwidth_Bps=NIC)
    cut = fabric.failed(links=np.flatnonzero((fabric.source == 7) & (fabric.tier == 1)))
    everyone = np.arange(24)
    with pytest.raises(BadInput, match="no path: accelerator-6 -> accelerator-7, accelerator-7 -> acc") as caught:
        routes(cut, everyone, (everyone + 1) % 24)
    assert "1 links are down" in str(caught.value)
    with pytest.raises(BadInput, match="no path: accelerator-0 -> accelerator-7"):
        Paths(cut).every(0, 7)


BAD = [
    ([0], [99], "99 is not one of 48 accelerators"),
    ([-1], [2], "-1 is not one of"),
    ([3, 4], [3, 5], "flows to themselves: accelerator-3 -> accelerator-3"),
    ([3, 4], [3], "2 sources for 1 targets"),
]


@pytest.mark.parametrize(("source", "target", "message"), BAD)
def test_bad_flows_are_named(source, target, message):
    with pytest.raises(BadInput, match=message):
        routes(SMALL["fat-tree"], np.array(source), np.array(target))


def test_unknown_mode_and_path_to_itself():
    with pytest.raises(UnknownName, match="did you mean spray"):
        routes(SMALL["fat-tree"], np.array([0]), np.array([1]), mode="sprays")
    with pytest.raises(BadInput, match="a path to itself"):
        Paths(SMALL["fat-tree"]).every(2, 2)


def test_hashes_draw_cables_evenly_and_keys_tell_flows_apart():
    fabric = clos.build(128, radix=8, bandwidth_Bps=NIC)
    flows = 40_000
    source, target = np.zeros(flows, dtype=int), np.full(flows, 127)
    one = routes(fabric, source[:50], target[:50])
    assert len(np.unique(one.links)) == 6
    spread = routes(fabric, source[:1], target[:1], mode="spray")
    for found in (
        routes(fabric, source, target, key=np.arange(flows)),
        routes(fabric, source, target, mode="random", seed=1),
    ):
        drawn = np.bincount(found.links, minlength=fabric.links)[spread.links] / flows
        np.testing.assert_allclose(drawn, spread.usage, atol=0.02)


def test_hashes_follow_the_flow_not_its_place():
    fabric = SMALL["fat-tree"]
    draw = np.random.default_rng(0)
    source = np.arange(48)
    target = (source + 17) % 48
    order = draw.permutation(48)
    first, second = routes(fabric, source, target), routes(fabric, source[order], target[order])
    for place, flow in enumerate(order.tolist()):
        mine = first.links[first.indptr[flow] : first.indptr[flow + 1]]
        assert mine.tolist() == second.links[second.indptr[place] : second.indptr[place + 1]].tolist()
    assert not np.array_equal(first.links, routes(fabric, source, target, seed=1).links)


def test_spraying_in_parts_equals_flow_by_flow():
    """Many wide routes exceed the room first given; parts and growth change nothing."""
    paths = Paths(clos.build(2048, radix=32, bandwidth_Bps=NIC))
    source = np.arange(0, 2048, 11)
    target = (source + 1030) % 2048
    together = paths.routes(source, target, mode="spray")
    for flow in range(0, len(source), 17):
        alone = paths.routes(source[flow : flow + 1], target[flow : flow + 1], mode="spray")
        here = slice(together.indptr[flow], together.indptr[flow + 1])
        assert np.array_equal(together.links[here], alone.links)
        np.testing.assert_allclose(together.usage[here], alone.usage)


@pytest.mark.parametrize("mode", ["ecmp", "spray"])
def test_relayed_flows_to_one_target_equal_flow_by_flow(mode):
    paths = Paths(torus.build((5, 4, 3), bandwidth_Bps=NIC))
    source, target = np.divmod(np.arange(3600), 60)
    apart = source != target
    source, target = source[apart], target[apart]
    together = paths.routes(source, target, mode=mode)
    for flow in range(0, len(source), 97):
        alone = paths.routes(source[flow : flow + 1], target[flow : flow + 1], mode=mode)
        here = slice(together.indptr[flow], together.indptr[flow + 1])
        assert np.array_equal(together.links[here], alone.links)
        np.testing.assert_allclose(together.usage[here], alone.usage)


@pytest.mark.slow_but(1)
@pytest.mark.parametrize("build", [clos.build, rail.optimized, rail.only])
def test_large_permutation_is_routed_soon(build):
    fabric = build(16384, **options(8, radix=64))
    source = np.arange(16384)
    target = (np.random.default_rng(0).permutation(16384) + 1) % 16384
    moved = source != target
    routes(fabric, source[:2], target[:2])
    begin = time.process_time()
    routes(fabric, source[moved], target[moved])
    assert time.process_time() - begin < 2
