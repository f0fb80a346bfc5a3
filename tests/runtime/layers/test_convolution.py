"""Convolutions over eight ranks against plain ones: what is communicated, and what is refused.

Outputs, gradients and states are those of ``test_easy``.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from cases import CASES, Part
from models import MORE, layout_of
from ranks import on_ranks
from torch import nn

from weft.errors import BadInput, Unsupported
from weft.layout.spec import Layout
from weft.layout.step import Issue
from weft.runtime.convert.parallelize import parallelize
from weft.runtime.convert.roles import Normal
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine
from weft.runtime.layers.linear import Conv4D


@pytest.mark.parametrize("grid", MORE, ids=str)
@on_ranks
def test_what_a_chain_communicates(grid):
    """As linear layers do, with pixels for tokens; nothing comes between."""
    x, y, z, data = grid
    images, weights = 8 // (z * data), 8 * 16 * 9 // (x * y)
    wanted = Counter()
    for kind, axis, elements, times in (
        ("all-gather", "z", weights, 4),
        ("reduce-scatter", "z", weights, 2),
        ("all-reduce", "y", images * 16 * 25 // x, 2),
        ("all-reduce", "x", images * 8 * 9 // y, 1),
        ("all-reduce", "x", images * 8 * 25 // y, 1),
    ):
        if {"x": x, "y": y, "z": z}[axis] > 1:
            wanted[Issue(kind, (axis,), elements, 8)] += times
    part = Part(layout_of(grid), CASES["chain"])
    with part.machine.collectives.logged() as log:
        part.step()
    found = Counter(issue for issue in log.issued if len(issue.axes) == 1 and issue.axes != ("data",))
    vectors = {Issue("all-reduce", ("z",), size, 8) for size in (16 // x + 8 // y, 1)}
    assert Counter({issue: n for issue, n in found.items() if issue not in vectors}) == wanted


# What is refused -----------------------------------------------------------------------------------


def means(**degrees):
    return Machine.of(Grid(Layout(**degrees), torch.device("cpu"), None, 0))


def test_sequence_parallelism_is_refused():
    with pytest.raises(Unsupported, match="conv: sequence_parallel"):
        Conv4D(means(x=2, sequence_parallel=True), "conv", 8, 8, (3, 3))


def test_a_single_image_and_wrong_channels():
    model = parallelize(nn.Sequential(nn.Conv2d(8, 4, 3)), means(), {"0": Normal()})
    assert model(torch.ones(8, 5, 5)).shape == (4, 3, 3)
    with pytest.raises(BadInput, match="0: got 4 features, but a rank's share is 8"):
        model(torch.ones(2, 4, 5, 5))
