"""Tori: accelerators joined to their neighbours in a grid, without switches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.build import start
from weft.fabric.dimension import Dimension, pairs
from weft.fabric.spec import Fabric, Ints
from weft.solvers import divisors

LATENCY_S = 2.7e-6
"""From one accelerator to the next: that of one hop over the network."""


def build(
    dims: Sequence[int], *, bandwidth_Bps: float, scale_up: Dimension | None = None, latency_s: float = LATENCY_S
) -> Fabric:
    """A torus; two nodes of a dimension share one link.

    With scale-up domains of K, the nodes of the grid are the domains, and each rail has a separate grid.

    Args:
        dims: nodes along each dimension; neighbours in the first one are next in rank order.
        bandwidth_Bps: of a link, per direction.
    """
    if not len(dims):
        raise BadInput("no dimensions", where="torus: dims", remedy="give at least one")
    for size in dims:
        checks.whole(size, "torus: dims")
    checks.positive(bandwidth_Bps, "torus: bandwidth")
    rails = scale_up.size if scale_up else 1
    count = checks.whole(prod(dims) * rails, "torus: accelerators")
    builder = start("torus", count, scale_up)
    for lines in lines_of(count, (rails, *dims))[1:]:
        left, right = pairs("ring", lines.shape[1])
        ends = lines[:, left].ravel(), lines[:, right].ravel()
        builder.join(*ends, capacity_Bps=bandwidth_Bps, latency_s=latency_s, tier=1)
    return builder.build()


def lines_of(count: int, dims: Sequence[int]) -> list[Ints]:
    """For each dimension of a grid (the first varies fastest), its lines of nodes, one a row."""
    grid = np.arange(count, dtype=np.int64).reshape(tuple(reversed(dims)))
    last = len(dims) - 1
    return [np.moveaxis(grid, last - axis, -1).reshape(-1, size) for axis, size in enumerate(dims)]


def near_cube(nodes: int, dimensions: int) -> tuple[int, ...]:
    """``nodes`` as a product of that many whole sizes, as near to each other as its divisors allow."""
    sizes: list[int] = []
    for left in range(dimensions, 0, -1):
        root = round(nodes ** (1 / left))
        best = min(divisors(nodes), key=lambda d: (abs(d - root), d))
        sizes.append(best)
        nodes //= best
    return tuple(sorted(sizes, reverse=True))
