"""Activations that one rank keeps for the backward pass.

Activation sizes follow Korthikanti et al. (arXiv 2205.05198, section 4) term by term, so that an unfused GPT
block with dropout keeps s b h (34 + 5 a s / h) bytes, and a flash one drops the score terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.layout.operations import Sizes, expert_rows, split
from weft.layout.table import Floats
from weft.model.job import Recipe
from weft.model.spec import Block, FeedForward, Linear, Model

SAVED_BYTES = {"fp8": 1.0, "mxfp8": 1.0, "nvfp4": 1.0}
"""Bytes kept per element of a linear layer's input where it is quantized (the wgrad copy is 8-bit)."""


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one block and micro-batch on one rank: all kept, after selective recomputation, and the
    input alone."""

    none: Floats
    selective: Floats
    full: Floats


def block_activations(block: Block, recipe: Recipe, sizes: Sizes) -> Activations:
    """Activation bytes of one block for each recomputation."""
    hidden = sizes.own_tokens * block.hidden / sizes.y
    linear_bytes = SAVED_BYTES.get(recipe.precision, recipe.element_bytes)
    norm_inputs = recipe.element_bytes * block.norms * hidden
    masks = (2.0 if recipe.dropout else 0.0) * hidden
    cheap, kept = _linear_inputs(block, sizes, linear_bytes)
    core = _score_bytes(block, recipe, sizes)
    rest = norm_inputs + masks + kept + _attention_operands(block, recipe, sizes)
    rest = rest + _activation_inputs(block, recipe, sizes)
    dropped = core if recipe.attention == "unfused" else cheap
    return Activations(
        none=rest + cheap + core, selective=rest + cheap + core - dropped, full=recipe.element_bytes * hidden
    )


def logits_bytes(model: Model, recipe: Recipe, sizes: Sizes) -> Floats:
    """Logits of one micro-batch, in 16 bits and in the 32 bits of the loss, of the head and each prediction
    module."""
    heads = 1 + model.prediction_layers
    return heads * sizes.tokens * model.vocab / (sizes.x * sizes.y) * (recipe.element_bytes + 4.0)


def _linear_inputs(block: Block, sizes: Sizes, element_bytes: float) -> tuple[Floats, Floats]:
    """Inputs that linear layers keep for their weight gradient: those that recomputing norms and the experts'
    activation makes again, and others.

    Layers that share an input (latent attention's down-projections, router and experts) keep it once.
    """
    cheap, kept = np.zeros_like(sizes.x), np.zeros_like(sizes.x)
    sources: set[str] = set()
    for linear in block.linears():
        source = _source(linear)
        if source in sources:
            continue
        sources.add(source)
        inputs, _ = split(linear, sizes)
        saved = element_bytes * _saved_rows(linear, block, sizes) * linear.inputs / inputs
        if source in ("norm1", "norm2", "expert.fc2"):
            cheap = cheap + saved
        else:
            kept = kept + saved
    return cheap, kept


def _source(linear: Linear) -> str:
    """The tensor that feeds a linear layer, by name."""
    if linear.name in ("q_down", "kv_down", "qkv", "q"):
        return "norm1"
    if linear.name in ("fc1", "router", "shared_expert.fc1"):
        return "norm2"
    return linear.name


def _saved_rows(linear: Linear, block: Block, sizes: Sizes) -> Floats:
    if linear.part == "expert":
        return expert_rows(block, sizes)
    if linear.kind == "transposed":
        return sizes.tokens
    return sizes.own_tokens


def _attention_operands(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """Queries, keys and values of the core; Ulysses and ring both keep the rank's own share."""
    attention = block.attention
    kv_heads = np.maximum(attention.kv_heads / sizes.x, 1.0)
    queries = attention.heads / sizes.x * attention.qk_dim
    operands: Floats = queries + kv_heads * (attention.qk_dim + attention.v_dim)
    return recipe.element_bytes * sizes.tokens * operands


def _score_bytes(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """Softmax output, dropout mask and dropout output of unfused attention (5 a s / h); the log-sum-exp of
    a fused one."""
    heads = block.attention.heads / sizes.x
    if recipe.attention == "flash":
        return 4.0 * sizes.tokens * heads
    per_score = 5.0 if recipe.dropout else 2.0
    return per_score * sizes.tokens * recipe.sequence * heads


def _activation_inputs(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """Outputs of the first feed-forward layers, which the activation's backward needs."""
    total = np.zeros_like(sizes.x)
    for rows, layer, cut in _feed_forwards(block, sizes):
        total = total + recipe.element_bytes * rows * layer.intermediate * (2.0 if layer.gated else 1.0) / cut
    return total


def _feed_forwards(block: Block, sizes: Sizes) -> Iterator[tuple[Floats, FeedForward, Floats]]:
    """Rows on the rank, layer and cut of each feed-forward part."""
    layer = block.feed_forward
    if isinstance(layer, FeedForward):
        yield sizes.tokens, layer, sizes.x
        return
    yield expert_rows(block, sizes), layer.expert, sizes.expert_tensor
    if layer.shared is not None:
        yield sizes.tokens, layer.shared, sizes.x
