"""Fully connected networks: a link between every two accelerators (of a rail)."""

from __future__ import annotations

from weft.fabric import checks
from weft.fabric.build import start, wire
from weft.fabric.dimension import Dimension
from weft.fabric.families.torus import LATENCY_S, lines_of
from weft.fabric.spec import Fabric


def build(
    nodes: int, *, bandwidth_Bps: float, scale_up: Dimension | None = None, latency_s: float = LATENCY_S
) -> Fabric:
    """All pairs of ``nodes`` linked; with scale-up domains the nodes are the domains, rail by rail.

    ``bandwidth_Bps`` is that of an accelerator, per direction, divided over its links.

    Raises:
        BadInput: no such network.
    """
    checks.whole(nodes, "fully-connected: nodes")
    rails = scale_up.size if scale_up else 1
    count = checks.whole(nodes * rails, "fully-connected: accelerators")
    builder = start("fully-connected", count, scale_up)
    mesh = Dimension(size=nodes, kind="fully-connected", bandwidth_Bps=bandwidth_Bps, latency_s=latency_s)
    wire(builder, lines_of(count, (rails, nodes))[1], mesh, tier=1, role="none")
    return builder.build()
