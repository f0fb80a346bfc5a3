"""Model FLOPs against formulas of papers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.model import Attention, Block, BlockRun, FeedForward, Model, Recipe
from weft.model.catalogue import load
from weft.model.job import model_flops


def gpt(layers: int, hidden: int, heads: int, vocab: int) -> Model:
    block = Block(
        hidden=hidden,
        attention=Attention(
            heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, out_bias=True, rotary=False
        ),
        feed_forward=FeedForward(intermediate=4 * hidden, gated=False, bias=True),
        norm_bias=True,
    )
    return Model(name="gpt", hidden=hidden, vocab=vocab, runs=(BlockRun(block=block, count=layers),))


@given(st.integers(1, 128), st.integers(1, 64), st.integers(1, 300_000), st.integers(1, 9), st.integers(1, 8192))
def test_gpt_equals_narayanan_equation_3(layers: int, heads: int, vocab: int, batch: int, sequence: int) -> None:
    """72 B s l h^2 (1 + s / 6h + V / 12lh), arXiv 2104.04473 without recomputation."""
    hidden = 64 * heads
    recipe = Recipe(global_batch=batch, sequence=sequence)
    expected = (
        72 * batch * sequence * layers * hidden**2
        * (1 + sequence / (6 * hidden) + vocab / (12 * layers * hidden))
    )  # fmt: skip
    assert model_flops(gpt(layers, hidden, heads, vocab), recipe) == pytest.approx(expected, rel=1e-12)


def test_axonn_80b() -> None:
    """1.0561e19 with recomputation for 8192 sequences: 96 B s l h^2 (1 + s / 6h + V / 16lh)."""
    batch, sequence, hidden, layers = 8192, 2048, 12288, 42
    forward = model_flops(gpt(layers, hidden, 96, 51200), Recipe(global_batch=batch, sequence=sequence)) / 3
    head = 2 * batch * sequence * hidden * 51200
    assert 4 * (forward - head) + 3 * head == pytest.approx(1.0561e19, rel=1e-4)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b"])
def test_linear_part_is_six_per_active_parameter(name: str) -> None:
    """Without attention scores the FLOPs are 6 per token and active matrix weight."""
    model = load(name).model
    recipe = Recipe(global_batch=3, sequence=1)
    scores = sum(
        run.count * run.block.attention.heads * (run.block.attention.qk_dim + run.block.attention.v_dim)
        for run in model.runs
    )
    blocks = sum(run.count * (run.block.active_parameters - run.block.vector_parameters) for run in model.runs)
    biases = sum(
        run.count * linear.outputs * linear.active
        for run in model.runs
        for linear in run.block.linears()
        if linear.bias
    )
    weights = blocks - biases + model.hidden * model.vocab
    assert model_flops(model, recipe) == pytest.approx(6 * 3 * (weights + scores), rel=1e-12)


@given(st.integers(1, 400), st.one_of(st.none(), st.integers(1, 400)))
def test_causal_attention_counts_pairs(sequence: int, window: int | None) -> None:
    """The causal count equals the mask, pair by pair."""
    plain = gpt(1, 64, 1, 1)
    block = plain.runs[0].block
    assert isinstance(block.attention, Attention)
    windowed = replace(block, attention=replace(block.attention, window=window))
    model = replace(plain, runs=(BlockRun(block=windowed, count=1),))
    recipe = Recipe(global_batch=1, sequence=sequence)
    reach = window or sequence
    pairs = sum(min(query + 1, reach) for query in range(sequence))
    linear = 2 * sequence * (12 * 64 * 64 + 64)
    assert model_flops(model, recipe, causal=True) == pytest.approx(3 * (linear + 4 * 64 * pairs), rel=1e-9)


def test_prediction_modules_add_a_block_a_projection_and_a_head() -> None:
    model = load("deepseek-v3").model
    assert model.prediction_layers == 1
    recipe = Recipe(global_batch=1, sequence=4096)
    extra = model_flops(model, recipe) - model_flops(replace(model, prediction_layers=0), recipe)
    last = Model(name="last", hidden=model.hidden, vocab=model.vocab, runs=(replace(model.runs[-1], count=1),))
    projection = 6 * recipe.tokens * 2 * model.hidden**2
    assert extra == pytest.approx(model_flops(last, recipe) + projection, rel=1e-12)
