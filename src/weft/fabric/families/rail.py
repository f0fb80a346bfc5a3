"""Rail-optimized and rail-only networks.

A rail joins the accelerators of one rank of all scale-up domains.  Rail-optimized: the domains of a scalable
unit share one leaf per rail, and spines (and cores) join all leaves.  Rail-only (arXiv 2307.12169): each rail
has its own Clos, or one switch, and nothing joins the rails but the scale-up domains.
"""

from __future__ import annotations

import numpy as np

from weft.fabric import checks
from weft.fabric.build import NIC_LATENCY_S, SWITCH_LATENCY_S, Builder, start
from weft.fabric.dimension import Dimension
from weft.fabric.families.clos import ClosShape, Oversubscription, level_roles, shape, wire
from weft.fabric.spec import Fabric, Ints

RAIL_ROLES = ("rail", "rail-spine", "rail-core")
"""Roles of the switches of a rail-only network, from the accelerators outwards."""


def leaves_by_rail(
    accelerators: int,
    domain_size: int,
    radix: int,
    *,
    unit: int | None = None,
    tiers: int | None = None,
    oversubscription: Oversubscription = 1.0,
    where: str = "rail-optimized",
) -> tuple[ClosShape, Ints]:
    """The Clos of a rail-optimized network, and the leaf of each accelerator.

    ``unit`` is the domains of a scalable unit: as many as a leaf has ports down by default, and where all
    domains fill less than half a leaf, it takes several rails.  Leaves are numbered unit by unit, rail by
    rail.

    Raises:
        BadInput: no such network.
    """
    if unit is not None:
        checks.whole(unit, f"{where}: unit")
    everyone = np.arange(accelerators, dtype=np.int64)
    if accelerators <= radix and unit is None and tiers in (None, 1):
        return shape(accelerators, radix, tiers=1, where=where), np.zeros_like(everyone)
    domains = accelerators // domain_size

    def wiring(most: int) -> tuple[int, int]:
        wanted = unit or min(domains, most)
        rails = domain_size if unit else -(-domain_size // (most // wanted))
        return -(-domains // wanted) * rails, wanted * -(-domain_size // rails)

    form = shape(accelerators, radix, tiers=tiers, oversubscription=oversubscription, wiring=wiring, where=where)
    rails = min(domain_size, form.units[0])
    per_leaf = -(-domain_size // rails)
    return form, everyone // domain_size // (form.joins[0] // per_leaf) * rails + everyone % domain_size // per_leaf


def optimized(
    accelerators: int,
    *,
    radix: int,
    bandwidth_Bps: float,
    scale_up: Dimension,
    unit: int | None = None,
    tiers: int | None = None,
    oversubscription: Oversubscription = 1.0,
    nic_latency_s: float = NIC_LATENCY_S,
    switch_latency_s: float = SWITCH_LATENCY_S,
) -> Fabric:
    """A rail-optimized network; see ``leaves_by_rail`` and ``clos.shape`` for its parameters.

    Raises:
        BadInput: no such network.
    """
    builder = start("rail-optimized", accelerators, scale_up)
    form, leaf = leaves_by_rail(
        accelerators, scale_up.size, radix, unit=unit, tiers=tiers, oversubscription=oversubscription
    )
    wire(
        builder,
        np.arange(accelerators, dtype=np.int64),
        leaf,
        form,
        port_Bps=checks.positive(bandwidth_Bps, "rail-optimized: bandwidth"),
        roles=level_roles(form.tiers),
        nic_latency_s=nic_latency_s,
        switch_latency_s=switch_latency_s,
    )
    return builder.build()


def only(
    accelerators: int,
    *,
    radix: int,
    bandwidth_Bps: float,
    scale_up: Dimension,
    tiers: int | None = None,
    oversubscription: Oversubscription = 1.0,
    share: bool = True,
    nic_latency_s: float = NIC_LATENCY_S,
    switch_latency_s: float = SWITCH_LATENCY_S,
) -> Fabric:
    """A rail-only network.

    Args:
        share: put several rails on one switch where they fit (such a switch joins them).
        tiers, oversubscription: of each rail's Clos, see ``clos.shape``.

    Raises:
        BadInput: no such network.
    """
    port_Bps = checks.positive(bandwidth_Bps, "rail-only: bandwidth")
    checks.whole(radix, "rail-only: radix", low=2, high=2**16)
    builder = start("rail-only", accelerators, scale_up)
    rails = np.arange(accelerators, dtype=np.int64).reshape(-1, scale_up.size).T
    count, length = rails.shape
    if length > 1 and length <= radix and tiers in (None, 1):
        _one_switch(builder, rails, radix // length if share else 1, port_Bps, nic_latency_s)
    elif length > 1:
        form = shape(length, radix, tiers=tiers, oversubscription=oversubscription, where="rail-only")
        checks.cables(count * (length + sum(form.switches) * radix), "rail-only")
        leaf = np.arange(length, dtype=np.int64) // form.joins[0]
        for rail in rails:
            wire(
                builder,
                rail,
                leaf,
                form,
                port_Bps=port_Bps,
                roles=rail_roles(form.tiers),
                nic_latency_s=nic_latency_s,
                switch_latency_s=switch_latency_s,
            )
    return builder.build()


def rail_roles(tiers: int) -> tuple[str, ...]:
    """Roles of the switches of a rail: rail, rail-spine, rail-core, rail-core-4, ..."""
    return (*RAIL_ROLES[:tiers], *(f"rail-core-{tier}" for tier in range(4, tiers + 1)))


def _one_switch(builder: Builder, rails: Ints, per_switch: int, port_Bps: float, latency_s: float) -> None:
    count, length = rails.shape
    switches = builder.add("rail", -(-count // per_switch))
    above = np.repeat(switches[np.arange(count) // per_switch][:, None], length, axis=1)
    builder.join(rails, above, capacity_Bps=port_Bps, latency_s=latency_s, tier=1)


PLANES = {"multi-plane": 2, "multi-plane-4": 4, "multi-plane-8": 8}
"""Planes by kind: a port of a switch breaks out into so many, each of that part of a NIC."""


def multi_plane(
    accelerators: int,
    *,
    radix: int,
    bandwidth_Bps: float,
    planes: int = 2,
    unit: int | None = None,
    tiers: int | None = None,
    oversubscription: Oversubscription = 1.0,
    scale_up: Dimension | None = None,
    nic_latency_s: float = NIC_LATENCY_S,
    switch_latency_s: float = SWITCH_LATENCY_S,
) -> Fabric:
    """A network of several planes that share no switch: every NIC has a port in each (dual top-of-rack in Alibaba HPN,
    SIGCOMM 2024).  Each is rail-optimized (a fat-tree without scale-up domains), and narrower ports join more
    accelerators in as many tiers.

    Args:
        radix: ports of a switch, each of ``bandwidth_Bps / planes``.
        bandwidth_Bps: of an accelerator's NIC over all planes, per direction.
        unit, tiers, oversubscription: of each plane, see ``leaves_by_rail``.

    Raises:
        BadInput: no such network.
    """
    where = "multi-plane"
    checks.whole(planes, f"{where}: planes", high=64)
    port_Bps = checks.positive(bandwidth_Bps, f"{where}: bandwidth") / planes
    builder = start(where if planes == 2 else f"{where}-{planes}", accelerators, scale_up)
    form, leaf = leaves_by_rail(
        accelerators,
        scale_up.size if scale_up else 1,
        radix,
        unit=unit,
        tiers=tiers,
        oversubscription=oversubscription,
        where=where,
    )
    for _ in range(planes):
        wire(
            builder,
            np.arange(accelerators, dtype=np.int64),
            leaf,
            form,
            port_Bps=port_Bps,
            roles=level_roles(form.tiers),
            nic_latency_s=nic_latency_s,
            switch_latency_s=switch_latency_s,
        )
    return builder.build()
