"""On what: accelerators, tiers and clusters."""

from weft.cluster.spec import Accelerator, Cluster, Tier, TierKind

__all__ = ["Accelerator", "Cluster", "Tier", "TierKind"]
