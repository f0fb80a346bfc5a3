"""What each part of a model (a kind of block, the embedding, the head, a prediction module) does with a micro-batch
and what it holds on one rank, over arrays of layouts; and what a stage passes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from weft.layout.operations import (
    Collective,
    CollectiveKind,
    Computation,
    Gemm,
    Operations,
    Pass,
    Phase,
    Sizes,
    block_operations,
    enter_x,
    linear_gemms,
    local_parameters,
    norm_statistics,
    split,
    whole_features,
)
from weft.layout.table import Floats, Ints
from weft.model.job import Recipe
from weft.model.spec import Attention, Block, FeedForward, Linear, Model


def part_operations(
    model: Model, recipe: Recipe, sizes: Sizes, *, whole_logits: bool = False
) -> tuple[Operations, ...]:
    """What each kind of block, the embedding, and the head with the prediction modules behind it do;
    ``whole_logits`` are gathered over x before the loss."""
    head = head_operations(model, recipe, sizes)
    if model.prediction_layers:
        more = prediction_operations(model, recipe, sizes)
        head = Operations(
            computations=head.computations + more.computations, collectives=head.collectives + more.collectives
        )
    if whole_logits:
        head = _with_whole_logits(head, model, recipe, sizes)
    blocks = (block_operations(kind, recipe, sizes) for kind in model.kinds)
    return (*blocks, embedding_operations(model, recipe, sizes), head)


def embedding_operations(model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """Token embedding, vocabulary-parallel over x and y."""
    rows = sizes.own_tokens * model.hidden / sizes.y
    passes: tuple[Computation, ...] = (
        Pass(name="embedding", phase="forward", bytes=4.0 * rows),
        Pass(name="embedding", phase="input-gradient", bytes=8.0 * rows),
    )
    elements = sizes.tokens * model.hidden
    sharded, replicated = elements * sizes.sequence_parallel, elements * (1 - sizes.sequence_parallel)
    wanted: tuple[tuple[CollectiveKind, Phase, Floats], ...] = (
        ("all-reduce", "forward", replicated),
        ("reduce-scatter", "forward", sharded),
        ("all-gather", "input-gradient", sharded),
    )
    collectives = tuple(
        Collective(name="embedding", kind=kind, axes=("x", "y"), phase=phase, elements=moved)
        for kind, phase, moved in wanted
    )
    entering = whole_features("input-gradient", model.hidden, sizes)
    return Operations(computations=passes, collectives=(*collectives, entering)).in_width(recipe)


def head_operations(model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """Final norm, output projection and cross-entropy, vocabulary-parallel over x and y."""
    ones = np.ones_like(sizes.tokens)
    n = model.vocab / (sizes.x * sizes.y) * ones
    k = float(model.hidden) * ones
    logits = sizes.tokens * n
    # The final norm works on the features that a rank holds, before they are gathered over y.
    slice_ = sizes.own_tokens * model.hidden / sizes.y
    norm_passes = (
        Pass(name="final-norm", phase="forward", bytes=4.0 * slice_),
        Pass(name="final-norm", phase="input-gradient", bytes=8.0 * slice_),
    )
    computations: tuple[Computation, ...] = (
        *(norm_passes if model.final_norm else ()),
        Gemm(name="logits", phase="forward", m=sizes.tokens, n=n, k=k, role="head"),
        Gemm(name="logits", phase="input-gradient", m=sizes.tokens, n=k, k=n, role="head"),
        Gemm(name="logits", phase="weight-gradient", m=n, n=k, k=sizes.tokens, role="head"),
        Pass(name="cross-entropy", phase="forward", bytes=14.0 * logits),
        Pass(name="cross-entropy", phase="input-gradient", bytes=8.0 * logits),
    )
    entering = [
        replace(collective, axes=("x", "y")) for collective in enter_x("logits", sizes.tokens * model.hidden, sizes)
    ]
    scalars = tuple(
        Collective(
            name=f"cross-entropy.{step}",
            kind="all-reduce",
            axes=("x", "y"),
            phase="forward",
            elements=sizes.tokens,
            element_bytes=4.0,
        )
        for step in ("max", "target", "sum")
    )
    norm = norm_statistics("final-norm", model.norm_bias, sizes) if model.final_norm else ()
    leaving = whole_features("forward", model.hidden, sizes)
    collectives = (*norm, leaving, *entering, *scalars)
    return Operations(computations=computations, collectives=collectives).in_width(recipe)


def _with_whole_logits(head: Operations, model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """The head, with prediction modules, whose loss every rank of x computes alike, on logits that it gathers."""
    computations = tuple(
        replace(computation, bytes=computation.bytes * sizes.x)
        if isinstance(computation, Pass) and computation.name == "cross-entropy"
        else computation
        for computation in head.computations
    )
    gathered = Collective(
        name="logits", kind="all-gather", axes=("x",), phase="forward", elements=sizes.tokens * model.vocab / sizes.y
    )
    more = Operations(computations=(), collectives=(gathered,)).in_width(recipe)
    result = tuple(
        replace(collective, axes=("y",)) if collective.name.startswith("cross-entropy.") else collective
        for collective in head.collectives
    )
    gathers = more.collectives * (1 + model.prediction_layers)
    return Operations(computations=computations, collectives=(*result, *gathers))


def prediction_operations(model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """The multi-token-prediction modules of the last stage: each its blocks, its 2h x h projection and the
    head (arXiv 2412.19437, section 2.2)."""
    blocks = [block_operations(block, recipe, sizes) for block in model.prediction_module]
    head = head_operations(model, recipe, sizes)
    projection = Linear(
        name="prediction", inputs=2 * model.hidden, outputs=model.hidden, kind="replicated", part="attention"
    )
    gemms = tuple(linear_gemms(projection, sizes, model.runs[-1].block))
    once = Operations(
        computations=(
            *gemms,
            *(computation for block in blocks for computation in block.computations),
            *head.computations,
        ),
        collectives=(*(collective for block in blocks for collective in block.collectives), *head.collectives),
    )
    repeats = model.prediction_layers
    return Operations(computations=once.computations * repeats, collectives=once.collectives * repeats)


def stage_boundary(model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """Activations (or their gradient) of one micro-batch to the next stage.

    The x ranks that hold the same activations each send their share and gather the rest on arrival (the
    scatter-gather optimization of arXiv 2104.04473, section 4.1); with sequence parallelism each sends what
    it owns.
    """
    elements = sizes.tokens * model.hidden / sizes.y
    send = Collective(
        name="stage-boundary", kind="send", axes=("pipeline",), phase="forward", elements=elements / sizes.x
    )
    gather = Collective(
        name="stage-boundary",
        kind="all-gather",
        axes=("x",),
        phase="forward",
        elements=elements * (1 - sizes.sequence_parallel),
    )
    return Operations(computations=(), collectives=(send, gather)).in_width(recipe)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Elements on one rank while computing: replicated over data, or only over expert_data."""

    dense: Floats
    expert: Floats

    def __add__(self, second: Parameters) -> Parameters:
        return Parameters(self.dense + second.dense, self.expert + second.expert)


def part_parameters(model: Model, sizes: Sizes) -> tuple[Parameters, ...]:
    """Parameters of each kind of block, of the embedding and of the head.

    The head has its output projection (no separate one where tied), the final norm and the
    multi-token-prediction modules.
    """
    nothing, cut = np.zeros_like(sizes.x), sizes.x * sizes.y
    embedding = Parameters(model.embedding_parameters / cut, nothing)
    head = Parameters(model.head_parameters / cut, nothing)
    if model.prediction_layers:
        blocks, modules = model.prediction_module, model.prediction_copies
        added = model.prediction_parameters / modules - sum(block.parameters for block in blocks)
        parameters = sum((block_parameters(block, sizes) for block in blocks), Parameters(nothing, nothing))
        head += Parameters(modules * (parameters.dense + added), modules * parameters.expert)
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
        separate: queries, keys and values have separate matrices, and so have both inputs of a gated layer.
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
    result: dict[str, tuple[int, ...]] = {}
    if isinstance(block.attention, Attention):
        keys = block.attention.kv_heads * block.attention.head_dim
        queries = next(linear.outputs for linear in block.linears() if linear.name == "qkv") - 2 * keys
        result["qkv"] = queries, keys, keys
    if isinstance(block.feed_forward, FeedForward) and block.feed_forward.gated:
        result["fc1"] = (block.feed_forward.intermediate,) * 2
    return result


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
        elements = local_parameters(replace(linear, bias=False), sizes)
        for outputs in separate.get(linear.name, (linear.outputs,)):
            matrix = linear.name, elements * outputs / linear.outputs
            (experts if linear.part == "expert" else weights).append(matrix)
    return Matrices(tuple(weights), features, _biases(block, "normal", sizes), float(heads), routers, tuple(experts))


def _biases(block: Block, kind: str, sizes: Sizes) -> Floats:
    """Elements on one rank of the biases of a block's linear layers of a kind."""
    result: Iterator[Floats] = (
        linear.outputs / split(linear, sizes)[1] * np.ones_like(sizes.x)
        for linear in block.linears()
        if linear.bias and linear.kind == kind
    )
    return sum(result, np.zeros_like(sizes.x))


N = TypeVar("N", int, Ints)


def padded_rows(vocab: int, hidden: int, x: N, y: N, shards: N) -> N:
    """Rows of the embedding on one rank: the vocabulary over x and y, rounded up until the rank's block
    divides into its shards at rest."""
    step = shards // np.gcd(hidden, shards)
    rows: N = -(-vocab // (x * y * step)) * step
    return rows
