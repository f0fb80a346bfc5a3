"""The grid: groups of ranks, and what does not divide over them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from models import DATA_INSIDE, Z_INSIDE
from ranks import grid_of, on_ranks

from weft.errors import BadInput
from weft.layout.mesh import GROUPS, JOINED, coordinates, groups
from weft.layout.spec import Layout
from weft.runtime.core.grid import GRID_AXES, Grid
from weft.runtime.core.machine import Machine
from weft.runtime.layers.linear import Linear4D
from weft.runtime.layers.norm import Norm4D
from weft.runtime.layers.vocabulary import Embedding4D


def machine(rank=0, **degrees):
    """One rank's of a layout, without process groups."""
    return Machine.of(Grid(Layout(**degrees), torch.device("cpu"), None, rank))


# Groups -------------------------------------------------------------------------------------------

ORDERS = [Layout().order, Z_INSIDE, DATA_INSIDE, ("pipeline", "data", "z", "y", "x", "context")]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("degrees", [{"x": 2, "y": 2, "z": 2}, {"x": 2, "z": 2, "pipeline": 2}], ids=str)
@on_ranks
def test_a_group_has_the_ranks_that_differ_in_its_axes(degrees, order):
    """In the order of ``index``, in which what they gather lies."""
    layout = Layout(order=order, **degrees)
    grid, places = grid_of(layout), [coordinates(layout, rank) for rank in range(layout.world)]
    own = places[grid.rank]
    for axes in GROUPS:
        group = grid.group(*axes)
        members = dist.get_process_group_ranks(group) if group is not None else [grid.rank]
        others = [axis for axis in GRID_AXES if axis not in axes]
        assert sorted(members) == [
            rank for rank, place in enumerate(places) if all(place[axis] == own[axis] for axis in others)
        ]
        assert members[grid.index(*axes)] == grid.rank
        assert len(members) == grid.size(*axes)
        if len(axes) == 1 and axes[0] in GRID_AXES:
            assert members in groups(layout, axes[0]).tolist()


class Group:
    """A process group, which others hold."""

    bound_device_id = None

    def __init__(self, ranks):
        self.ranks = tuple(ranks)


def asked(monkeypatch, layout, rank):
    """The groups that a rank asks for, in order, and last a tied embedding's, which every rank makes."""
    made = [Group(range(layout.world))]

    def new_group(ranks, **options):
        made.append(Group(ranks))
        return made[-1]

    monkeypatch.setattr(dist, "new_group", new_group)
    grid = Grid(layout, torch.device("cpu"), made[0], rank)
    if layout.pipeline > 1:
        grid.join_ends()
        assert (grid.ends is not None) == (grid.coordinates["pipeline"] in (0, layout.pipeline - 1))
    return [group.ranks for group in made[1:]]


@given(
    st.permutations(["x", "y", "z", "data", "pipeline"]), st.lists(st.sampled_from([1, 2, 3]), min_size=5, max_size=5)
)
@settings(max_examples=40)
def test_groups_are_made_without_a_deadlock(order, degrees):
    """Each is complete when all of its ranks have come to it, one after the other; PyTorch names a group by its ranks
    and how many a rank has made, so that all ranks make as many."""
    layout = Layout(order=(*order, "context"), **dict(zip(order, degrees, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        left = {rank: asked(patch, layout, rank) for rank in range(layout.world)}
    assert len({len(made) for made in left.values()}) == 1
    while any(left.values()):
        met = [ranks[0] for ranks in left.values() if ranks and all(left[one][:1] == ranks[:1] for one in ranks[0])]
        assert met, "every rank waits"
        for members in set(met):
            assert len(members) > 1 or layout.pipeline == 3, "beside the ends of three stages is one"
            for rank in members:
                left[rank].pop(0)


def test_few_groups_are_made_of_many_ranks(monkeypatch):
    """16,384 ranks: a rank makes those alone that it is in, and none of itself."""
    layout = Layout(x=8, y=2, z=8, data=128)
    found = asked(monkeypatch, layout, 9_999)
    assert len(found) <= 8
    assert all(9_999 in ranks for ranks in found)
    assert sum(map(len, found)) < 20_000


def test_a_rank_alone_has_no_group():
    grid = Grid.of(Layout())
    assert all(grid.group(*axes) is None for axes in JOINED)
    assert grid.axes(*GRID_AXES) == ()
    assert grid.index(*GRID_AXES) == 0


# Refusals -----------------------------------------------------------------------------------------

MISMATCH = r"layout: the layout needs x=2 x y=2 x z=3 x data=1 x pipeline=2 = 24 ranks, but {world} run -- "


@on_ranks
def test_another_number_of_ranks_is_refused():
    """With the whole product."""
    with pytest.raises(BadInput, match=MISMATCH.format(world=8) + "start 24 ranks"):
        Grid.of(Layout(x=2, y=2, z=3, pipeline=2))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Linear4D(machine(y=4), "up", 10, 8), "up: inputs = 10 cannot be divided over y=4 -- choose y"),
        (lambda: Linear4D(machine(x=4), "qkv", 8, (8, 8, 6)), "qkv: outputs = 6 cannot be divided over x=4"),
        (
            lambda: Linear4D(machine(x=4), "down", 10, 8, kind="transposed"),
            "down: inputs = 10 cannot be divided over x=4",
        ),
        (lambda: Norm4D(machine(y=4), "norm", 10, centred=True), "norm: features = 10 .* over y=4"),
        (lambda: Embedding4D(machine(y=4), "table", 64, 10), "table: hidden features = 10 .* over y=4"),
        (
            lambda: Embedding4D(machine(x=4, sequence_parallel=True), "table", 64, 8)(torch.zeros(6).long()),
            "tokens of a micro-batch = 6 cannot be divided over x=4",
        ),
        (
            lambda: machine(x=2, y=3).grid.divided(10, "x", "y", what="size"),
            "size = 10 cannot be divided over x=2 x y=3 -- choose x and y so that their product divides 10",
        ),
    ],
)
def test_what_does_not_divide_is_refused_with_axis_and_size(build, words):
    with pytest.raises(BadInput, match=words):
        build()
