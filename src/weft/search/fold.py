"""Estimates folded into what a plan keeps: the best, the Pareto frontier, and the fastest that do not fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.estimation.result import EstimateTable
from weft.layout.spec import Layout
from weft.layout.table import Floats, Index, Ints, Mask
from weft.search.ease import Ease
from weft.search.enumeration import Batch

WORTHWHILE = 0.99
"""Advice must promise at least this share of the best iteration time."""


@dataclass(slots=True)
class Kept:
    """Rows worth keeping: their layouts, what they are ordered by, memory and mesh."""

    layouts: list[Layout]
    keys: list[float]
    bytes_: list[float]
    meshes: list[int]

    def order(self) -> list[int]:
        keys = range(len(self.layouts))
        return sorted(keys, key=lambda i: (self.keys[i], self.bytes_[i], i))

    def pick(self, rows: list[int]) -> Kept:
        """Some of the rows."""
        return Kept(
            [self.layouts[i] for i in rows],
            [self.keys[i] for i in rows],
            [self.bytes_[i] for i in rows],
            [self.meshes[i] for i in rows],
        )

    def extend(self, batch: Batch, keys: Floats, bytes_: Floats, rows: Index | Ints) -> None:
        """Add rows of a batch."""
        for row in rows:
            self.layouts.append(batch.table.row(int(row)))
            self.keys.append(float(keys[row]))
            self.bytes_.append(float(bytes_[row]))
            self.meshes.append(int(batch.mesh[row]))

    def least_bytes(self, seconds: Floats) -> Floats:
        """On a frontier by time, the least memory of what takes at most so long; infinite where nothing does."""
        found: Floats = np.array([np.inf, *self.bytes_])[np.searchsorted(self.keys, seconds, side="right")]
        return found


@dataclass(frozen=True, slots=True)
class Scale:
    """What layouts are judged by.

    ``top`` are kept, of each mesh only the best where ``per_mesh``; ``capacity_bytes`` may be used of an accelerator's
    memory and ``pinned_bytes`` of its host's; times count with the efforts of ``ease``, or alone.
    """

    top: int
    per_mesh: bool
    capacity_bytes: float
    pinned_bytes: float
    ease: Ease | None

    def fits(self, bytes_: Floats, host_bytes: Floats) -> tuple[Mask, Mask]:
        """What fits the accelerator, and what fits its host."""
        return bytes_ <= self.capacity_bytes, host_bytes <= self.pinned_bytes


class Fold:
    """The best of what was added, the Pareto frontier, and that of what lacks memory."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.best, self.front, self.misfits = (Kept([], [], [], []) for _ in range(3))

    @property
    def limit_s(self) -> float:
        """Only what is faster is worth advice."""
        return WORTHWHILE * self.front.keys[0] if self.front.keys else np.inf

    def add(self, batch: Batch, results: EstimateTable) -> None:
        """Keep what may matter of estimates of layouts that come behind all those of before."""
        on_device, pinned = self.scale.fits(results.memory_bytes, results.memory.host_bytes)
        fits, keys = on_device & pinned, results.iteration_s
        if self.scale.ease is not None:
            keys = keys * (1.0 + self.scale.ease.efforts(batch.table, results.memory_bytes))
        self._keep_best(batch, results, np.where(fits, keys, np.inf))
        self.front = self._with_front(self.front, batch, results, fits)
        self.misfits = self._with_front(self.misfits, batch, results, ~on_device & pinned)

    def open(self, least_s: Floats, least_key: Floats, bytes_: Floats, fits: Mask, misfits: Mask) -> Mask:
        """Which of layouts that fit or lack only memory may still matter: they need ``bytes_``, take more than
        ``least_s`` and have keys above ``least_key``."""
        ranked = least_key <= self._worst()
        ahead = ranked | (bytes_ < self.front.least_bytes(least_s))
        advised = (least_s < self.limit_s) & (bytes_ < self.misfits.least_bytes(least_s))
        return (fits & ahead) | (misfits & advised)

    def _worst(self) -> float:
        return self.best.keys[-1] if len(self.best.keys) >= self.scale.top else np.inf

    def _keep_best(self, batch: Batch, results: EstimateTable, keys: Floats) -> None:
        rows = np.flatnonzero((keys <= self._worst()) & np.isfinite(keys))
        if not len(rows):
            return
        rows = rows[np.lexsort((rows, results.memory_bytes[rows], keys[rows]))]
        if self.scale.per_mesh:
            _, first = np.unique(batch.mesh[rows], return_index=True)
            rows = rows[np.sort(first)]
        self.best.extend(batch, keys, results.memory_bytes, rows[: self.scale.top])
        order, seen = [], set[int]()
        for i in self.best.order():
            if self.scale.per_mesh and self.best.meshes[i] in seen:
                continue
            seen.add(self.best.meshes[i])
            order.append(i)
        self.best = self.best.pick(order[: self.scale.top])

    def _with_front(self, front: Kept, batch: Batch, results: EstimateTable, kept: Mask) -> Kept:
        """A Pareto frontier of time and memory, sorted by time, with the rows of a batch that ``kept`` marks."""
        seconds, bytes_ = results.iteration_s, results.memory_bytes
        rows = np.flatnonzero(kept)
        rows = rows[bytes_[rows] < front.least_bytes(seconds[rows])]
        if not len(rows):
            return front
        rows = rows[np.lexsort((rows, bytes_[rows], seconds[rows]))]
        front.extend(batch, seconds, bytes_, rows[_records(bytes_[rows])])
        order = front.order()
        return front.pick([order[i] for i in _records(np.array([front.bytes_[i] for i in order]))])


def _records(values: Floats) -> Index:
    """Positions whose value is below all before it."""
    least = np.minimum.accumulate(np.concatenate(([np.inf], values[:-1])))
    return np.flatnonzero(values < least)
