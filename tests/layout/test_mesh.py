"""The mesh against brute force: groups from coordinates, and the spread of groups from the groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.layout.mesh import (
    EXPERT_AXES,
    GROUPS,
    coordinates,
    degrees,
    distinct_groups,
    groups,
    rank_groups,
    real_axes,
    spread,
    straddling,
    strides,
)
from weft.layout.spec import AXES, Layout
from weft.layout.table import LayoutTable

AXONN_ORDER = ("y", "x", "z", "data", "context", "pipeline")


@st.composite
def meshes(draw: st.DrawFn, values: Sequence[int] = (1, 2, 3, 4)) -> Layout:
    """Layouts of up to a few hundred ranks in any placement."""
    world, chosen = 1, {}
    for axis in AXES:
        chosen[axis] = draw(st.sampled_from([v for v in values if world * v <= 192]))
        world *= chosen[axis]
    return Layout(**chosen, order=tuple(draw(st.permutations(AXES))))


def groups_by_coordinates(layout: Layout, axes: Sequence[str]) -> list[list[int]]:
    """Ranks that agree in every coordinate but those of ``axes``."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(layout.world):
        place = coordinates(layout, rank)
        found[tuple(value for axis, value in place.items() if axis not in axes)].append(rank)
    return list(found.values())


def fewest_in_a_unit(rows: Sequence[Sequence[int]], span: int) -> int:
    """The smallest share that any unit of ``span`` ranks, touched by a group, holds of it."""
    return min(min(np.unique(np.array(row) // span, return_counts=True)[1]) for row in rows)


@given(meshes())
@settings(max_examples=30)
def test_groups_vary_one_coordinate(layout: Layout) -> None:
    for axis in AXES:
        expected = {tuple(row) for row in groups_by_coordinates(layout, [axis])}
        assert {tuple(row) for row in groups(layout, axis).tolist()} == expected


@given(meshes())
@settings(max_examples=30)
def test_coordinates_and_strides_agree(layout: Layout) -> None:
    table = LayoutTable.of([layout])
    steps = {axis: int(strides(table, axis)[0]) for axis in AXES}
    for rank in range(layout.world):
        assert sum(steps[axis] * value for axis, value in coordinates(layout, rank).items()) == rank


def test_axonn_rank_formula() -> None:
    """rank = ((data * pipe) * depth + z) * (row * col) + row * col_size + col: x is row, y is column."""
    layout = Layout(x=3, y=2, z=4, data=5, order=AXONN_ORDER)
    for rank in range(layout.world):
        place = coordinates(layout, rank)
        assert rank == (place["data"] * 4 + place["z"]) * 6 + place["x"] * 2 + place["y"]


def test_megatron_order_keeps_tensor_parallelism_innermost() -> None:
    layout = Layout(x=4, data=2, pipeline=2)
    assert groups(layout, "x")[0].tolist() == [0, 1, 2, 3]
    assert groups(layout, "data")[0].tolist() == [0, 4]
    assert groups(layout, "pipeline")[0].tolist() == [0, 8]


@st.composite
def expert_meshes(draw: st.DrawFn) -> Layout:
    layout = draw(meshes(values=(1, 2, 4)))
    stage = layout.stage_ranks
    expert = draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    rest = stage // expert
    tensor = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
    chosen = {axis: getattr(layout, axis) for axis in AXES}
    order = draw(st.permutations([axis for axis in AXES if axis != "pipeline"]))
    return Layout(**chosen, expert=expert, expert_tensor=tensor, order=(*order, "pipeline"))


@given(expert_meshes())
def test_expert_groups_partition_every_stage(layout: Layout) -> None:
    assert layout.expert * layout.expert_tensor * layout.expert_data == layout.stage_ranks
    for axis in EXPERT_AXES:
        rows = groups(layout, axis)
        assert rows.shape[1] == int(degrees(LayoutTable.of([layout]), axis)[0])
        assert np.array_equal(np.sort(rows, axis=None), np.arange(layout.world))
        for row in rows:
            assert len({coordinates(layout, int(rank))["pipeline"] for rank in row}) == 1


def test_expert_groups_of_one_token_group_are_innermost() -> None:
    layout = Layout(x=2, data=4, expert=4, expert_tensor=2)
    assert groups(layout, "expert_tensor")[0].tolist() == [0, 1]
    assert groups(layout, "expert")[0].tolist() == [0, 2, 4, 6]


AXIS_SETS = [axes for size in (1, 2, 3) for axes in combinations(AXES, size)]


@given(meshes(values=(1, 2, 4)), st.sampled_from(AXIS_SETS), st.sampled_from([1, 2, 4, 8]))
def test_spread_of_aligned_groups_is_what_the_groups_show(layout: Layout, axes: tuple[str, ...], domain: int) -> None:
    spans = (domain, 4 * domain, max(layout.world, 16 * domain))
    found = spread(LayoutTable.of([layout]), axes, spans)
    rows = groups_by_coordinates(layout, axes)
    assert found.size[0] == prod(getattr(layout, axis) for axis in axes)
    assert [members[0] for members in found.members] == [fewest_in_a_unit(rows, span) for span in spans]


@given(meshes(values=(1, 2, 3, 4, 5, 6)), st.sampled_from(AXIS_SETS), st.sampled_from([2, 3, 4, 6, 8]))
def test_spread_never_flatters_misaligned_groups(layout: Layout, axes: tuple[str, ...], domain: int) -> None:
    spans = (domain, domain * layout.world)
    found = spread(LayoutTable.of([layout]), axes, spans)
    rows = groups_by_coordinates(layout, axes)
    assert 1 <= found.members[0][0] <= fewest_in_a_unit(rows, domain)
    assert found.members[-1][0] == found.size[0]


@given(expert_meshes(), st.sampled_from(EXPERT_AXES), st.sampled_from([1, 2, 4, 8]))
def test_spread_of_expert_groups(layout: Layout, axis: str, domain: int) -> None:
    spans = (domain, max(layout.world, domain))
    found = spread(LayoutTable.of([layout]), (axis,), spans)
    assert found.members[0][0] == fewest_in_a_unit(groups(layout, axis).tolist(), domain)


def test_spread_of_expert_groups_that_straddle_the_pipeline() -> None:
    layout = Layout(x=2, pipeline=4, data=4, expert=8, order=("x", "pipeline", "y", "context", "z", "data"))
    found = spread(LayoutTable.of([layout]), ("expert",), (8, 32))
    assert found.members[0][0] <= fewest_in_a_unit(groups(layout, "expert").tolist(), 8)


@given(
    meshes(), st.permutations([*GROUPS, ("shard",), ("replica",), ("copies",), ("token_copies",), ("head_copies",)])
)
@settings(max_examples=40)
def test_groups_are_made_once(layout: Layout, sets: Sequence[tuple[str, ...]]) -> None:
    """A set of axes counts where rank 0's group is of several ranks and none of those before."""
    seen: set[frozenset[int]] = {frozenset([0])}
    for axes, made in zip(sets, distinct_groups(LayoutTable.of([layout]), sets), strict=True):
        real = real_axes(layout, axes)
        ranks = frozenset(rank_groups(layout, real)[0].tolist()) if real else frozenset([0])
        assert made[0] == (ranks not in seen)
        seen.add(ranks)


def test_a_group_counts_where_it_is_used() -> None:
    table = LayoutTable.of([Layout(z=2), Layout(x=2, z=2)])
    used = [np.array([False, True]), np.array([True, True])]
    first, second = distinct_groups(table, [("z",), ("shard",)], used)
    assert first.tolist() == [False, True]
    assert second.tolist() == [True, False]


@pytest.mark.parametrize(
    ("layout", "domain", "axes"),
    [
        (Layout(data=576, expert=64), 72, ("expert",)),
        (Layout(data=512, expert=64), 64, ()),
        (Layout(data=576, expert=8), 72, ()),
        (Layout(x=8, context=2, data=288), 72, ("context",)),
        (Layout(x=4, context=2, data=576), 72, ()),
        (Layout(x=8, z=8, data=72), 72, ("z",)),
        (Layout(x=16, data=288), 72, ("x",)),
        (Layout(x=3, data=24), 72, ()),
    ],
)
def test_groups_that_straddle_domains_are_named(layout: Layout, domain: int, axes: tuple[str, ...]) -> None:
    assert straddling(layout, domain, 64) == axes
    for axis in axes:
        parts = [len(set((group // domain).tolist())) for group in rank_groups(layout, (axis,))]
        assert max(parts) > 1, "a group lies in two domains"
