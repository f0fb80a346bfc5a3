"""Typed reading of Hugging Face configurations, model families of them, and the parts that families share.

GPT-2 and its relatives have LayerNorm and ungated feed-forward layers; Llama and its relatives have RMSNorm,
rotary positions and gated feed-forward layers; hybrids have state-space blocks beside or instead of attention.
A family is a function of its configuration; what transformers takes for absent keys are its defaults here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from weft.errors import BadInput, Unsupported
from weft.model.settings import Settings
from weft.model.spec import (
    MOST_LAYERS,
    Attention,
    Block,
    BlockRun,
    FeedForward,
    LatentAttention,
    MixtureOfExperts,
    Model,
    Rope,
    StateSpace,
)

STAND_IN = "--as dense-equivalent takes every block as full attention and a feed-forward part of its widths"
"""The way round what is not modelled (``dense_equivalent``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields(Settings):
    """The keys of one configuration; ``kind`` is the model type, for messages."""

    kind: str

    def unsupported(self, name: str) -> Unsupported:
        """An ``Unsupported`` about the value of the key ``name``."""
        value = reprlib.repr(self.data.get(name))
        return Unsupported(
            f"{self.kind} with {name} = {value} is not modelled",
            where=f"{self.where}: {name}",
            remedy=f"it changes shape or cost; remove it only if the model runs without it, or {STAND_IN}",
        )

    def missing(self, *names: str) -> BadInput:
        return BadInput(
            f"{names[0]} is missing, and model type {self.kind!r} needs it",
            where=self.where,
            remedy=f"add {' or '.join(names)} to the configuration",
        )

    def words(self, name: str, count: int) -> tuple[str, ...] | None:
        """A list of ``count`` words, or None when absent."""
        value = self.typed(name, list | tuple, (), "is not a list of words")
        if not all(isinstance(item, str) for item in value):
            raise self.bad(name, f"{reprlib.repr(value)} is not a list of words")
        if self.has(name) and len(value) != count:
            raise self.bad(name, f"{len(value)} entries for {count} layers")
        return tuple(value) if self.has(name) else None

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers >= 0; empty when absent."""
        value = self.typed(name, list | tuple, (), "is not a list")
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
            raise self.bad(name, f"{reprlib.repr(value)} holds something else than whole numbers")
        return tuple(value)

    def inner(self, name: str) -> Fields:
        """The fields of the mapping under ``name``; empty when absent."""
        return replace(self, data=self.typed(name, Mapping, {}, "is not a table"), where=f"{self.where}: {name}")

    def layers(self, *names: str) -> int:
        return self.integer(*(names or ("num_hidden_layers",)), most=MOST_LAYERS)

    def of_kind(self, wanted: str, otherwise: Iterable[bool]) -> list[bool]:
        """For each layer whether it has this attention, not the full one: from ``layer_types``, else from the
        family's pattern."""
        kinds = self.words("layer_types", self.layers())
        if kinds is None:
            return list(otherwise)
        if not set(kinds) <= {"full_attention", wanted}:
            raise self.unsupported("layer_types")
        return [kind == wanted for kind in kinds]

    def check_groups(self, heads: int, kv_heads: int) -> None:
        if heads % kv_heads:
            problem = f"{heads} query heads cannot share {kv_heads} key/value heads evenly"
            raise self.bad("num_key_value_heads", problem, "choose a divisor of num_attention_heads")

    def even_split(self, hidden: int, heads: int) -> int:
        """Features per head of a model that states no head size."""
        if hidden % heads:
            raise self.bad("num_attention_heads", f"hidden size {hidden} is not a multiple of {heads} heads")
        return hidden // heads

    def only(self, name: str, *allowed: object) -> None:
        """Refuse the key unless it is absent or one of ``allowed``.

        Raises:
            Unsupported: the value changes shape or cost.
        """
        if self.has(name) and not any(self.data[name] == value for value in allowed):
            raise self.unsupported(name)


_BASES = {"gemma3": 1e6, "gemma3_text": 1e6, "gpt_oss": 150_000.0, "mixtral": 1e6}
"""Defaults of transformers; 10,000 elsewhere."""
_SHARES = {"gpt_neox": 0.25, "nemotron": 0.5}
_SCALINGS: Mapping[str, Literal["none", "linear", "llama3", "yarn"]] = {
    "default": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


def rope(fields: Fields, model: Model) -> Rope | None:
    """How positions rotate; None where they do not, or in a way that has no name here (dynamic, longrope).

    Raises:
        BadInput: a value that is not a number or out of range.
    """
    if not any(attention.rotary for attention in model.attentions):
        return None
    f = fields.inner("text_config") if fields.has("text_config") else fields
    scaled = f.inner("rope_parameters" if f.has("rope_parameters") else "rope_scaling")
    named = scaled.find("rope_type", "type")
    kind = str(scaled.data[named]) if named else "default"
    if kind not in _SCALINGS:
        return None

    def number(default: float, *names: str) -> float:
        """The positive number under a name: of the scaling's own table if it has the first."""
        table = scaled if scaled.has(names[0]) else f
        if (name := table.find(*names)) is None:
            return default
        value: Any = table.data[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1e12:
            raise table.bad(name, f"{reprlib.repr(value)} is not a positive number")
        return float(value)

    base = number(_BASES.get(f.kind, 10_000.0), "rope_theta", "rotary_emb_base")
    share = number(_SHARES.get(f.kind, 1.0), "partial_rotary_factor", "rotary_pct", "rope_percent")
    stretched = _SCALINGS[kind] != "none" and scaled.has("factor")
    factor = number(1.0, "factor") if stretched else 1.0
    return Rope(base=base, share=share, scaling=_SCALINGS[kind], factor=factor)


DELTA_CHUNK = 64
"""Tokens of a chunk of gated DeltaNet, which no configuration names (kernels of flash-linear-attention)."""
LIGHTNING_CHUNK = 256
"""Tokens of a block of lightning attention (MiniMax-01, arXiv 2501.08313, section 2.2.1; transformers' default)."""
AnyAttention = Attention | LatentAttention
AnyFeed = FeedForward | MixtureOfExperts


# Parts ------------------------------------------------------------------------------------------------


def _plain_attention(f: Fields, hidden: int, heads: int, *, bias: bool, rotary: bool = False) -> Attention:
    """Multi-head attention whose heads share the hidden features evenly."""
    head_dim = f.even_split(hidden, heads)
    return Attention(heads=heads, kv_heads=heads, head_dim=head_dim, qkv_bias=bias, out_bias=bias, rotary=rotary)


def _grouped_attention(
    f: Fields,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    bias: bool | None = None,
    **features: Any,
) -> Attention:
    """Attention with rotary positions and further ``features``; numbers are defaults, and so is ``bias``, that of
    ``attention_bias`` (None: the family has no such key)."""
    heads = f.integer("num_attention_heads", default=heads)
    # A null key means as many as query heads; only an absent one takes the family's number.
    fallback = heads if kv_heads is None or "num_key_value_heads" in f.data else kv_heads
    kv_heads = f.integer("num_key_value_heads", default=fallback)
    f.check_groups(heads, kv_heads)
    head_dim = f.optional_integer("head_dim") or head_dim or f.even_split(f.integer("hidden_size"), heads)
    biased = bias is not None and f.flag("attention_bias", bias)
    features = {"qkv_bias": biased, "out_bias": biased} | features
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, **features)


def _latent_attention(f: Fields) -> LatentAttention:
    """Latent attention with the norms of its compressed vectors."""
    f.only("attention_bias", False)
    return LatentAttention(
        heads=f.integer("num_attention_heads"),
        q_rank=f.optional_integer("q_lora_rank"),
        kv_rank=f.integer("kv_lora_rank"),
        nope_dim=f.integer("qk_nope_head_dim"),
        rope_dim=f.integer("qk_rope_head_dim"),
        value_dim=f.integer("v_head_dim"),
        latent_norms=True,
    )


def _feed(f: Fields, *names: str, **features: Any) -> FeedForward:
    return FeedForward(intermediate=f.integer(*(names or ("intermediate_size",))), **features)


def _biased(f: Fields, **features: Any) -> FeedForward:
    return _feed(f, bias=f.flag("mlp_bias", False), **features)


def _window(f: Fields) -> int | None:
    return f.optional_integer("sliding_window")


def _mixture(
    f: Fields, experts: Sequence[str], widths: Sequence[str], *, bias: bool = False, **features: Any
) -> MixtureOfExperts:
    """A routed layer; the number of experts and the width of each have one of the names."""
    count = f.integer(*experts)
    top_k = f.integer("num_experts_per_tok", "experts_per_token")
    if top_k > count:
        raise f.bad("num_experts_per_tok", f"a token cannot use {top_k} of {count} experts")
    return MixtureOfExperts(experts=count, top_k=top_k, expert=_feed(f, *widths, bias=bias), **features)


def _shared_mixture(f: Fields, *, balance_bias: bool) -> MixtureOfExperts:
    """Experts of DeepSeek's kind: shared ones merge into one; a balancing bias per expert where there is one."""
    moe = _mixture(f, ["n_routed_experts"], ["moe_intermediate_size"], balance_bias=balance_bias)
    width = f.integer("n_shared_experts", default=0, least=0) * moe.expert.intermediate
    return replace(moe, shared=FeedForward(intermediate=width) if width else None)


_LOCAL, _WIDTH = ("num_local_experts",), ("intermediate_size",)
"""Names of Mixtral's and relatives' experts and of their width."""


def _windowed(f: Fields, attention: Attention, default: int, otherwise: Iterable[bool]) -> list[AnyAttention]:
    """The attention of each layer, with ``sliding_window`` where ``layer_types`` or the family's pattern says so."""
    sliding = f.of_kind("sliding_attention", otherwise)
    narrow = replace(attention, window=f.integer("sliding_window", default=default))
    return [narrow if slides else attention for slides in sliding]


def runs(blocks: Iterable[Block]) -> tuple[BlockRun, ...]:
    """Consecutive equal blocks as runs."""
    return tuple(BlockRun(block=block, count=len(list(same))) for block, same in groupby(blocks))


def _stack(f: Fields, name: str, blocks: Iterable[Block], *, tied: bool = False, **features: Any) -> Model:
    """The model of ``blocks`` with its vocabulary; ``tied`` is the default of embeddings."""
    done = runs(blocks)
    vocab, tied = f.integer("vocab_size", default=features.pop("vocab", None)), f.flag("tie_word_embeddings", tied)
    return Model(name=name, hidden=done[0].block.hidden, vocab=vocab, runs=done, tied_embeddings=tied, **features)


def _decoder(
    f: Fields,
    name: str,
    attention: AnyAttention | Sequence[AnyAttention],
    feed: AnyFeed | Sequence[AnyFeed],
    *,
    layers: int | None = None,
    hidden: int | None = None,
    norms: int = 2,
    norm_bias: bool = False,
    parallel: bool = False,
    **features: Any,
) -> Model:
    """A model of alike blocks, or with the attention or feed-forward part of each layer where these are listed."""
    layers, hidden = layers or f.layers(), hidden or f.integer("hidden_size")
    attentions = [attention] * layers if isinstance(attention, AnyAttention) else attention
    feeds = [feed] * layers if isinstance(feed, AnyFeed) else feed
    blocks = [
        Block(hidden=hidden, attention=core, feed_forward=part, norms=norms, norm_bias=norm_bias, parallel=parallel)
        for core, part in zip(attentions, feeds, strict=True)
    ]
    return _stack(f, name, blocks, norm_bias=norm_bias, **features)


# GPT-2 and relatives ----------------------------------------------------------------------------------


def _gpt2(f: Fields, name: str) -> Model:
    """GPT-2, and any GPT of Megatron-LM's plain shape: learned positions, biases, tied embeddings."""
    f.only("add_cross_attention", False)
    hidden = f.integer("n_embd", "hidden_size")
    model = _gpt(f, name, hidden, f.integer("n_inner", default=4 * hidden))
    return replace(model, positions=f.integer("n_positions", "max_position_embeddings"))


def _bloom(f: Fields, name: str) -> Model:
    """BLOOM: ALiBi, and a norm after the embedding."""
    hidden = f.integer("hidden_size", "n_embed")
    return replace(_gpt(f, name, hidden, 4 * hidden), embedding_norm=True)


def _gpt(f: Fields, name: str, hidden: int, inner: int) -> Model:
    attention = _plain_attention(f, hidden, f.integer("n_head", "num_attention_heads"), bias=True)
    feed, layers = FeedForward(intermediate=inner, gated=False, bias=True), f.layers("n_layer", "num_hidden_layers")
    return _decoder(f, name, attention, feed, layers=layers, hidden=hidden, norm_bias=True, tied=True)


def _gpt_neox(f: Fields, name: str) -> Model:
    """GPT-NeoX and Pythia: parallel residual, two norms, rotary positions."""
    heads, bias = f.integer("num_attention_heads"), f.flag("attention_bias", True)
    attention = _plain_attention(f, f.integer("hidden_size"), heads, bias=bias, rotary=True)
    parallel = f.flag("use_parallel_residual", True)
    return _decoder(f, name, attention, _feed(f, gated=False, bias=True), norm_bias=True, parallel=parallel)


def _opt(f: Fields, name: str) -> Model:
    """OPT: two spare rows of positions; the 350M model has narrow embeddings and no final norm."""
    f.only("layer_norm_elementwise_affine", True)
    hidden, bias = f.integer("hidden_size"), f.flag("enable_bias", True)
    width = f.integer("word_embed_proj_dim", default=hidden)
    removed = f.flag("_remove_final_layer_norm", False)
    return _decoder(
        f,
        name,
        _plain_attention(f, hidden, f.integer("num_attention_heads"), bias=bias),
        _feed(f, "ffn_dim", gated=False, bias=bias),
        norm_bias=True,
        tied=True,
        positions=f.integer("max_position_embeddings") + 2,
        embedding_features=None if width == hidden else width,
        final_norm=f.flag("do_layer_norm_before", True) and not removed,
    )


def _mpt(f: Fields, name: str) -> Model:
    """MPT: positions learned, by ALiBi or rotary."""
    f.inner("ffn_config").only("ffn_type", "mptmlp")
    options = f.inner("attn_config")
    for key in ("prefix_lm", "qk_ln", "qk_gn"):
        options.only(key, False)
    options.only("attn_type", "multihead_attention", "multiquery_attention", "grouped_query_attention")
    hidden, heads, bias = f.integer("d_model"), f.integer("n_heads"), not f.flag("no_bias", True)
    rotary, kind = options.flag("rope", False), options.word("attn_type", "multihead_attention")
    kv_heads = {"multihead_attention": heads, "multiquery_attention": 1}.get(kind) or options.integer("kv_n_heads")
    f.check_groups(heads, kv_heads)
    inner = hidden * f.integer("expansion_ratio", default=4, most=1024)
    elsewhere = options.flag("alibi", True) or rotary or not f.flag("learned_pos_emb", True)
    return _decoder(
        f,
        name,
        replace(_plain_attention(f, hidden, heads, bias=bias, rotary=rotary), kv_heads=kv_heads),
        FeedForward(intermediate=inner, gated=False, bias=bias),
        layers=f.layers("n_layers"),
        hidden=hidden,
        norm_bias=bias,
        tied=True,
        positions=0 if elsewhere else f.integer("max_seq_len"),
    )


def _falcon(f: Fields, name: str) -> Model:
    """Falcon: multi-query with one norm (7B), or grouped queries with two (40B, 180B)."""
    hidden, heads = f.integer("hidden_size"), f.integer("num_attention_heads", "n_head")
    grouped, beside = f.flag("new_decoder_architecture", False), f.flag("parallel_attn", True)
    bias = f.flag("bias", False)
    kv_heads = 1
    if grouped or not f.flag("multi_query", True):
        kv_heads = f.integer("num_kv_heads", "n_head_kv", default=heads)
    f.check_groups(heads, kv_heads)
    attention = _plain_attention(f, hidden, heads, bias=bias, rotary=not f.flag("alibi", False))
    norms = f.integer("num_ln_in_parallel_attn", default=2, most=2) if grouped else 1 if beside else 2
    inner = f.integer("ffn_hidden_size", default=4 * hidden)
    return _decoder(
        f,
        name,
        replace(attention, kv_heads=kv_heads),
        FeedForward(intermediate=inner, gated=False, bias=bias),
        layers=f.layers("num_hidden_layers", "n_layer"),
        norms=norms,
        norm_bias=True,
        parallel=grouped or beside,
        tied=True,
    )


# Llama and relatives ----------------------------------------------------------------------------------


def _mistral(f: Fields, name: str) -> Model:
    """Mistral; an absent ``sliding_window`` means 4096, null means none."""
    window = _window(f) or (None if "sliding_window" in f.data else 4096)
    return _decoder(f, name, _grouped_attention(f, kv_heads=8, window=window), _feed(f))


def _qwen(f: Fields, name: str, attention: Attention, moe: MixtureOfExperts | None = None) -> Model:
    """Qwen slides from layer ``max_window_layers`` on, and only where ``use_sliding_window`` is true; experts are in
    every ``decoder_sparse_step``-th layer except those of ``mlp_only_layers``."""
    numbers, slides = range(f.layers()), f.flag("use_sliding_window", False)
    first = f.integer("max_window_layers", default=28, least=0) if slides else 0
    attentions: list[AnyAttention] = [attention] * len(numbers)
    if slides:
        attentions = _windowed(f, attention, 4096, (layer >= first for layer in numbers))
    if moe is None:
        return _decoder(f, name, attentions, _feed(f))
    step, dense = f.integer("decoder_sparse_step", default=1), set(f.integers("mlp_only_layers"))
    routed = [layer not in dense and (layer + 1) % step == 0 for layer in numbers]
    if all(routed):
        return _decoder(f, name, attentions, moe)
    plain = _feed(f)
    return _decoder(f, name, attentions, [moe if is_routed else plain for is_routed in routed])


def _qwen2_moe(f: Fields, name: str) -> Model:
    """Qwen2 mixture: a shared expert behind a one-feature gate."""
    attention = _grouped_attention(f, kv_heads=16, qkv_bias=f.flag("qkv_bias", True))
    return _qwen(f, name, attention, _gated_mixture(f, "num_experts", "num_local_experts"))


def _gated_mixture(f: Fields, *experts: str) -> MixtureOfExperts:
    """Experts beside a shared one that one feature gates."""
    shared = _feed(f, "shared_expert_intermediate_size")
    return _mixture(f, experts, ["moe_intermediate_size"], shared=shared, shared_gate=True)


def _qwen3_moe(f: Fields, name: str) -> Model:
    """Qwen3 mixture, without shared expert."""
    moe = _mixture(f, ["num_experts", "num_local_experts"], ["moe_intermediate_size"])
    return _qwen(f, name, _grouped_attention(f, kv_heads=4, bias=False, head_norms=True), moe)


def _gemma_windowed(f: Fields, name: str, attention: Attention, period: int, **features: Any) -> Model:
    """Norms before and after each part; of ``period`` layers all but the last slide."""
    f.only("use_bidirectional_attention", False)
    attentions = _windowed(f, attention, 4096, ((layer + 1) % period != 0 for layer in range(f.layers())))
    return _decoder(f, name, attentions, _feed(f), norms=4, tied=True, **features)


def _gemma3(f: Fields, name: str) -> Model:
    """Gemma 3: five layers with windows, then one without.

    Published configurations leave out heads and vocabulary where they are the defaults.
    """
    attention = _grouped_attention(f, heads=8, kv_heads=4, head_dim=256, bias=False, head_norms=True)
    period = f.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _gemma_windowed(f, name, attention, period, vocab=262_208)


def _gpt_oss(f: Fields, name: str) -> Model:
    """GPT-OSS: sinks, biases everywhere, windows in every other layer from the first on."""
    attention = _grouped_attention(f, kv_heads=8, head_dim=64, bias=True, sinks=True)
    attentions = _windowed(f, attention, 128, (layer % 2 == 0 for layer in range(f.layers())))
    return _decoder(f, name, attentions, _mixture(f, _LOCAL, _WIDTH, bias=True, router_bias=True))


def _dense_then_routed(f: Fields, name: str, attention: AnyAttention, *, balance_bias: bool) -> Model:
    """Dense in the first ``first_k_dense_replace`` layers, then routed every ``moe_layer_freq`` layers."""
    dense, layers = _feed(f), f.layers()
    routed = _shared_mixture(f, balance_bias=balance_bias) if f.has("n_routed_experts") else dense
    first, step = f.integer("first_k_dense_replace", default=0, least=0), f.integer("moe_layer_freq", default=1)
    feeds = [routed if layer >= first and layer % step == 0 else dense for layer in range(layers)]
    modules = f.integer("num_nextn_predict_layers", default=0, least=0, most=64)
    return _decoder(f, name, attention, feeds, prediction_layers=modules)


def _glm4_moe(f: Fields, name: str) -> Model:
    """GLM-4.5 and 4.6: biases on queries, keys and values, dense in the first layers."""
    norms = f.flag("use_qk_norm", False)
    attention = _grouped_attention(f, kv_heads=8, head_dim=128, bias=False, out_bias=False, head_norms=norms)
    return _dense_then_routed(f, name, attention, balance_bias=True)


def _llama4(f: Fields, name: str) -> Model:
    """Llama 4: attention within chunks except in every fourth layer, which has no positions; a shared expert
    beside routed ones, in every or every other layer.  Its query-key norm has no parameters."""
    numbers = range(f.layers())
    attention = _grouped_attention(f, kv_heads=8, head_dim=128, bias=False, rotary=False)
    chunk = f.integer("attention_chunk_size", default=8192)
    chunked = replace(attention, rotary=True, window=chunk, chunked=True)
    rotary, interval = f.integers("no_rope_layers"), f.integer("no_rope_layer_interval", default=4)
    if rotary and len(rotary) != len(numbers):
        raise f.bad("no_rope_layers", f"{len(rotary)} entries for {len(numbers)} layers")
    rotary = rotary or tuple((layer + 1) % interval for layer in numbers)
    dense = _feed(f, "intermediate_size_mlp", "intermediate_size")
    moe = _mixture(f, _LOCAL, _WIDTH, shared=_feed(f))
    listed, step = f.integers("moe_layers"), f.integer("interleave_moe_layer_step", default=1)
    routed = [layer in listed if listed else (layer + 1) % step == 0 for layer in numbers]
    attentions = [chunked if turns else attention for turns in rotary]
    return _decoder(f, name, attentions, [moe if is_routed else dense for is_routed in routed])


def _minimax_m2(f: Fields, name: str) -> Model:
    """MiniMax-M2: norms over all query and all key features, a balancing bias per expert."""
    if any(kind != 1 for kind in f.integers("attn_type_list")):
        raise f.unsupported("attn_type_list")
    f.only("qk_norm_type", "per_layer")
    attention = _grouped_attention(f, kv_heads=8, head_dim=128)
    if f.flag("use_qk_norm", True):
        norms = (attention.heads + attention.kv_heads) * attention.head_dim
        attention = replace(attention, extra_parameters=norms)
    moe = _mixture(f, _LOCAL, _WIDTH, balance_bias=f.flag("use_routing_bias", True))
    modules = f.integer("num_mtp_modules", default=0, least=0, most=64) if f.flag("use_mtp", False) else 0
    return _decoder(f, name, attention, moe, prediction_layers=modules)


# Hybrids ----------------------------------------------------------------------------------------------

_PARTS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SYNONYMS = {"linear_attention": "mamba", "full_attention": "attention"}


def _layer_parts(f: Fields, pattern: str, listed: str) -> list[str]:
    """The part that each layer has, of a pattern such as ``M-M*ME`` or of a list of words."""
    text, words, name = f.word(pattern, ""), f.data.get(listed), pattern
    if not text and isinstance(words, list | tuple):
        parts, name = [_SYNONYMS.get(word, word) for word in f.words(listed, len(words)) or ()], listed
    else:
        # Bars part pipeline stages in Megatron's patterns.
        parts = [_PARTS.get(letter, letter) for letter in text.replace("|", "")]
    if wrong := [part for part in parts if part not in _PARTS.values()]:
        remedy = f"use {', '.join(_PARTS)} or {', '.join(_PARTS.values())}"
        raise f.bad(name, f"{wrong[0]!r} is not a kind of block", remedy)
    if not parts:
        raise f.missing(pattern, listed)
    return parts


def _mamba(f: Fields, *, heads: int, head_dim: int, groups: int, state: int, chunk: int, bias: bool) -> StateSpace:
    """Mamba-2 (arXiv 2405.21060): decays, skips and biases of the step per head, a norm over all heads."""
    if heads % groups:
        raise f.bad("n_groups", f"{heads} heads do not share {groups} groups evenly")
    return StateSpace(
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        state=state,
        chunk=chunk,
        kernel=f.integer("conv_kernel", "mamba_d_conv", default=4),
        kernel_bias=f.flag("use_conv_bias", f.flag("mamba_conv_bias", True)),
        bias=bias,
        extra_parameters=3 * heads + heads * head_dim,
    )


def _nemotron_block(f: Fields, part: str) -> Block:
    """A block of one part and its norm; attention has no positions (arXiv 2504.03624, section 2.1), experts are
    ungated, on projected tokens where ``moe_latent_size`` is set (LatentMoE)."""
    alone = Block(hidden=f.integer("hidden_size"), attention=None, feed_forward=None, norms=1)
    if part == "mamba":
        state = _mamba(
            f,
            heads=f.integer("mamba_num_heads"),
            head_dim=f.integer("mamba_head_dim", default=64),
            groups=f.integer("n_groups", "mamba_n_groups", default=8),
            state=f.integer("ssm_state_size", default=128),
            chunk=f.integer("chunk_size", default=128),
            bias=f.flag("use_bias", False),
        )
        return replace(alone, state_space=state)
    if part == "attention":
        width = f.integer("attention_head_dim", default=128)
        attention = _grouped_attention(f, kv_heads=8, head_dim=width, bias=False, rotary=False)
        return replace(alone, attention=attention)
    bias = f.flag("mlp_bias", False)
    if part == "mlp":
        return replace(alone, feed_forward=_feed(f, gated=False, bias=bias))
    # The balancing bias is a buffer, which the published counts leave out.
    moe = _shared_mixture(f, balance_bias=False)
    width = f.integer("moe_shared_expert_intermediate_size", default=moe.shared.intermediate if moe.shared else 1)
    moe = replace(
        moe,
        expert=replace(moe.expert, gated=False, bias=bias),
        shared=FeedForward(intermediate=width, gated=False, bias=bias) if moe.shared else None,
        latent=f.optional_integer("moe_latent_size"),
    )
    return replace(alone, feed_forward=moe)


def _nemotron_h(f: Fields, name: str) -> Model:
    """Nemotron-H, Nemotron Nano 2 and Nemotron 3: blocks of one part each, in the order of a pattern."""

    def blocks(parts: list[str]) -> list[Block]:
        blocks = {part: _nemotron_block(f, part) for part in dict.fromkeys(parts)}
        return [blocks[part] for part in parts]

    parts = _layer_parts(f, "hybrid_override_pattern", "layers_block_type")
    layers = f.optional_integer("num_hidden_layers")
    if layers is not None and layers != len(parts):
        raise f.bad("num_hidden_layers", f"{layers} layers, but the pattern has {len(parts)}")
    model = _stack(f, name, blocks(parts))
    # Megatron-Bridge's mtp_num_layers counts passes, configurations modules.
    modules = f.integer("mtp_num_layers", "num_nextn_predict_layers", default=0, least=0, most=64)
    if not modules:
        return model
    ahead = blocks(_layer_parts(f, "mtp_hybrid_override_pattern", "mtp_layers_block_type"))
    repeated = f.flag("mtp_use_repeated_layer", False)
    return replace(model, prediction_layers=modules, prediction_blocks=tuple(ahead), prediction_shared=repeated)


def _mamba_beside_attention(f: Fields) -> StateSpace:
    """Mamba-2 as Granite names its keys."""
    heads = f.integer("mamba_n_heads", default=128)
    inner = f.integer("mamba_expand", default=2) * f.integer("hidden_size")
    head_dim = f.integer("mamba_d_head", default=inner // heads)
    if heads * head_dim != inner:
        raise f.bad("mamba_n_heads", f"{heads} heads of {head_dim} are not mamba_expand x hidden_size features")
    return _mamba(
        f,
        heads=heads,
        head_dim=head_dim,
        groups=f.integer("mamba_n_groups", default=1),
        state=f.integer("mamba_d_state", default=256),
        chunk=f.integer("mamba_chunk_size", default=256),
        bias=f.flag("mamba_proj_bias", False),
    )


def _granitemoehybrid(f: Fields, name: str) -> Model:
    """Granite 4: Mamba-2 or attention as ``layer_types`` says, experts (where there are any) beside a shared part."""
    kinds = f.words("layer_types", f.layers())
    if kinds is None:
        raise f.missing("layer_types")
    if not set(kinds) <= {"attention", "mamba"}:
        raise f.unsupported("layer_types")
    attention = _grouped_attention(f, bias=False, rotary=f.word("position_embedding_type", "rope") == "rope")
    shared = FeedForward(intermediate=f.integer("shared_intermediate_size", default=1024))
    feed: AnyFeed = shared
    if f.integer("num_local_experts", default=8, least=0):
        feed = _mixture(f, _LOCAL, _WIDTH, shared=shared)
    full = Block(hidden=f.integer("hidden_size"), attention=attention, feed_forward=feed)
    state = full
    if "mamba" in kinds:
        state = replace(full, attention=None, state_space=_mamba_beside_attention(f))
    return _stack(f, name, [full if kind == "attention" else state for kind in kinds])


def _delta_net(f: Fields) -> StateSpace:
    """Gated DeltaNet (arXiv 2412.06464): decay and write strength per value head, a norm of one head."""
    heads, width = f.integer("linear_num_value_heads", default=32), f.integer("linear_value_head_dim", default=128)
    groups = f.integer("linear_num_key_heads", default=16)
    if heads % groups:
        raise f.bad("linear_num_key_heads", f"{heads} value heads do not share {groups} key heads evenly")
    return StateSpace(
        heads=heads,
        head_dim=width,
        groups=groups,
        state=f.integer("linear_key_head_dim", default=128),
        chunk=DELTA_CHUNK,
        kernel=f.integer("linear_conv_kernel_dim", default=4),
        scalars=2,
        update="delta",
        extra_parameters=2 * heads + width,
    )


def _qwen3_next(f: Fields, name: str) -> Model:
    """Qwen3-Next and Qwen3.5: gated DeltaNet in all but every fourth layer, gated attention there; a feed-forward
    part without experts in the dense type, and in layers that are named."""
    f.only("attn_output_gate", True)
    hidden, numbers = f.integer("hidden_size"), range(f.layers())
    attention = _grouped_attention(f, kv_heads=2, head_dim=256, bias=False, head_norms=True, gated=True)
    period = f.integer("full_attention_interval", default=4)
    recurrent = f.of_kind("linear_attention", ((layer + 1) % period != 0 for layer in numbers))
    step, plain = f.integer("decoder_sparse_step", default=1), f.integers("mlp_only_layers")
    dense = [f.kind == "qwen3_5_text" or layer in plain or (layer + 1) % step != 0 for layer in numbers]
    feeds = {True: _feed(f) if any(dense) else None, False: None if all(dense) else _gated_mixture(f, "num_experts")}
    full = Block(hidden=hidden, attention=attention, feed_forward=None)
    state = replace(full, attention=None, state_space=_delta_net(f))
    blocks = [replace(state if recurrent[i] else full, feed_forward=feeds[dense[i]]) for i in numbers]
    model = _stack(f, name, blocks)
    ahead = f.integer("mtp_num_hidden_layers", default=0, least=0, most=64)
    if not ahead:
        return model
    module = (replace(full, feed_forward=blocks[-1].feed_forward),) * ahead
    return replace(model, prediction_layers=1, prediction_blocks=module)


def _minimax_text(f: Fields, name: str) -> Model:
    """MiniMax-Text-01 and M1: lightning attention in seven of eight layers, experts in each.

    Lightning attention: keys, queries and values of every head, fixed decays, a norm over all heads.
    """
    f.only("shared_intermediate_size", 0)
    layers = f.layers()
    attention = _grouped_attention(f, kv_heads=8)
    moe = _mixture(f, _LOCAL, _WIDTH)
    listed = f.integers("attn_type_list")
    if listed and (len(listed) != layers or not set(listed) <= {0, 1}):
        raise f.bad("attn_type_list", f"is not a list of {layers} times 0 (lightning) or 1 (softmax)")
    kinds = [kind == 0 for kind in listed] or [(layer + 1) % 2 != 0 for layer in range(layers)]
    lightning = StateSpace(
        heads=attention.heads,
        head_dim=attention.head_dim,
        groups=attention.heads,
        state=attention.head_dim,
        chunk=LIGHTNING_CHUNK,
        scalars=0,
        extra_parameters=attention.heads * attention.head_dim,
    )
    full = Block(hidden=f.integer("hidden_size"), attention=attention, feed_forward=moe)
    state = replace(full, attention=None, state_space=lightning)
    return _stack(f, name, [state if is_state else full for is_state in f.of_kind("linear_attention", kinds)])


# What is not modelled ---------------------------------------------------------------------------------

_EXPERTS = ("num_experts", "num_local_experts", "moe_num_experts")
_WIDTHS = ("moe_intermediate_size", "intermediate_size", "ffn_hidden_size")


def dense_equivalent(f: Fields, name: str) -> Model:
    """Every block as full attention (latent where the configuration has ranks) and a gated feed-forward part, with
    the numbers and widths that the configuration states: layers, heads, features, experts.

    Raises:
        BadInput: the configuration lacks the keys that decoders share.
    """
    attention = _latent_attention(f) if f.has("kv_lora_rank") else _grouped_attention(f)
    if f.has("n_routed_experts"):
        return _dense_then_routed(f, name, attention, balance_bias=False)
    layers, period = f.layers(), 0
    dense = _feed(f, *_WIDTHS[1:])
    routed: AnyFeed = dense
    if f.find(*_EXPERTS) and f.integer(*_EXPERTS) > 1:
        period = f.integer("expert_layer_period", "decoder_sparse_step", default=1)
        width = f.optional_integer("shared_expert_intermediate_size", "shared_intermediate_size", least=0)
        shared = FeedForward(intermediate=width) if width else None
        routed = _mixture(f, _EXPERTS, _WIDTHS, shared=shared)
    offset = f.integer("expert_layer_offset", default=max(period - 1, 0), least=0)
    feeds = [routed if period and layer % period == offset else dense for layer in range(layers)]
    return _decoder(f, name, attention, feeds)


BUILDERS: dict[str, Callable[[Fields, str], Model]] = {
    "bloom": _bloom,
    "deepseek_v2": lambda f, name: _dense_then_routed(f, name, _latent_attention(f), balance_bias=False),
    # DeepSeek-V3, V3.1 and R1: routing with a balancing bias per expert.
    "deepseek_v3": lambda f, name: _dense_then_routed(f, name, _latent_attention(f), balance_bias=True),
    "falcon": _falcon,
    "gemma": lambda f, name: _decoder(
        f, name, _grouped_attention(f, kv_heads=16, head_dim=256, bias=False), _feed(f), tied=True
    ),
    # Windows in every other layer, the first included.
    "gemma2": lambda f, name: _gemma_windowed(f, name, _grouped_attention(f, kv_heads=4, head_dim=256, bias=False), 2),
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "glm4_moe": _glm4_moe,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "granitemoehybrid": _granitemoehybrid,
    "llama": lambda f, name: _decoder(f, name, _grouped_attention(f, bias=False), _biased(f)),
    "llama4": _llama4,
    "llama4_text": _llama4,
    # MiniMax-M2 was published under this type too; it names its modules or its query-key norms.
    "minimax": lambda f, name: (
        _minimax_m2
        if f.flag("use_qk_norm", False) or "MiniMaxM2" in str(f.data.get("architectures"))
        else _minimax_text
    )(f, name),
    "minimax_m1": _minimax_text,
    "minimax_m2": _minimax_m2,
    "minimax_text_01": _minimax_text,
    "mistral": _mistral,
    "mixtral": lambda f, name: _decoder(
        f, name, _grouped_attention(f, kv_heads=8, window=_window(f)), _mixture(f, _LOCAL, _WIDTH)
    ),
    "mpt": _mpt,
    # Nemotron-3 (8B, 22B) and Nemotron-4: LayerNorm, squared ReLU, rotary positions, no biases, untied.
    "nemotron": lambda f, name: _decoder(
        f, name, _grouped_attention(f, bias=False), _biased(f, gated=False), norm_bias=True
    ),
    "nemotron_h": _nemotron_h,
    "opt": _opt,
    # PaLM (arXiv 2204.02311, section 2): parallel blocks of one norm, multi-query, no biases, tied.
    "palm": lambda f, name: _decoder(
        f, name, _grouped_attention(f, kv_heads=1), _feed(f), norms=1, parallel=True, tied=True
    ),
    # Phi-3 and Phi-4: fused projections, the same shapes as Llama.
    "phi3": lambda f, name: _decoder(f, name, _grouped_attention(f, window=_window(f)), _feed(f)),
    # Biases on queries, keys and values only.
    "qwen2": lambda f, name: _qwen(f, name, _grouped_attention(f, kv_heads=32, qkv_bias=True)),
    "qwen2_moe": _qwen2_moe,
    # Norms on the queries and keys of each head.
    "qwen3": lambda f, name: _qwen(
        f, name, _grouped_attention(f, kv_heads=32, head_dim=128, bias=False, head_norms=True)
    ),
    "qwen3_5_moe_text": _qwen3_next,
    "qwen3_5_text": _qwen3_next,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
}
BUILDERS["kimi_k2"] = BUILDERS["deepseek_v3"]
"""Families by ``model_type``; ``palm`` is Weft's own (PaLM published no configuration)."""
