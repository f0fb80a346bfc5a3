"""BCube (Guo et al., SIGCOMM 2009): accelerators with several ports relay between levels of switches."""

from __future__ import annotations

import numpy as np

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.build import NIC_LATENCY_S, start
from weft.fabric.dimension import Dimension
from weft.fabric.spec import Fabric


def build(
    radix: int,
    levels: int,
    *,
    bandwidth_Bps: float,
    accelerators: int | None = None,
    scale_up: Dimension | None = None,
    nic_latency_s: float = NIC_LATENCY_S,
) -> Fabric:
    """BCube(n, k) with ``radix`` n and ``levels`` k + 1: n^(k+1) accelerators under (k + 1) n^k switches.

    A switch of level l joins the accelerators whose numbers in base n differ in digit l alone.

    Args:
        bandwidth_Bps: of an accelerator over the ports of all levels, per direction.
        accelerators: fewer than the network holds: the first ones, and the switches that join several.

    Raises:
        BadInput: no such network.
    """
    checks.whole(radix, "bcube: radix", low=2, high=2**16)
    checks.whole(levels, "bcube: levels", high=22)
    holds = radix**levels
    count = checks.whole(holds if accelerators is None else accelerators, "bcube: accelerators")
    if count > holds:
        raise BadInput(f"{count:,} accelerators exceed {radix}^{levels} = {holds:,}", where="bcube: accelerators")
    builder = start("bcube", count, scale_up)
    port_Bps = checks.positive(bandwidth_Bps, "bcube: bandwidth") / levels
    everyone = np.arange(count, dtype=np.int64)
    for level in range(levels):
        low = radix**level
        group = everyone // (low * radix) * low + everyone % low
        several = np.flatnonzero(np.bincount(group)[group] > 1)
        used, position = np.unique(group[several], return_inverse=True)
        switches = builder.add(f"level-{level}", len(used))[position]
        builder.join(several, switches, capacity_Bps=port_Bps, latency_s=nic_latency_s, tier=1)
    return builder.build()


def levels_for(accelerators: int, radix: int) -> tuple[int, int]:
    """The fewest levels of switches of up to ``radix`` ports that join them, and the ports needed."""
    checks.whole(radix, "bcube: radix", low=2, high=2**16)
    levels = 1
    while radix**levels < accelerators:
        levels += 1
    ports = next(n for n in range(2, radix + 1) if n**levels >= accelerators)
    return levels, ports
