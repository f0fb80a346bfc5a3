"""The list of operations: FLOPs against the model's, collectives against AxoNN's table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.layout.operations import (
    Collective,
    FlashAttention,
    Gemm,
    Operations,
    Pass,
    Sizes,
    block_operations,
    head_operations,
    local_parameters,
)
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.model import Attention, Block, BlockRun, FeedForward, LatentAttention, MixtureOfExperts, Model, Recipe
from weft.model.job import attention_forward_flops, block_forward_flops

RECIPE = Recipe(global_batch=64, sequence=128, attention="unfused", dropout=True)
FLASH = replace(RECIPE, attention="flash")

GPT = Block(
    hidden=64,
    attention=Attention(heads=8, kv_heads=8, head_dim=8),
    feed_forward=FeedForward(intermediate=256, gated=False),
)
GQA = Block(
    hidden=64,
    attention=Attention(heads=8, kv_heads=4, head_dim=16, window=48),
    feed_forward=FeedForward(intermediate=192),
)
MOE = Block(
    hidden=64,
    attention=Attention(heads=8, kv_heads=8, head_dim=8),
    feed_forward=MixtureOfExperts(
        experts=8, top_k=2, expert=FeedForward(intermediate=32), shared=FeedForward(intermediate=64)
    ),
)
MLA = Block(
    hidden=64,
    attention=LatentAttention(heads=8, q_rank=32, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=8),
    feed_forward=FeedForward(intermediate=128),
)

SMALL = Model(name="m", hidden=64, vocab=1024, runs=(BlockRun(block=GPT, count=2),))


def sizes(layout: Layout, recipe: Recipe = RECIPE) -> Sizes:
    return Sizes.of(LayoutTable.of([layout]), recipe)


def operations(block: Block, layout: Layout, recipe: Recipe = RECIPE) -> Operations:
    return block_operations(block, recipe, sizes(layout, recipe))


def flops(listed: Operations, phase: str, *, scores: bool | None = None) -> float:
    """FLOPs of one phase on one rank; ``scores`` picks the attention core or leaves it out."""
    total = 0.0
    for one in listed.computations:
        if one.phase != phase or (scores is not None and _is_core(one) != scores):
            continue
        if isinstance(one, Gemm):
            total += float((2.0 * one.m * one.n * one.k * one.copies)[0])
        elif isinstance(one, FlashAttention):
            total += float(one.flops[0])
    return total


def _is_core(one: object) -> bool:
    return isinstance(one, FlashAttention) or (isinstance(one, Gemm) and one.role == "core")


@st.composite
def layouts(draw: st.DrawFn, *, y: bool = True, sharded: bool | None = None) -> Layout:
    x = draw(st.sampled_from([1, 2, 4]))
    chosen = {axis: draw(st.sampled_from([1, 2, 4])) for axis in ("y", "z", "data", "context")}
    if not y:
        chosen["y"] = 1
    wanted = draw(st.booleans()) if sharded is None else sharded
    return Layout(
        x=x,
        **chosen,
        micro_batch=draw(st.sampled_from([1, 2, 4])),
        sequence_parallel=wanted and x > 1 and chosen["y"] == 1,
    )


def runs(layout: Layout, recipe: Recipe = RECIPE) -> float:
    """Rank-micro-batches of an iteration."""
    return layout.stage_ranks * recipe.global_batch / (layout.micro_batch * layout.dp)


@given(st.sampled_from([GPT, GQA]), layouts())
def test_dense_flops_over_all_ranks_are_the_models(block: Block, layout: Layout) -> None:
    """Linear layers are split without waste; the y ranks repeat the attention core (axonn, section 1.3)."""
    whole = replace(block, attention=replace(block.attention, window=None))
    listed = operations(whole, layout)
    core = attention_forward_flops(whole, RECIPE)
    linear = block_forward_flops(whole, RECIPE) - core
    assert runs(layout) * flops(listed, "forward", scores=False) == pytest.approx(linear)
    assert runs(layout) * flops(listed, "forward", scores=True) == pytest.approx(core * layout.y)
    backward = flops(listed, "input-gradient") + flops(listed, "weight-gradient")
    assert backward == pytest.approx(2 * flops(listed, "forward"))


@given(st.sampled_from([GPT, GQA, MLA]), layouts(y=False, sharded=True))
def test_flash_attention_counts_what_the_mask_leaves(block: Block, layout: Layout) -> None:
    listed = operations(block, layout, FLASH)
    expected = attention_forward_flops(block, FLASH, causal=True)
    assert runs(layout) * flops(listed, "forward", scores=True) == pytest.approx(expected)
    assert flops(listed, "input-gradient", scores=True) == pytest.approx(2.5 * flops(listed, "forward", scores=True))


@given(layouts(y=False, sharded=True), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]))
def test_expert_flops_are_those_of_the_active_experts(layout: Layout, expert: int, tensor: int) -> None:
    cut = replace(layout, expert=expert, expert_tensor=min(tensor, layout.x))
    listed = operations(MOE, cut, FLASH)
    expected = block_forward_flops(MOE, FLASH) - attention_forward_flops(MOE, FLASH)
    for phase in ("forward", "input-gradient", "weight-gradient"):
        assert runs(cut) * flops(listed, phase, scores=False) == pytest.approx(expected)


@pytest.mark.parametrize("sharded", [False, True])
def test_latent_attention_repeats_its_down_projections_without_sequence_parallelism(sharded: bool) -> None:
    layout = Layout(x=4, data=2, sequence_parallel=sharded)
    listed = operations(MLA, layout, FLASH)
    down = 2.0 * FLASH.tokens * MLA.hidden * (32 + 16 + 4)
    linear = block_forward_flops(MLA, FLASH) - attention_forward_flops(MLA, FLASH)
    expected = linear + (0 if sharded else (layout.x - 1) * down)
    assert runs(layout) * flops(listed, "forward", scores=False) == pytest.approx(expected)


def test_head_flops() -> None:
    for layout in (Layout(), Layout(x=4, z=2), Layout(x=2, y=2, context=2)):
        listed = head_operations(SMALL, RECIPE, sizes(layout))
        expected = 2.0 * RECIPE.tokens * 64 * 1024
        for phase in ("forward", "input-gradient", "weight-gradient"):
            assert runs(layout) * flops(listed, phase) == pytest.approx(expected)


# Collectives of the 3D multiplication -----------------------------------------------------------

Key = tuple[str, tuple[str, ...], str, float]


def active(collectives: tuple[Collective, ...], layout: Layout) -> Counter[Key]:
    """The collectives that move something, as a multiset of (kind, axes, phase, elements).

    Those of the norms, which AxoNN's code leaves out, are apart.
    """
    found: Counter[Key] = Counter()
    for one in collectives:
        size = np.prod([getattr(layout, axis) for axis in one.axes])
        if size > 1 and one.elements[0] > 0 and not one.name.endswith("statistics"):
            found[one.kind, one.axes, one.phase, float(one.elements[0])] += 1
    return found


def test_the_final_norm_works_on_the_features_of_a_rank() -> None:
    """4 bytes forward and 8 backward per feature, a quarter of the features; nothing without the norm."""
    layout = Layout(y=4)
    passes = {
        (one.phase, float(one.bytes[0]))
        for one in head_operations(SMALL, RECIPE, sizes(layout)).computations
        if isinstance(one, Pass) and one.name == "final-norm"
    }
    features = RECIPE.sequence * SMALL.hidden / 4
    assert passes == {("forward", 4 * features), ("input-gradient", 8 * features)}
    without = head_operations(replace(SMALL, final_norm=False), RECIPE, sizes(layout))
    assert not any(one.name.endswith("statistics") for one in without.collectives)
    assert not any(one.name == "final-norm" for one in without.computations if isinstance(one, Pass))


def test_worked_80b_sizes() -> None:
    """Section 1.6 of axonn.md: (x, y, z, data) = (4, 1, 256, 1), 2048 sequences of 2048 tokens."""
    hidden = 12288
    block = Block(
        hidden=hidden,
        attention=Attention(heads=96, kv_heads=96, head_dim=128),
        feed_forward=FeedForward(intermediate=4 * hidden, gated=False),
    )
    layout = Layout(x=4, z=256, micro_batch=8)
    cut = sizes(layout, Recipe(global_batch=2048, sequence=2048))
    gathered = {linear.name: local_parameters(linear, cut)[0] for linear in block.linears()}
    assert {name: elements * 2 for name, elements in gathered.items()} == {
        "qkv": 226_492_416,
        "proj": 75_497_472,
        "fc1": 301_989_888,
        "fc2": 301_989_888,
    }
    assert gathered["qkv"] / 256 == 442_368
    listed = block_operations(block, Recipe(global_batch=2048, sequence=2048), cut)
    reduced = [one for one in listed.collectives if one.axes == ("x",) and one.elements[0] > 0]
    assert [(one.kind, one.phase, one.bytes[0]) for one in reduced] == [
        ("all-reduce", "input-gradient", 402_653_184),
        ("all-reduce", "forward", 402_653_184),
        ("all-reduce", "input-gradient", 402_653_184),
        ("all-reduce", "forward", 402_653_184),
    ]


def moved(found: Counter[Key], size: int) -> float:
    """Bytes-like ring volume per rank: 2 (g-1)/g of an all-reduce, (g-1)/g of a gather or scatter."""
    return sum(
        (2 if key[0] == "all-reduce" else 1) * (size - 1) / size * key[-1] * times for key, times in found.items()
    )


@pytest.mark.parametrize("block", [GPT, GQA, MLA, replace(GPT, parallel=True)])
def test_sequence_parallelism_moves_the_same_bytes_and_gathers_inputs_again(block: Block) -> None:
    plain, sharded = Layout(x=4), Layout(x=4, sequence_parallel=True)
    whole = active(operations(block, plain).collectives, plain)
    cut = active(operations(block, sharded).collectives, sharded)
    again = Counter({key: times for key, times in cut.items() if key[2] == "weight-gradient"})
    forward = Counter({key: times for key, times in whole.items() if key[2] == "forward"})
    forward_cut = Counter({key: times for key, times in cut.items() if key[2] == "forward"})
    assert {key[0] for key in cut} == {"all-gather", "reduce-scatter"}
    assert moved(cut, 4) - moved(again, 4) == pytest.approx(moved(whole, 4))
    if block.attention.kv_heads and not isinstance(block.attention, LatentAttention):
        assert moved(forward_cut, 4) == pytest.approx(moved(forward, 4))


def test_parallel_blocks_share_one_reduction_each_way() -> None:
    layout = Layout(x=4)
    found = active(operations(replace(GPT, parallel=True), layout).collectives, layout)
    assert Counter(key[2] for key in found.elements()) == {"forward": 1, "input-gradient": 1}


def test_experts_exchange_tokens_over_their_ranks() -> None:
    """Each rank sends top_k copies of its tokens, out and back, forward and backward."""
    layout = Layout(x=2, data=8, expert=8, sequence_parallel=True)
    found = operations(MOE, layout).collectives
    exchanged = [one for one in found if one.kind == "all-to-all" and one.axes == ("expert",)]
    assert Counter(one.phase for one in exchanged) == {"forward": 2, "input-gradient": 2}
    assert {float(one.elements[0]) for one in exchanged} == {2 * 64 * RECIPE.sequence / 2}


def test_expert_tensor_parallelism_gathers_what_its_ranks_received() -> None:
    layout = Layout(x=2, data=8, expert=4, expert_tensor=2, sequence_parallel=True)
    over = [one for one in operations(MOE, layout).collectives if one.axes == ("expert_tensor",)]
    assert Counter((one.kind, one.phase) for one in over) == {
        ("all-gather", "forward"): 1,
        ("reduce-scatter", "forward"): 1,
        ("all-gather", "input-gradient"): 1,
        ("reduce-scatter", "input-gradient"): 1,
    }
    assert {float(one.elements[0]) for one in over} == {2 * 64 * RECIPE.sequence}


@pytest.mark.parametrize("block", [GPT, GQA])
def test_ring_attention_moves_keys_and_values_ulysses_moves_heads(block: Block) -> None:
    attention = block.attention
    assert isinstance(attention, Attention)
    ring, ulysses = Layout(context=4), Layout(context=4, context_method="ulysses")
    tokens = RECIPE.sequence / 4
    keys_values = tokens * 2 * attention.kv_heads * attention.head_dim
    found = active(operations(block, ring).collectives, ring)
    assert found == {
        ("exchange", ("context",), "forward", keys_values): 1,
        ("exchange", ("context",), "input-gradient", keys_values): 2,
    }
    queries, both = (tokens * heads * attention.head_dim for heads in (attention.heads, 2 * attention.kv_heads))
    found = active(operations(block, ulysses).collectives, ulysses)
    assert found == {
        ("all-to-all", ("context",), phase, elements): 1
        for phase in ("forward", "input-gradient")
        for elements in (queries + both, queries)
    }
