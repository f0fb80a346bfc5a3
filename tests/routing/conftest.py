"""Networks, flows and independent counts for all tests of routing."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from types import ModuleType
from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest

from weft.errors import BadInput
from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail, torus
from weft.fabric.spec import Fabric
from weft.fabric.traffic import Routes
from weft.routing.problem import Problem
from weft.routing.traffic import JobTraffic, job_traffic, merged

NIC = 50e9
WORKLOADS = ((1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (2, 8), (3, 2), (3, 4), (3, 8), (5, 2), (5, 4))
"""Jobs and ring sizes of the paper's job files."""


class Case(NamedTuple):
    """Flows on a network."""

    fabric: Fabric
    traffic: JobTraffic


def domain(size: int) -> Dimension:
    return Dimension(size=size, kind="switch", bandwidth_Bps=450e9)


def with_failures(fabric: Fabric, draw: np.random.Generator, links: int, switches: int) -> Fabric:
    """Some links between switches and some switches above the leaves down."""
    between = np.flatnonzero((fabric.source >= fabric.accelerators) & (fabric.target >= fabric.accelerators))
    above = np.flatnonzero(np.isin(np.array(fabric.roles)[fabric.role], ("spine", "core")))
    return fabric.failed(
        links=draw.choice(between, min(links, len(between)), replace=False),
        nodes=draw.choice(above, min(switches, max(len(above) - 1, 0)), replace=False),
    )


def up_paths(fabric: Fabric, source: int, target: int) -> list[tuple[int, ...]]:
    """The shortest paths over live scale-out links and switches, by networkx; if some go up and then down
    those only."""
    network, level = _network(fabric)
    hosts = set(range(fabric.accelerators)) - {source, target}
    try:
        found = list(nx.all_shortest_paths(nx.restricted_view(network, hosts, []), source, target))
    except nx.NetworkXNoPath:
        return []
    rises = [[level[b] - level[a] for a, b in pairwise(path)] for path in found]
    straight = [path for path, rise in zip(found, rises, strict=True) if rise == sorted(rise, reverse=True)]
    hops = [[network[a][b]["links"] for a, b in pairwise(path)] for path in straight or found]
    return [links for path in hops for links in product(*path)]


@cache
def _network(fabric: Fabric) -> tuple[nx.DiGraph, dict[int, int]]:
    live, whole = nx.DiGraph(), nx.DiGraph()
    live.add_nodes_from(range(fabric.nodes))
    for link in np.flatnonzero(fabric.tier > 0).tolist():
        ends = int(fabric.source[link]), int(fabric.target[link])
        whole.add_edge(*ends)
        if fabric.up[link]:
            beside = live.edges[ends]["links"] if live.has_edge(*ends) else []
            live.add_edge(*ends, links=[*beside, link])
    begin = [host for host in range(fabric.accelerators) if host in whole]
    return live, dict(nx.multi_source_dijkstra_path_length(whole, begin))


def random_clos(seed: int) -> Fabric:
    """A small Clos of two or three tiers, often oversubscribed, with short units, links or switches down."""
    draw = np.random.default_rng(seed)
    tiers = int(draw.integers(2, 4))
    radix = int(draw.choice([4, 6, 8] if tiers == 2 else [4, 6]))
    ratio = float(draw.choice([1.0, 1.0, 2.0, 3.0]))
    most = [radix * radix // 2, radix**3 // 4][tiers - 2]
    while True:
        hosts = int(draw.integers(radix + 1, most + 1))
        try:
            built = clos.build(hosts, radix=radix, bandwidth_Bps=NIC, tiers=tiers, oversubscription=ratio)
            break
        except BadInput:
            continue
    kind = int(draw.integers(4))
    return with_failures(built, draw, (0, 0, 1, 4)[kind], (0, 1, 0, 1)[kind])


def parallel_leaf_spine(seed: int) -> Fabric:
    """Leaves and spines with 1 to 8 cables between two, each a link, in drawn order; some of them down."""
    draw = np.random.default_rng((seed, 2))
    leaves, spines, hosts, most = (int(draw.integers(*span)) for span in ((2, 5), (1, 4), (1, 7), (1, 9)))
    even = bool(draw.integers(2))
    nodes = [Node(name=f"h{i}", role="accelerator", place="") for i in range(leaves * hosts)]
    nodes += [Node(name=f"leaf{i}", role="leaf", place="") for i in range(leaves)]
    nodes += [Node(name=f"spine{i}", role="spine", place="") for i in range(spines)]
    pairs = [(f"h{i}", f"leaf{i // hosts}") for i in range(leaves * hosts)]
    for leaf, spine in product(range(leaves), range(spines)):
        pairs += [(f"leaf{leaf}", f"spine{spine}")] * (most if even else int(draw.integers(1, most + 1)))
    order = draw.permutation(len(pairs)).tolist()
    links = [Cable(source=pairs[i][0], target=pairs[i][1], capacity_Bps=NIC, place="") for i in order]
    fabric = assemble("parallel cables", nodes, links, where="test")
    between = np.flatnonzero((fabric.source >= leaves * hosts) & (fabric.target >= leaves * hosts))
    failed = fabric.failed(links=draw.choice(between, int(draw.choice([0, 0, 1, 2])), replace=False))
    return failed if up_paths(failed, 0, failed.accelerators - 1) else fabric


def non_blocking(cables: int) -> Fabric:
    """Two leaves of eight hosts, eight cables up from each: ``cables`` to every spine, each a link."""
    nodes = [Node(name=f"h{i}", role="accelerator", place="") for i in range(16)]
    nodes += [Node(name=f"leaf{i}", role="leaf", place="") for i in range(2)]
    nodes += [Node(name=f"spine{i}", role="spine", place="") for i in range(8 // cables)]
    pairs = [(f"h{i}", f"leaf{i // 8}") for i in range(16)]
    pairs += [(f"leaf{i // 8}", f"spine{i % 8 // cables}") for i in range(16)]
    links = [Cable(source=a, target=b, capacity_Bps=NIC, place="") for a, b in pairs]
    return assemble("non-blocking", nodes, links, where="test")


def random_case(seed: int, flows: int, *, equal: bool = True, fabric: Fabric | None = None) -> Case:
    """Flows between drawn hosts of a drawn Clos that some path joins; a collective each when equal."""
    draw = np.random.default_rng((seed, 1))
    built = random_clos(seed) if fabric is None else fabric
    pairs = np.array([draw.choice(built.accelerators, 2, replace=False) for _ in range(flows)])
    pairs = np.array([pair for pair in pairs.tolist() if up_paths(built, *pair)]).reshape(-1, 2)
    count = len(pairs)
    traffic = job_traffic(
        pairs[:, 0],
        pairs[:, 1],
        np.full(count, 1e9) if equal else draw.uniform(0.2e9, 2e9, count),
        collective=np.arange(count) if equal else draw.integers(0, 3, count),
        queue_pair=np.arange(count),
        cap_Bps=None if equal else draw.choice([np.inf, 0.3 * NIC, 0.7 * NIC], count),
        names=[f"c{i}" for i in range(count if equal else 3)],
        job=np.arange(count) % 2 if equal else np.array([0, 0, 1]),
        jobs=("one", "other"),
    )
    return Case(built, traffic)


def demands_of(fabric: Fabric, traffic: JobTraffic) -> list[float]:
    """Rates when each collective is alone and its busiest port never rests, by plain loops.

    A flow between domains uses NICs; one that stays in a domain the link between its two ends, or else all links of
    an end in the domain.
    """
    capacity: dict[tuple[object, ...], float] = defaultdict(float)
    for link, (a, b) in enumerate(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)):
        kind = "nic" if fabric.tier[link] > 0 else "domain"
        capacity[kind, "out", a] += float(fabric.capacity_Bps[link])
        capacity[kind, "in", b] += float(fabric.capacity_Bps[link])
        if kind == "domain" and fabric.up[link]:
            capacity["direct", a, b] = float(fabric.capacity_Bps[link])

    def port(way: str, end: int, a: int, b: int) -> tuple[object, ...]:
        stays = fabric.domain[a] == fabric.domain[b] and capacity["domain", way, end] > 0
        if not stays and capacity["nic", way, end] > 0:
            return "nic", way, end
        return ("direct", a, b) if capacity["direct", a, b] > 0 else ("domain", way, end)

    crossing: dict[tuple[int, tuple[object, ...]], float] = defaultdict(float)
    flows = list(zip(traffic.source.tolist(), traffic.target.tolist(), traffic.bytes, traffic.collective, strict=True))
    for a, b, size, group in flows:
        for used in {port("out", a, a, b), port("in", b, a, b)}:
            crossing[int(group), used] += float(size)
    seconds: dict[int, float] = defaultdict(float)
    for (group, used), size in crossing.items():
        seconds[group] = max(seconds[group], size / capacity[used])
    return [
        min(float(size) / seconds[int(group)], float(cap))
        for (_, _, size, group), cap in zip(flows, traffic.cap_Bps, strict=True)
    ]


def links_of(routes: Routes) -> list[list[int]]:
    return [routes.links[a:b].tolist() for a, b in pairwise(routes.indptr.tolist())]


def recount(fabric: Fabric, traffic: JobTraffic, routes: Routes, demands: Sequence[float] = ()) -> float:
    """The highest demand over capacity of a link, by plain loops; demands are those of ``demands_of`` by default."""
    load: dict[int, float] = defaultdict(float)
    shares = iter(routes.usage.tolist())
    for demand, links in zip(demands or demands_of(fabric, traffic), links_of(routes), strict=True):
        for link in links:
            load[link] += demand * next(shares)
    return max((carried / float(fabric.capacity_Bps[link]) for link, carried in load.items()), default=0.0)


def assert_paths(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> None:
    """Every flow has one path of live links, from its source to its target, that visits no node twice."""
    assert len(routes.indptr) == len(traffic) + 1
    assert np.all(routes.usage == 1)
    ends = zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)
    for (source, target), links in zip(ends, links_of(routes), strict=True):
        assert fabric.up[links].all()
        nodes = [int(fabric.source[links[0]]), *fabric.target[links].tolist()]
        assert nodes[:-1] == fabric.source[links].tolist()
        assert (nodes[0], nodes[-1]) == (source, target)
        assert len(set(nodes)) == len(nodes)


def listed(asked: Problem, flow: int) -> list[tuple[int, ...]]:
    """The paths that a problem's ways stand for: ways up and ways down with the same top."""
    ways = asked.ways
    ups = range(int(ways.up_first[flow]), int(ways.up_end[flow]))
    downs = range(int(ways.down_first[flow]), int(ways.down_end[flow]))
    ends = [[int(link)] if link >= 0 else [] for link in (ways.first[flow], ways.last[flow])]
    return [
        tuple(ends[0] + _real(ways.up[a]) + _real(ways.down[b]) + ends[1])
        for a in ups
        for b in downs
        if ways.top[a] == ways.top[b]
    ]


def _real(links: Iterable[int]) -> list[int]:
    return [int(link) for link in links if link >= 0]


def least_congestion(asked: Problem) -> float:
    """The optimum of unsplit flows by trying every choice of paths."""
    loads = np.zeros(asked.fabric.links)
    paths = [[list(path) for path in listed(asked, flow)] for flow in range(len(asked.traffic))]
    adds = [asked.demand_Bps[flow] / asked.fabric.capacity_Bps for flow in range(len(paths))]
    whole = np.zeros(asked.fabric.links)
    for flow, every in enumerate(paths):
        taken = sorted(set(every[0]).intersection(*every))  # by whatever path
        whole[taken] += adds[flow][taken]
    best, least = np.inf, float(whole.max(initial=0.0))

    def place(flow: int, highest: float) -> None:
        nonlocal best
        if highest >= best * (1 - 1e-12) or best <= least * (1 + 1e-12):
            return
        if flow == len(paths):
            best = highest
            return
        tried = [(float((loads[path] + adds[flow][path]).max()), path) for path in paths[flow]]
        for most, path in sorted(tried):  # the least loaded first: it is soon known what the others must beat
            loads[path] += adds[flow][path]
            place(flow + 1, max(highest, most))
            loads[path] -= adds[flow][path]

    place(0, 0.0)
    return float(best)


def shuffled(traffic: JobTraffic, seed: int) -> JobTraffic:
    """The same flows in another order."""
    order = np.random.default_rng(seed).permutation(len(traffic))
    fields = ("source", "target", "bytes", "cap_Bps", "queue_pair", "collective")
    return replace(traffic, **{field: getattr(traffic, field)[order] for field in fields})


def placed_jobs(seed: int, sizes: Iterable[tuple[int, int]], tors: int = 64, per_tor: int = 32) -> JobTraffic:
    """Jobs like the paper's: ``sizes`` has accelerators of a copy and copies of each; every position of the
    copies is a ring.  A copy fills drawn ToRs, 8 hosts at a time."""
    draw = np.random.default_rng(seed)
    free = {tor: list(range(per_tor)) for tor in range(tors)}
    jobs = []
    for number, (copy, rings) in enumerate(sizes):
        hosts = np.zeros((rings, copy), dtype=np.int64)
        for each in range(rings):
            got: list[int] = []
            while len(got) < copy:
                tor = int(draw.choice([tor for tor, left in free.items() if len(left) >= 8]))
                taken = min(copy - len(got), len(free[tor]) // 8 * 8)
                got += [tor * per_tor + host for host in free[tor][:taken]]
                free[tor] = free[tor][taken:]
            hosts[each] = got
        jobs.append(
            job_traffic(
                hosts.T.ravel(),
                np.roll(hosts, -1, axis=0).T.ravel(),
                np.full(hosts.size, 1e9 * (number + 1)),
                collective=np.repeat(np.arange(copy), rings),
                rounds=np.full(copy, 2 * (rings - 1)),
                names=[f"stage {i}" for i in range(copy)],
                jobs=(f"job {number}",),
                start_s=np.array([1.0 + number]),
                pause_s=np.array([0.5]),
            )
        )
    return merged(jobs)


def networks() -> dict[str, Fabric]:
    """A network of each kind, small, some with failures."""
    draw = np.random.default_rng(8)
    rails = rail.optimized(64, radix=8, bandwidth_Bps=NIC, scale_up=domain(4))
    found = {
        "one switch": clos.build(6, radix=8, bandwidth_Bps=NIC),
        "two tiers": clos.build(32, radix=8, bandwidth_Bps=NIC, tiers=2),
        "two tiers, oversubscribed": clos.build(40, radix=8, bandwidth_Bps=NIC, tiers=2, oversubscription=3),
        "three tiers": clos.build(54, radix=6, bandwidth_Bps=NIC, tiers=3),
        "three tiers, oversubscribed": clos.build(40, radix=6, bandwidth_Bps=NIC, tiers=3, oversubscription=(2, 2)),
        "three tiers, short units": clos.build(22, radix=10, bandwidth_Bps=NIC, tiers=3, oversubscription=2),
        "two tiers, parallel cables": clos.build(16, radix=16, bandwidth_Bps=NIC, tiers=2),
        "three tiers, parallel cables": clos.build(20, radix=8, bandwidth_Bps=NIC, tiers=3),
        "parallel cables in drawn order": parallel_leaf_spine(5),
        "domains": clos.build(32, radix=8, bandwidth_Bps=NIC, scale_up=domain(4)),
        "two planes": rail.optimized(32, radix=8, bandwidth_Bps=NIC, planes=2),
        "two planes of domains": rail.optimized(32, radix=8, bandwidth_Bps=NIC, planes=2, scale_up=domain(4)),
        "rail-optimized": rails,
        "rail-only": rail.only(48, radix=8, bandwidth_Bps=NIC, scale_up=domain(4)),
        "rail-only, shared switches": rail.only(16, radix=8, bandwidth_Bps=NIC, scale_up=domain(4)),
        "torus": torus.build((4, 3, 2), bandwidth_Bps=NIC),
        "torus of domains": torus.build((4, 3), bandwidth_Bps=NIC, scale_up=domain(2)),
    }
    for name in ("two tiers", "three tiers"):
        found[f"{name}, a spine down"] = found[name].failed(nodes=found[name].nodes_of("spine")[:1])
        found[f"{name}, a link down"] = with_failures(found[name], draw, 1, 0)
        found[f"{name}, links down"] = with_failures(found[name], draw, 4, 1)
    two = found["two planes"]
    found["two planes, a NIC down"] = two.failed(links=np.flatnonzero(two.source == 3)[:1])
    found["two planes, a leaf down"] = two.failed(nodes=two.nodes_of("leaf")[:1])
    found["rail-optimized, links down"] = with_failures(rails, draw, 3, 1)
    return found


ALL = networks()


@pytest.fixture(params=ALL)
def network(request: pytest.FixtureRequest) -> Fabric:
    """Each small network in turn."""
    return ALL[request.param]


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """The functions of this module."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def paper_network() -> Fabric:
    """64 ToRs, 32 spines."""
    return clos.two_layers()


@pytest.fixture(scope="session")
def spines_down(paper_network: Fabric) -> Callable[[int], Fabric]:
    """The paper's network with its highest spines down."""
    spines = paper_network.nodes_of("spine")

    @cache
    def failed(count: int) -> Fabric:
        return paper_network.failed(nodes=spines[len(spines) - count :]) if count else paper_network

    return failed
