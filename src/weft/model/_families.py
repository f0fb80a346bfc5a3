"""Parts that the model families share: attention, windows, and the stack of blocks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from weft.model._fields import Fields
from weft.model.spec import Attention, Block, BlockRun, Model


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
    """Attention with rotary positions; ``head_norms`` adds the query and key norms of one head."""
    heads, kv_heads = head_counts(f, default=heads_default, kv_default=kv_default)
    head_dim = head_size(f, hidden, heads, default=head_default)
    extra = (2 * head_dim if head_norms else 0) + (heads if sinks else 0)
    return Attention(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, qkv_bias=qkv_bias, out_bias=out_bias, extra_parameters=extra
    )


def sliding_layers(f: Fields, layers: int, otherwise: Iterable[bool]) -> list[bool]:
    """For each layer whether it has a window: from ``layer_types``, else from the family's pattern."""
    kinds = f.words("layer_types", layers)
    if kinds is None:
        return list(otherwise)
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise f.unsupported("layer_types")
    return [kind == "sliding_attention" for kind in kinds]


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
