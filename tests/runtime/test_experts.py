"""Mixture of experts on eight ranks against one process, and what it communicates."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch
from models import BATCH, DATA_INSIDE
from whole import MODELS, check, job_of

from weft.errors import Unsupported
from weft.layout.check import check_runnable, explain
from weft.layout.spec import AXES, Layout
from weft.runtime.layers.experts import grouped_outer, grouped_product

FEW = [
    ("mixture", Layout(expert=2, expert_tensor=2, z=2, data=2, x=2, micro_batch=2, sequence_parallel=True)),
    ("shared", Layout(expert=2, context=2, y=2, pipeline=2, micro_batch=8)),
    ("mixture", Layout(expert=8, z=4, data=2, micro_batch=1, recompute="full")),
    ("shared", Layout(expert=2, expert_tensor=2, x=2, y=2, context=2, micro_batch=8)),
]
"""Each other axis beside that of experts, and beside their tensor cut."""


@pytest.mark.slow_but(2)
@pytest.mark.parametrize(
    ("model", "layout"), FEW, ids=["x, z, data", "y, context, pipeline", "z, data", "x, y, context"]
)
def test_experts_on_ranks_give_the_serial_models_numbers(ranks, model, layout):
    check(ranks, layout, model)


def name_of(layout):
    axes = (*AXES, "expert", "expert_tensor")
    return " ".join(f"{axis}={getattr(layout, axis)}" for axis in axes if getattr(layout, axis) > 1)


CUTS = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (2, 4), (1, 8))
"""Ranks that experts are dealt to, and that each is cut over."""


def every():
    """All grids of eight ranks, with every cut of experts that they can have."""
    for degrees in product((1, 2, 4, 8), repeat=len(AXES)):
        sizes = dict(zip(AXES, degrees, strict=True))
        if prod(degrees) != 8 or sizes["context"] > 4:
            continue
        for index, (expert, tensor) in enumerate(CUTS):
            layout = Layout(
                **sizes,
                expert=expert,
                expert_tensor=tensor,
                micro_batch=BATCH // (sizes["z"] * sizes["data"] * 2),
                sequence_parallel=sizes["x"] > 1 and sizes["y"] == 1,
                zero=index % 2,
                context_method="ulysses" if index % 4 > 1 else "ring",
            )
            if explain(job_of("mixture"), 8, layout) is None:
                yield layout


EVERY = list(every())


@pytest.mark.slow
@pytest.mark.parametrize("layout", EVERY, ids=name_of)
def test_every_grid(ranks, layout):
    check(ranks, layout, "mixture")


@pytest.mark.slow
@pytest.mark.parametrize(
    "switches", [{"order": DATA_INSIDE}, {"recompute": "full"}, {"recompute": "selective"}, {"zero": 0}], ids=str
)
@pytest.mark.parametrize(
    "grid", [{"expert": 4, "data": 2, "sequence_parallel": True}, {"expert": 2, "expert_tensor": 2, "y": 2}], ids=str
)
def test_switches_change_no_number(ranks, grid, switches):
    check(ranks, Layout(x=2, z=2, micro_batch=2, **grid, **switches), "shared")


@pytest.mark.slow
def test_weight_gradients_may_wait(ranks):
    layout = Layout(x=2, y=2, pipeline=2, expert=2, expert_tensor=2, micro_batch=4, schedule="zb1p")
    check(ranks, layout, "shared")


@pytest.mark.parametrize(("layout", "words"), [(Layout(x=2, expert=2), "tp > 1 and whole tokens .* add sp")])
def test_what_experts_cannot_have_is_refused(layout, words):
    with pytest.raises(Unsupported, match=words):
        check_runnable(MODELS["mixture"], layout)


@pytest.mark.parametrize("width", [8, 12])
def test_a_grouped_product_in_bf16_is_one_product_for_each_group(width):
    """PyTorch's kernel, and one after the other where 16 bytes do not divide a row; some groups are empty."""
    torch.manual_seed(0)
    rows, slopes = torch.randn(13, 16).bfloat16(), torch.randn(13, width).bfloat16()
    matrices, ends = torch.randn(4, 16, width).bfloat16(), torch.tensor([5, 5, 12, 13], dtype=torch.int32)
    products, outers = grouped_product(rows, matrices, ends), grouped_outer(rows, slopes, ends)
    for group, part in enumerate((slice(0, 5), slice(5, 5), slice(5, 12), slice(12, 13))):
        wanted = rows[part].double() @ matrices[group].double()
        torch.testing.assert_close(products[part].double(), wanted, rtol=1e-2, atol=1e-2)
        wanted = rows[part].double().t() @ slopes[part].double()
        torch.testing.assert_close(outers[group].double(), wanted, rtol=1e-2, atol=1e-2)
