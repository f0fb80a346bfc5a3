"""Rail-optimized and rail-only networks, in one or several planes.

A rail joins the accelerators of one rank of all scale-up domains.  Rail-optimized: the domains of a scalable
unit share one leaf per rail, and spines (and cores) join all leaves.  Rail-only (arXiv 2307.12169): each rail
has its own Clos, or one switch, and nothing joins the rails but the scale-up domains.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from weft.fabric import checks
from weft.fabric.build import Ports, start
from weft.fabric.families.clos import ClosShape, Oversubscription, shape, wire
from weft.fabric.spec import Fabric, Ints

PLANES = {"multi-plane": 2, "multi-plane-4": 4, "multi-plane-8": 8}
"""Planes by kind: a port of a switch breaks out into so many, each of that part of a NIC."""


def optimized(
    accelerators: int,
    *,
    radix: int,
    planes: int = 1,
    unit: int | None = None,
    oversubscription: Oversubscription = 1.0,
    **ports: Unpack[Ports],
) -> Fabric:
    """A rail-optimized network (a fat-tree without scale-up domains), or several planes of such that share no switch.

    Every NIC has a port in each plane (dual top-of-rack in Alibaba HPN, SIGCOMM 2024), and narrower ports join more
    accelerators in as many tiers.

    Args:
        radix: ports of a switch, each of ``bandwidth_Bps / planes``.
        unit: domains of a scalable unit, by default as many as a leaf has ports down; where all domains fill less
            than half a leaf, it takes several rails.
        oversubscription: of each plane, see ``clos.shape``.
    """
    kind = "rail-optimized" if planes == 1 else "multi-plane"
    builder = start(kind if planes <= 2 else f"{kind}-{planes}", accelerators, **ports)
    builder.port_Bps /= planes
    form, leaf = _leaves_by_rail(accelerators, builder.domain_size, radix, unit, oversubscription, kind)
    for _ in range(planes):
        wire(builder, np.arange(accelerators, dtype=np.int64), leaf, form)
    return builder.build()


def _leaves_by_rail(
    accelerators: int, domain_size: int, radix: int, unit: int | None, oversubscription: Oversubscription, where: str
) -> tuple[ClosShape, Ints]:
    """The Clos of a plane, and the leaf of each accelerator; leaves are numbered unit by unit, rail by rail."""
    everyone = np.arange(accelerators, dtype=np.int64)
    if accelerators <= radix and unit is None:
        return shape(accelerators, radix, tiers=1, where=where), np.zeros_like(everyone)
    domains = accelerators // domain_size

    def wiring(most: int) -> tuple[int, int]:
        wanted = unit or min(domains, most)
        rails = domain_size if unit else -(-domain_size // (most // wanted))
        return -(-domains // wanted) * rails, wanted * -(-domain_size // rails)

    form = shape(accelerators, radix, oversubscription=oversubscription, wiring=wiring, where=where)
    rails = min(domain_size, form.units[0])
    per_leaf = -(-domain_size // rails)
    return form, everyone // domain_size // (form.joins[0] // per_leaf) * rails + everyone % domain_size // per_leaf


def only(accelerators: int, *, radix: int, oversubscription: Oversubscription = 1.0, **ports: Unpack[Ports]) -> Fabric:
    """A rail-only network; several rails share a switch where they fit on one, which then joins them.

    Args:
        oversubscription: of each rail's Clos, see ``clos.shape``.
    """
    checks.whole(radix, "rail-only: radix", low=2, high=2**16)
    builder = start("rail-only", accelerators, **ports)
    rails = np.arange(accelerators, dtype=np.int64).reshape(-1, builder.domain_size).T
    count, length = rails.shape
    if 1 < length <= radix:
        per_switch = radix // length
        switches = builder.add("rail", -(-count // per_switch))
        builder.hang(rails, np.repeat(switches[np.arange(count) // per_switch][:, None], length, axis=1))
    elif length > 1:
        form = shape(length, radix, oversubscription=oversubscription, where="rail-only")
        checks.cables(count * (length + sum(form.switches) * radix), "rail-only")
        for rail in rails:
            leaf = np.arange(length, dtype=np.int64) // form.joins[0]
            wire(builder, rail, leaf, form, roles=("rail", "rail-spine", "rail-core"))
    return builder.build()
