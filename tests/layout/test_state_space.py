"""State-space blocks on a grid: their work and activations over ranks, and the layouts that cut them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.calibration import calibration
from weft.cluster.catalogue import load as load_cluster
from weft.errors import Unsupported
from weft.estimation.costs import block_activations
from weft.estimation.iteration import estimate
from weft.layout.check import check_runnable, explain
from weft.layout.operations import Gemm, Pass, Scan, Sizes, block_operations, block_parameters
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.model import FeedForward, Job, MixtureOfExperts, Model, Recipe
from weft.model.catalogue import load as load_model
from weft.model.job import block_forward_flops
from weft.model.spec import Block, BlockRun, StateSpace

RECIPE = Recipe(global_batch=64, sequence=128)
MAMBA = StateSpace(heads=16, head_dim=8, groups=4, state=32, chunk=16, kernel=4, kernel_bias=True)
BLOCK = Block(hidden=64, attention=None, feed_forward=None, state_space=MAMBA, norms=1)
LATENT = Block(
    hidden=64,
    attention=None,
    feed_forward=MixtureOfExperts(experts=8, top_k=2, expert=FeedForward(intermediate=32, gated=False), latent=16),
    norms=1,
)
MODEL = Model(name="m", hidden=64, vocab=1024, runs=(BlockRun(block=BLOCK, count=4),))


def sizes(layout: Layout) -> Sizes:
    return Sizes.of(LayoutTable.of([layout]), RECIPE)


def flops(block: Block, layout: Layout) -> float:
    """Forward FLOPs of one rank and micro-batch."""
    total = 0.0
    for one in block_operations(block, RECIPE, sizes(layout)).computations:
        if one.phase == "forward" and isinstance(one, Gemm):
            total += float((2.0 * one.m * one.n * one.k * one.copies)[0])
        elif one.phase == "forward" and isinstance(one, Scan):
            total += float(one.flops[0])
    return total


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.booleans())
def test_flops_over_all_ranks_are_the_models(x: int, context: int, data: int, sharded: bool) -> None:
    layout = Layout(x=x, context=context, data=data, micro_batch=2, sequence_parallel=sharded and x > 1)
    ranks = x * context * data
    whole = ranks * RECIPE.global_batch / (2 * data) * flops(BLOCK, layout)
    assert whole == pytest.approx(block_forward_flops(BLOCK, RECIPE))


def test_activations_are_what_backward_needs() -> None:
    """Norm input and output, the projection's output, the recurrence's output and the projected one, 16 bits each."""
    kept = block_activations(BLOCK, RECIPE, sizes(Layout(micro_batch=2)))
    tokens, inner = 2 * 128, 16 * 8
    assert float(kept.none[0]) == 2.0 * tokens * (64 + 64 + MAMBA.projected + inner + inner)
    assert float(kept.selective[0]) == float(kept.none[0]) - 2.0 * tokens * 64
    assert float(kept.full[0]) == 2.0 * tokens * 64


def test_tensor_parallelism_cuts_heads_and_groups() -> None:
    whole, half = (block_activations(BLOCK, RECIPE, sizes(layout)) for layout in (Layout(), Layout(x=2, data=1)))
    replicated = 2.0 * 128 * (64 + 64)
    assert float(half.none[0]) - replicated == pytest.approx((float(whole.none[0]) - replicated) / 2)
    own = block_parameters(BLOCK, sizes(Layout(x=2, data=1))).dense[0]
    assert own == BLOCK.vector_parameters + (BLOCK.parameters - BLOCK.vector_parameters) / 2
    collectives = block_operations(BLOCK, RECIPE, sizes(Layout(x=2, data=1, sequence_parallel=True))).collectives
    names = {one.name for one in collectives if one.axes == ("x",) and np.any(one.elements > 0)}
    assert {"in_proj.input", "out_proj.output"} <= names


def test_context_parallelism_exchanges_heads_for_sequence() -> None:
    collectives = block_operations(BLOCK, RECIPE, sizes(Layout(context=2))).collectives
    (forward, backward) = [one for one in collectives if one.axes == ("context",)]
    assert forward.kind == backward.kind == "all-to-all"
    assert float(forward.elements[0]) == 64 * (MAMBA.projected + MAMBA.inner)


@pytest.mark.parametrize(
    ("layout", "code"),
    [
        (Layout(x=4, data=2, sequence_parallel=True), None),
        (Layout(x=8, data=1, sequence_parallel=True), "state-heads"),
        (Layout(x=4, context=2), None),
        (Layout(x=2, context=4), None),
        (Layout(x=4, context=8, data=1), "state-heads"),
    ],
)
def test_heads_and_groups_divide(layout: Layout, code: str | None) -> None:
    found = explain(Job(model=MODEL, recipe=RECIPE), layout.world, layout)
    assert (found and found.code) == code
    if found:
        assert "16 heads in 4 groups" in found.reason


def test_latent_experts_are_sent_projected_tokens() -> None:
    listed = block_operations(LATENT, RECIPE, sizes(Layout(data=2, expert=2)))
    sent = {float(one.elements[0]) for one in listed.collectives if one.axes == ("expert",)}
    assert sent == {128 * 2 * 16.0}
    permuted = [one.bytes[0] for one in listed.computations if isinstance(one, Pass) and one.name == "expert.permute"]
    assert permuted == [8.0 * 128 * 2 * 16] * 2
    names = [one.name for one in listed.computations if isinstance(one, Gemm) and one.phase == "forward"]
    assert names == ["router", "latent_down", "expert.fc1", "expert.fc2", "latent_up"]


def test_estimates_count_what_the_model_does() -> None:
    """Twice the sequence takes twice the time of state spaces, where attention takes more (and fixed parts less)."""
    model, cluster = load_model("nemotron-h-8b").model, load_cluster("h100-8")
    pure = Model(
        name="pure", hidden=4096, vocab=131072, runs=(BlockRun(block=model.kinds[0], count=24),), tied_embeddings=True
    )
    seconds = [
        estimate(
            Job(model=pure, recipe=Recipe(global_batch=64, sequence=length)),
            cluster,
            [Layout(x=8, data=1, sequence_parallel=True)],
            calibration("h100-80gb"),
        )[0].iteration_s
        for length in (16384, 32768)
    ]
    assert 1.9 < seconds[1] / seconds[0] <= 2.0


def test_the_runtime_refuses_what_it_does_not_train() -> None:
    with pytest.raises(Unsupported, match="state-space blocks"):
        check_runnable(MODEL, Layout())
    with pytest.raises(Unsupported, match="blocks of one part"):
        check_runnable(Model(name="m", hidden=64, vocab=64, runs=(BlockRun(block=LATENT, count=1),)), Layout())
