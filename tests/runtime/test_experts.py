"""Mixture of experts on eight ranks against one process, and what it communicates."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

torch = pytest.importorskip("torch")

from models import BATCH, DATA_INSIDE  # noqa: E402
from whole import MODELS, check, job_of  # noqa: E402

from weft.errors import Unsupported  # noqa: E402
from weft.layout.check import explain  # noqa: E402
from weft.layout.spec import AXES, Layout  # noqa: E402
from weft.layout.trainable import check_runnable  # noqa: E402
from weft.runtime.layers import experts  # noqa: E402

FEW = [
    ("mixture", Layout(expert=4, z=2, data=2, x=2, micro_batch=2, sequence_parallel=True)),
    ("shared", Layout(expert=2, context=2, data=2, pipeline=2, micro_batch=4)),
    ("mixture", Layout(expert=8, z=4, data=2, micro_batch=1, recompute="full")),
]
"""Each other axis beside that of experts."""


@pytest.mark.parametrize(("model", "layout"), FEW, ids=["x, z, data", "context, data, pipeline", "z, data"])
def test_experts_on_ranks_give_the_serial_models_numbers(ranks, model, layout):
    check(ranks, layout, model)


def name_of(layout):
    sizes = (f"{axis}={getattr(layout, axis)}" for axis in (*AXES, "expert") if getattr(layout, axis) > 1)
    return " ".join(sizes)


def every():
    """All grids of eight ranks, with every number of ranks that experts can be dealt to."""
    for degrees in product((1, 2, 4, 8), repeat=len(AXES)):
        sizes = dict(zip(AXES, degrees, strict=True))
        if prod(degrees) != 8 or sizes["y"] > 1 or sizes["context"] > 4:
            continue
        for index, expert in enumerate((1, 2, 4, 8)):
            layout = Layout(
                **sizes,
                expert=expert,
                micro_batch=BATCH // (sizes["z"] * sizes["data"] * 2),
                sequence_parallel=sizes["x"] > 1,
                zero=index % 2,
                context_method="ulysses" if index > 1 else "ring",
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
def test_switches_change_no_number(ranks, switches):
    check(ranks, Layout(expert=4, x=2, z=2, data=2, micro_batch=2, sequence_parallel=True, **switches), "shared")


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(x=2, expert=2), "x > 1 and whole tokens .* add sp"),
        (Layout(y=2, expert=2), "y > 1 -- set y=1"),
        (Layout(data=2, expert_tensor=2), "expert_tensor = 2 -- set expert_tensor=1"),
    ],
)
def test_what_experts_cannot_have_is_refused(layout, words):
    with pytest.raises(Unsupported, match=words):
        check_runnable(MODELS["mixture"], layout)


def test_copies_without_values_are_dealt_evenly():
    assert experts._evenly(7, 4) == [2, 2, 2, 1]
