"""Fabrics by kind, built for a cluster: its scale-up domains, its NICs, and a network chosen by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from weft.cluster.catalogue import RAIL_LATENCY_S
from weft.cluster.spec import Cluster
from weft.errors import BadInput, UnknownName
from weft.fabric import checks
from weft.fabric.build import NIC_LATENCY_S, SWITCH_LATENCY_S, Ports, start, wire
from weft.fabric.dimension import Dimension, from_tier
from weft.fabric.families import clos, dragonfly, rail, torus
from weft.fabric.families.clos import Oversubscription
from weft.fabric.families.torus import lines_of
from weft.fabric.paths import Mode
from weft.fabric.spec import Fabric


def hierarchical(dimensions: Sequence[Dimension]) -> Fabric:
    """Accelerators in a grid; those that differ in one coordinate alone are joined as that dimension says
    (Themis, ISCA 2022).

    Rank is ``a0 + P0 (a1 + P1 (a2 + ...))``.  The first dimension is the scale-up domain, the others are
    tiers 1, 2, ... outwards; a switch of tier i has the role "switch-i".
    """
    if not len(dimensions):
        raise BadInput("no dimensions", where="hierarchical: dimensions", remedy="give at least one")
    sizes = [dimension.size for dimension in dimensions]
    count = checks.whole(prod(sizes), "hierarchical: accelerators")
    builder = start("hierarchical", count, dimensions[0])
    for tier, (lines, dimension) in enumerate(zip(lines_of(count, sizes), dimensions, strict=True)):
        if tier:
            wire(builder, lines, dimension, tier=tier, role=f"switch-{tier}")
    return builder.build()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """What a cluster fixes, and what the caller chose."""

    cluster: Cluster
    ports: Ports
    radix: int
    oversubscription: Oversubscription

    def tree(self, *, ports: int = 1) -> dict[str, Any]:
        """Arguments of tiers of switches; ``ports`` are those that a switch's port breaks out into."""
        return {**self.ports, "radix": self.radix * ports, "oversubscription": self.oversubscription}


def kinds() -> tuple[str, ...]:
    """The kinds that ``for_cluster`` builds."""
    return tuple(_KINDS)


def default_kind(cluster: Cluster) -> str:
    """The kind that a cluster's tiers and name suggest.

    Rail-only where the name says so and there is no tier above the rails, rail-optimized where scale-up
    domains hold several accelerators, a fat-tree otherwise.
    """
    if "rail-only" in cluster.name.lower() and len(cluster.tiers) < 3:
        return "rail-only"
    return "rail-optimized" if len(cluster.tiers) > 1 and cluster.tiers[0].size > 1 else "fat-tree"


def for_cluster(
    kind: str, cluster: Cluster, *, radix: int = 64, oversubscription: Oversubscription | None = None
) -> Fabric:
    """The fabric of that kind for a cluster.

    The scale-up domains are the cluster's innermost tier, the NICs have the bandwidth of the next one.  A
    cluster of one tier has no network beside it.

    Args:
        kind: one of ``kinds()``, for ``TREES`` also with an oversubscription, as "fat-tree 2:1".
        radix: ports of a switch, at the bandwidth of a NIC.
        oversubscription: where ``kind`` says none: of the leaves (or per tier); the largest of the cluster's tiers
            by default.

    Raises:
        UnknownName: no such kind.
        BadInput: no such network of these sizes.
    """
    kind, ratio = parse_kind(kind)
    oversubscription = oversubscription if ratio is None else ratio
    if len(cluster.tiers) == 1:
        return start(kind, cluster.count, from_tier(cluster.tiers[0])).build()
    nic_latency_s, switch_latency_s = _latencies(cluster)
    if oversubscription is None:
        oversubscription = max(tier.oversubscription for tier in cluster.tiers[1:])
    ports: Ports = {
        "bandwidth_Bps": cluster.tiers[1].bandwidth_Bps,
        "scale_up": from_tier(cluster.tiers[0]),
        "nic_latency_s": nic_latency_s,
        "switch_latency_s": switch_latency_s,
    }
    site = _Site(cluster=cluster, ports=ports, radix=radix, oversubscription=oversubscription)
    return _KINDS[kind](site)


def check_size(fabric: Fabric, cluster: Cluster, where: str) -> None:
    """Refuse a network that is not of a cluster, with or without its spares."""
    if fabric.accelerators not in (cluster.count, cluster.count + cluster.spares):
        problem = f"has {fabric.accelerators:,} accelerators, {cluster.name} {cluster.count:,}"
        raise BadInput(problem, where=where, remedy="name a cluster of as many")


def check_kinds(names: Iterable[str]) -> None:
    """Refuse names of no fabric.

    Raises:
        UnknownName: one of them is none.
    """
    for name in names:
        parse_kind(name)


def own_routing(kind: str) -> Mode:
    """How a network of a kind is usually routed: tori in dimension order, dragonflies by UGAL, others by ECMP."""
    return _ROUTINGS.get(parse_kind(kind)[0], "ecmp")


def parse_kind(text: str) -> tuple[str, float | None]:
    """The kind and the oversubscription that a name says, as "fat-tree 2:1"; None where it says none.

    Raises:
        UnknownName: no such kind.
        BadInput: the kind takes no oversubscription, or it is below 1.
    """
    result = _RATIO.fullmatch(text)
    kind, ratio = (text, None) if result is None else (result["kind"], float(result["ratio"]))
    tree, space, rest = text.partition(" ")
    if result is None and space and tree in TREES:
        remedy = f"write ports down to ports up, like {tree} 2:1"
        raise BadInput(f"{rest!r} is not a ratio to 1", where=text, remedy=remedy)
    if kind not in _KINDS:
        raise UnknownName("kind of fabric", text, kinds())
    if ratio is not None and (kind not in TREES or ratio < 1):
        if kind in TREES:
            raise BadInput(f"oversubscription {ratio:g}:1 is below 1", where=text, remedy=f"say it like {kind} 2:1")
        problem = f"oversubscription {ratio:g}:1 is not a property of a {kind}"
        raise BadInput(problem, where=text, remedy=f"choose of {', '.join(TREES)}")
    return kind, ratio


def _latencies(cluster: Cluster) -> tuple[float, float]:
    """Latencies of a link to a NIC and of one between switches.

    The tier next to the domains is one switch away where it is no slower than one (2.7 us) or where another
    tier follows, whose excess is two links between switches; otherwise it is taken to cross a spine.
    """
    first = cluster.tiers[1].latency_s
    if len(cluster.tiers) > 2:
        return first / 2, max(0.0, cluster.tiers[2].latency_s - first) / 2
    beyond = 2 * SWITCH_LATENCY_S if first > RAIL_LATENCY_S else 0.0
    return max(first - beyond, min(first, 2 * NIC_LATENCY_S)) / 2, SWITCH_LATENCY_S


def _torus(site: _Site) -> Fabric:
    """A torus of domains per rail; a NIC's bandwidth is divided over the links of a node."""
    dims = torus.near_cube(site.cluster.count // site.cluster.tiers[0].size, 3)
    links = sum(min(2, size - 1) for size in dims)
    return torus.build(
        dims,
        bandwidth_Bps=site.ports["bandwidth_Bps"] / max(1, links),
        scale_up=from_tier(site.cluster.tiers[0]),
        latency_s=site.cluster.tiers[1].latency_s,
    )


def _dragonfly(site: _Site) -> Fabric:
    count = site.cluster.count
    return dragonfly.build(*dragonfly.balanced(count, site.radix), accelerators=count, **site.ports)


def _dragonfly_plus(site: _Site) -> Fabric:
    count = site.cluster.count
    *sizes, spines = dragonfly.balanced_plus(count, site.radix)
    return dragonfly.build(*sizes, spines=spines, accelerators=count, **site.ports)


def _planes(count: int) -> Callable[[_Site], Fabric]:
    return lambda site: rail.optimized(site.cluster.count, planes=count, **site.tree(ports=count))


def _hierarchical(site: _Site) -> Fabric:
    """The cluster's tiers as they are; oversubscription narrows the links of a tier."""
    tiers = [replace(tier, bandwidth_Bps=tier.effective_Bps) for tier in site.cluster.tiers]
    return hierarchical([from_tier(tier) for tier in tiers])


_KINDS: dict[str, Callable[[_Site], Fabric]] = {
    "fat-tree": lambda site: clos.build(site.cluster.count, **site.tree()),
    "rail-optimized": _planes(1),
    "rail-only": lambda site: rail.only(site.cluster.count, **site.tree()),
    **{kind: _planes(count) for kind, count in rail.PLANES.items()},
    "torus": _torus,
    "dragonfly": _dragonfly,
    "dragonfly+": _dragonfly_plus,
    "hierarchical": _hierarchical,
}
"""Every kind of fabric, and how a cluster's is built."""
TREES = ("fat-tree", "rail-optimized", "rail-only", *rail.PLANES)
"""Kinds with switches above the leaves, whose names may say an oversubscription: "fat-tree 2:1"."""
_ROUTINGS: dict[str, Mode] = {"torus": "dimension-order", **dict.fromkeys(("dragonfly", "dragonfly+"), "ugal")}
_RATIO = re.compile(r"(?P<kind>\S+) (?P<ratio>\d{1,3}(\.\d{1,3})?):1")
