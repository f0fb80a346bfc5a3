"""Activations that one rank keeps for the backward pass, and what it needs beside them for a moment.

Activation sizes follow Korthikanti et al. (arXiv 2205.05198, section 4) term by term, so that an unfused GPT
block with dropout keeps s b h (34 + 5 a s / h) bytes, and a flash one drops the score terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.cluster.spec import Accelerator
from weft.layout.operations import Sizes, expert_rows, scan_share, split
from weft.layout.step import BLOCKWISE, Software
from weft.layout.table import Floats
from weft.model.job import Recipe
from weft.model.spec import Attention, Block, FeedForward, LatentAttention, Linear, MixtureOfExperts

SAVED_BYTES = {"fp8": 1.0, "fp8-rowwise": 1.0, "mxfp8": 1.0, "nvfp4": 1.0, "int8": 1.0}
"""Bytes kept per element of a linear layer's input where it is quantized (the wgrad copy is 8-bit)."""


EAGER_NORM_BYTES = 8.0
"""Bytes kept per element by a norm of separate kernels: its input, in 16 and in 32 bits, and its scaled result."""

WORKSPACE_BYTES, OLD_WORKSPACE_BYTES = 32 * 2.0**20, 8 * 2.0**20
"""cuBLAS's workspace of one thread from Hopper on, and before (PyTorch's ``CublasHandlePool.cpp``; Transformer
Engine's ``cpp_extensions/gemm.py``)."""


def workspace_bytes(chip: Accelerator) -> float:
    """cuBLAS's workspace of one thread; 0 where there is no cuBLAS."""
    if chip.vendor.lower() != "nvidia":
        return 0.0
    return WORKSPACE_BYTES if chip.fp8_flops else OLD_WORKSPACE_BYTES


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one block and micro-batch on one rank: all kept, after selective recomputation, and the
    input alone; and ``gradients``, the most that a block's backward pass needs beside them."""

    none: Floats
    selective: Floats
    full: Floats
    gradients: Floats

    def __add__(self, second: Activations) -> Activations:
        """Of one block behind another: what both keep, and the most that one of them allocates."""
        return Activations(
            none=self.none + second.none,
            selective=self.selective + second.selective,
            full=self.full + second.full,
            gradients=np.maximum(self.gradients, second.gradients),
        )


def block_activations(block: Block, recipe: Recipe, sizes: Sizes, software: Software = BLOCKWISE) -> Activations:
    """Activation bytes of one block for each recomputation."""
    hidden = sizes.own_tokens * block.hidden / sizes.y
    linear_bytes = SAVED_BYTES.get(recipe.precision, recipe.element_bytes) if software.quantized else None
    norm_inputs = (EAGER_NORM_BYTES if software.eager_norms else recipe.element_bytes) * block.norms * hidden
    masks = (float(block.branches) if recipe.dropout else 0.0) * hidden
    cheap, linear = _linear_inputs(block, sizes, linear_bytes or recipe.element_bytes, software)
    core = _score_bytes(block, recipe, sizes)
    stored = (
        norm_inputs
        + masks
        + linear
        + _attention_operands(block, recipe, sizes)
        + _second_outputs(block, recipe, sizes, software)
    )
    inputs, halves = _activation_inputs(block, recipe, sizes)
    stored = stored + inputs + _scan_operands(block, recipe, sizes)
    if software.eager_activations:
        stored = stored + halves
    full = recipe.element_bytes * hidden
    if software.by_product:
        selective = full + core + recipe.element_bytes * _kept_products(block, sizes)
    else:
        selective = stored + cheap + core - (core if recipe.attention == "unfused" else cheap)
        if software.eager_norms and recipe.attention == "flash":
            selective = selective - (EAGER_NORM_BYTES - recipe.element_bytes) * block.norms * hidden
        if software.repeats_latents and isinstance(block.attention, LatentAttention) and recipe.attention == "flash":
            selective = selective - _attention_operands(block, recipe, sizes)
    gradients = _gradient_bytes(block, recipe, sizes, software)
    return Activations(none=stored + cheap + core, selective=selective, full=full, gradients=gradients)


def _kept_products(block: Block, sizes: Sizes) -> Floats:
    """Elements of every second product, the first one included, except the last, which backward does not need,
    and of attention's output (torchtitan's ``selective_ac_option = op``)."""
    widths: list[Floats] = []
    for linear in block.linears():
        rows = _rows(linear, block, sizes)
        _, cut = split(linear, sizes)
        widths += [rows * width / cut for width in _products(linear, block)]
    outputs = sum(widths[:-1:2], np.zeros_like(sizes.x))
    if block.attention is None:
        return outputs
    return outputs + sizes.tokens * block.attention.heads / sizes.x * block.attention.v_dim


def _products(linear: Linear, block: Block) -> tuple[float, ...]:
    """Outputs of the products that a linear layer is where none are joined."""
    attention = block.attention
    if linear.name == "qkv" and attention is not None:
        key, value = attention.kv_heads * attention.qk_dim, attention.kv_heads * attention.v_dim
        return (linear.outputs - key - value, key, value)
    gated = linear.name.endswith("fc1") and _is_gated(linear, block)
    return (linear.outputs / 2.0,) * 2 if gated else (float(linear.outputs),)


def _is_gated(linear: Linear, block: Block) -> bool:
    layer = block.feed_forward
    if isinstance(layer, MixtureOfExperts):
        layer = layer.shared if linear.part == "shared_expert" else layer.expert
    return layer is not None and layer.gated


def _rows(linear: Linear, block: Block, sizes: Sizes) -> Floats:
    """Rows of a linear layer's product on a rank."""
    return expert_rows(block, sizes) if linear.part == "expert" else sizes.tokens


def _gradient_bytes(block: Block, recipe: Recipe, sizes: Sizes, software: Software) -> Floats:
    """The most that a block's backward pass allocates at once: at its activation function, whose inputs' gradients
    are as large as they are, or at the layer before it, which gathers its input again over sequence parallelism
    and makes its gradient, one of each product; or at attention, where context parallelism gathers all keys and
    values.  The gradient of what the block adds to is there all the time."""
    width = recipe.element_bytes
    stream = width * sizes.own_tokens * block.hidden / sizes.y
    gathered = width * sizes.tokens * block.hidden / sizes.y * (sizes.own_tokens < sizes.tokens)
    inputs = (1.0 if software.joined else 2.0) * gathered
    stays_gathered = 1.0 if software.keeps_gathered else 0.0
    widest = np.maximum(_activation_inputs(block, recipe, sizes)[0], (1.0 - stays_gathered) * gathered + inputs)
    if software.context_gather:
        widest = np.maximum(widest, _gathered_keys(block, recipe, sizes))
    return stream + widest


def _gathered_keys(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """Keys and values of the whole sequence, for each head of a query, as they arrive and in order, and the same of
    their gradients."""
    attention = block.attention
    if attention is None:
        return np.zeros_like(sizes.x)
    features = attention.heads / sizes.x * (attention.qk_dim + attention.v_dim)
    gathered_bytes = recipe.element_bytes * sizes.tokens * sizes.context * features
    return np.where(sizes.context > 1, 4.0 * gathered_bytes, 0.0)


def _linear_inputs(block: Block, sizes: Sizes, element_bytes: float, software: Software) -> tuple[Floats, Floats]:
    """Inputs that linear layers keep for their weight gradient: those that recomputing norms and the experts'
    activation makes again, and others.

    Layers that share an input (latent attention's down-projections, router and experts) keep it once.
    """
    cheap, kept = np.zeros_like(sizes.x), np.zeros_like(sizes.x)
    sources: set[str] = set()
    for linear in block.linears():
        source = _source(linear)
        inputs, _ = split(linear, sizes)
        saved = element_bytes * _saved_rows(linear, block, sizes, software) * linear.inputs / inputs
        if source in sources:
            # Where y cuts features, what is routed is no longer the norm's output, which shared experts keep.
            cheap = cheap + saved * (sizes.y > 1) * (linear.name == "shared_expert.fc1")
            continue
        sources.add(source)
        if source in ("norm1", "norm2", "expert.fc2"):
            cheap = cheap + saved
        else:
            kept = kept + saved
    return cheap, kept


def _source(linear: Linear) -> str:
    """The tensor that feeds a linear layer, by name."""
    if linear.name in ("q_down", "kv_down", "qkv", "q", "in_proj"):
        return "norm1"
    if linear.name in ("fc1", "router", "shared_expert.fc1", "latent_down"):
        return "norm2"
    return linear.name


def _saved_rows(linear: Linear, block: Block, sizes: Sizes, software: Software) -> Floats:
    if linear.part == "expert":
        return expert_rows(block, sizes)
    if linear.part == "router":
        return sizes.routed_tokens
    gathered = linear.kind == "normal" and software.keeps_gathered
    return sizes.tokens if linear.kind == "transposed" or gathered else sizes.own_tokens


def _attention_operands(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """Queries, keys and values of the core, and what gates its output; Ulysses and ring both keep the rank's own
    share."""
    attention = block.attention
    if attention is None:
        return np.zeros_like(sizes.x)
    kv_heads = np.maximum(attention.kv_heads / sizes.x, 1.0)
    queries = attention.heads / sizes.x * attention.qk_dim
    if isinstance(attention, Attention) and attention.gated:
        queries = queries + 2.0 * attention.heads / sizes.x * attention.v_dim
    operands: Floats = queries + kv_heads * (attention.qk_dim + attention.v_dim)
    return recipe.element_bytes * sizes.tokens * operands


def _second_outputs(block: Block, recipe: Recipe, sizes: Sizes, software: Software) -> Floats:
    """The core's output where context parallelism keeps it twice, for its own backward pass and as the projection's
    input: Ulysses before and after its exchange; Transformer Engine's ring converts it to 16 bits twice
    (``AttnFuncWithCPAndKVP2P``)."""
    if block.attention is None:
        return np.zeros_like(sizes.x)
    twice = (sizes.context > 1) & ((sizes.ulysses > 0) | software.ring_outputs)
    return recipe.element_bytes * twice * sizes.tokens * block.attention.heads / sizes.x * block.attention.v_dim


def _scan_operands(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """What a state space keeps: the output of its input projection, and of the recurrence before its gated norm.
    Backward makes the convolution's output, the states of chunks and their products again (Dao & Gu 2024, arXiv
    2405.21060, section 6)."""
    state = block.state_space
    if state is None:
        return np.zeros_like(sizes.x)
    heads, groups = scan_share(state, sizes)
    projected = heads * (2.0 * state.head_dim + state.scalars) + 2.0 * groups * state.state
    return recipe.element_bytes * sizes.tokens * (projected + heads * state.head_dim)


def _score_bytes(block: Block, recipe: Recipe, sizes: Sizes) -> Floats:
    """Softmax output, dropout mask and dropout output of unfused attention (5 a s / h); the log-sum-exp of
    a fused one."""
    if block.attention is None:
        return np.zeros_like(sizes.x)
    heads = block.attention.heads / sizes.x
    if recipe.attention == "flash":
        return 4.0 * sizes.tokens * heads
    per_score = 5.0 if recipe.dropout else 2.0
    return per_score * sizes.tokens * recipe.sequence * heads


def _activation_inputs(block: Block, recipe: Recipe, sizes: Sizes) -> tuple[Floats, Floats]:
    """Outputs of the first feed-forward layers, which the activation's backward needs; and outputs of gated layers'
    activation function, before they are multiplied by the other half."""
    layer = block.feed_forward
    parts: list[tuple[Floats, FeedForward, Floats]] = []
    if isinstance(layer, FeedForward):
        parts.append((sizes.tokens, layer, sizes.x))
    elif layer is not None:
        parts.append((expert_rows(block, sizes), layer.expert, sizes.expert_tensor))
        if layer.shared is not None:
            parts.append((sizes.tokens, layer.shared, sizes.x))
    inputs, halves = np.zeros_like(sizes.x), np.zeros_like(sizes.x)
    for rows, part, cut in parts:
        inputs = inputs + recipe.element_bytes * rows * part.intermediate * (2.0 if part.gated else 1.0) / cut
        halves = halves + recipe.element_bytes * rows * part.intermediate * float(part.gated) / cut
    return inputs, halves
