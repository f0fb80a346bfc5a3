"""What each part of a model (a kind of block, the embedding, the head) holds on one rank, over arrays of layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from weft.layout.operations import Sizes, local_parameters, split
from weft.layout.table import Floats, Ints
from weft.model.spec import Attention, Block, FeedForward, Model


@dataclass(frozen=True, slots=True)
class Parameters:
    """Elements on one rank while computing: replicated over data, or only over expert_data."""

    dense: Floats
    expert: Floats

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(self.dense + other.dense, self.expert + other.expert)


def part_parameters(model: Model, sizes: Sizes) -> tuple[Parameters, ...]:
    """Parameters of each kind of block, of the embedding and of the head.

    The head has its output projection (none of its own where tied), the final norm and the
    multi-token-prediction modules.
    """
    nothing, cut = np.zeros_like(sizes.x), sizes.x * sizes.y
    embedding = Parameters(model.embedding_parameters / cut, nothing)
    head = Parameters(model.head_parameters / cut, nothing)
    if model.prediction_layers:
        blocks, modules = model.prediction_module, model.prediction_copies
        own = model.prediction_parameters / modules - sum(block.parameters for block in blocks)
        held = sum((block_parameters(block, sizes) for block in blocks), Parameters(nothing, nothing))
        head += Parameters(modules * (held.dense + own), modules * held.expert)
    return (*(block_parameters(kind, sizes) for kind in model.kinds), embedding, head)


def block_parameters(block: Block, sizes: Sizes) -> Parameters:
    """Parameters of one block on one rank."""
    dense = np.full_like(sizes.x, float(block.vector_parameters))
    expert = np.zeros_like(sizes.x)
    for linear in block.linears():
        if linear.part == "expert":
            expert = expert + local_parameters(linear, sizes)
        else:
            dense = dense + local_parameters(linear, sizes)
    return Parameters(dense, expert)


def distinct_matrices(model: Model, sizes: Sizes) -> Floats:
    """Elements on one rank of one matrix of each shape that linear layers of the blocks have."""
    shapes = {
        (linear.inputs, linear.outputs, linear.kind, linear.part == "expert"): linear
        for kind in model.kinds
        for linear in kind.linears()
    }
    total = np.zeros_like(sizes.x)
    for linear in shapes.values():
        inputs, outputs = split(linear, sizes)
        total = total + linear.inputs * linear.outputs / (inputs * outputs)
    return total


def tied_parameters(model: Model, sizes: Sizes) -> Floats:
    """The copy of a tied embedding that a head on another stage holds."""
    return (model.vocab * model.hidden if model.tied_embeddings else 0) / (sizes.x * sizes.y)


@dataclass(frozen=True, slots=True)
class Matrices:
    """A part as ``weft.runtime`` holds it: its weight matrices by name, and elements of vectors of the hidden
    features (norms, positions, biases of outputs that y cuts), of outputs that x cuts, and of one head, whose
    vectors (norms of queries and keys) every rank has whole.

    ``experts`` are the matrices of the rank's experts, those of one layer together; ``routers`` every rank has whole.
    """

    weights: tuple[tuple[str, Floats], ...]
    features: Floats
    outputs: Floats
    heads: float = 0.0
    routers: float = 0.0
    experts: tuple[tuple[str, Floats], ...] = ()


def part_matrices(model: Model, sizes: Sizes, *, separate: bool = False) -> tuple[Matrices, ...]:
    """The matrices and vectors of each kind of block, of the embedding and of the head.

    A tied matrix is listed at both ends, each of which gathers it for itself.

    Args:
        separate: queries, keys and values have matrices of their own, and so have both inputs of a gated layer.
    """
    cut = np.where(sizes.z > 1, sizes.z * sizes.context, 1)
    x, y, shards = (degree.astype(np.int64) for degree in (sizes.x, sizes.y, cut))
    nothing, rows = np.zeros_like(sizes.x), padded_rows(model.vocab, model.hidden, x, y, shards).astype(np.float64)
    table = rows * model.hidden
    final = (model.norm_parameters if model.final_norm else 0) / sizes.y
    return (
        *(_block_matrices(kind, sizes, separate_outputs(kind) if separate else {}) for kind in model.kinds),
        Matrices((("embedding", table),), model.positions * model.hidden / sizes.y, nothing),
        Matrices((("logits", table),), final, rows * float(model.head_bias)),
    )


def separate_outputs(block: Block) -> dict[str, tuple[int, ...]]:
    """Outputs of the layers that a block's fused ones are in most plain models, by the name of the fused one."""
    found: dict[str, tuple[int, ...]] = {}
    if isinstance(block.attention, Attention):
        keys = block.attention.kv_heads * block.attention.head_dim
        queries = next(linear.outputs for linear in block.linears() if linear.name == "qkv") - 2 * keys
        found["qkv"] = queries, keys, keys
    if isinstance(block.feed_forward, FeedForward) and block.feed_forward.gated:
        found["fc1"] = (block.feed_forward.intermediate,) * 2
    return found


def _block_matrices(block: Block, sizes: Sizes, separate: Mapping[str, tuple[int, ...]]) -> Matrices:
    weights: list[tuple[str, Floats]] = []
    experts: list[tuple[str, Floats]] = []
    attention = block.attention
    heads = attention.norm_parameters(bias=block.norm_bias) if isinstance(attention, Attention) else 0
    features = (block.vector_parameters - heads) / sizes.y + _biases(block, "transposed", sizes)
    routers = sum(float(linear.inputs * linear.outputs) for linear in block.linears() if linear.part == "router")
    for linear in block.linears():
        if linear.part == "router":
            continue
        whole = local_parameters(replace(linear, bias=False), sizes)
        for outputs in separate.get(linear.name, (linear.outputs,)):
            own = linear.name, whole * outputs / linear.outputs
            (experts if linear.part == "expert" else weights).append(own)
    return Matrices(tuple(weights), features, _biases(block, "normal", sizes), float(heads), routers, tuple(experts))


def _biases(block: Block, kind: str, sizes: Sizes) -> Floats:
    """Elements on one rank of the biases of a block's linear layers of a kind."""
    found: Iterator[Floats] = (
        linear.outputs / split(linear, sizes)[1] * np.ones_like(sizes.x)
        for linear in block.linears()
        if linear.bias and linear.kind == kind
    )
    return sum(found, np.zeros_like(sizes.x))


N = TypeVar("N", int, Ints)


def padded_rows(vocab: int, hidden: int, x: N, y: N, shards: N) -> N:
    """Rows of the embedding on one rank: the vocabulary over x and y, rounded up until the rank's block
    divides into its shards at rest."""
    step = shards // np.gcd(hidden, shards)
    rows: N = -(-vocab // (x * y * step)) * step
    return rows
