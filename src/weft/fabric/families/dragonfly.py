"""Dragonflies: groups of switches, and cables between all groups.

Dragonfly (Kim et al., ISCA 2008): the routers of a group are fully connected.  Dragonfly+ (Shpiner et al., HiPINEB
2017): a group is a tree of leaves with accelerators and spines with the global cables.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.build import Ports, start
from weft.fabric.dimension import pairs
from weft.fabric.spec import Fabric

LOCAL_TIER, GLOBAL_TIER = 2, 3


def build(
    leaves: int, p: int, h: int, g: int, *, spines: int = 0, accelerators: int, **ports: Unpack[Ports]
) -> Fabric:
    """Dragonfly(a, p, h, g) of ``leaves`` = a routers a group, or with ``spines`` a dragonfly+ of g groups.

    A leaf has p accelerators; a spine, or a router, has h global ports.  Every pair of groups shares the global ports
    of a group over g - 1 cables, spread over its switches in turn; the ports left over stay free.  Accelerators fill
    the leaves in rank order, and the last ones have free ports.
    """
    kind, hubs = ("dragonfly+", spines) if spines else ("dragonfly", leaves)
    if g > hubs * h + 1:
        raise BadInput(f"{g} groups exceed the {hubs * h + 1} that the global ports join", where=kind)
    if accelerators > leaves * p * g:
        raise BadInput(f"{accelerators:,} accelerators exceed {leaves * p * g:,} ports", where=kind)
    builder = start(kind, accelerators, **ports)
    checks.cables(g * spines * (leaves + h) if spines else g * leaves * (leaves + h) // 2, kind)
    below = builder.add("leaf" if spines else "router", leaves * g).reshape(g, leaves)
    members = np.arange(accelerators, dtype=np.int64)
    builder.hang(members, below.ravel()[members // p])
    if spines:
        above = builder.add("spine", spines * g).reshape(g, spines)
        left, right = np.repeat(below, spines, axis=1), np.tile(above, (1, leaves))
    else:
        above, (one_end, far_end) = below, pairs("fully-connected", leaves)
        left, right = below[:, one_end], below[:, far_end]
    builder.link(left.ravel(), right.ravel(), tier=LOCAL_TIER)
    if g > 1:
        # Global cables: port c of a group, counted over its switches, leads 1 + c % (g - 1) groups on.
        first, second = pairs("fully-connected", g)
        turn = np.arange(hubs * h // (g - 1), dtype=np.int64)[:, None] * (g - 1)
        ahead = second - first
        near = above[first, (turn + ahead - 1) // h]
        far = above[second, (turn + g - ahead - 1) // h]
        builder.link(near.ravel(), far.ravel(), tier=GLOBAL_TIER)
    return builder.build()


def balanced(accelerators: int, radix: int) -> tuple[int, int, int, int]:
    """The sizes (a, p, h, g) of a balanced dragonfly, a = 2 p = 2 h, of routers of up to ``radix`` ports."""
    checks.whole(radix, "dragonfly: radix", low=3, high=2**16)
    p = (radix + 1) // 4
    a = min(2 * p, -(-accelerators // p))
    return a, p, p, _groups("dragonfly", accelerators, radix, a * p, a * p + 1)


def balanced_plus(accelerators: int, radix: int) -> tuple[int, int, int, int, int]:
    """The sizes (leaves, p, h, g, spines) of a dragonfly+ of switches of up to ``radix`` ports, half of them up."""
    checks.whole(radix, "dragonfly+: radix", low=2, high=2**16)
    half = radix // 2
    leaves = min(half, -(-accelerators // half))
    g = _groups("dragonfly+", accelerators, radix, leaves * half, half * half + 1)
    return leaves, half, half if g > 1 else 0, g, half


def _groups(kind: str, accelerators: int, radix: int, per_group: int, most: int) -> int:
    """How many groups hold the accelerators."""
    g = -(-accelerators // per_group)
    if g > most:
        raise BadInput(
            f"{accelerators:,} accelerators do not fit a balanced {kind} of radix {radix}",
            where=f"{kind}: radix",
            remedy="choose a larger radix",
        )
    return g
