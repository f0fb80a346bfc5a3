"""Model families from Hugging Face configurations, and the parts that they share: attention, windows, blocks.

GPT-2 and its relatives have LayerNorm and ungated feed-forward layers; Llama and its relatives have RMSNorm,
rotary positions and gated feed-forward layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from weft.model._fields import Fields
from weft.model.spec import Attention, Block, BlockRun, FeedForward, LatentAttention, MixtureOfExperts, Model


def head_counts(f: Fields, *, default: int | None, kv_default: int | None) -> tuple[int, int]:
    """Query heads and key/value heads; ``kv_default`` applies where the key is absent but not null."""
    heads = f.integer("num_attention_heads", default=default)
    fallback = heads if kv_default is None or "num_key_value_heads" in f.data else kv_default
    kv_heads = f.integer("num_key_value_heads", default=fallback)
    check_groups(f, heads, kv_heads)
    return heads, kv_heads


def check_groups(f: Fields, heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        problem = f"{heads} query heads cannot share {kv_heads} key/value heads evenly"
        raise f.bad("num_key_value_heads", problem, "choose a divisor of num_attention_heads")


def even_split(f: Fields, hidden: int, heads: int) -> int:
    """Features per head of a model without a head size of its own."""
    if hidden % heads:
        raise f.bad("num_attention_heads", f"hidden size {hidden} is not a multiple of {heads} heads")
    return hidden // heads


def head_size(f: Fields, hidden: int, heads: int, *, default: int | None = None) -> int:
    value = f.optional_integer("head_dim")
    return value or default or even_split(f, hidden, heads)


def grouped_attention(
    f: Fields,
    hidden: int,
    *,
    heads_default: int | None = None,
    kv_default: int | None = None,
    head_default: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    head_norms: bool = False,
    sinks: bool = False,
) -> Attention:
    """Attention with rotary positions."""
    heads, kv_heads = head_counts(f, default=heads_default, kv_default=kv_default)
    head_dim = head_size(f, hidden, heads, default=head_default)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        head_norms=head_norms,
        sinks=sinks,
    )


def sliding_layers(f: Fields, layers: int, otherwise: Iterable[bool]) -> list[bool]:
    """For each layer whether it has a window."""
    return layers_of_kind(f, "sliding_attention", layers, otherwise)


def layers_of_kind(f: Fields, wanted: str, layers: int, otherwise: Iterable[bool]) -> list[bool]:
    """For each layer whether it has this attention, not the full one: from ``layer_types``, else from the family's
    pattern."""
    kinds = f.words("layer_types", layers)
    if kinds is None:
        return list(otherwise)
    if not set(kinds) <= {"full_attention", wanted}:
        raise f.unsupported("layer_types")
    return [kind == wanted for kind in kinds]


def routing(f: Fields, *names: str) -> tuple[int, int]:
    """Experts (under one of ``names``) and how many of them a token uses."""
    experts = f.integer(*names)
    top_k = f.integer("num_experts_per_tok", "experts_per_token")
    if top_k > experts:
        raise f.bad("num_experts_per_tok", f"a token cannot use {top_k} of {experts} experts")
    return experts, top_k


def runs(blocks: Iterable[Block]) -> tuple[BlockRun, ...]:
    """Consecutive equal blocks as runs."""
    return tuple(BlockRun(block=block, count=len(list(same))) for block, same in groupby(blocks))


def stack(
    f: Fields,
    name: str,
    blocks: Iterable[Block],
    *,
    tied: bool,
    norm_bias: bool = False,
    vocab_default: int | None = None,
) -> Model:
    """The model of ``blocks`` with its vocabulary, embeddings tied as configured or as the family does."""
    done = runs(blocks)
    return Model(
        name=name,
        hidden=done[0].block.hidden,
        vocab=f.integer("vocab_size", default=vocab_default),
        runs=done,
        tied_embeddings=f.flag("tie_word_embeddings", tied),
        norm_bias=norm_bias,
    )


def _plain_attention(f: Fields, hidden: int, heads: int, *, bias: bool, rotary: bool = False) -> Attention:
    """Multi-head attention whose heads share the hidden features evenly."""
    return Attention(
        heads=heads, kv_heads=heads, head_dim=even_split(f, hidden, heads), qkv_bias=bias, out_bias=bias, rotary=rotary
    )


def gpt2(f: Fields, name: str) -> Model:
    """GPT-2, and any GPT of Megatron-LM's plain shape: learned positions, biases, tied embeddings."""
    f.only("add_cross_attention", False)
    hidden = f.integer("n_embd", "hidden_size")
    heads = f.integer("n_head", "num_attention_heads")
    inner = f.integer("n_inner", default=4 * hidden)
    block = Block(
        hidden=hidden,
        attention=_plain_attention(f, hidden, heads, bias=True),
        feed_forward=FeedForward(intermediate=inner, gated=False, bias=True),
        norm_bias=True,
    )
    layers = f.layers("n_layer", "num_hidden_layers")
    model = stack(f, name, [block] * layers, tied=True, norm_bias=True)
    return replace(model, positions=f.integer("n_positions", "max_position_embeddings"))


def gpt_neox(f: Fields, name: str) -> Model:
    """GPT-NeoX and Pythia: parallel residual, two norms, rotary positions."""
    hidden = f.integer("hidden_size")
    heads = f.integer("num_attention_heads")
    bias = f.flag("attention_bias", True)
    block = Block(
        hidden=hidden,
        attention=_plain_attention(f, hidden, heads, bias=bias, rotary=True),
        feed_forward=FeedForward(intermediate=f.integer("intermediate_size"), gated=False, bias=True),
        norm_bias=True,
        parallel=f.flag("use_parallel_residual", True),
    )
    return stack(f, name, [block] * f.layers("num_hidden_layers"), tied=False, norm_bias=True)


def opt(f: Fields, name: str) -> Model:
    """OPT: two spare rows of positions; the 350M model has narrow embeddings and no final norm."""
    f.only("layer_norm_elementwise_affine", True)
    hidden = f.integer("hidden_size")
    bias = f.flag("enable_bias", True)
    attention = _plain_attention(f, hidden, f.integer("num_attention_heads"), bias=bias)
    feed = FeedForward(intermediate=f.integer("ffn_dim"), gated=False, bias=bias)
    block = Block(hidden=hidden, attention=attention, feed_forward=feed, norm_bias=True)
    model = stack(f, name, [block] * f.layers("num_hidden_layers"), tied=True, norm_bias=True)
    width = f.integer("word_embed_proj_dim", default=hidden)
    removed = f.flag("_remove_final_layer_norm", False)
    return replace(
        model,
        positions=f.integer("max_position_embeddings") + 2,
        embedding_features=None if width == hidden else width,
        final_norm=f.flag("do_layer_norm_before", True) and not removed,
    )


def _mpt_attention(f: Fields, hidden: int, bias: bool) -> Attention:
    options = f.inner("attn_config")
    for name in ("prefix_lm", "qk_ln", "qk_gn"):
        options.only(name, False)
    options.only("attn_type", "multihead_attention", "multiquery_attention", "grouped_query_attention")
    heads = f.integer("n_heads")
    attention = _plain_attention(f, hidden, heads, bias=bias, rotary=options.flag("rope", False))
    kind = options.word("attn_type", "multihead_attention")
    if kind == "multihead_attention":
        return attention
    kv_heads = 1 if kind == "multiquery_attention" else options.integer("kv_n_heads")
    check_groups(f, heads, kv_heads)
    return replace(attention, kv_heads=kv_heads)


def _mpt_positions(f: Fields) -> int:
    """Rows of the learned position table: none with ALiBi or rotary positions."""
    options = f.inner("attn_config")
    elsewhere = options.flag("alibi", True) or options.flag("rope", False)
    return 0 if elsewhere or not f.flag("learned_pos_emb", True) else f.integer("max_seq_len")


def mpt(f: Fields, name: str) -> Model:
    """MPT."""
    f.inner("ffn_config").only("ffn_type", "mptmlp")
    hidden = f.integer("d_model")
    bias = not f.flag("no_bias", True)
    inner = hidden * f.integer("expansion_ratio", default=4, most=1024)
    block = Block(
        hidden=hidden,
        attention=_mpt_attention(f, hidden, bias),
        feed_forward=FeedForward(intermediate=inner, gated=False, bias=bias),
        norm_bias=bias,
    )
    model = stack(f, name, [block] * f.layers("n_layers"), tied=True, norm_bias=bias)
    return replace(model, positions=_mpt_positions(f))


def _falcon_attention(f: Fields, hidden: int, grouped: bool) -> Attention:
    heads = f.integer("num_attention_heads", "n_head")
    kv_heads = 1
    if grouped or not f.flag("multi_query", True):
        kv_heads = f.integer("num_kv_heads", "n_head_kv", default=heads)
    check_groups(f, heads, kv_heads)
    bias = f.flag("bias", False)
    attention = _plain_attention(f, hidden, heads, bias=bias, rotary=not f.flag("alibi", False))
    return replace(attention, kv_heads=kv_heads)


def _falcon_norms(f: Fields, grouped: bool) -> int:
    if grouped:
        return f.integer("num_ln_in_parallel_attn", default=2, most=2)
    return 1 if f.flag("parallel_attn", True) else 2


def falcon(f: Fields, name: str) -> Model:
    """Falcon: multi-query with one norm (7B), or grouped queries with two (40B, 180B)."""
    hidden = f.integer("hidden_size")
    grouped = f.flag("new_decoder_architecture", False)
    inner = f.integer("ffn_hidden_size", default=4 * hidden)
    block = Block(
        hidden=hidden,
        attention=_falcon_attention(f, hidden, grouped),
        feed_forward=FeedForward(intermediate=inner, gated=False, bias=f.flag("bias", False)),
        norms=_falcon_norms(f, grouped),
        norm_bias=True,
        parallel=grouped or f.flag("parallel_attn", True),
    )
    layers = f.layers("num_hidden_layers", "n_layer")
    return stack(f, name, [block] * layers, tied=True, norm_bias=True)


def bloom(f: Fields, name: str) -> Model:
    """BLOOM: ALiBi, and a norm after the embedding."""
    hidden = f.integer("hidden_size", "n_embed")
    heads = f.integer("n_head", "num_attention_heads")
    block = Block(
        hidden=hidden,
        attention=_plain_attention(f, hidden, heads, bias=True),
        feed_forward=FeedForward(intermediate=4 * hidden, gated=False, bias=True),
        norm_bias=True,
    )
    layers = f.layers("n_layer", "num_hidden_layers")
    model = stack(f, name, [block] * layers, tied=True, norm_bias=True)
    return replace(model, embedding_norm=True)


def nemotron(f: Fields, name: str) -> Model:
    """Nemotron-3 (8B, 22B) and Nemotron-4: LayerNorm, squared ReLU, rotary positions, no biases, untied."""
    hidden = f.integer("hidden_size")
    bias = f.flag("attention_bias", False)
    attention = grouped_attention(f, hidden, qkv_bias=bias, out_bias=bias)
    feed = FeedForward(intermediate=f.integer("intermediate_size"), gated=False, bias=f.flag("mlp_bias", False))
    block = Block(hidden=hidden, attention=attention, feed_forward=feed, norm_bias=True)
    layers = f.layers("num_hidden_layers")
    return stack(f, name, [block] * layers, tied=False, norm_bias=True)


def _uniform(f: Fields, attention: Attention, feed_forward: FeedForward | MixtureOfExperts) -> list[Block]:
    hidden = f.integer("hidden_size")
    block = Block(hidden=hidden, attention=attention, feed_forward=feed_forward)
    return [block] * f.layers("num_hidden_layers")


def _windowed(block: Block, window: int, sliding: Sequence[bool]) -> list[Block]:
    """The block for each layer, with the window where it slides."""
    attention = block.attention
    if attention is None:
        return [block] * len(sliding)
    narrow = replace(block, attention=replace(attention, window=window))
    return [narrow if slides else block for slides in sliding]


def llama(f: Fields, name: str) -> Model:
    """Llama 1 to 3.3."""
    bias = f.flag("attention_bias", False)
    attention = grouped_attention(f, f.integer("hidden_size"), qkv_bias=bias, out_bias=bias)
    feed = FeedForward(intermediate=f.integer("intermediate_size"), bias=f.flag("mlp_bias", False))
    return stack(f, name, _uniform(f, attention, feed), tied=False)


def _mistral_attention(f: Fields, window_default: int | None) -> Attention:
    attention = grouped_attention(f, f.integer("hidden_size"), kv_default=8)
    absent = window_default if "sliding_window" not in f.data else None
    return replace(attention, window=f.optional_integer("sliding_window") or absent)


def mistral(f: Fields, name: str) -> Model:
    """Mistral; an absent ``sliding_window`` means 4096, null means none."""
    feed = FeedForward(intermediate=f.integer("intermediate_size"))
    return stack(f, name, _uniform(f, _mistral_attention(f, 4096), feed), tied=False)


def mixtral(f: Fields, name: str) -> Model:
    """Mixtral: every layer routed."""
    experts, top_k = routing(f, "num_local_experts")
    expert = FeedForward(intermediate=f.integer("intermediate_size"))
    feed = MixtureOfExperts(experts=experts, top_k=top_k, expert=expert)
    return stack(f, name, _uniform(f, _mistral_attention(f, None), feed), tied=False)


def phi3(f: Fields, name: str) -> Model:
    """Phi-3 and Phi-4 (fused projections, the same shapes as Llama)."""
    attention = grouped_attention(f, f.integer("hidden_size"))
    attention = replace(attention, window=f.optional_integer("sliding_window"))
    feed = FeedForward(intermediate=f.integer("intermediate_size"))
    return stack(f, name, _uniform(f, attention, feed), tied=False)


def _qwen_sliding(f: Fields, layers: int) -> list[bool]:
    """Qwen slides from layer ``max_window_layers`` on, and only where ``use_sliding_window`` is true."""
    if not f.flag("use_sliding_window", False):
        return [False] * layers
    first = f.integer("max_window_layers", default=28, least=0)
    return sliding_layers(f, layers, (layer >= first for layer in range(layers)))


def _qwen(f: Fields, name: str, blocks: list[Block]) -> Model:
    window = f.integer("sliding_window", default=4096)
    pairs = zip(blocks, _qwen_sliding(f, len(blocks)), strict=True)
    return stack(f, name, [_windowed(block, window, [slides])[0] for block, slides in pairs], tied=False)


def qwen2(f: Fields, name: str) -> Model:
    """Qwen2 and Qwen2.5: biases on queries, keys and values only."""
    attention = grouped_attention(f, f.integer("hidden_size"), kv_default=32, qkv_bias=True)
    return _qwen(f, name, _uniform(f, attention, FeedForward(intermediate=f.integer("intermediate_size"))))


def _qwen3_attention(f: Fields, kv_default: int, head_default: int | None) -> Attention:
    bias = f.flag("attention_bias", False)
    return grouped_attention(
        f,
        f.integer("hidden_size"),
        kv_default=kv_default,
        head_default=head_default,
        qkv_bias=bias,
        out_bias=bias,
        head_norms=True,
    )


def qwen3(f: Fields, name: str) -> Model:
    """Qwen3 dense: norms on the queries and keys of each head."""
    attention = _qwen3_attention(f, 32, 128)
    return _qwen(f, name, _uniform(f, attention, FeedForward(intermediate=f.integer("intermediate_size"))))


def _qwen_moe(f: Fields, name: str, attention: Attention, moe: MixtureOfExperts) -> Model:
    """Routed every ``decoder_sparse_step`` layers, dense in ``mlp_only_layers``."""
    routed = Block(hidden=f.integer("hidden_size"), attention=attention, feed_forward=moe)
    step = f.integer("decoder_sparse_step", default=1)
    dense_layers = set(f.integers("mlp_only_layers"))
    numbers = range(f.layers("num_hidden_layers"))
    sparse = [layer not in dense_layers and (layer + 1) % step == 0 for layer in numbers]
    if all(sparse):
        return _qwen(f, name, [routed] * len(sparse))
    dense = replace(routed, feed_forward=FeedForward(intermediate=f.integer("intermediate_size")))
    return _qwen(f, name, [routed if is_routed else dense for is_routed in sparse])


def qwen2_moe(f: Fields, name: str) -> Model:
    """Qwen2 mixture: a shared expert behind a one-feature gate."""
    hidden = f.integer("hidden_size")
    attention = grouped_attention(f, hidden, kv_default=16, qkv_bias=f.flag("qkv_bias", True))
    experts, top_k = routing(f, "num_experts", "num_local_experts")
    moe = MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        expert=FeedForward(intermediate=f.integer("moe_intermediate_size")),
        shared=FeedForward(intermediate=f.integer("shared_expert_intermediate_size")),
        shared_gate=True,
    )
    return _qwen_moe(f, name, attention, moe)


def qwen3_moe(f: Fields, name: str) -> Model:
    """Qwen3 mixture, without shared expert."""
    experts, top_k = routing(f, "num_experts", "num_local_experts")
    expert = FeedForward(intermediate=f.integer("moe_intermediate_size"))
    moe = MixtureOfExperts(experts=experts, top_k=top_k, expert=expert)
    return _qwen_moe(f, name, _qwen3_attention(f, 4, None), moe)


def gemma(f: Fields, name: str) -> Model:
    """Gemma 1."""
    bias = f.flag("attention_bias", False)
    attention = grouped_attention(
        f, f.integer("hidden_size"), kv_default=16, head_default=256, qkv_bias=bias, out_bias=bias
    )
    feed = FeedForward(intermediate=f.integer("intermediate_size"))
    return stack(f, name, _uniform(f, attention, feed), tied=True)


def _gemma_windows(f: Fields, attention: Attention, period: int) -> list[Block]:
    """Norms before and after each part; of ``period`` layers all but the last slide."""
    f.only("use_bidirectional_attention", False)
    feed = FeedForward(intermediate=f.integer("intermediate_size"))
    block = Block(hidden=f.integer("hidden_size"), attention=attention, feed_forward=feed, norms=4)
    layers = f.layers("num_hidden_layers")
    pattern = sliding_layers(f, layers, ((layer + 1) % period != 0 for layer in range(layers)))
    return _windowed(block, f.integer("sliding_window", default=4096), pattern)


def gemma2(f: Fields, name: str) -> Model:
    """Gemma 2: windows in every other layer, the first included."""
    bias = f.flag("attention_bias", False)
    attention = grouped_attention(
        f, f.integer("hidden_size"), kv_default=4, head_default=256, qkv_bias=bias, out_bias=bias
    )
    return stack(f, name, _gemma_windows(f, attention, 2), tied=True)


def gemma3(f: Fields, name: str) -> Model:
    """Gemma 3: five layers with windows, then one without.

    Published configurations leave out heads and vocabulary where they are the defaults.
    """
    bias = f.flag("attention_bias", False)
    attention = grouped_attention(
        f,
        f.integer("hidden_size"),
        heads_default=8,
        kv_default=4,
        head_default=256,
        qkv_bias=bias,
        out_bias=bias,
        head_norms=True,
    )
    period = f.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    blocks = _gemma_windows(f, attention, period)
    return stack(f, name, blocks, tied=True, vocab_default=262_208)


def gpt_oss(f: Fields, name: str) -> Model:
    """GPT-OSS: sinks, biases everywhere, windows in every other layer from the first on."""
    hidden = f.integer("hidden_size")
    bias = f.flag("attention_bias", True)
    attention = grouped_attention(f, hidden, kv_default=8, head_default=64, qkv_bias=bias, out_bias=bias, sinks=True)
    experts, top_k = routing(f, "num_local_experts")
    expert = FeedForward(intermediate=f.integer("intermediate_size"), bias=True)
    feed = MixtureOfExperts(experts=experts, top_k=top_k, expert=expert, router_bias=True)
    layers = f.layers("num_hidden_layers")
    block = Block(hidden=hidden, attention=attention, feed_forward=feed)
    pattern = sliding_layers(f, layers, (layer % 2 == 0 for layer in range(layers)))
    blocks = _windowed(block, f.integer("sliding_window", default=128), pattern)
    return stack(f, name, blocks, tied=False)


def latent_attention(f: Fields) -> LatentAttention:
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


def shared_moe(f: Fields, *, balance_bias: bool) -> MixtureOfExperts:
    """Experts of DeepSeek's kind: shared ones merge into one; a balancing bias per expert where there is one."""
    experts, top_k = routing(f, "n_routed_experts")
    width = f.integer("moe_intermediate_size")
    shared = f.integer("n_shared_experts", default=0, least=0) * width
    return MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        expert=FeedForward(intermediate=width),
        shared=FeedForward(intermediate=shared) if shared else None,
        balance_bias=balance_bias,
    )


def dense_then_routed(f: Fields, name: str, attention: Attention | LatentAttention, *, balance_bias: bool) -> Model:
    """Dense in the first ``first_k_dense_replace`` layers, then routed every ``moe_layer_freq`` layers."""
    dense = Block(
        hidden=f.integer("hidden_size"),
        attention=attention,
        feed_forward=FeedForward(intermediate=f.integer("intermediate_size")),
    )
    first = f.integer("first_k_dense_replace", default=0, least=0)
    step = f.integer("moe_layer_freq", default=1)
    layers = f.layers("num_hidden_layers")
    routed = dense
    if f.has("n_routed_experts"):
        routed = replace(dense, feed_forward=shared_moe(f, balance_bias=balance_bias))
    blocks = [routed if layer >= first and layer % step == 0 else dense for layer in range(layers)]
    model = stack(f, name, blocks, tied=False)
    return replace(model, prediction_layers=f.integer("num_nextn_predict_layers", default=0, least=0, most=64))


def deepseek_v2(f: Fields, name: str) -> Model:
    """DeepSeek-V2 and V2-Lite."""
    return dense_then_routed(f, name, latent_attention(f), balance_bias=False)


def deepseek_v3(f: Fields, name: str) -> Model:
    """DeepSeek-V3, V3.1 and R1, Kimi K2: routing with a balancing bias per expert."""
    return dense_then_routed(f, name, latent_attention(f), balance_bias=True)


def palm(f: Fields, name: str) -> Model:
    """PaLM (arXiv 2204.02311, section 2): parallel blocks of one norm, multi-query, no biases, tied."""
    attention = grouped_attention(f, f.integer("hidden_size"), kv_default=1)
    block = Block(
        hidden=f.integer("hidden_size"),
        attention=attention,
        feed_forward=FeedForward(intermediate=f.integer("intermediate_size")),
        norms=1,
        parallel=True,
    )
    return stack(f, name, [block] * f.layers("num_hidden_layers"), tied=True)


def glm4_moe(f: Fields, name: str) -> Model:
    """GLM-4.5 and 4.6: biases on queries, keys and values, dense in the first layers."""
    attention = grouped_attention(
        f,
        f.integer("hidden_size"),
        kv_default=8,
        head_default=128,
        qkv_bias=f.flag("attention_bias", False),
        head_norms=f.flag("use_qk_norm", False),
    )
    return dense_then_routed(f, name, attention, balance_bias=True)


def _llama4_routed(f: Fields, layers: int) -> list[bool]:
    """For each layer whether it has experts: those listed, else every ``interleave_moe_layer_step``-th."""
    listed = f.integers("moe_layers")
    step = f.integer("interleave_moe_layer_step", default=1)
    return [layer in listed if listed else (layer + 1) % step == 0 for layer in range(layers)]


def _llama4_rotary(f: Fields, layers: int) -> list[bool]:
    """For each layer whether it has rotary positions, and so attends within its chunk only: 1 in
    ``no_rope_layers``."""
    listed = f.integers("no_rope_layers")
    if listed and len(listed) != layers:
        raise f.bad("no_rope_layers", f"{len(listed)} entries for {layers} layers")
    interval = f.integer("no_rope_layer_interval", default=4)
    return [bool(one) for one in listed] or [(layer + 1) % interval != 0 for layer in range(layers)]


def llama4(f: Fields, name: str) -> Model:
    """Llama 4: attention within chunks but for every fourth layer, which has no positions; a shared expert
    beside routed ones, in every or every other layer.  Its query-key norm has no parameters."""
    hidden, layers = f.integer("hidden_size"), f.layers("num_hidden_layers")
    bias = f.flag("attention_bias", False)
    whole = grouped_attention(f, hidden, kv_default=8, head_default=128, qkv_bias=bias, out_bias=bias)
    whole = replace(whole, rotary=False)
    chunk = f.integer("attention_chunk_size", default=8192)
    chunked = replace(whole, rotary=True, window=chunk, chunked=True)
    experts, top_k = routing(f, "num_local_experts")
    expert = FeedForward(intermediate=f.integer("intermediate_size"))
    moe = MixtureOfExperts(experts=experts, top_k=top_k, expert=expert, shared=expert)
    dense = FeedForward(intermediate=f.integer("intermediate_size_mlp", "intermediate_size"))
    blocks = [
        Block(hidden=hidden, attention=chunked if rotary else whole, feed_forward=moe if routed else dense)
        for rotary, routed in zip(_llama4_rotary(f, layers), _llama4_routed(f, layers), strict=True)
    ]
    return stack(f, name, blocks, tied=False)


def minimax_m2(f: Fields, name: str) -> Model:
    """MiniMax-M2: norms over all query and all key features, a balancing bias per expert."""
    hidden, layers = f.integer("hidden_size"), f.layers("num_hidden_layers")
    if any(kind != 1 for kind in f.integers("attn_type_list")):
        raise f.unsupported("attn_type_list")
    f.only("qk_norm_type", "per_layer")
    attention = grouped_attention(f, hidden, kv_default=8, head_default=128)
    if f.flag("use_qk_norm", True):
        norms = (attention.heads + attention.kv_heads) * attention.head_dim
        attention = replace(attention, extra_parameters=norms)
    experts, top_k = routing(f, "num_local_experts")
    moe = MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        expert=FeedForward(intermediate=f.integer("intermediate_size")),
        balance_bias=f.flag("use_routing_bias", True),
    )
    block = Block(hidden=hidden, attention=attention, feed_forward=moe)
    model = stack(f, name, [block] * layers, tied=False)
    modules = f.integer("num_mtp_modules", default=0, least=0, most=64) if f.flag("use_mtp", False) else 0
    return replace(model, prediction_layers=modules)


def minimax_m2_or(other: Callable[[Fields, str], Model]) -> Callable[[Fields, str], Model]:
    """The reader of type ``minimax``, under which MiniMax-M2 too was published: M2 names its modules or its
    query-key norms."""

    def read(f: Fields, name: str) -> Model:
        second = f.flag("use_qk_norm", False) or "MiniMaxM2" in str(f.data.get("architectures"))
        return minimax_m2(f, name) if second else other(f, name)

    return read


_EXPERTS = ("num_experts", "num_local_experts", "moe_num_experts")
_WIDTHS = ("moe_intermediate_size", "intermediate_size", "ffn_hidden_size")
OTHER_TASKS = frozenset({"bert", "clip", "t5", "vit", "whisper"})
"""Types that are no decoders of text, for which nothing stands in."""


def dense_equivalent(f: Fields, name: str) -> Model:
    """Every block as full attention (latent where the configuration has ranks) and a gated feed-forward part, with
    the numbers and widths that the configuration states: layers, heads, features, experts.

    Raises:
        BadInput: the configuration lacks the keys that decoders share.
    """
    attention = latent_attention(f) if f.has("kv_lora_rank") else grouped_attention(f, f.integer("hidden_size"))
    if f.has("n_routed_experts"):
        return dense_then_routed(f, name, attention, balance_bias=False)
    layers, period = f.layers("num_hidden_layers"), 0
    dense = FeedForward(intermediate=f.integer(*_WIDTHS[1:]))
    routed: FeedForward | MixtureOfExperts = dense
    if f.find(*_EXPERTS) and f.integer(*_EXPERTS) > 1:
        period = f.integer("expert_layer_period", "decoder_sparse_step", default=1)
        experts, top_k = routing(f, *_EXPERTS)
        shared = f.optional_integer("shared_expert_intermediate_size", "shared_intermediate_size", least=0)
        routed = MixtureOfExperts(
            experts=experts,
            top_k=top_k,
            expert=FeedForward(intermediate=f.integer(*_WIDTHS)),
            shared=FeedForward(intermediate=shared) if shared else None,
        )
    offset = f.integer("expert_layer_offset", default=max(period - 1, 0), least=0)
    feeds = [routed if period and layer % period == offset else dense for layer in range(layers)]
    hidden = f.integer("hidden_size")
    return stack(f, name, [Block(hidden=hidden, attention=attention, feed_forward=feed) for feed in feeds], tied=False)
