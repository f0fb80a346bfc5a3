"""Computations and activations' collectives of an iteration, on one rank, over arrays of layouts.

``block_operations`` lists a micro-batch of a block, ``part_operations`` those of all parts of a model (each kind of
block, the embedding, the head with its prediction modules), ``part_parameters`` and ``part_matrices`` what a rank
holds of them, and ``weft.layout.step`` adds what keeps weights and gradients together.  Sizes follow Agarwal's 3D
matrix multiplication as AxoNN arranges it (arXiv 2305.13525), of which Megatron's tensor parallelism
(arXiv 2104.04473), its sequence parallelism (arXiv 2205.05198) and FSDP are special cases: y = z = 1, and
x = y = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar, cast

import numpy as np

from weft.layout.spec import ContextMethod
from weft.layout.table import Floats, Ints, LayoutTable
from weft.model.job import Recipe, score_pairs
from weft.model.spec import Attention, Block, FeedForward, LatentAttention, Linear, Model, StateSpace

Phase = Literal["forward", "input-gradient", "weight-gradient"]
Replay = Literal["core", "cheap", "full"]
CHEAP: Replay = "cheap"
FULL: Replay = "full"
CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "exchange", "send"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """``copies`` products of (m x k) by (k x n).  ``core`` marks the score products of unfused attention,
    which stay in 16 bits."""

    name: str
    phase: Phase
    m: Floats
    n: Floats
    k: Floats
    copies: Floats | float = 1.0
    role: Literal["linear", "core", "head"] = "linear"

    @property
    def routed(self) -> bool:
        """Whether these are products of experts, one a copy."""
        return self.name.startswith("expert.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """Sizes of one call of a fused attention kernel on a rank."""

    batch: Floats
    sequence: Floats
    heads: Floats
    kv_heads: Floats
    qk_dim: float
    v_dim: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashAttention:
    """A fused attention kernel: FLOPs of the unmasked part, bytes of its operands, and how often it is called
    (once per block of keys that a ring brings).

    ``pairs`` are the unmasked keys of a query on average, ``edges`` how many of their two ends a mask cuts;
    ``features`` is the mean width of queries, keys and values of a head.  ``shape`` is of one call, for kernels
    that were measured.
    """

    phase: Phase
    flops: Floats
    bytes: Floats
    calls: Floats
    pairs: float
    edges: int
    features: float
    shape: AttentionShape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The kernels of a chunked recurrence (``StateSpace``): FLOPs of their matrix products, bytes that they move to
    and from memory, and their number."""

    phase: Phase
    flops: Floats
    bytes: Floats
    calls: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A memory-bound kernel that moves ``bytes`` to or from memory.

    ``replay`` says which recomputation runs it again: ``core`` belongs to the attention core, ``cheap`` is a
    norm or the experts' activation function, ``full`` only the recomputation of a whole block.
    """

    name: str
    phase: Phase
    bytes: Floats
    replay: Replay = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a group over ``axes``.

    ``elements`` is the full buffer: reduced (all-reduce), gathered (all-gather), before scattering
    (reduce-scatter), sent by one rank to all (all-to-all), passed on per step (exchange) or sent (send).
    ``behind`` names the GEMM of the same block that overlap can hide it behind.  An all-to-all of
    routed tokens holds ``copies`` of each element.
    """

    name: str
    kind: CollectiveKind
    axes: tuple[str, ...]
    phase: Phase
    elements: Floats
    element_bytes: float = 2.0
    behind: str | None = None
    copies: float = 0.0

    @property
    def bytes(self) -> Floats:
        return self.elements * self.element_bytes


Computation = Gemm | FlashAttention | Scan | Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Computations and collectives in order of use."""

    computations: tuple[Computation, ...]
    collectives: tuple[Collective, ...]

    def in_width(self, recipe: Recipe) -> Operations:
        """The same in the recipe's element width; sizes are written for 16-bit elements."""
        scale = recipe.element_bytes / 2.0
        if scale == 1.0:
            return self
        computations = tuple(
            computation if isinstance(computation, Gemm) else replace(computation, bytes=scale * computation.bytes)
            for computation in self.computations
        )
        collectives = tuple(
            replace(collective, element_bytes=recipe.element_bytes) if collective.element_bytes == 2.0 else collective
            for collective in self.collectives
        )
        return Operations(computations=computations, collectives=collectives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Degrees as floats, and the tokens of one micro-batch on one rank.

    ``tokens`` is after the split over context, ``own_tokens`` also after that of sequence parallelism.
    ``routed_tokens`` are those that a rank sends to experts, each with all its features: its own ones, or where y cuts
    features, a share over x and y.
    """

    x: Floats
    y: Floats
    z: Floats
    context: Floats
    expert: Floats
    expert_tensor: Floats
    micro_batch: Floats
    sequence_parallel: Floats
    ulysses: Floats
    tokens: Floats
    own_tokens: Floats
    routed_tokens: Floats
    sequence: float

    @classmethod
    def of(cls, table: LayoutTable, recipe: Recipe) -> Sizes:
        names = ("x", "y", "z", "context", "expert", "expert_tensor", "micro_batch", "sequence_parallel")
        columns = {name: table.column(name).astype(np.float64) for name in names}
        tokens = columns["micro_batch"] * recipe.sequence / columns["context"]
        shard = 1 + columns["sequence_parallel"] * (columns["x"] - 1)
        ulysses = (table.context_method == ContextMethod.ULYSSES.code).astype(np.float64)
        return cls(
            **columns,
            ulysses=ulysses,
            tokens=tokens,
            own_tokens=tokens / shard,
            routed_tokens=tokens / np.where(columns["y"] > 1, columns["x"] * columns["y"], shard),
            sequence=recipe.sequence,
        )


def block_operations(block: Block, recipe: Recipe, sizes: Sizes) -> Operations:
    """Forward and backward of one block on one micro-batch."""
    computations: list[Computation] = []
    collectives: list[Collective] = []
    for linear in block.linears():
        computations += linear_gemms(linear, sizes, block)
        collectives += _linear_collectives(linear, sizes, block)
    if block.attention is not None:
        computations += _attention_core(block.attention, recipe, sizes)
        collectives += _context_collectives(block.attention, sizes)
    if block.state_space is not None:
        computations += _scan(block.state_space, sizes)
        collectives += _scan_collectives(block.state_space, sizes)
    computations += _passes(block, recipe, sizes)
    for i in range(block.norms):
        collectives += norm_statistics(f"norm{i + 1}", block.norm_bias, sizes)
    if block.moe is not None:
        collectives += _expert_collectives(block, sizes)
    return Operations(computations=tuple(computations), collectives=tuple(collectives)).in_width(recipe)


# Linear layers ----------------------------------------------------------------------------------


def split(linear: Linear, sizes: Sizes) -> tuple[Floats | float, Floats | float]:
    """By how much a linear layer's inputs and outputs are divided on one rank."""
    if linear.part == "expert":
        cut = sizes.expert_tensor
        return (cut, 1.0) if linear.kind == "transposed" else (1.0, cut)
    if linear.part == "router":
        return 1.0, 1.0
    if linear.kind == "normal":
        return sizes.y, sizes.x
    if linear.kind == "transposed":
        return sizes.x, sizes.y
    return sizes.y, 1.0


def local_copies(linear: Linear, sizes: Sizes) -> Floats | float:
    """Copies of a linear layer on one rank."""
    return linear.copies / sizes.expert if linear.part == "expert" else 1.0


def local_parameters(linear: Linear, sizes: Sizes) -> Floats:
    """Elements of a linear layer's weights on one rank while computing (before any sharding at rest)."""
    inputs, outputs = split(linear, sizes)
    bias = linear.outputs / outputs if linear.bias else 0.0
    matrix = linear.inputs * linear.outputs / (inputs * outputs)
    return local_copies(linear, sizes) * (matrix + bias) * np.ones_like(sizes.x)


def _rows(linear: Linear, sizes: Sizes, block: Block) -> Floats:
    """Token rows that meet one copy of the layer on one rank."""
    if linear.part == "expert":
        return expert_rows(block, sizes) / local_copies(linear, sizes)
    if linear.part == "router":
        return sizes.routed_tokens
    if linear.kind == "replicated":
        return sizes.own_tokens
    return sizes.tokens


def expert_rows(block: Block, sizes: Sizes) -> Floats:
    """Token copies that the experts of one rank receive in a micro-batch, routing being balanced."""
    top_k = block.moe.top_k if block.moe else 0
    return sizes.routed_tokens * top_k * sizes.expert_tensor


def routed_features(block: Block) -> int:
    """Features of a token that is sent to experts."""
    return (block.moe and block.moe.latent) or block.hidden


def linear_gemms(linear: Linear, sizes: Sizes, block: Block) -> Iterator[Gemm]:
    inputs, outputs = split(linear, sizes)
    m, k, n = _rows(linear, sizes, block), linear.inputs / inputs, linear.outputs / outputs
    ones = np.ones_like(m)
    k, n, copies = k * ones, n * ones, local_copies(linear, sizes) * ones
    yield Gemm(name=linear.name, phase="forward", m=m, n=n, k=k, copies=copies)
    yield Gemm(name=linear.name, phase="input-gradient", m=m, n=k, k=n, copies=copies)
    yield Gemm(name=linear.name, phase="weight-gradient", m=n, n=k, k=m, copies=copies)


def _linear_collectives(linear: Linear, sizes: Sizes, block: Block) -> Iterator[Collective]:
    """Tensor-parallel collectives of one layer (steps 3 and 5 of AxoNN's algorithm; Megatron's f and g)."""
    if linear.part in ("expert", "router"):
        return
    output = partial(Collective, name=f"{linear.name}.output", kind="all-reduce", phase="forward")
    if linear.kind == "replicated":
        yield output(axes=("y",), elements=sizes.own_tokens * linear.outputs)
        return
    over_in, over_out = ("y", "x") if linear.kind == "normal" else ("x", "y")
    inputs, outputs = split(linear, sizes)
    merged = block.parallel and linear.name in ("qkv", "proj")
    if linear.kind == "normal":
        yield output(axes=(over_in,), elements=sizes.tokens * linear.outputs / outputs)
        if not merged:
            features = sizes.tokens * linear.inputs / inputs
            yield from enter_x(linear.name, features, sizes)
    else:
        if not merged:
            yield from _leave_x(linear.name, sizes.tokens * linear.outputs / outputs, sizes)
        yield Collective(
            name=f"{linear.name}.input-gradient",
            kind="all-reduce",
            axes=(over_out,),
            phase="input-gradient",
            elements=sizes.tokens * linear.inputs / inputs,
            behind=linear.name,
        )


AGAIN = ".input-again"
"""End of the name of the gather that repeats what sequence parallelism gathered before."""


def enter_x(name: str, elements: Floats, sizes: Sizes) -> Iterator[Collective]:
    """Input side of a normal layer: all-reduce backward, or with sequence parallelism all-gather forward,
    reduce-scatter and a second all-gather of the saved input backward (arXiv 2205.05198, section 4.2.2)."""
    sharded, replicated = elements * sizes.sequence_parallel, elements * (1 - sizes.sequence_parallel)
    over_x = partial(Collective, axes=("x",), behind=name)
    yield over_x(name=f"{name}.input", kind="all-gather", phase="forward", elements=sharded)
    yield over_x(name=f"{name}.input-gradient", kind="all-reduce", phase="input-gradient", elements=replicated)
    yield over_x(name=name + AGAIN, kind="all-gather", phase="weight-gradient", elements=sharded)
    yield over_x(name=f"{name}.input-gradient", kind="reduce-scatter", phase="input-gradient", elements=sharded)


def _leave_x(name: str, elements: Floats, sizes: Sizes) -> Iterator[Collective]:
    """Output side of a transposed layer: all-reduce forward, or reduce-scatter forward and all-gather backward."""
    sharded, replicated = elements * sizes.sequence_parallel, elements * (1 - sizes.sequence_parallel)
    over_x = partial(Collective, axes=("x",), behind=name)
    yield over_x(name=f"{name}.output", kind="all-reduce", phase="forward", elements=replicated)
    yield over_x(name=f"{name}.output", kind="reduce-scatter", phase="forward", elements=sharded)
    yield over_x(name=f"{name}.output-gradient", kind="all-gather", phase="input-gradient", elements=sharded)


def norm_statistics(norm: str, bias: bool, sizes: Sizes) -> Iterator[Collective]:
    """Sums per token where hidden features are split over y, in one exchange each way: two of a LayerNorm
    (with bias), of values and squares forward, of gradients and of their products with the output backward;
    the second alone of an RMSNorm (without).  The difference of a LayerNorm's sums forward needs fp64."""
    phases: tuple[Phase, ...] = ("forward", "input-gradient")
    for phase in phases:
        yield Collective(
            name=f"{norm}.statistics",
            kind="all-reduce",
            axes=("y",),
            phase=phase,
            elements=(2.0 if bias else 1.0) * sizes.own_tokens,
            element_bytes=8.0 if bias and phase == "forward" else 4.0,
        )


def whole_features(phase: Phase, hidden: int, sizes: Sizes) -> Collective:
    """The hidden state leaves (forward) or enters (backward) the block stack with all its features.

    With sequence parallelism what gathers the tokens gathers the features too.
    """
    elements = sizes.tokens * hidden * (1 - sizes.sequence_parallel)
    return Collective(name="stack", kind="all-gather", axes=("y",), phase=phase, elements=elements)


# Attention --------------------------------------------------------------------------------------


MERGE_BYTES = 24.0
"""Bytes moved per feature of a query to merge what one more step of ring attention gives, three times read and
written in 32 bits (``_merge`` of torch.distributed.tensor.experimental._attention): the output by the sums of
exponentials forward, the queries' gradient backward."""


def _attention_core(attention: Attention | LatentAttention, recipe: Recipe, sizes: Sizes) -> Iterator[Computation]:
    heads = attention.heads / sizes.x * np.ones_like(sizes.tokens)
    share = sizes.micro_batch / sizes.context * heads
    if recipe.attention == "unfused":
        yield from _unfused_core(attention, recipe, sizes, share)
        return
    pairs = score_pairs(attention, sizes.sequence)
    kv_heads = np.maximum(attention.kv_heads / sizes.x, 1.0)
    features = attention.qk_dim + attention.v_dim
    # A window's mask cuts off keys at both ends; a chunk starts with a tile.
    chunked = isinstance(attention, Attention) and attention.chunked
    slides = attention.window is not None and attention.window < sizes.sequence and not chunked
    # Ulysses' all-to-all leaves whole sequences and fewer heads, a ring blocks of them with all heads.
    spread_heads = np.where(sizes.ulysses > 0, sizes.context, 1.0)
    forward = FlashAttention(
        phase="forward",
        flops=2.0 * features * pairs * share,
        bytes=2.0 * sizes.tokens * (heads + kv_heads) * features,
        calls=np.where(sizes.ulysses > 0, 1.0, sizes.context),
        pairs=pairs / sizes.sequence,
        edges=2 if slides else 1,
        features=features / 2.0,
        shape=AttentionShape(
            batch=sizes.micro_batch,
            sequence=sizes.sequence * spread_heads / sizes.context,
            heads=heads / spread_heads,
            kv_heads=np.maximum(kv_heads / spread_heads, 1.0),
            qk_dim=float(attention.qk_dim),
            v_dim=float(attention.v_dim),
        ),
    )
    yield from _both_ways(forward)
    merged = MERGE_BYTES * (forward.calls - 1.0) * sizes.tokens * heads
    yield Pass(name="ring.merge", phase="forward", bytes=merged * attention.v_dim)
    yield Pass(name="ring.merge", phase="input-gradient", bytes=merged * attention.qk_dim)


def causal_attention(shape: AttentionShape) -> tuple[FlashAttention, FlashAttention]:
    """One call without a window, forward and backward; ``shape`` holds arrays of one item."""
    sequence = float(shape.sequence[0])
    pairs = sequence * (sequence + 1) / 2
    features = shape.qk_dim + shape.v_dim
    forward = FlashAttention(
        phase="forward",
        flops=2.0 * features * pairs * shape.batch * shape.heads,
        bytes=2.0 * shape.batch * shape.sequence * (shape.heads + shape.kv_heads) * features,
        calls=np.ones_like(shape.heads),
        pairs=pairs / sequence,
        edges=1,
        features=features / 2.0,
        shape=shape,
    )
    return _both_ways(forward)


def _both_ways(forward: FlashAttention) -> tuple[FlashAttention, FlashAttention]:
    """A fused attention and its backward pass, which computes the scores again."""
    return forward, replace(forward, phase="input-gradient", flops=2.5 * forward.flops, bytes=2.0 * forward.bytes)


def _unfused_core(
    attention: Attention | LatentAttention, recipe: Recipe, sizes: Sizes, share: Floats
) -> Iterator[Computation]:
    """Scores, softmax and context as separate kernels; ``share`` counts (sequence, head) pairs on the rank."""
    rows = np.full_like(share, sizes.sequence)
    qk, v = np.full_like(share, attention.qk_dim), np.full_like(share, attention.v_dim)
    square = share * sizes.sequence * sizes.sequence
    yield Gemm(name="scores", phase="forward", m=rows, n=rows, k=qk, copies=share, role="core")
    yield Gemm(name="context", phase="forward", m=rows, n=v, k=rows, copies=share, role="core")
    for name, k in (("scores", qk), ("context", v)):
        yield Gemm(name=name, phase="input-gradient", m=rows, n=k, k=rows, copies=share, role="core")
        yield Gemm(name=name, phase="weight-gradient", m=rows, n=rows, k=k, copies=share, role="core")
    yield Pass(name="softmax", phase="forward", bytes=4.0 * square, replay="core")
    yield Pass(name="softmax", phase="input-gradient", bytes=6.0 * square, replay="core")
    if recipe.dropout:
        yield Pass(name="attention-dropout", phase="forward", bytes=5.0 * square, replay="core")
        yield Pass(name="attention-dropout", phase="input-gradient", bytes=5.0 * square, replay="core")


def _context_collectives(attention: Attention | LatentAttention, sizes: Sizes) -> Iterator[Collective]:
    """Ring attention passes keys and values on, and backward their gradients too; Ulysses exchanges sequence for
    heads by all-to-all before, and heads for sequence behind."""
    kv_heads = np.maximum(attention.kv_heads / sizes.x, 1.0)
    per_head = attention.kv_elements / attention.kv_heads
    block = sizes.tokens * kv_heads * per_head * (1 - sizes.ulysses)
    yield Collective(name="keys-values", kind="exchange", axes=("context",), phase="forward", elements=block)
    for name in ("keys-values", "keys-values.gradient"):
        yield Collective(name=name, kind="exchange", axes=("context",), phase="input-gradient", elements=block)
    share = sizes.tokens * attention.heads / sizes.x * sizes.ulysses
    into = share * attention.qk_dim + sizes.tokens * kv_heads * per_head * sizes.ulysses
    phases: tuple[Phase, ...] = ("forward", "input-gradient")
    for phase in phases:
        for name, elements in (("heads-sequence", into), ("sequence-heads", share * attention.v_dim)):
            yield Collective(name=name, kind="all-to-all", axes=("context",), phase=phase, elements=elements)


# State spaces -----------------------------------------------------------------------------------


SCAN_CALLS = (5.0, 12.0)
"""Kernels of the recurrence forward and backward: sums of decays, products of keys and queries, states of chunks,
states passed on, outputs (Dao & Gu 2024, arXiv 2405.21060, section 6 and listing 1; backward makes states and
products again, and has a gradient of each)."""


def scan_share(state: StateSpace, sizes: Sizes) -> tuple[Floats, Floats]:
    """Heads and groups of the recurrence on one rank; a rank has one group at least."""
    return state.heads / sizes.x, np.maximum(state.groups / sizes.x, 1.0)


def _scan(state: StateSpace, sizes: Sizes) -> Iterator[Scan]:
    """The recurrence in chunks: values, keys, queries and gate in 16 bits; products of keys and queries, and states of
    chunks, written and read between kernels in 32 bits (states once more in 16).

    Backward makes states and products again, and moves operands and gradients.
    """
    heads, groups = scan_share(state, sizes)
    chunk = min(float(state.chunk), sizes.sequence)
    values, keys = heads * state.head_dim, groups * state.state
    states = heads * state.head_dim * state.state / chunk
    products = (groups if state.update == "sum" else heads) * chunk
    moved = 2.0 * (3.0 * values + 5.0 * keys) + 16.0 * states + 8.0 * products
    if state.update == "delta":
        # The inverse of a chunk's triangle, keys and values that it is applied to, values less the state's.
        moved = moved + 16.0 * products + 4.0 * (heads * state.state + 2.0 * values)
    tokens = sizes.tokens * np.ones_like(sizes.x)
    flops = tokens * state.token_flops(sizes.sequence, causal=False) / sizes.x
    forward, backward = SCAN_CALLS
    yield Scan(phase="forward", flops=flops, bytes=tokens * moved, calls=forward)
    yield Scan(phase="input-gradient", flops=2.5 * flops, bytes=3.0 * tokens * moved, calls=backward)


def _scan_passes(state: StateSpace, sizes: Sizes) -> Iterator[Pass]:
    """The convolution over what enters the recurrence, and the gated norm of its output."""
    heads, groups = scan_share(state, sizes)
    values = sizes.tokens * heads * state.head_dim
    mixed = values + 2.0 * sizes.tokens * groups * state.state
    if state.kernel:
        yield Pass(name="convolution", phase="forward", bytes=4.0 * mixed)
        yield Pass(name="convolution", phase="input-gradient", bytes=10.0 * mixed)
    yield Pass(name="gated-norm", phase="forward", bytes=6.0 * values)
    yield Pass(name="gated-norm", phase="input-gradient", bytes=10.0 * values)


def _scan_collectives(state: StateSpace, sizes: Sizes) -> Iterator[Collective]:
    """With context parallelism heads are exchanged for sequence, whatever attention does: all that is projected on
    the way in, the heads' output on the way out."""
    heads, groups = scan_share(state, sizes)
    projected = heads * (2.0 * state.head_dim + state.scalars) + 2.0 * groups * state.state
    every = sizes.tokens * (projected + heads * state.head_dim)
    phases: tuple[Phase, ...] = ("forward", "input-gradient")
    for phase in phases:
        yield Collective(
            name="state-heads-sequence", kind="all-to-all", axes=("context",), phase=phase, elements=every
        )


# Experts ----------------------------------------------------------------------------------------


def _expert_collectives(block: Block, sizes: Sizes) -> Iterator[Collective]:
    """Dispatch and combine: all-to-all over the experts, gather and scatter over the tensor cut of an
    expert.  Where y cuts features, tokens get all of theirs by all-to-all before, and give them back behind; each rank
    of x takes a share of the tokens, and gathers what comes of them."""
    top_k = block.moe.top_k if block.moe else 0
    sent = sizes.routed_tokens * top_k * routed_features(block)
    shared = sizes.tokens * block.hidden / sizes.y * (sizes.y > 1)
    phases: tuple[Phase, ...] = ("forward", "input-gradient")
    for phase in phases:
        for name in ("features-tokens", "tokens-features"):
            elements = sizes.routed_tokens * block.hidden
            yield Collective(name=name, kind="all-to-all", axes=("y",), phase=phase, elements=elements)
        yield Collective(name="routed-tokens", kind="all-gather", axes=("x",), phase=phase, elements=shared)
        for name in ("dispatch", "combine"):
            yield Collective(
                name=name, kind="all-to-all", axes=("expert",), phase=phase, elements=sent, copies=float(top_k)
            )
        gathered = sent * sizes.expert_tensor
        yield Collective(name="dispatch", kind="all-gather", axes=("expert_tensor",), phase=phase, elements=gathered)
        yield Collective(
            name="combine", kind="reduce-scatter", axes=("expert_tensor",), phase=phase, elements=gathered
        )


COUNT_BYTES = 8.0
"""Width of how many copies of tokens an expert is to get."""


def routing(block: Block, sizes: Sizes) -> Iterator[Collective]:
    """What ``weft.runtime`` tells beside tokens: copies for each expert, before they are sent, and what the ranks of
    its tensor cut get; and the choices of whole sequences, whose tokens are on several ranks, for the balance within a
    sequence."""
    if block.moe is None:
        return
    experts = block.moe.experts * np.ones_like(sizes.x)
    counts = partial(Collective, name="counts", phase="forward", element_bytes=COUNT_BYTES)
    yield counts(kind="all-to-all", axes=("expert",), elements=experts)
    yield counts(kind="all-gather", axes=("expert_tensor",), elements=experts * sizes.expert_tensor)
    yield Collective(
        name="choices",
        kind="all-reduce",
        axes=("x", "y", "context"),
        phase="forward",
        elements=sizes.micro_batch * sizes.sequence * block.moe.top_k,
        element_bytes=4.0,
    )


# Memory-bound kernels ---------------------------------------------------------------------------

BIAS_BYTES, BIAS_GRADIENT_BYTES = 28.0, 36.0
"""Bytes moved per output of an expert to add its bias, and for the gradients of bias and gate: Megatron-Core adds
gate x bias expert by expert in 32 bits, joins the pieces and rounds (``TEGroupedMLP._apply_bias``)."""


def _passes(block: Block, recipe: Recipe, sizes: Sizes) -> Iterator[Pass]:
    hidden = sizes.own_tokens * block.hidden / sizes.y
    mask = 1.0 if recipe.dropout else 0.0
    yield Pass(name="norms", phase="forward", bytes=4.0 * block.norms * hidden, replay="cheap")
    yield Pass(name="norms", phase="input-gradient", bytes=8.0 * block.norms * hidden)
    yield Pass(name="residuals", phase="forward", bytes=block.branches * (6.0 + mask) * hidden)
    yield Pass(name="residuals", phase="input-gradient", bytes=block.branches * (4.0 + mask) * hidden)
    attention = block.attention
    if attention is not None and attention.rotary:
        rotated = sizes.tokens * (attention.heads + attention.kv_heads) * attention.qk_dim / sizes.x
        yield Pass(name="rotary", phase="forward", bytes=4.0 * rotated)
        yield Pass(name="rotary", phase="input-gradient", bytes=4.0 * rotated)
    if isinstance(attention, Attention) and attention.gated:
        outputs = sizes.tokens * attention.heads * attention.v_dim / sizes.x
        yield Pass(name="output-gate", phase="forward", bytes=6.0 * outputs)
        yield Pass(name="output-gate", phase="input-gradient", bytes=10.0 * outputs)
    if block.state_space is not None:
        yield from _scan_passes(block.state_space, sizes)
    for linear, rows, layer in _activations(block, sizes):
        inputs, _ = split(linear, sizes)
        width = rows * layer.intermediate / inputs * local_copies(linear, sizes)
        up = 2.0 if layer.gated else 1.0
        routed = linear.part == "expert"
        name, replay = ("expert.activation", CHEAP) if routed else ("activation", FULL)
        yield Pass(name=name, phase="forward", bytes=(2.0 * up + 2.0) * width, replay=replay)
        yield Pass(name=name, phase="input-gradient", bytes=(4.0 * up + 2.0) * width)
        if routed and layer.bias:
            outputs = rows * linear.outputs * local_copies(linear, sizes)
            yield Pass(name="expert.bias", phase="forward", bytes=BIAS_BYTES * outputs)
            yield Pass(name="expert.bias", phase="input-gradient", bytes=BIAS_GRADIENT_BYTES * outputs)
    if block.moe is not None:
        moved = expert_rows(block, sizes) * routed_features(block)
        yield Pass(name="expert.permute", phase="forward", bytes=8.0 * moved)
        yield Pass(name="expert.permute", phase="input-gradient", bytes=8.0 * moved)


def _activations(block: Block, sizes: Sizes) -> Iterator[tuple[Linear, Floats, FeedForward]]:
    """The second layer of each feed-forward part, its rows, and the part."""
    for linear in block.linears():
        if not linear.name.endswith("fc2"):
            continue
        feed = block.feed_forward
        if feed is None or isinstance(feed, FeedForward):
            layer = cast(FeedForward, feed)
        elif linear.part == "expert" or feed.shared is None:
            layer = feed.expert
        else:
            layer = feed.shared
        yield linear, _rows(linear, sizes, block), layer


# Parts of a model ---------------------------------------------------------------------------------


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
    parts = (*blocks, head)
    computations = (*gemms, *(computation for part in parts for computation in part.computations))
    collectives = tuple(collective for part in parts for collective in part.collectives)
    repeats = model.prediction_layers
    return Operations(computations=computations * repeats, collectives=collectives * repeats)


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
