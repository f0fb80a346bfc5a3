"""A stand-in for models that Weft does not model: full attention and feed-forward blocks of the same widths."""

from __future__ import annotations

from weft.model._families import dense_then_routed, grouped_attention, latent_attention, routing, stack
from weft.model._fields import Fields
from weft.model.spec import Block, FeedForward, MixtureOfExperts, Model

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
