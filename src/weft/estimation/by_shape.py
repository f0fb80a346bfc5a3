"""What measured kernels say about others of the same family: measured over modelled time, by shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.layout.table import Floats, Index, collapse

REACH = 2.0
"""A measured shape speaks for shapes no side of which is further from its own than by this factor."""
APART = 16.0
"""A side of this against 1 keeps families apart."""
_STEPS = 64.0
"""Sides closer than one over this are one."""


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """Measured shapes of one family of kernels.

    ``logs`` holds log2 of each side (a row a shape), ``ratios`` the measured over the modelled seconds.
    """

    logs: Floats
    ratios: Floats

    def scale(self, sides: Sequence[Floats]) -> Floats:
        """By what modelled seconds of shapes are to be multiplied: the ratio of the nearest measured shape (itself
        where it was measured), 1 where none is within ``REACH``."""
        distance, nearest = self._nearest(sides)
        found: Floats = np.where(np.isfinite(distance), self.ratios[nearest] if len(self.ratios) else 1.0, 1.0)
        return found

    def distance(self, sides: Sequence[Floats]) -> Floats:
        """How far the nearest measured shape is, in powers of two over all sides; infinite beyond ``REACH``."""
        return self._nearest(sides)[0]

    def _nearest(self, sides: Sequence[Floats]) -> tuple[Floats, Index]:
        shape = np.broadcast_shapes(*(np.shape(side) for side in sides))
        columns = [np.broadcast_to(side, shape) for side in sides]
        if not len(self.ratios):
            return np.full(shape, np.inf), np.zeros(shape, dtype=np.intp)
        groups = collapse([np.rint(column * _STEPS).astype(np.int64) for column in columns])
        off = np.stack([self._off(i, column[groups.first]) for i, column in enumerate(columns)])
        distance = np.where(off.max(axis=0) <= np.log2(REACH), off.sum(axis=0), np.inf)
        nearest = distance.argmin(axis=1)
        return distance[np.arange(len(nearest)), nearest][groups.group], nearest[groups.group]

    def _off(self, side: int, values: Floats) -> Floats:
        """How far values are from those of every measured shape, in powers of two (values x shapes)."""
        away: Floats = np.abs(np.log2(np.maximum(values, 1e-9))[:, None] - self.logs[:, side])
        return away
