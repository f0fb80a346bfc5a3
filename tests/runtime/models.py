"""Small models for the runtime's tests."""

from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model


def gpt(*, layers: int = 2, hidden: int = 32, heads: int = 8, vocab: int = 53, tied: bool = False) -> Model:
    """LayerNorm, biases, GELU, learned positions; an odd vocabulary."""
    block = Block(
        hidden=hidden,
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=hidden // heads,
            qkv_bias=True,
            out_bias=True,
            rotary=False,
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
