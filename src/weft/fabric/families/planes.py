"""Multi-plane networks: every NIC has a port in each of several planes that share no switch.

With two planes, each accelerator hangs from two leaves (dual top-of-rack, as in Alibaba HPN, SIGCOMM 2024),
and a network of narrower ports holds more accelerators in as many tiers.
"""

from __future__ import annotations

import numpy as np

from weft.fabric import checks
from weft.fabric.build import NIC_LATENCY_S, SWITCH_LATENCY_S, start
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos
from weft.fabric.families.clos import Oversubscription, level_roles
from weft.fabric.families.rail import leaves_by_rail
from weft.fabric.spec import Fabric

KINDS = {"multi-plane": 2, "multi-plane-4": 4, "multi-plane-8": 8}
"""Planes by kind: a port of a switch breaks out into so many, each of that part of a NIC."""


def build(
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
    """Planes that are rail-optimized networks (fat-trees without scale-up domains).

    Args:
        radix: ports of a switch, each of ``bandwidth_Bps / planes``.
        bandwidth_Bps: of an accelerator's NIC over all planes, per direction.
        unit, tiers, oversubscription: of each plane, see ``rail.leaves_by_rail``.

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
        clos.wire(
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
