"""AxoNN's own tests as behaviours, item by item, on grids of 2, 4 and 8 ranks, in single precision.

What is elsewhere: 5, vocabularies, in ``test_vocabulary``; 7, the vision transformer, in ``test_vision``; of 8,
transposed layers and chains without a collective between in ``test_linear``, tied embeddings in ``test_parity``,
exceptions inside the overlap and stale weights in ``test_overlap``, checkpoints across grids in ``test_checkpoint``
and ``test_prepare``, which also trains in easy mode.  Smaller siblings in fp64: ``test_linear`` and ``test_easy``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import ranks as started
import torch
import torch.distributed as dist
from cases import CASES, CONVOLUTIONS, EASY, Case, assert_states, compared, linear
from models import OFF
from ranks import on_ranks

from weft.layout.spec import Layout
from weft.runtime.convert.roles import Normal, Transposed
from weft.runtime.run.ranks import run_ranks

SIZES = [(32, 64), (16, 128), (2, 256)]
"""Rows and features; two rows are two for each rank that has rows of its own."""
pytestmark = pytest.mark.slow


def grids(world: int) -> list[Layout]:
    """All layouts of a number of ranks over x, y, z and data."""
    degrees = [degree for degree in (1, 2, 4, 8) if degree <= world]
    layouts = (Layout(x=x, y=y, z=z, data=data) for x, y, z, data in product(degrees, repeat=4))
    return [layout for layout in layouts if layout.world == world]


def linears(layout: Layout) -> Iterator[Case]:
    """Normal, transposed and easy layers of all sizes, with bias and without."""
    for (rows, hidden), bias in product(SIZES, (True, False)):
        make = linear(hidden, 2 * hidden, bias=bias)
        for plan, over, apart in (
            ({"0": Normal()}, ("y", "x"), layout.dp),
            ({"0": Transposed()}, ("x", "y"), layout.dp),
            (None, ("y", "x"), layout.world),
        ):
            count = rows if rows % apart == 0 else rows * apart
            yield Case(make=make, shape=(count, hidden), plan=plan, over=over)


def check(layout: Layout) -> None:
    """Items 1 to 4, 6 and 8: outputs, states, gradients, clipping; overlaps off and on.

    Gradients of convolutions sum over thousands of pixels, and are compared by their size where it is above 1.
    """
    for one in (replace(layout, **OFF), layout):
        for case in (*linears(layout), *(CASES[name] for name in EASY)):
            for _, found, want in compared(one, case, "fp32"):
                torch.testing.assert_close(found, want)
        for name in CONVOLUTIONS:
            for what, found, want in compared(one, CASES[name], "fp32"):
                if what != "norm" and found.numel():
                    size = max(float(want.square().mean().sqrt()), 1.0)
                    assert float((found - want).square().mean().sqrt()) < 1e-6 * size, (layout, name, what)
    for case in (*list(linears(layout))[:3], *(CASES[name] for name in CONVOLUTIONS)):
        assert_states(layout, case)


def everything(world: int) -> None:
    """On a machine of ``world`` ranks."""
    assert dist.get_world_size() == world
    torch.set_num_threads(1)
    started._share_groups()
    for layout in grids(world):
        check(layout)


@pytest.mark.parametrize(("world", "count"), [(2, 4), (4, 10)])
def test_two_and_four_ranks(world, count):
    """In one start of the ranks."""
    assert len(grids(world)) == count
    run_ranks(everything, (world,), world)


@pytest.mark.parametrize("layout", grids(8), ids=lambda one: f"{one.x}, {one.y}, {one.z}, {one.data}")
@on_ranks
def test_every_grid_of_eight_ranks(layout):
    check(layout)
