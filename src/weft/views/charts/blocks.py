"""What large networks repeat: the groups of a dragonfly, the pods of a Clos."""

from __future__ import annotations

import numpy as np

from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric, Ints


def blocks(fabric: Fabric, rows: Ints) -> list[Ints]:
    """Scale-out switches that links of inner tiers join, each block's in order; empty where there is one or none.

    Args:
        rows: hops of every node from the accelerators; 0 or less is no scale-out switch.
    """
    between = (rows[fabric.source] > 0) & (rows[fabric.target] > 0) & (fabric.tier != SCALE_UP)
    if not between.any():
        return []
    inner = between & (fabric.tier < fabric.tier[between].max())
    block = components(fabric.nodes, fabric.source[inner], fabric.target[inner])
    members = [np.flatnonzero((block == one) & (rows > 0)) for one in np.unique(block[rows > 0])]
    found = [one for one in members if len(one) > 1]
    return found if len(found) > 1 else []


def block_words(fabric: Fabric, found: list[Ints]) -> str:
    """How many blocks there are and what they are called, behind a number of switches; empty where there is none."""
    if not found:
        return ""
    routers = fabric.roles[int(fabric.role[found[0][0]])] == "router"
    return f" in {len(found):,} {'groups' if routers else 'blocks'}"
