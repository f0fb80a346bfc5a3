"""The mesh of ranks: strides of the axes, rank groups, and how a group spreads over the network's tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.layout.spec import AXES, Layout
from weft.layout.table import Floats, Ints, LayoutTable, Mask

EXPERT_AXES = ("expert_tensor", "expert", "expert_data")
"""Axes of the experts' own mesh within a stage, inner to outer."""
WEIGHT_GROUPS = (
    *("shard", "replica", "expert_shard", "expert_replica", "tied"),
    *("copies", "token_copies", "head_copies", "router_copies"),
)
"""Groups that share weights, named like axes.

With z = 1 weights are whole, and their replicas are the ranks of context and data.  With z > 1 they are cut
over context and z (``shard``), as torchtitan and Megatron-FSDP do, and replicas are the ranks of data.
``tied``: the first and the last stage, which both hold a tied embedding.  ``copies``: the ranks of context, z and
data, each of which holds a vector whole; ``token_copies``: with sequence parallelism those of x too, each of
which has met other tokens; ``head_copies``: those of x always, each of which has used the vector in other heads;
``router_copies``: those of x and y always, each of which routes other tokens.
"""
EXPERT_GROUPS = ("expert", "expert_tensor", "expert_shard", "expert_replica")
"""Groups within a stage that experts communicate over."""
ROWS = ("context", "z", "data")
"""Axes whose ranks have different tokens."""
JOINED = (
    *(("x", "y"), ("x", "context"), ("context", "z"), ("context", "data"), ROWS),
    *(("x", *ROWS), ("x", "y", *ROWS), AXES),
)
"""Axes over whose product something is reduced or gathered."""
GROUPS = (*((axis,) for axis in AXES), *JOINED)
"""Axes of the groups that a rank of ``weft.runtime`` makes, beside those of experts and a tied embedding."""


def degrees(table: LayoutTable, axis: str) -> Ints:
    """Size of a mesh axis per row; the expert axes and ``WEIGHT_GROUPS`` included."""
    if axis in WEIGHT_GROUPS:
        size = np.ones(len(table), dtype=np.int64)
        for factor, _ in _weight_factors(table, axis):
            size = size * factor
        return size
    if axis == "expert_data":
        return table.stage_ranks // (table.expert * table.expert_tensor)
    return table.column(axis)


def strides(table: LayoutTable, axis: str) -> Ints:
    """Distance in ranks between neighbours along an axis, per row: the least of any order where the table has none."""
    stride = np.ones(len(table), dtype=np.int64)
    order = EXPERT_AXES if axis in EXPERT_AXES else table.order
    for inner in order[: order.index(axis)] if order else ():
        stride = stride * degrees(table, inner)
    if axis not in EXPERT_AXES or not table.order:
        return stride
    # The ranks of a stage are not contiguous where other axes lie outside of the pipeline.
    outside = strides(table, "pipeline")
    return np.where(stride >= outside, stride * table.pipeline, stride)


def groups(layout: Layout, axis: str) -> Ints:
    """Rank arrays of an axis, shape (groups, degree), in the layout's placement.

    ``axis`` is a mesh axis or one of ``EXPERT_AXES``.
    """
    if axis in EXPERT_AXES:
        stages = np.sort(groups(layout, "pipeline").T, axis=1)  # ranks of each stage, increasing
        ranks = stages.reshape(layout.pipeline, layout.expert_data, layout.expert, layout.expert_tensor)
        return np.moveaxis(ranks, 3 - EXPERT_AXES.index(axis), -1).reshape(-1, getattr(layout, axis))
    order = layout.order
    shape = [getattr(layout, name) for name in reversed(order)]
    ranks = np.arange(layout.world).reshape(shape)
    return np.moveaxis(ranks, len(order) - 1 - order.index(axis), -1).reshape(-1, getattr(layout, axis))


def coordinates(layout: Layout, rank: int) -> dict[str, int]:
    """Mesh coordinates of a rank, by axis."""
    result, number = {}, rank
    for axis in layout.order:
        result[axis] = number % getattr(layout, axis)
        number //= getattr(layout, axis)
    return result


@dataclass(frozen=True, slots=True)
class Spread:
    """How the groups of some axes lie on the tiers.

    ``size`` is the group's size; ``members[k]`` how many of its ranks share one unit of tier ``k`` (inner to
    outer; the outermost equals ``size``).  Misaligned groups take the share that every unit is sure to hold (a
    gcd), which never flatters them.  ``axes`` names the groups where one network's contention is known by axes.
    """

    size: Floats
    members: tuple[Floats, ...]
    axes: tuple[str, ...] = ()


def expert_cut(copies: Ints, z: Ints, data: Ints) -> Ints:
    """By how much an expert's weights are cut at rest, of its ``copies`` in a stage: whole copies remain for
    each rank of data that the copies span."""
    cut: Ints = np.where(z > 1, copies // np.gcd(copies, data), 1)
    return cut


def spread(table: LayoutTable, axes: Sequence[str], spans: Sequence[int]) -> Spread:
    """Spread of the groups over ``axes`` (their product; also ``WEIGHT_GROUPS``) on tiers of ``spans``
    accelerators."""
    factors = [factor for axis in axes for factor in _factors(table, axis)]
    total = np.ones(len(table))
    for size, _ in factors:
        total = total * size
    members = []
    for span in spans:
        inside = np.ones(len(table))
        for size, step in factors:
            inside = inside * np.maximum(np.gcd(step * size, span) // step, 1)
        members.append(np.minimum(inside, total))
    members[-1] = total
    return Spread(total, tuple(members), tuple(name for axis in axes for name in _real_axes(table, axis)))


def straddling(layout: Layout, domain: int, part: int) -> tuple[str, ...]:
    """Axes other than data whose groups have fewer ranks together in domains of ``domain`` than of ``part`` ranks."""
    table, axes = LayoutTable.of([layout]), ("x", "y", "context", "z", "expert", "expert_tensor")
    inside = [[spread(table, (axis,), (span, layout.world)).members[0][0] for axis in axes] for span in (domain, part)]
    return tuple(axis for axis, full, less in zip(axes, *inside, strict=True) if full < less)


def _factors(table: LayoutTable, axis: str) -> list[tuple[Ints, Ints]]:
    """Sizes and strides that make up an axis: two for an experts' axis that pipeline stages interrupt."""
    if axis in WEIGHT_GROUPS:
        return _weight_factors(table, axis)
    size, step = degrees(table, axis), strides(table, axis)
    if axis not in EXPERT_AXES or not table.order:
        return [(size, step)]
    room = np.maximum(strides(table, "pipeline") // step, 1)
    inner = np.where(step * size > room * step, np.gcd(room, size), size)
    return [(inner, step), (size // inner, step * room * table.pipeline)]


def _weight_factors(table: LayoutTable, group: str) -> list[tuple[Ints, Ints]]:
    """Sizes and strides of a group that shares weights."""
    if group == "tied":
        apart = table.pipeline - 1
        return [(np.where(apart > 0, 2, 1), strides(table, "pipeline") * np.maximum(apart, 1))]
    if group in ("expert_shard", "expert_replica"):
        copies, step = degrees(table, "expert_data"), strides(table, "expert_data")
        cut = expert_cut(copies, table.z, table.data)
        return [(cut, step)] if group == "expert_shard" else [(copies // cut, step * cut)]
    counted = _counted(table, group)
    return [(np.where(mask, degrees(table, axis), 1), strides(table, axis)) for axis, mask in counted.items()]


def _counted(table: LayoutTable, group: str) -> dict[str, Mask]:
    """The rows on which each mesh axis is part of a group that shares weights."""
    every = table.z > 0
    counted = {
        "shard": {"context": table.z > 1, "z": table.z > 1},
        "replica": {"context": table.z == 1, "data": every},
        "copies": dict.fromkeys(ROWS, every),
        "token_copies": {"x": table.sequence_parallel > 0} | dict.fromkeys(ROWS, every),
        "head_copies": dict.fromkeys(("x", *ROWS), every),
        "router_copies": dict.fromkeys(("x", "y", *ROWS), every),
    }
    return counted[group]


def distinct_groups(
    table: LayoutTable, sets: Sequence[Sequence[str]], used: Sequence[Mask] | None = None
) -> list[Mask]:
    """Rows on which the group over each set of axes has more than one rank and is none of the sets before.

    Args:
        table: the layouts.
        sets: axes of each group; ``WEIGHT_GROUPS`` and ``EXPERT_AXES`` may be among them.
        used: the rows on which each set counts; all by default.
    """
    masks: list[Mask] = []
    seen: list[Ints] = []
    for index, axes in enumerate(sets):
        wide = np.zeros(len(table), dtype=np.int64)
        for axis in axes:
            wide = wide | _wide(table, axis)
        if used is not None:
            wide = np.where(used[index], wide, 0)
        masks.append((wide > 0) & ~np.any([wide == known for known in seen], axis=0))
        seen.append(wide)
    return masks


def _wide(table: LayoutTable, axis: str) -> Ints:
    """The axes of more than one rank that a group is over, a bit each."""
    names = (*AXES, *EXPERT_AXES, *WEIGHT_GROUPS)
    if axis in AXES or axis in EXPERT_AXES or axis in ("tied", "expert_shard", "expert_replica"):
        bit = np.where((axis == "tied") & (table.pipeline == 2), names.index("pipeline"), names.index(axis))
        return np.where(degrees(table, axis) > 1, 1 << bit, 0)
    bits = [np.where(mask, _wide(table, size), 0) for size, mask in _counted(table, axis).items()]
    every: Ints = np.bitwise_or.reduce(bits)
    return every


def _real_axes(table: LayoutTable, axis: str) -> tuple[str, ...]:
    """The mesh axes that a group is over: of all rows, or as it is without sharding where rows differ."""
    sharded = bool((table.z > 1).all())
    if axis == "shard":
        return ("context", "z") if sharded else ()
    if axis == "replica":
        return ("data",) if sharded else ("context", "data")
    if axis in ("head_copies", "router_copies"):
        return ("x", *ROWS) if axis == "head_copies" else ("x", "y", *ROWS)
    if axis in ("copies", "token_copies"):
        return ("x", *ROWS) if axis == "token_copies" and table.sequence_parallel.all() else ROWS
    return (axis,)


def real_axes(layout: Layout, axes: Sequence[str]) -> tuple[str, ...]:
    """The mesh axes of a layout that groups are over; those of experts' weights and ``tied`` stay."""
    table = LayoutTable.of([layout])
    return tuple(name for axis in axes for name in _real_axes(table, axis))


def rank_groups(layout: Layout, axes: Sequence[str]) -> Ints:
    """Ranks of every group over ``axes`` in order, one group a row; also of ``WEIGHT_GROUPS``."""
    axes = real_axes(layout, axes)
    if axes == ("tied",):
        return groups(layout, "pipeline")[:, [0, -1]]
    if axes in (("expert_shard",), ("expert_replica",)):
        copies = groups(layout, "expert_data")
        cut = int(expert_cut(*(np.array([size]) for size in (copies.shape[1], layout.z, layout.data)))[0])
        shards = copies.reshape(len(copies), -1, cut)
        whole = shards if axes == ("expert_shard",) else shards.swapaxes(1, 2)
        return whole.reshape(-1, whole.shape[-1])
    if len(axes) == 1:
        return groups(layout, axes[0])
    order = layout.order
    ranks = np.arange(layout.world).reshape([getattr(layout, name) for name in reversed(order)])
    outer_first = sorted(axes, key=order.index, reverse=True)
    places = [len(order) - 1 - order.index(axis) for axis in outer_first]
    size = int(np.prod([getattr(layout, axis) for axis in axes]))
    return np.moveaxis(ranks, places, range(-len(places), 0)).reshape(-1, size)
