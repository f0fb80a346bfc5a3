"""One dimension of a network: equal groups of nodes, each joined by a ring, a line, all pairs or a switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from weft.cluster.spec import Tier
from weft.codec import Document
from weft.errors import BadInput, UnknownName
from weft.fabric import checks
from weft.fabric.spec import Ints

DimensionKind = Literal["ring", "line", "fully-connected", "switch"]
KINDS: tuple[DimensionKind, ...] = get_args(DimensionKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension(Document):
    """Groups of ``size`` nodes.

    ``bandwidth_Bps`` is what a node sends into the dimension in all, per direction: a ring halves it over its
    two neighbours, and so does a line (a ring cut open: its two ends use half), all-pairs links divide it by
    ``size - 1``, a switch takes it over one link.  ``latency_s`` is from a node to the next one (through the
    switch where there is one).  ``reduces``: its switch can reduce and multicast.
    """

    DOCUMENT = "kind size bandwidth_Bps step_latency_s=latency_s"

    size: int
    kind: DimensionKind
    bandwidth_Bps: float
    latency_s: float = 0.0
    reduces: bool = False

    def __post_init__(self) -> None:
        checks.whole(self.size, "dimension: size")
        checks.positive(self.bandwidth_Bps, "dimension: bandwidth")
        checks.positive(self.latency_s, "dimension: latency", zero=True)
        if self.kind not in KINDS:
            raise UnknownName("kind of dimension", str(self.kind), KINDS)
        if self.reduces and self.kind != "switch":
            raise BadInput(f"a {self.kind} has no switch that reduces", where="dimension: reduces")

    @property
    def links_per_node(self) -> int:
        """Links that a node has in the dimension."""
        if self.kind == "switch" or self.size <= 2:
            return min(1, self.size - 1)
        return self.size - 1 if self.kind == "fully-connected" else 2

    @property
    def link_Bps(self) -> float:
        """Capacity of one link, per direction."""
        return self.bandwidth_Bps / max(1, self.links_per_node)

    @property
    def cables(self) -> int:
        """Cables of one group."""
        if self.kind == "switch":
            return self.size if self.size > 1 else 0
        if self.kind == "line":
            return self.size - 1
        return self.size * self.links_per_node // 2


def from_tier(tier: Tier) -> Dimension:
    """The dimension that a tier of a cluster describes, without its oversubscription."""
    return Dimension(
        size=tier.size,
        kind=tier.kind,
        bandwidth_Bps=tier.bandwidth_Bps,
        latency_s=tier.latency_s,
        reduces=tier.in_network_reduction and tier.kind == "switch",
    )


def pairs(kind: DimensionKind, size: int) -> tuple[Ints, Ints]:
    """Positions that a group's direct links join, each pair once; two nodes on a ring share one link."""
    if kind in ("ring", "line") and size > 2:
        here = np.arange(size - (kind == "line"), dtype=np.int64)
        return here, (here + 1) % size
    left, right = np.triu_indices(size, k=1)
    return left.astype(np.int64), right.astype(np.int64)
