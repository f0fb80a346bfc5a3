"""Networks of several dimensions, each a ring, all pairs or a switch (as in Themis, ISCA 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.build import start, wire
from weft.fabric.dimension import Dimension
from weft.fabric.families.torus import lines_of
from weft.fabric.spec import Fabric


def build(dimensions: Sequence[Dimension]) -> Fabric:
    """Accelerators in a grid; those that differ in one coordinate alone are joined as that dimension says.

    Rank is ``a0 + P0 (a1 + P1 (a2 + ...))``.  The first dimension is the scale-up domain, the others are
    tiers 1, 2, ... outwards; a switch of tier i has the role "switch-i".

    Raises:
        BadInput: there are no dimensions, or too many accelerators.
    """
    if not len(dimensions):
        raise BadInput("no dimensions", where="hierarchical: dimensions", remedy="give at least one")
    sizes = [dimension.size for dimension in dimensions]
    count = checks.whole(prod(sizes), "hierarchical: accelerators")
    builder = start("hierarchical", count, dimensions[0])
    for tier, (lines, dimension) in enumerate(zip(lines_of(count, sizes), dimensions, strict=True)):
        if tier:
            wire(builder, lines, dimension, tier=tier, role=f"switch-{tier}")
    return builder.build()
