"""The dimensions that a cluster's tiers are to a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

from weft.cluster.spec import Cluster, Tier
from weft.collectives.stages import choose, stage
from weft.fabric.dimension import Dimension, from_tier


def dimensions_of(cluster: Cluster) -> tuple[tuple[Dimension, ...], tuple[str, ...]]:
    """Dimensions inner to outer, and sentences on what was taken together.

    The scale-up domain and tiers of direct links have links of their own.  Switched tiers above the domain
    share each accelerator's NIC, so those that follow each other are one dimension: inside it a collective
    goes from tier to tier, so that its time and latency are those of the tiers one after the other.
    """
    found, notes = [_alone(cluster.tiers[0])], list[str]()
    for switched, run in groupby(cluster.tiers[1:], key=lambda tier: tier.kind == "switch"):
        tiers = list(run)
        if not switched or len(tiers) == 1:
            found += [_alone(tier) for tier in tiers]
            continue
        found.append(_together(tiers))
        names = " and ".join(tier.name for tier in tiers)
        notes.append(f"{names} share the NIC: one dimension of {found[-1].size}")
    return tuple(found), tuple(notes)


def _alone(tier: Tier) -> Dimension:
    return replace(from_tier(tier), bandwidth_Bps=tier.effective_Bps)


def _together(tiers: Sequence[Tier]) -> Dimension:
    size = prod(tier.size for tier in tiers)
    seconds = latency = 0.0
    below = 1
    for tier in tiers:
        one = _alone(tier)
        cost = stage("reduce-scatter", choose(one)[0], tier.size)
        seconds += cost.sent / below / one.bandwidth_Bps
        latency += cost.steps * one.latency_s
        below *= tier.size
    whole = Dimension(size=size, kind="switch", bandwidth_Bps=1.0)
    cost = stage("reduce-scatter", choose(whole)[0], size)
    return Dimension(
        size=size,
        kind="switch",
        bandwidth_Bps=cost.sent / seconds if seconds else tiers[0].effective_Bps,
        latency_s=latency / cost.steps if cost.steps else 0.0,
        reduces=all(tier.in_network_reduction for tier in tiers),
    )
