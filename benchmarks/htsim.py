"""Folded Clos networks and flows for htsim: a topology (.topo) and a connection matrix (.cm).

htsim builds a fat-tree of two or three tiers from its radices, and numbers hosts leaf by leaf, pod by pod; so a
fabric is written as these figures, and the matrix names hosts in that order.  Which path a flow takes is htsim's to
choose (-strat): routes are not written.  Formats: github.com/Broadcom/csg-htsim and ultraethernet/uet-htsim.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.errors import BadInput, Unsupported
from weft.fabric.spec import SCALE_UP, Fabric, Ints
from weft.routing.traffic import JobTraffic
from weft.routing.ways import climbs

MOST_BYTES = 2**31 - 1
"""Bytes of a connection: htsim reads a signed number of 32 bits."""
_WHERE = "htsim"


class Tree(NamedTuple):
    """A fat-tree as htsim builds it, tier by tier: radices in cables, those that join the same two switches, bits/s
    of a cable and ns of a link down; and the accelerators in the order of its hosts."""

    pod: int
    down: tuple[int, ...]
    up: tuple[int, ...]
    bundle: tuple[int, ...]
    Gbps: tuple[int, ...]
    ns: tuple[int, ...]
    hosts: Ints


def write_topology(tree: Tree) -> str:
    """The topology file."""
    lines = [f"Nodes {len(tree.hosts)}", f"Tiers {len(tree.down)}", f"Podsize {tree.pod}"]
    for tier, down in enumerate(tree.down):
        lines += ["", f"Tier {tier}", f"Downlink_speed_Gbps {tree.Gbps[tier]}", f"Radix_Down {down}"]
        lines += [f"Radix_Up {tree.up[tier]}"] if tier < len(tree.up) else []
        lines += [f"Bundle {tree.bundle[tier]}"] if tree.bundle[tier] > 1 else []
        ratio = _oversubscribed(tree, tier)
        lines += [f"Oversubscribed {ratio}"] if ratio > 1 else []
        lines.append(f"Downlink_Latency_ns {tree.ns[tier]}")
    return "\n".join(lines) + "\n"


def _oversubscribed(tree: Tree, tier: int) -> int:
    """Bandwidth down over bandwidth up of a switch of a tier; 1 at the top."""
    if tier == len(tree.up):
        return 1
    down, up = tree.down[tier] * tree.Gbps[tier], tree.up[tier] * tree.Gbps[tier + 1]
    if down % up:
        problem = f"switches of tier {tier + 1} have {down:,} Gb/s down and {up:,} Gb/s up, which is no whole ratio"
        raise Unsupported(problem, where=_WHERE, remedy="give a whole oversubscription")
    return down // up


def write_matrix(fabric: Fabric, traffic: JobTraffic, tree: Tree) -> str:
    """The connection matrix: one round of every flow between domains, times in ps."""
    host = np.empty(fabric.accelerators, dtype=np.int64)
    host[tree.hosts] = np.arange(len(tree.hosts))
    flows = leaving(fabric, traffic, _WHERE, MOST_BYTES)
    start_ps = np.rint(traffic.start_s[traffic.flow_job[flows]] * 1e12).astype(np.int64)
    rows = zip(
        host[traffic.source[flows]].tolist(),
        host[traffic.target[flows]].tolist(),
        start_ps.tolist(),
        np.maximum(np.rint(traffic.bytes[flows]), 1).astype(np.int64).tolist(),
        strict=True,
    )
    lines = [f"{a}->{b} id {i} start {start} size {size}" for i, (a, b, start, size) in enumerate(rows, start=1)]
    return "\n".join([f"Nodes {len(tree.hosts)}", f"Connections {len(lines)}", *lines]) + "\n"


def leaving(fabric: Fabric, traffic: JobTraffic, where: str, most_bytes: int) -> Ints:
    """The flows that cross the network: those between domains.

    Raises:
        BadInput: there is none.
        Unsupported: one has more bytes than the simulator counts.
    """
    flows = np.flatnonzero(fabric.domain[traffic.source] != fabric.domain[traffic.target])
    if not len(flows):
        raise BadInput("no flow leaves a scale-up domain", where=where, remedy="route other jobs")
    if (large := float(traffic.bytes[flows].max())) > most_bytes:
        problem = f"a flow of {large:,.0f} bytes is over {most_bytes:,}"
        raise Unsupported(problem, where=where, remedy="add --router split --split N")
    return flows


def tree_of(fabric: Fabric) -> Tree:
    """The fat-tree that a fabric is.

    Raises:
        Unsupported: it is none that htsim builds; says where it differs.
    """
    outside = fabric.tier > SCALE_UP
    if not fabric.up[outside].all():
        raise Unsupported("links that are down cannot be written", where=_WHERE, remedy="leave failures out")
    found = climbs(fabric)
    level = found.level
    top = int(level.max(initial=0))
    if not found.sound or top not in (2, 3):
        raise Unsupported(
            f"{fabric.name} is no fat-tree of two or three tiers", where=_WHERE, remedy="give a fat-tree"
        )
    rising = np.flatnonzero(outside & (level[fabric.target] == level[fabric.source] + 1))
    tiers = [rising[level[fabric.source[rising]] == height] for height in range(top)]
    figures = [_alike(fabric, links, height) for height, links in enumerate(tiers)]
    degrees = [_degrees(fabric, links, height) for height, links in enumerate(tiers)]
    if degrees[0][0] != 1:
        problem = f"accelerators have {degrees[0][0]} NICs; htsim's hosts have one"
        raise Unsupported(problem, where=_WHERE, remedy="give a fabric of one plane")
    pod = _pods(fabric, tiers)
    leaf = np.full(fabric.accelerators, -1, dtype=np.int64)
    leaf[fabric.source[tiers[0]]] = fabric.target[tiers[0]]
    hosts = np.lexsort((np.arange(fabric.accelerators), leaf, pod[leaf]))
    return Tree(
        pod=int(np.bincount(pod[leaf]).max()),
        down=tuple(down for _, down in degrees),
        up=tuple(up for up, _ in degrees[1:]),
        bundle=tuple(cables for cables, _, _ in figures),
        Gbps=tuple(Gbps for _, Gbps, _ in figures),
        ns=tuple(ns for _, _, ns in figures),
        hosts=hosts,
    )


def _alike(fabric: Fabric, links: Ints, tier: int) -> tuple[int, int, int]:
    """Cables between two nodes, whole Gbit/s of a cable and whole ns, which are the same throughout a tier."""
    cables = np.unique(fabric.source[links] * fabric.nodes + fabric.target[links], return_counts=True)[1]
    bits, ns = fabric.capacity_Bps[links] * 8e-9, fabric.latency_s[links] * 1e9
    whole = round(float(bits[0])), max(round(float(ns[0])), 1)
    same = bool((cables == cables[0]).all() and np.allclose(bits, bits[0]) and np.allclose(ns, ns[0]))
    if not same or not np.isclose(bits[0], whole[0], rtol=1e-6):
        remedy = "give links of one speed a tier, in whole Gb/s"
        raise Unsupported(f"links of tier {tier} are not alike or of {bits[0]:g} Gb/s", where=_WHERE, remedy=remedy)
    return int(cables[0]), *whole


def _degrees(fabric: Fabric, links: Ints, tier: int) -> tuple[int, int]:
    """Cables up from each node below and down from each switch above, which are the same for all."""
    counts = []
    for ends in (fabric.source[links], fabric.target[links]):
        each = np.unique(np.unique(ends, return_counts=True)[1])
        if len(each) > 1:
            problem = f"switches of tier {tier} have {' and '.join(map(str, each.tolist()[:2]))} cables"
            raise Unsupported(problem, where=_WHERE, remedy="give a fabric whose last leaf and pod are full")
        counts.append(int(each[0]))
    return counts[0], counts[1]


def _pods(fabric: Fabric, tiers: list[Ints]) -> Ints:
    """The pod of every node up to the second tier; all pairs of leaf and aggregation switch in one are joined."""
    from weft.fabric.checks import components

    links = tiers[1]
    pod = components(fabric.nodes, fabric.source[links], fabric.target[links])
    leaves, tops = np.unique(fabric.source[links]), np.unique(fabric.target[links])
    joined = np.unique(np.stack([fabric.source[links], fabric.target[links]]), axis=1)
    pairs = np.bincount(pod[joined[0]], minlength=fabric.nodes)
    full = np.bincount(pod[leaves], minlength=fabric.nodes) * np.bincount(pod[tops], minlength=fabric.nodes)
    if (pairs != full).any():
        raise Unsupported("not every leaf of a pod joins every switch above", where=_WHERE, remedy="give equal pods")
    if len(tiers) == 3 and not _grouped(fabric, pod, tiers[2]):
        raise Unsupported("cores do not join one switch of every pod", where=_WHERE, remedy="give equal pods")
    return pod


def _grouped(fabric: Fabric, pod: Ints, links: Ints) -> bool:
    """Whether every core joins each pod at one switch."""
    switch, core = np.unique(np.stack([fabric.source[links], fabric.target[links]]), axis=1)
    pairs = np.unique(np.stack([core, pod[switch]]), axis=1)
    return bool(pairs.shape[1] == len(core) == len(np.unique(core)) * len(np.unique(pod[switch])))
