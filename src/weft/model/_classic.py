"""Families with LayerNorm and ungated feed-forward layers: GPT-2 and its relatives."""

from __future__ import annotations

from dataclasses import replace

from weft.model import _families as families
from weft.model._fields import Fields
from weft.model.spec import Attention, Block, FeedForward, Model


def _plain_attention(f: Fields, hidden: int, heads: int, *, bias: bool, rotary: bool = False) -> Attention:
    """Multi-head attention whose heads share the hidden features evenly."""
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=families.even_split(f, hidden, heads),
        qkv_bias=bias,
        out_bias=bias,
        rotary=rotary,
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
    model = families.stack(f, name, [block] * layers, tied=True, norm_bias=True)
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
    return families.stack(f, name, [block] * f.layers("num_hidden_layers"), tied=False, norm_bias=True)


def opt(f: Fields, name: str) -> Model:
    """OPT: two spare rows of positions; the 350M model has narrow embeddings and no final norm."""
    f.only("layer_norm_elementwise_affine", True)
    hidden = f.integer("hidden_size")
    bias = f.flag("enable_bias", True)
    attention = _plain_attention(f, hidden, f.integer("num_attention_heads"), bias=bias)
    feed = FeedForward(intermediate=f.integer("ffn_dim"), gated=False, bias=bias)
    block = Block(hidden=hidden, attention=attention, feed_forward=feed, norm_bias=True)
    model = families.stack(f, name, [block] * f.layers("num_hidden_layers"), tied=True, norm_bias=True)
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
    families.check_groups(f, heads, kv_heads)
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
    model = families.stack(f, name, [block] * f.layers("n_layers"), tied=True, norm_bias=bias)
    return replace(model, positions=_mpt_positions(f))


def _falcon_attention(f: Fields, hidden: int, grouped: bool) -> Attention:
    heads = f.integer("num_attention_heads", "n_head")
    kv_heads = 1
    if grouped or not f.flag("multi_query", True):
        kv_heads = f.integer("num_kv_heads", "n_head_kv", default=heads)
    families.check_groups(f, heads, kv_heads)
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
    return families.stack(f, name, [block] * layers, tied=True, norm_bias=True)


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
    model = families.stack(f, name, [block] * layers, tied=True, norm_bias=True)
    return replace(model, embedding_norm=True)


def nemotron(f: Fields, name: str) -> Model:
    """Nemotron-3 (8B, 22B) and Nemotron-4: LayerNorm, squared ReLU, rotary positions, no biases, untied."""
    hidden = f.integer("hidden_size")
    bias = f.flag("attention_bias", False)
    attention = families.grouped_attention(f, hidden, qkv_bias=bias, out_bias=bias)
    feed = FeedForward(intermediate=f.integer("intermediate_size"), gated=False, bias=f.flag("mlp_bias", False))
    block = Block(hidden=hidden, attention=attention, feed_forward=feed, norm_bias=True)
    layers = f.layers("num_hidden_layers")
    return families.stack(f, name, [block] * layers, tied=False, norm_bias=True)
