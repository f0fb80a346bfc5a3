"""Families with RMSNorm, rotary positions and gated feed-forward layers: Llama and its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.model import _families as families
from weft.model._fields import Fields
from weft.model.spec import Attention, Block, FeedForward, LatentAttention, MixtureOfExperts, Model


def _uniform(f: Fields, attention: Attention, feed_forward: FeedForward | MixtureOfExperts) -> list[Block]:
    hidden = f.integer("hidden_size")
    block = Block(hidden=hidden, attention=attention, feed_forward=feed_forward)
    return [block] * f.layers("num_hidden_layers")


def _windowed(block: Block, window: int, sliding: Sequence[bool]) -> list[Block]:
    """The block for each layer, with the window where it slides."""
    narrow = replace(block, attention=replace(block.attention, window=window))
    return [narrow if slides else block for slides in sliding]


def llama(f: Fields, name: str) -> Model:
    """Llama 1 to 3.3."""
    bias = f.flag("attention_bias", False)
    attention = families.grouped_attention(f, f.integer("hidden_size"), qkv_bias=bias, out_bias=bias)
    feed = FeedForward(intermediate=f.integer("intermediate_size"), bias=f.flag("mlp_bias", False))
    return families.stack(f, name, _uniform(f, attention, feed), tied=False)


def _mistral_attention(f: Fields, window_default: int | None) -> Attention:
    attention = families.grouped_attention(f, f.integer("hidden_size"), kv_default=8)
    absent = window_default if "sliding_window" not in f.data else None
    return replace(attention, window=f.optional_integer("sliding_window") or absent)


def mistral(f: Fields, name: str) -> Model:
    """Mistral; an absent ``sliding_window`` means 4096, null means none."""
    feed = FeedForward(intermediate=f.integer("intermediate_size"))
    return families.stack(f, name, _uniform(f, _mistral_attention(f, 4096), feed), tied=False)


def mixtral(f: Fields, name: str) -> Model:
    """Mixtral: every layer routed."""
    experts, top_k = families.routing(f, "num_local_experts")
    expert = FeedForward(intermediate=f.integer("intermediate_size"))
    feed = MixtureOfExperts(experts=experts, top_k=top_k, expert=expert)
    return families.stack(f, name, _uniform(f, _mistral_attention(f, None), feed), tied=False)


def phi3(f: Fields, name: str) -> Model:
    """Phi-3 and Phi-4 (fused projections, the same shapes as Llama)."""
    attention = families.grouped_attention(f, f.integer("hidden_size"))
    attention = replace(attention, window=f.optional_integer("sliding_window"))
    feed = FeedForward(intermediate=f.integer("intermediate_size"))
    return families.stack(f, name, _uniform(f, attention, feed), tied=False)


def _qwen_sliding(f: Fields, layers: int) -> list[bool]:
    """Qwen slides from layer ``max_window_layers`` on, and only where ``use_sliding_window`` is true."""
    if not f.flag("use_sliding_window", False):
        return [False] * layers
    first = f.integer("max_window_layers", default=28, least=0)
    return families.sliding_layers(f, layers, (layer >= first for layer in range(layers)))


def _qwen(f: Fields, name: str, blocks: list[Block]) -> Model:
    window = f.integer("sliding_window", default=4096)
    pairs = zip(blocks, _qwen_sliding(f, len(blocks)), strict=True)
    return families.stack(f, name, [_windowed(block, window, [slides])[0] for block, slides in pairs], tied=False)


def qwen2(f: Fields, name: str) -> Model:
    """Qwen2 and Qwen2.5: biases on queries, keys and values only."""
    attention = families.grouped_attention(f, f.integer("hidden_size"), kv_default=32, qkv_bias=True)
    return _qwen(f, name, _uniform(f, attention, FeedForward(intermediate=f.integer("intermediate_size"))))


def _qwen3_attention(f: Fields, kv_default: int, head_default: int | None) -> Attention:
    bias = f.flag("attention_bias", False)
    return families.grouped_attention(
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
    attention = families.grouped_attention(f, hidden, kv_default=16, qkv_bias=f.flag("qkv_bias", True))
    experts, top_k = families.routing(f, "num_experts")
    moe = MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        expert=FeedForward(intermediate=f.integer("moe_intermediate_size")),
        shared=FeedForward(intermediate=f.integer("shared_expert_intermediate_size")),
        extra_parameters=hidden,
    )
    return _qwen_moe(f, name, attention, moe)


def qwen3_moe(f: Fields, name: str) -> Model:
    """Qwen3 mixture, without shared expert."""
    experts, top_k = families.routing(f, "num_experts")
    expert = FeedForward(intermediate=f.integer("moe_intermediate_size"))
    moe = MixtureOfExperts(experts=experts, top_k=top_k, expert=expert)
    return _qwen_moe(f, name, _qwen3_attention(f, 4, None), moe)


def gemma(f: Fields, name: str) -> Model:
    """Gemma 1."""
    bias = f.flag("attention_bias", False)
    attention = families.grouped_attention(
        f, f.integer("hidden_size"), kv_default=16, head_default=256, qkv_bias=bias, out_bias=bias
    )
    feed = FeedForward(intermediate=f.integer("intermediate_size"))
    return families.stack(f, name, _uniform(f, attention, feed), tied=True)


def _gemma_windows(f: Fields, attention: Attention, period: int) -> list[Block]:
    """Norms before and after each part; of ``period`` layers all but the last slide."""
    f.only("use_bidirectional_attention", False)
    feed = FeedForward(intermediate=f.integer("intermediate_size"))
    block = Block(hidden=f.integer("hidden_size"), attention=attention, feed_forward=feed, norms=4)
    layers = f.layers("num_hidden_layers")
    pattern = families.sliding_layers(f, layers, ((layer + 1) % period != 0 for layer in range(layers)))
    return _windowed(block, f.integer("sliding_window", default=4096), pattern)


def gemma2(f: Fields, name: str) -> Model:
    """Gemma 2: windows in every other layer, the first included."""
    bias = f.flag("attention_bias", False)
    attention = families.grouped_attention(
        f, f.integer("hidden_size"), kv_default=4, head_default=256, qkv_bias=bias, out_bias=bias
    )
    return families.stack(f, name, _gemma_windows(f, attention, 2), tied=True)


def gemma3(f: Fields, name: str) -> Model:
    """Gemma 3 (its text part): five layers with windows, then one without.

    Published configurations leave out heads and vocabulary where they are the defaults.
    """
    text = f.inner("text_config") if f.has("text_config") else f
    bias = text.flag("attention_bias", False)
    attention = families.grouped_attention(
        text,
        text.integer("hidden_size"),
        heads_default=8,
        kv_default=4,
        head_default=256,
        qkv_bias=bias,
        out_bias=bias,
        head_norms=True,
    )
    period = text.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    blocks = _gemma_windows(text, attention, period)
    return families.stack(text, name, blocks, tied=True, vocab_default=262_208)


def gpt_oss(f: Fields, name: str) -> Model:
    """GPT-OSS: sinks, biases everywhere, windows in every other layer from the first on."""
    hidden = f.integer("hidden_size")
    bias = f.flag("attention_bias", True)
    attention = families.grouped_attention(
        f, hidden, kv_default=8, head_default=64, qkv_bias=bias, out_bias=bias, sinks=True
    )
    experts, top_k = families.routing(f, "num_local_experts")
    expert = FeedForward(intermediate=f.integer("intermediate_size"), bias=True)
    feed = MixtureOfExperts(experts=experts, top_k=top_k, expert=expert, router_bias=True)
    layers = f.layers("num_hidden_layers")
    block = Block(hidden=hidden, attention=attention, feed_forward=feed)
    pattern = families.sliding_layers(f, layers, (layer % 2 == 0 for layer in range(layers)))
    blocks = _windowed(block, f.integer("sliding_window", default=128), pattern)
    return families.stack(f, name, blocks, tied=False)


def _latent_attention(f: Fields) -> LatentAttention:
    f.only("attention_bias", False)
    q_rank = f.optional_integer("q_lora_rank")
    kv_rank = f.integer("kv_lora_rank")
    return LatentAttention(
        heads=f.integer("num_attention_heads"),
        q_rank=q_rank,
        kv_rank=kv_rank,
        nope_dim=f.integer("qk_nope_head_dim"),
        rope_dim=f.integer("qk_rope_head_dim"),
        value_dim=f.integer("v_head_dim"),
        extra_parameters=(q_rank or 0) + kv_rank,
    )


def _deepseek_moe(f: Fields, *, balance_bias: bool) -> MixtureOfExperts:
    experts, top_k = families.routing(f, "n_routed_experts")
    width = f.integer("moe_intermediate_size")
    shared = f.integer("n_shared_experts", default=0, least=0) * width
    return MixtureOfExperts(
        experts=experts,
        top_k=top_k,
        expert=FeedForward(intermediate=width),
        shared=FeedForward(intermediate=shared) if shared else None,
        extra_parameters=experts if balance_bias else 0,
    )


def _deepseek(f: Fields, name: str, *, balance_bias: bool) -> Model:
    """Dense in the first ``first_k_dense_replace`` layers, then routed every ``moe_layer_freq`` layers."""
    dense = Block(
        hidden=f.integer("hidden_size"),
        attention=_latent_attention(f),
        feed_forward=FeedForward(intermediate=f.integer("intermediate_size")),
    )
    first = f.integer("first_k_dense_replace", default=0, least=0)
    step = f.integer("moe_layer_freq", default=1)
    layers = f.layers("num_hidden_layers")
    routed = dense
    if f.has("n_routed_experts"):
        routed = replace(dense, feed_forward=_deepseek_moe(f, balance_bias=balance_bias))
    blocks = [routed if layer >= first and layer % step == 0 else dense for layer in range(layers)]
    model = families.stack(f, name, blocks, tied=False)
    return replace(model, prediction_layers=f.integer("num_nextn_predict_layers", default=0, least=0, most=64))


def deepseek_v2(f: Fields, name: str) -> Model:
    """DeepSeek-V2 and V2-Lite."""
    return _deepseek(f, name, balance_bias=False)


def deepseek_v3(f: Fields, name: str) -> Model:
    """DeepSeek-V3 and R1: routing with a balancing bias per expert."""
    return _deepseek(f, name, balance_bias=True)


def palm(f: Fields, name: str) -> Model:
    """PaLM (arXiv 2204.02311, section 2): parallel blocks of one norm, multi-query, no biases, tied."""
    attention = families.grouped_attention(f, f.integer("hidden_size"), kv_default=1)
    block = Block(
        hidden=f.integer("hidden_size"),
        attention=attention,
        feed_forward=FeedForward(intermediate=f.integer("intermediate_size")),
        norms=1,
        parallel=True,
    )
    return families.stack(f, name, [block] * f.layers("num_hidden_layers"), tied=True)
