"""The mesh of ranks: strides of the axes, rank groups, and how a group spreads over the network's tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.layout.spec import Layout
from weft.layout.table import Floats, Ints, LayoutTable

EXPERT_AXES = ("expert_tensor", "expert", "expert_data")
"""Axes of the experts' own mesh within a stage, inner to outer."""


def degrees(table: LayoutTable, axis: str) -> Ints:
    """Size of a mesh axis per row; the expert axes included."""
    if axis == "expert_data":
        return table.stage_ranks // (table.expert * table.expert_tensor)
    return table.column(axis)


def strides(table: LayoutTable, axis: str) -> Ints:
    """Distance in ranks between neighbours along an axis, per row."""
    if axis in EXPERT_AXES:
        return _expert_strides(table, axis)
    stride = np.ones(len(table), dtype=np.int64)
    for inner in table.order[: table.order.index(axis)]:
        stride = stride * table.column(inner)
    return stride


def _expert_strides(table: LayoutTable, axis: str) -> Ints:
    stride = np.ones(len(table), dtype=np.int64)
    for inner in EXPERT_AXES[: EXPERT_AXES.index(axis)]:
        stride = stride * degrees(table, inner)
    outside = strides(table, "pipeline")
    return np.where(stride >= outside, stride * table.pipeline, stride)


def groups(layout: Layout, axis: str) -> Ints:
    """Rank arrays of an axis, shape (groups, degree), in the layout's placement.

    ``axis`` is a mesh axis or one of ``EXPERT_AXES``.
    """
    if axis in EXPERT_AXES:
        return _expert_groups(layout, axis)
    order = layout.order
    shape = [getattr(layout, name) for name in reversed(order)]
    ranks = np.arange(layout.world).reshape(shape)
    return np.moveaxis(ranks, len(order) - 1 - order.index(axis), -1).reshape(-1, getattr(layout, axis))


def _expert_groups(layout: Layout, axis: str) -> Ints:
    stages = _stage_ranks(layout)
    shape = [layout.expert_data, layout.expert, layout.expert_tensor]
    ranks = stages.reshape(layout.pipeline, *shape)
    return np.moveaxis(ranks, 3 - EXPERT_AXES.index(axis), -1).reshape(-1, getattr(layout, axis))


def _stage_ranks(layout: Layout) -> Ints:
    """Ranks of each stage, shape (pipeline, ranks of a stage), increasing."""
    return np.sort(groups(layout, "pipeline").T, axis=1)


def coordinates(layout: Layout, rank: int) -> dict[str, int]:
    """Mesh coordinates of a rank, by axis."""
    found, rest = {}, rank
    for axis in layout.order:
        found[axis] = rest % getattr(layout, axis)
        rest //= getattr(layout, axis)
    return found


@dataclass(frozen=True, slots=True)
class Spread:
    """How the groups of some axes lie on the tiers.

    ``size`` is the group's size; ``members[k]`` how many of its ranks share one unit of tier ``k`` (inner
    to outer; the
    outermost equals ``size``).  Misaligned groups take the share that every unit is sure to hold (a gcd),
    which
    never flatters them.  ``axes`` names the groups where one network's contention is known by axes.
    """

    size: Floats
    members: tuple[Floats, ...]
    axes: tuple[str, ...] = ()


def spread(table: LayoutTable, axes: Sequence[str], spans: Sequence[int]) -> Spread:
    """Spread of the groups over ``axes`` (their product) on tiers of ``spans`` accelerators."""
    factors = [factor for axis in axes for factor in _factors(table, axis)]
    return spread_of([size for size, _ in factors], [step for _, step in factors], spans, tuple(axes))


def _factors(table: LayoutTable, axis: str) -> list[tuple[Ints, Ints]]:
    """Sizes and strides that make up an axis: two for an experts' axis that pipeline stages interrupt."""
    size, step = degrees(table, axis), strides(table, axis)
    if axis not in EXPERT_AXES:
        return [(size, step)]
    room = np.maximum(strides(table, "pipeline") // step, 1)
    inner = np.where(step * size > room * step, np.gcd(room, size), size)
    return [(inner, step), (size // inner, step * room * table.pipeline)]


def spread_of(
    sizes: Sequence[Ints], steps: Sequence[Ints], spans: Sequence[int], axes: tuple[str, ...] = ()
) -> Spread:
    """Spread of groups given by sizes and strides, which multiply."""
    total = np.ones(len(sizes[0]))
    for size in sizes:
        total = total * size
    members = []
    for span in spans:
        inside = np.ones(len(total))
        for size, step in zip(sizes, steps, strict=True):
            inside = inside * np.maximum(np.gcd(step * size, span) // step, 1)
        members.append(np.minimum(inside, total))
    members[-1] = total
    return Spread(total, tuple(members), axes)
