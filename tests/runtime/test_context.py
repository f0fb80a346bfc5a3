"""Context parallelism on eight ranks against one process, and what it communicates."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch
from models import BATCH, DATA_INSIDE
from ranks import grid_of
from torch.nn import functional
from whole import check, job_of

from weft.errors import BadInput
from weft.layout.check import check_trainable, explain
from weft.layout.spec import AXES, Layout
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.layers import attention
from weft.runtime.layers.attention import Core, own_tokens, ring_attention

FEW = [
    ("llama", Layout(context=2, z=2, x=2, micro_batch=4, sequence_parallel=True)),
    ("tied", Layout(context=2, pipeline=2, data=2, micro_batch=4, context_method="ulysses")),
    ("gpt", Layout(context=4, y=2, micro_batch=8, recompute="full")),
]
"""Each other axis beside context, both methods."""


@pytest.mark.parametrize(("model", "layout"), FEW, ids=["llama, ring", "tied, ulysses", "gpt, ring of 4"])
def test_a_cut_sequence_gives_the_serial_models_numbers(ranks, model, layout):
    check(ranks, layout, model)


def name_of(layout):
    grid = " ".join(f"{axis}={getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1)
    return f"{grid}, {layout.context_method}"


def every():
    """Grids of eight ranks that cut the sequence, each with both methods."""
    for degrees in product((1, 2, 4), repeat=len(AXES)):
        sizes = dict(zip(AXES, degrees, strict=True))
        if prod(degrees) != 8 or sizes["context"] == 1:
            continue
        for method in ("ring", "ulysses"):
            layout = Layout(
                **sizes,
                context_method=method,
                micro_batch=BATCH // (sizes["z"] * sizes["data"] * 4),
                sequence_parallel=sizes["x"] > 1 and sizes["y"] == 1,
                zero=int(method == "ring"),
            )
            if explain(job_of("llama"), 8, layout) is None:
                yield layout


EVERY = list(every())


@pytest.mark.slow
@pytest.mark.parametrize("layout", EVERY, ids=name_of)
def test_every_grid(ranks, layout):
    check(ranks, layout, "llama")


@pytest.mark.slow
@pytest.mark.parametrize(
    "switches", [{"order": DATA_INSIDE}, {"recompute": "full"}, {"recompute": "selective"}, {"zero": 0}], ids=str
)
@pytest.mark.parametrize("method", ["ring", "ulysses"])
def test_switches_change_no_number(ranks, method, switches):
    check(ranks, Layout(context=2, z=2, data=2, micro_batch=2, context_method=method, **switches), "tied")


# One block ----------------------------------------------------------------------------------------


def plain_attention(queries, keys, values, hidden):
    keys, values = (part.repeat_interleave(queries.shape[1] // keys.shape[1], 1) for part in (keys, values))
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=~hidden)


@pytest.mark.parametrize("kernel", ["host", "plain"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_blocks_gradients_are_autograds(monkeypatch, kernel, masked):
    """By the fused kernel and by plain products, with grouped heads."""
    monkeypatch.setattr(attention, "_kernel", lambda _: kernel)
    torch.manual_seed(0)
    queries = torch.randn(2, 4, 6, 8, dtype=torch.float64, requires_grad=True)
    both = torch.randn(2, 2, 2, 6, 8, dtype=torch.float64, requires_grad=True)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1) if masked else torch.zeros(6, 6, dtype=torch.bool)
    wanted = plain_attention(queries, *both, hidden)
    slope = torch.randn_like(wanted)
    wanted.backward(slope)
    with torch.no_grad():
        out, sums = attention._block(queries, both, masked)
        found = attention._block_backward(slope, queries, both, out, sums, masked)
    assert torch.allclose(out, wanted, atol=1e-13)
    assert torch.allclose(found[0], queries.grad, atol=1e-13)
    assert torch.allclose(found[1], both.grad, atol=1e-13)


def ring_error(layout):
    """How far gradients of queries, keys and values in bf16 are from those in fp64, of their root mean square."""
    machine = Machine.of(grid_of(layout), precision=Precision.of("bf16"))
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(1, heads, 128, 16, generator=generator).bfloat16() for heads in (4, 2, 2, 4)]
    plain = [part.double().requires_grad_() for part in parts[:3]]
    functional.scaled_dot_product_attention(*plain, is_causal=True, enable_gqa=True).backward(parts[3].double())
    tokens = own_tokens(machine.grid, 128)
    *given, slope = (part[:, :, tokens].requires_grad_() for part in parts)
    ring_attention(machine, Core(), *given).backward(slope)
    wanted = [part.grad[:, :, tokens] for part in plain]
    return [
        float(((part.grad - want).square().mean() / want.square().mean()).sqrt())
        for part, want in zip(given, wanted, strict=True)
    ]


def test_a_rings_error_in_bf16_does_not_grow_with_its_ranks(ranks):
    """Where sums of gradients travel in bf16, it is 1.3 times as much on eight ranks as on two."""
    two, eight = (torch.tensor(ranks.run(ring_error, Layout(context=size, data=8 // size))).mean(0) for size in (2, 8))
    assert (eight < 1.1 * two).all(), (two, eight)
    assert (two < 0.01).all()


def test_heads_that_ulysses_cannot_deal_are_refused():
    layout = Layout(context=4, x=4, context_method="ulysses", micro_batch=BATCH)
    with pytest.raises(BadInput, match="ulysses-heads"):
        check_trainable(job_of("llama"), layout)
