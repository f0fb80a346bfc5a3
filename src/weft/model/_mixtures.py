"""Mixtures of experts with grouped-query attention: Llama 4, GLM-4.5 and MiniMax-M2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.model._families import dense_then_routed, grouped_attention, routing, stack
from weft.model._fields import Fields
from weft.model.spec import Block, FeedForward, MixtureOfExperts, Model


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
