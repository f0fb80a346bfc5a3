"""What is trained: a transformer, or a hybrid with state-space blocks, as runs of identical blocks.

A block is a list of (fused) linear layers, an attention or state-space core, a feed-forward part and norms.
Parameter counts, FLOPs, tensor sizes and collectives are all derived from ``Block.linears()``, so they cannot
disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from weft.codec import Count, Document, Name, OneOf, Range

Number = Annotated[int, Range(0, 10**9)]
Few = Annotated[int, Range(0, 100)]
MOST_LAYERS = 10_000
Layers = Annotated[int, Range(1, MOST_LAYERS)]
LinearKind = Literal["normal", "transposed", "replicated"]
"""How tensor parallelism cuts a linear layer: ``normal`` = output features over x (Megatron's column-parallel),
``transposed`` = input features over x (row-parallel), ``replicated`` = not cut by x."""

LinearPart = Literal["attention", "state_space", "feed_forward", "expert", "shared_expert", "router"]

StateUpdate = Literal["sum", "delta"]
"""How a state takes in a token: its decayed ``sum`` with the token's outer product (Mamba-2, lightning attention),
or the ``delta`` rule, which first takes out what the state holds for the token's key (gated DeltaNet)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One (fused) linear layer of a block.

    ``copies`` counts identical layers of which a token uses ``active`` (experts); both are 1 for dense
    layers.
    """

    name: str
    inputs: int
    outputs: int
    kind: LinearKind
    part: LinearPart
    bias: bool = False
    copies: int = 1
    active: int = 1

    @property
    def parameters(self) -> int:
        return self.copies * self.weights_per_copy

    @property
    def weights_per_copy(self) -> int:
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Document):
    """Multi-head, grouped-query or multi-query attention.

    ``window`` is the number of keys a query sees (None: the whole causal prefix); where ``chunked``, keys are those
    of the query's own chunk of so many tokens (Llama 4).  ``gated``: each head's output is gated by a separate
    projection of the input (Qwen3-Next).  ``head_norms``: a norm of each query head and one of each key head, of
    the block's kind (Qwen3).  ``sinks``: a learned logit per head that takes part in its softmax (GPT-OSS).
    ``extra_parameters`` counts other learned vectors of one layer that are in no linear layer (norms over all heads,
    learned relative biases).
    """

    KIND = "heads"
    heads: Count
    kv_heads: Count
    head_dim: Count
    window: Count | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    head_norms: bool = False
    sinks: bool = False
    extra_parameters: Number = 0
    rotary: bool = True
    chunked: bool = False
    gated: bool = False

    @property
    def qk_dim(self) -> int:
        """Features per head of queries and keys."""
        return self.head_dim

    @property
    def v_dim(self) -> int:
        """Features per head of values."""
        return self.head_dim

    @property
    def kv_elements(self) -> int:
        """Elements of keys and values per token that context parallelism exchanges."""
        return self.kv_heads * 2 * self.head_dim

    def norm_parameters(self, *, bias: bool) -> int:
        """Parameters of the norms of query and key heads, with a ``bias`` beside the gain or without."""
        return 2 * self.head_dim * (1 + bias) if self.head_norms else 0

    def vector_parameters(self, *, bias: bool) -> int:
        """What is in no linear layer; ``bias`` as of ``norm_parameters``."""
        return self.norm_parameters(bias=bias) + self.heads * self.sinks + self.extra_parameters

    def linears(self, hidden: int) -> Iterator[Linear]:
        qkv = (self.heads * (2 if self.gated else 1) + 2 * self.kv_heads) * self.head_dim
        yield Linear(name="qkv", inputs=hidden, outputs=qkv, kind="normal", part="attention", bias=self.qkv_bias)
        out = self.heads * self.head_dim
        yield Linear(name="proj", inputs=out, outputs=hidden, kind="transposed", part="attention", bias=self.out_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Document):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    Queries are compressed to ``q_rank`` (None: not compressed), keys and values to ``kv_rank``; ``rope_dim``
    features carry positions.  The down-projections are replicated over x, as Megatron-Core does.
    ``latent_norms``: the compressed vectors are normed.
    """

    KIND = "latent"
    heads: Count
    q_rank: Count | None
    kv_rank: Count
    nope_dim: Count
    rope_dim: Number
    value_dim: Count
    window: Count | None = None
    latent_norms: bool = False
    out_bias: bool = False
    rotary: bool = True

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def v_dim(self) -> int:
        return self.value_dim

    @property
    def kv_elements(self) -> int:
        return self.heads * (self.qk_dim + self.value_dim)

    def vector_parameters(self, *, bias: bool) -> int:
        """Parameters of the norms of the compressed vectors, with a ``bias`` beside the gain or without."""
        return ((self.q_rank or 0) + self.kv_rank) * (1 + bias) if self.latent_norms else 0

    def linears(self, hidden: int) -> Iterator[Linear]:
        queries = self.heads * self.qk_dim
        if self.q_rank is None:
            yield Linear(name="q", inputs=hidden, outputs=queries, kind="normal", part="attention")
        else:
            yield Linear(name="q_down", inputs=hidden, outputs=self.q_rank, kind="replicated", part="attention")
            yield Linear(name="q_up", inputs=self.q_rank, outputs=queries, kind="normal", part="attention")
        down = self.kv_rank + self.rope_dim
        yield Linear(name="kv_down", inputs=hidden, outputs=down, kind="replicated", part="attention")
        up = self.heads * (self.nope_dim + self.value_dim)
        yield Linear(name="kv_up", inputs=self.kv_rank, outputs=up, kind="normal", part="attention")
        out = self.heads * self.value_dim
        yield Linear(name="proj", inputs=out, outputs=hidden, kind="transposed", part="attention", bias=self.out_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """A recurrence over tokens with a matrix as its state, instead of attention: Mamba-2 (Dao & Gu 2024, arXiv
    2405.21060), gated DeltaNet (arXiv 2412.06464), lightning attention (arXiv 2501.08313).

    Each of ``heads`` heads keeps a state of ``state`` x ``head_dim``; heads share the ``groups`` vectors that write
    and read it (B and C, keys and queries).  The sequence is worked through in chunks of ``chunk`` tokens, with matrix
    products within a chunk and between chunks.  ``kernel`` is the width of the causal convolution over what enters
    the recurrence (0: none).  ``scalars`` counts inputs per head and token (step size; decay and write strength).
    ``extra_parameters`` counts vectors of one layer: decays, skips, biases of the scalars, the norm of the output.
    The output is gated by a separate projection of the input.
    """

    heads: Count
    head_dim: Count
    groups: Count
    state: Count
    chunk: Count
    kernel: Number = 0
    kernel_bias: bool = False
    scalars: Number = 1
    update: StateUpdate = "sum"
    bias: bool = False
    extra_parameters: Number = 0

    @property
    def inner(self) -> int:
        """Features of all heads."""
        return self.heads * self.head_dim

    @property
    def mixed(self) -> int:
        """Features that enter the recurrence, which the convolution covers: values, keys and queries."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Features of the input projection: what enters the recurrence, the gate and the scalars."""
        return self.mixed + self.inner + self.scalars * self.heads

    @property
    def vector_parameters(self) -> int:
        """What is in no linear layer: the convolution and ``extra_parameters``."""
        return self.mixed * (self.kernel + (1 if self.kernel_bias else 0)) + self.extra_parameters

    def token_flops(self, sequence: float, *, causal: bool) -> float:
        """Forward FLOPs of the recurrence for one token, in chunks (arXiv 2405.21060, section 6).

        Within a chunk: products of queries and keys, and of those with values; between chunks: the chunk's state,
        and what the state before it adds to the output.  The delta rule also multiplies keys with keys, inverts the
        triangle of a chunk, applies it to keys and values, and takes the state's values off (arXiv 2406.06484,
        section 3).  ``causal`` counts the part of a chunk's square that the mask leaves.
        """
        chunk = min(float(self.chunk), sequence)
        seen = (chunk + 1.0) / 2.0 if causal else chunk
        within, between = 2.0 * seen * self.head_dim, 4.0 * self.state * self.head_dim
        if self.update == "sum":
            return 2.0 * seen * self.state * self.groups + self.heads * (within + between)
        triangle = 6.0 * seen * self.state + 2.0 * within + chunk * chunk / 3.0
        return self.heads * (triangle + between + 2.0 * self.state * self.head_dim)

    def linears(self, hidden: int) -> Iterator[Linear]:
        alike: Any = {"part": "state_space", "bias": self.bias}
        yield Linear(name="in_proj", inputs=hidden, outputs=self.projected, kind="normal", **alike)
        yield Linear(name="out_proj", inputs=self.inner, outputs=hidden, kind="transposed", **alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward(Document):
    """A dense feed-forward layer; ``gated`` adds the second input projection of SwiGLU/GeGLU (fused with
    the first)."""

    KIND = "dense"
    intermediate: Count
    gated: bool = True
    bias: bool = False

    def linears(
        self, hidden: int, part: LinearPart = "feed_forward", copies: int = 1, active: int = 1
    ) -> Iterator[Linear]:
        up = self.intermediate * (2 if self.gated else 1)
        prefix = "" if part == "feed_forward" else f"{part}."
        alike: Any = {"part": part, "bias": self.bias, "copies": copies, "active": active}
        yield Linear(name=f"{prefix}fc1", inputs=hidden, outputs=up, kind="normal", **alike)
        yield Linear(name=f"{prefix}fc2", inputs=self.intermediate, outputs=hidden, kind="transposed", **alike)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts(Document):
    """A routed feed-forward layer: ``experts`` of which a token uses ``top_k``, plus an optional dense
    shared expert.

    ``balance_bias``: the router has a bias per expert that balances their load (DeepSeek-V3); ``shared_gate``: a
    projection to one feature gates the shared expert (Qwen2-MoE).
    ``latent`` is the width that tokens are projected to before they are sent to experts, and back from afterwards
    (LatentMoE of Nemotron 3); None: experts work on the hidden features.
    """

    KIND = "experts"
    experts: Count
    top_k: Count
    expert: FeedForward
    shared: FeedForward | None = None
    router_bias: bool = False
    balance_bias: bool = False
    shared_gate: bool = False
    latent: Count | None = None

    def vector_parameters(self, hidden: int) -> int:
        """What is in no linear layer: the balancing biases and the shared expert's gate."""
        return self.experts * self.balance_bias + hidden * self.shared_gate

    def linears(self, hidden: int) -> Iterator[Linear]:
        yield Linear(
            name="router", inputs=hidden, outputs=self.experts, kind="replicated", part="router", bias=self.router_bias
        )
        width = self.latent or hidden
        if self.latent:
            yield Linear(name="latent_down", inputs=hidden, outputs=width, kind="replicated", part="router")
        yield from self.expert.linears(width, "expert", self.experts, self.top_k)
        if self.latent:
            yield Linear(name="latent_up", inputs=width, outputs=hidden, kind="replicated", part="router")
        if self.shared is not None:
            yield from self.shared.linears(hidden, "shared_expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block: a part that mixes tokens, a feed-forward part, or one of the two alone (Nemotron-H).

    Tokens are mixed by ``attention`` or by ``state_space``, side by side where a block has both.  ``norms`` counts the
    norms over the hidden features (2; 4 with Gemma's post-norms; 1 for Falcon-7B's shared norm, and where one part is
    alone); ``norm_bias`` is True for LayerNorm with bias.  ``parallel`` blocks run attention and feed-forward from
    one input (GPT-NeoX, Falcon, PaLM).
    """

    hidden: Count
    attention: Annotated[Attention | LatentAttention, OneOf()] | None
    feed_forward: Annotated[FeedForward | MixtureOfExperts, OneOf()] | None
    norms: Few = 2
    norm_bias: bool = False
    parallel: bool = False
    state_space: StateSpace | None = None

    def linears(self) -> tuple[Linear, ...]:
        """The block's linear layers in order of use."""
        parts = (part for part in (self.attention, self.state_space, self.feed_forward) if part is not None)
        return tuple(linear for part in parts for linear in part.linears(self.hidden))

    @property
    def moe(self) -> MixtureOfExperts | None:
        return self.feed_forward if isinstance(self.feed_forward, MixtureOfExperts) else None

    @property
    def branches(self) -> int:
        """Residual branches: the part that mixes tokens, and the feed-forward part."""
        mixes = self.attention is not None or self.state_space is not None
        return int(mixes) + int(self.feed_forward is not None)

    @property
    def vector_parameters(self) -> int:
        """Norms and other small vectors, replicated over tensor-parallel ranks."""
        extra = self.moe.vector_parameters(self.hidden) if self.moe else 0
        extra += self.attention.vector_parameters(bias=self.norm_bias) if self.attention else 0
        extra += self.state_space.vector_parameters if self.state_space else 0
        return self.norms * self.hidden * (2 if self.norm_bias else 1) + extra

    @property
    def parameters(self) -> int:
        return sum(linear.parameters for linear in self.linears()) + self.vector_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        used = sum(linear.active * linear.weights_per_copy for linear in self.linears())
        return used + self.vector_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """``count`` consecutive identical blocks."""

    block: Block
    count: Layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions: ``base`` is theta, ``share`` the part of a head's features that turns, ``factor`` that by
    which ``scaling`` stretches the positions.  Time and memory do not depend on them; launch files carry them."""

    base: float = 10_000.0
    share: float = 1.0
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only language model.

    ``positions`` counts rows of a learned position table (0 for rotary or ALiBi).  ``prediction_layers`` counts
    multi-token-prediction modules after the last block (DeepSeek-V3: one extra block, a 2h x h projection and
    norms); they share embedding and head.  ``prediction_blocks`` are the blocks of one module where they are not
    one like the last of the model; with ``prediction_shared`` all modules are passes through the same weights.
    ``embedding_norm`` adds a norm after the embedding (BLOOM).  ``embedding_features`` is the width of the
    embedding when it differs from ``hidden`` (OPT-350M).  ``rope`` is None where positions do
    not rotate, or nobody said how.
    """

    name: Name
    hidden: Count
    vocab: Count
    runs: tuple[BlockRun, ...]
    tied_embeddings: bool = False
    positions: Number = 0
    final_norm: bool = True
    norm_bias: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    embedding_features: Count | None = None
    prediction_layers: Few = 0
    prediction_blocks: tuple[Block, ...] = ()
    prediction_shared: bool = False
    rope: Rope | None = None

    @property
    def layers(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def kinds(self) -> tuple[Block, ...]:
        """The distinct blocks, in order of first use."""
        return tuple(dict.fromkeys(run.block for run in self.runs))

    @property
    def attentions(self) -> tuple[Attention | LatentAttention, ...]:
        """The attention of each kind of block that has one."""
        return tuple(kind.attention for kind in self.kinds if kind.attention is not None)

    @property
    def state_spaces(self) -> tuple[StateSpace, ...]:
        """The state space of each kind of block that has one."""
        return tuple(kind.state_space for kind in self.kinds if kind.state_space is not None)

    @property
    def prediction_module(self) -> tuple[Block, ...]:
        """The blocks of one multi-token-prediction module."""
        return self.prediction_blocks or (self.runs[-1].block,)

    def block_sequence(self) -> tuple[int, ...]:
        """For each layer, the index of its block in ``kinds``."""
        index = {block: i for i, block in enumerate(self.kinds)}
        numbers = [(index[run.block], run.count) for run in self.runs]
        return tuple(number for number, count in numbers for _ in range(count))

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden features."""
        return self.hidden * (2 if self.norm_bias else 1)

    @property
    def embedding_parameters(self) -> int:
        """Token and position tables, with the projections of a narrower embedding."""
        width = self.embedding_features or self.hidden
        tables = self.vocab * width + self.positions * self.hidden
        projections = 2 * width * self.hidden if self.embedding_features else 0
        return tables + projections + (self.norm_parameters if self.embedding_norm else 0)

    @property
    def head_parameters(self) -> int:
        """Output projection (0 when tied) and final norm."""
        matrix = 0 if self.tied_embeddings else self.vocab * (self.embedding_features or self.hidden)
        bias = self.vocab if self.head_bias else 0
        return matrix + bias + (self.norm_parameters if self.final_norm else 0)

    @property
    def prediction_copies(self) -> int:
        """Multi-token-prediction modules that have separate weights."""
        return min(self.prediction_layers, 1) if self.prediction_shared else self.prediction_layers

    @property
    def prediction_parameters(self) -> int:
        """Parameters of the multi-token-prediction modules (their own weights only)."""
        if not self.prediction_layers:
            return 0
        blocks = sum(block.parameters for block in self.prediction_module)
        return self.prediction_copies * (blocks + 2 * self.hidden * self.hidden + 3 * self.norm_parameters)

    @property
    def parameters(self) -> int:
        """All parameters but those of multi-token-prediction modules (as publishers count)."""
        blocks = sum(run.count * run.block.parameters for run in self.runs)
        return blocks + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, embeddings included."""
        blocks = sum(run.count * run.block.active_parameters for run in self.runs)
        return blocks + self.embedding_parameters + self.head_parameters
