"""Clusters with other hardware: what if the network, the memory or the accelerator were faster, or there were more."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.cluster.catalogue import default_tiers
from weft.cluster.spec import Cluster
from weft.errors import BadInput

LEAST, MOST = 0.01, 100.0
MOST_OVERSUBSCRIBED = 1000
_PEAKS = ("fp32_flops", "fp16_flops", "bf16_flops", "fp8_flops", "fp4_flops", "int8_flops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Factors of what a cluster has; 1 leaves it as it is.

    Attributes:
        peak: of the matrix units' FLOP/s.
        hbm: of the memory's bandwidth.
        scale_up: of the bandwidth of the innermost tier.
        nic: of the bandwidth of all other tiers.
        latency: of the latency of every tier.

    Raises:
        BadInput: a factor is not between ``LEAST`` and ``MOST``.
    """

    peak: float = 1.0
    hbm: float = 1.0
    scale_up: float = 1.0
    nic: float = 1.0
    latency: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not LEAST <= getattr(self, name) <= MOST:
                problem = f"{getattr(self, name):g} is no factor of {name}"
                raise BadInput(problem, where="what if", remedy=f"give {LEAST:g} to {MOST:g}; 1 changes nothing")

    @property
    def words(self) -> str:
        """What changes, as "nic x2, latency x0.5"; empty where nothing does."""
        changed = [(name, getattr(self, name)) for name in self.__slots__ if getattr(self, name) != 1.0]
        return ", ".join(f"{name.replace('_', '-')} x{factor:g}" for name, factor in changed)


def scaled(cluster: Cluster, scales: Scales) -> Cluster:
    """A cluster with its figures multiplied; its name and its constants stay."""
    chip = cluster.accelerator
    faster = {name: scales.peak * getattr(chip, name) for name in _PEAKS}
    tiers = tuple(
        replace(
            tier,
            bandwidth_Bps=(scales.nic if place else scales.scale_up) * tier.bandwidth_Bps,
            latency_s=scales.latency * tier.latency_s,
        )
        for place, tier in enumerate(cluster.tiers)
    )
    return replace(cluster, accelerator=replace(chip, memory_Bps=scales.hbm * chip.memory_Bps, **faster), tiers=tiers)


def with_latency(cluster: Cluster, *, scale_up_s: float | None = None, nic_s: float | None = None) -> Cluster:
    """The cluster with other latencies of a hop: of its innermost tier, and of all others; None leaves them."""
    asked = [scale_up_s, *[nic_s] * (len(cluster.tiers) - 1)]
    tiers = zip(cluster.tiers, asked, strict=True)
    return replace(cluster, tiers=tuple(one if new is None else replace(one, latency_s=new) for one, new in tiers))


def resized(cluster: Cluster, count: int) -> Cluster:
    """The cluster with more or fewer units in its outermost tier.

    Raises:
        BadInput: the accelerators do not fill such units.
    """
    inner = cluster.spans[-1] // cluster.tiers[-1].size
    if count < 1 or count % inner:
        problem = f"{count} accelerators do not fill units of {inner}"
        raise BadInput(problem, where=f"{cluster.name}: count", remedy=f"give a multiple of {inner}")
    tiers = (*cluster.tiers[:-1], replace(cluster.tiers[-1], size=count // inner))
    return replace(cluster, count=count, tiers=tiers)


def with_domain(cluster: Cluster, size: int, *, where: str = "--sizes") -> Cluster:
    """The cluster with scale-up domains of another size, its links, NICs and latencies as they are.

    A tier beyond the domains joins the same accelerators as before; where a domain holds them all, or does not divide
    them, the tier is left out.  A domain that grows is switched, whatever joins the cluster's own.  The network
    beside a cluster of one domain is the accelerator's usual one.

    Raises:
        BadInput: the domains do not divide the accelerators.
    """
    inner = cluster.tiers[0]
    if size == inner.size:
        return cluster
    if size < 1 or cluster.count % size:
        raise BadInput(
            f"domains of {size} do not divide {cluster.count} accelerators",
            where=where,
            remedy="choose divisors of the number of accelerators",
        )
    chip = replace(cluster.accelerator, scale_up_size=size)
    tiers = [replace(inner, size=size, kind="switch" if size > inner.size else inner.kind)]
    beyond = cluster.tiers[1:] or default_tiers(chip, cluster.count)[1:]
    spans = cluster.spans[1:] or (cluster.count,)
    held = size
    for tier, span in zip(beyond, spans, strict=False):
        if span > held and span % held == 0:
            tiers.append(replace(tier, size=span // held))
            held = span
    return replace(cluster, accelerator=chip, tiers=tuple(tiers), whole_domains=False)


def with_spares_used(cluster: Cluster) -> Cluster:
    """The cluster with the spares of its scale-up domains in use: what is bought."""
    first, *outer = cluster.tiers
    tiers = (replace(first, size=first.size + cluster.spares_per_domain), *outer)
    return replace(cluster, count=cluster.count + cluster.spares, tiers=tiers, whole_domains=False)


def rewired(cluster: Cluster, other: Cluster) -> str:
    """What ``with_domain`` assumed of the domains of ``other``, in words; empty where they are wired as before."""
    before, now = cluster.tiers[0], other.tiers[0]
    if before.kind == now.kind:
        return ""
    return f"scale-up domains of {now.size} are switched (those of {before.size} are {before.kind})"


def oversubscribed(cluster: Cluster, ratio: float) -> Cluster:
    """The cluster with another oversubscription (>= 1) of its outermost network.

    Raises:
        BadInput: there is none outside of the scale-up domain, or the ratio cannot be.
    """
    if len(cluster.tiers) == 1:
        problem = f"{cluster.name} is one scale-up domain, with no network outside of it"
        raise BadInput(problem, where="oversubscription", remedy="take more accelerators, or leave it out")
    if not 1 <= ratio <= MOST_OVERSUBSCRIBED:
        remedy = f"give 1 to {MOST_OVERSUBSCRIBED}"
        raise BadInput(f"{ratio:g} is out of range", where="oversubscription", remedy=remedy)
    return replace(cluster, tiers=(*cluster.tiers[:-1], replace(cluster.tiers[-1], oversubscription=ratio)))
