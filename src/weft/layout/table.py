"""Many layouts as a struct of arrays: one layout is a table of length one, a search a table of a million."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from weft.layout.spec import AXES, FLAGS, VOCABULARIES, Layout, PipelineSchedule

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTable:
    """Columns of equal length, named as the fields of ``Layout``; ``order`` is shared by all rows.

    Without an order (an empty one) every group is as if its axes were the innermost: no order has groups that lie
    closer together.  Fields of ``VOCABULARIES`` hold codes, flags hold 0 or 1.
    """

    x: Ints
    y: Ints
    z: Ints
    data: Ints
    pipeline: Ints
    context: Ints
    expert: Ints
    expert_tensor: Ints
    micro_batch: Ints
    virtual_stages: Ints
    schedule: Ints
    zero: Ints
    recompute: Ints
    recompute_layers: Ints
    sequence_parallel: Ints
    context_method: Ints
    overlap_tensor: Ints
    overlap_reduce: Ints
    overlap_gather: Ints
    offload_optimizer: Ints
    offload_activations: Ints
    order: tuple[str, ...] = AXES

    def __len__(self) -> int:
        return len(self.x)

    @classmethod
    def of(cls, layouts: Sequence[Layout]) -> LayoutTable:
        """A table of the given layouts, which must share their axis order."""
        columns = {
            name: np.array([encode(name, getattr(layout, name)) for layout in layouts], dtype=np.int64)
            for name in COLUMNS
        }
        return cls(**columns, order=layouts[0].order if layouts else AXES)

    def replaced(self, columns: Mapping[str, Ints]) -> LayoutTable:
        """The same rows with some columns exchanged."""
        columns_now = {name: columns[name] if name in columns else self.column(name) for name in COLUMNS}
        return LayoutTable(**columns_now, order=self.order)

    def ordered(self, order: tuple[str, ...]) -> LayoutTable:
        """The same rows in another order of the axes."""
        return replace(self, order=order)

    def column(self, name: str) -> Ints:
        values: Ints = getattr(self, name)
        return values

    def take(self, rows: Index | Mask, columns: Mapping[str, Ints] = MappingProxyType({})) -> LayoutTable:
        """The given rows, by index or mask, with some columns exchanged."""
        taken = {name: columns[name] if name in columns else self.column(name)[rows] for name in COLUMNS}
        return LayoutTable(**taken, order=self.order)

    def row(self, index: int) -> Layout:
        """One row as a ``Layout``."""
        values = {name: decode(name, int(self.column(name)[index])) for name in COLUMNS}
        return Layout(**values, order=self.order)  # type: ignore[arg-type]

    def scheduled(self, trait: str) -> Mask:
        """The rows whose schedule has a trait: ``splits_backward``, ``wraps``, ``rounds`` or ``blocks``."""
        result = np.zeros(len(self), dtype=bool)
        for code, schedule in enumerate(PipelineSchedule):
            if getattr(schedule, trait):
                result |= self.schedule == code
        return result

    @property
    def world(self) -> Ints:
        return self.x * self.y * self.z * self.data * self.pipeline * self.context

    @property
    def stage_ranks(self) -> Ints:
        return self.x * self.y * self.z * self.data * self.context


COLUMNS = tuple(field.name for field in fields(LayoutTable) if field.name != "order")


def encode(name: str, value: object) -> int:
    """A field's value as a table holds it."""
    if name in VOCABULARIES:
        return VOCABULARIES[name](str(value)).code
    return int(value)  # type: ignore[call-overload,no-any-return]


def decode(name: str, value: int) -> object:
    """The value that a table holds so."""
    if name in VOCABULARIES:
        return list(VOCABULARIES[name])[value]
    return bool(value) if name in FLAGS else value


@dataclass(frozen=True, slots=True)
class Groups:
    """Equal rows collapsed: ``first[g]`` is a row of group ``g``, ``group[i]`` the group of row ``i``."""

    first: Index
    group: Index


def collapse(columns: Sequence[Ints]) -> Groups:
    """Group the rows that agree in every column of small non-negative integers, in linear time."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for values in columns:
        if not len(values) or (span := int(values.max()) + 1) == 1:
            continue
        small = _compress(values, span)
        width = int(small.max()) + 1
        code = _compress(code * width + small, (int(code.max()) + 1) * width)
    _, group, first = _rank(code, int(code.max()) + 1 if len(code) else 1)
    return Groups(first, group)


def _compress(values: Ints, span: int) -> Ints:
    """Values renamed 0, 1, 2, ... in increasing order."""
    if span <= 256:
        return values
    return _rank(values, span)[1]


def _rank(values: Ints, span: int) -> tuple[Ints, Index, Index]:
    if span > 16 * len(values) + 65536:
        unique, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        return unique, inverse.astype(np.intp), first.astype(np.intp)
    last = np.full(span, -1, dtype=np.intp)
    last[values] = np.arange(len(values))
    present = np.flatnonzero(last >= 0)
    rename = np.empty(span, dtype=np.intp)
    rename[present] = np.arange(len(present))
    return present, rename[values], last[present]
