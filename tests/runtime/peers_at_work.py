"""What ranks do in ``test_peer_suite``: importable in processes of any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import ranks
import torch
import torch.distributed as dist
from cases import CASES, CONVOLUTIONS, EASY, Case, assert_states, compared, linear
from models import OFF

from weft.layout.spec import Layout
from weft.runtime.convert.roles import Normal, Transposed

SIZES = [(32, 64), (16, 128), (2, 256)]
"""Rows and features; two rows are two for each rank that has rows of its own."""


def grids(world: int) -> list[tuple[int, int, int, int]]:
    """All (x, y, z, data) of a number of ranks."""
    degrees = [degree for degree in (1, 2, 4, 8) if degree <= world]
    return [grid for grid in product(degrees, repeat=4) if grid[0] * grid[1] * grid[2] * grid[3] == world]


def layouts(some: list[tuple[int, int, int, int]]) -> list[Layout]:
    return [Layout(x=x, y=y, z=z, data=data) for x, y, z, data in some]


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


def check_linears(some: list[tuple[int, int, int, int]]) -> None:
    """Items 1 to 4 and 8: outputs, states, gradients, clipping; overlaps off and on."""
    for layout in layouts(some):
        for index, case in enumerate(linears(layout)):
            for one in (replace(layout, **OFF), layout):
                for _, found, want in compared(one, case, "fp32"):
                    torch.testing.assert_close(found, want)
            if index < 3:
                assert_states(layout, case)


def check_convolutions(some: list[tuple[int, int, int, int]]) -> None:
    """Item 6; gradients that sum over thousands of pixels are compared by their size where it is above 1."""
    for layout, case in product(layouts(some), CONVOLUTIONS):
        for one in (replace(layout, **OFF), layout):
            for name, found, want in compared(one, CASES[case], "fp32"):
                if name != "norm" and found.numel():
                    size = max(float(want.square().mean().sqrt()), 1.0)
                    assert float((found - want).square().mean().sqrt()) < 1e-6 * size, (layout, case, name)
        assert_states(layout, CASES[case])


def check_models(some: list[tuple[int, int, int, int]]) -> None:
    """Items 1 to 4 of whole models in easy mode."""
    for layout, case, overlaps in product(layouts(some), EASY, (OFF, {})):
        for _, found, want in compared(replace(layout, **overlaps), CASES[case], "fp32"):
            torch.testing.assert_close(found, want)


def everything(world: int, some: list[tuple[int, int, int, int]]) -> None:
    """On a machine of ``world`` ranks."""
    assert dist.get_world_size() == world
    torch.set_num_threads(1)
    ranks._share_groups()
    check_linears(some)
    check_convolutions(some)
    check_models(some)
