"""Small models, and grids of eight ranks, for the runtime's tests."""

from dataclasses import replace
from itertools import product
from typing import Any

from weft.layout.spec import Layout
from weft.model.spec import Attention, Block, BlockRun, FeedForward, MixtureOfExperts, Model


def gpt(*, layers: int = 2, hidden: int = 32, heads: int = 8, vocab: int = 53, tied: bool = False) -> Model:
    """LayerNorm, biases, GELU, learned positions; an odd vocabulary."""
    block = Block(
        hidden=hidden,
        attention=Attention(
            heads=heads, kv_heads=heads, head_dim=hidden // heads, qkv_bias=True, out_bias=True, rotary=False
        ),
        feed_forward=FeedForward(intermediate=4 * hidden, gated=False, bias=True),
        norm_bias=True,
    )
    return Model(
        name="gpt",
        hidden=hidden,
        vocab=vocab,
        runs=(BlockRun(block=block, count=layers),),
        positions=16,
        norm_bias=True,
        tied_embeddings=tied,
    )


def llama(*, layers: int = 2, hidden: int = 32, heads: int = 16, kv_heads: int = 8, vocab: int = 64) -> Model:
    """RMSNorm, rotary positions, grouped queries, SwiGLU."""
    block = Block(
        hidden=hidden,
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=4),
        feed_forward=FeedForward(intermediate=48),
    )
    return Model(name="llama", hidden=hidden, vocab=vocab, runs=(BlockRun(block=block, count=layers),))


def gemma(*, layers: int = 2) -> Model:
    """Four norms, norms of queries and keys, a window in every other block; an odd vocabulary that is tied."""
    plain = llama().kinds[0]
    attention = replace(plain.attention, head_norms=True)
    whole = replace(plain, norms=4, attention=attention)
    narrow = replace(whole, attention=replace(attention, window=3))
    runs = tuple(BlockRun(block=whole if index % 2 else narrow, count=1) for index in range(layers))
    return Model(name="gemma", hidden=plain.hidden, vocab=53, runs=runs, tied_embeddings=True)


def mixture(*, layers: int = 2, hidden: int = 32, experts: int = 8, shared: bool = False) -> Model:
    """As ``llama``, with experts of which a token uses two."""
    block = Block(
        hidden=hidden,
        attention=Attention(heads=8, kv_heads=4, head_dim=4),
        feed_forward=MixtureOfExperts(
            experts=experts,
            top_k=2,
            expert=FeedForward(intermediate=24),
            shared=FeedForward(intermediate=16) if shared else None,
        ),
    )
    return Model(name="mixture", hidden=hidden, vocab=64, runs=(BlockRun(block=block, count=layers),))


BATCH, SEQUENCE = 16, 8
EVERY = [(x, y, z, data) for x, y, z, data in product((1, 2, 4, 8), repeat=4) if x * y * z * data == 8]
"""All (x, y, z, data) of eight ranks."""
MORE = [(2, 2, 2, 1), (8, 1, 1, 1), (1, 8, 1, 1), (1, 1, 8, 1), (1, 1, 1, 8), (2, 1, 2, 2), (1, 4, 1, 2), (4, 1, 2, 1)]
"""Each axis alone, pairs and triples."""
FEW = [(2, 2, 2, 1), (1, 4, 1, 2), (4, 1, 2, 1)]
"""Every axis beside another; long tests take all grids."""
Z_INSIDE = ("z", "y", "x", "data", "context", "pipeline")
DATA_INSIDE = ("data", "y", "z", "x", "pipeline", "context")
"""Placements: y inside x, and not the other way round."""


OFF = {"overlap_tensor": "none", "overlap_reduce": False, "overlap_gather": False}
"""Nothing is hidden."""


def layout_of(grid: tuple[int, int, int, int], *, micro_batches: int = 2, **switches: Any) -> Layout:
    """A layout whose ranks take their part of the batch in so many micro-batches."""
    x, y, z, data = grid
    return Layout(x=x, y=y, z=z, data=data, micro_batch=BATCH // (z * data * micro_batches), **switches)
