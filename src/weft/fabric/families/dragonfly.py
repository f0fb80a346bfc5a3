"""Dragonflies: groups of switches, and cables between all groups.

Dragonfly (Kim et al., ISCA 2008): the routers of a group are fully connected.  Dragonfly+ (Shpiner et al., HiPINEB
2017): a group is a tree of leaves with accelerators and spines with the global cables.
"""

from __future__ import annotations

import numpy as np

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.build import NIC_LATENCY_S, SWITCH_LATENCY_S, Builder, start
from weft.fabric.dimension import Dimension, pairs
from weft.fabric.spec import Fabric, Ints

LOCAL_TIER, GLOBAL_TIER = 2, 3


def build(
    a: int,
    p: int,
    h: int,
    g: int | None = None,
    *,
    bandwidth_Bps: float,
    accelerators: int | None = None,
    scale_up: Dimension | None = None,
    nic_latency_s: float = NIC_LATENCY_S,
    switch_latency_s: float = SWITCH_LATENCY_S,
) -> Fabric:
    """Dragonfly(a, p, h, g): g groups of a routers, each with p accelerators and h global ports.

    Every pair of groups shares ``a h // (g - 1)`` global cables, spread over the routers in turn; the ports
    left over stay free.  Accelerators fill the routers in rank order.

    Args:
        g: groups; as many as the global ports join, ``a h + 1``, by default.
        bandwidth_Bps: of every port, per direction.
        accelerators: fewer than ``a p g``; the last routers have free ports.

    Raises:
        BadInput: no such network.
    """
    for name, value in (("a", a), ("p", p), ("h", h)):
        checks.whole(value, f"dragonfly: {name}", low=int(name != "h"), high=2**16)
    g = checks.whole(a * h + 1 if g is None else g, "dragonfly: g")
    if g > a * h + 1:
        remedy = f"use at most {a * h + 1}, or more routers or global ports"
        raise BadInput(f"{g} groups exceed a h + 1 = {a * h + 1}", where="dragonfly: g", remedy=remedy)
    count = a * p * g if accelerators is None else accelerators
    if checks.whole(count, "dragonfly: accelerators") > a * p * g:
        raise BadInput(f"{count:,} accelerators exceed a p g = {a * p * g:,}", where="dragonfly: accelerators")
    builder = start("dragonfly", count, scale_up)
    port_Bps = checks.positive(bandwidth_Bps, "dragonfly: bandwidth")
    checks.cables(g * a * (a + h) // 2, "dragonfly")
    routers = builder.add("router", a * g).reshape(g, a)
    members = np.arange(count, dtype=np.int64)
    above = routers.ravel()[members // p]
    builder.join(members, above, capacity_Bps=port_Bps, latency_s=nic_latency_s, tier=1)
    left, right = pairs("fully-connected", a)
    ends = routers[:, left].ravel(), routers[:, right].ravel()
    builder.join(*ends, capacity_Bps=port_Bps, latency_s=switch_latency_s, tier=LOCAL_TIER)
    _join_groups(builder, routers, h, port_Bps, switch_latency_s)
    return builder.build()


def plus(
    leaves: int,
    spines: int,
    p: int,
    h: int,
    g: int | None = None,
    *,
    bandwidth_Bps: float,
    accelerators: int | None = None,
    scale_up: Dimension | None = None,
    nic_latency_s: float = NIC_LATENCY_S,
    switch_latency_s: float = SWITCH_LATENCY_S,
) -> Fabric:
    """Dragonfly+: g groups of ``leaves`` with p accelerators each and ``spines`` with h global ports each.

    Args:
        g: groups; as many as the global ports join, ``spines h + 1``, by default.
        bandwidth_Bps: of every port, per direction.
        accelerators: fewer than ``leaves p g``; the last leaves have free ports.

    Raises:
        BadInput: no such network.
    """
    where = "dragonfly+"
    for name, value in (("leaves", leaves), ("spines", spines), ("p", p), ("h", h)):
        checks.whole(value, f"{where}: {name}", low=int(name != "h"), high=2**16)
    g = checks.whole(spines * h + 1 if g is None else g, f"{where}: g")
    if g > spines * h + 1:
        remedy = f"use at most {spines * h + 1}, or more spines or global ports"
        raise BadInput(f"{g} groups exceed spines h + 1 = {spines * h + 1}", where=f"{where}: g", remedy=remedy)
    room = leaves * p * g
    count = room if accelerators is None else accelerators
    if checks.whole(count, f"{where}: accelerators") > room:
        raise BadInput(f"{count:,} accelerators exceed leaves p g = {room:,}", where=f"{where}: accelerators")
    builder = start(where, count, scale_up)
    port_Bps = checks.positive(bandwidth_Bps, f"{where}: bandwidth")
    checks.cables(g * spines * (leaves + h), where)
    below = builder.add("leaf", leaves * g).reshape(g, leaves)
    members = np.arange(count, dtype=np.int64)
    builder.join(members, below.ravel()[members // p], capacity_Bps=port_Bps, latency_s=nic_latency_s, tier=1)
    above = builder.add("spine", spines * g).reshape(g, spines)
    ends = np.repeat(below, spines, axis=1).ravel(), np.tile(above, (1, leaves)).ravel()
    builder.join(*ends, capacity_Bps=port_Bps, latency_s=switch_latency_s, tier=LOCAL_TIER)
    _join_groups(builder, above, h, port_Bps, switch_latency_s)
    return builder.build()


def balanced_plus(accelerators: int, radix: int) -> tuple[int, int, int, int, int]:
    """The sizes (leaves, spines, p, h, g) of a dragonfly+ of switches of up to ``radix`` ports, half of them each way.

    Raises:
        BadInput: it does not hold that many accelerators.
    """
    checks.whole(radix, "dragonfly+: radix", low=2, high=2**16)
    half = radix // 2
    leaves = min(half, -(-accelerators // half))
    g = -(-accelerators // (leaves * half))
    if g > half * half + 1:
        raise BadInput(
            f"{accelerators:,} accelerators do not fit a balanced dragonfly+ of radix {radix}",
            where="dragonfly+: radix",
            remedy="choose a larger radix",
        )
    return leaves, half, half, half if g > 1 else 0, g


def _join_groups(builder: Builder, routers: Ints, h: int, port_Bps: float, latency_s: float) -> None:
    """Global cables: port ``c`` of a group, counted over its routers, leads ``1 + c % (g - 1)`` groups on."""
    g, a = routers.shape
    if g == 1:
        return
    first, second = pairs("fully-connected", g)
    turn = np.arange(a * h // (g - 1), dtype=np.int64)[:, None] * (g - 1)
    ahead = second - first
    near = routers[first, (turn + ahead - 1) // h]
    far = routers[second, (turn + g - ahead - 1) // h]
    builder.join(near.ravel(), far.ravel(), capacity_Bps=port_Bps, latency_s=latency_s, tier=GLOBAL_TIER)


def balanced(accelerators: int, radix: int) -> tuple[int, int, int, int]:
    """The sizes (a, p, h, g) of a balanced dragonfly, a = 2 p = 2 h, of routers of up to ``radix`` ports.

    Raises:
        BadInput: it does not hold that many accelerators.
    """
    checks.whole(radix, "dragonfly: radix", low=3, high=2**16)
    p = (radix + 1) // 4
    a = min(2 * p, -(-accelerators // p))
    g = -(-accelerators // (a * p))
    if g > a * p + 1:
        raise BadInput(
            f"{accelerators:,} accelerators do not fit a balanced dragonfly of radix {radix}",
            where="dragonfly: radix",
            remedy="choose a larger radix",
        )
    return a, p, p, g
