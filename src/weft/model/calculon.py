"""Applications of Calculon (``models/*.json`` of calculon-ai/calculon): GPT blocks by their sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from weft.codec import Count, Range, decode
from weft.documents import parse_json
from weft.errors import Unsupported
from weft.files import CONFIGURATION_BYTES, read_text
from weft.model.spec import Attention, Block, BlockRun, FeedForward, Model

VOCABULARY = 51200
"""What Calculon counts as rows of the embedding."""
GATED = 3, 2
"""A gated feed-forward layer has three matrices, Calculon's has two: as wide in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Calculon's fields, with their names: attention of ``attn_heads`` heads of ``attn_size`` features."""

    hidden: Count
    feedforward: Count
    seq_size: Annotated[int, Range(1, 10**8)]
    attn_heads: Count
    attn_size: Count
    num_blocks: Annotated[int, Range(1, 100_000)]


def read_application(path: Path) -> tuple[Model, int] | None:
    """Model and tokens of a sequence of a file; None where it is not an application.

    Raises:
        BadInput: a field is unknown, missing or out of range.
    """
    if not os.path.isfile(path):
        return None
    where = str(path)
    text = read_text(path, where=where, largest=CONFIGURATION_BYTES, remedy="give a config.json")
    if '"attn_heads"' not in text:
        return None
    values = parse_json(text, where)
    if not (isinstance(values, Mapping) and {"attn_heads", "attn_size", "num_blocks"} <= set(values)):
        return None
    application = decode(Application, values, where)
    return application_model(application, path.stem), application.seq_size


def application_model(application: Application, name: str) -> Model:
    """GPT with biases, LayerNorm, learned positions and a tied embedding, as Calculon counts its parameters."""
    block = Block(
        hidden=application.hidden,
        attention=Attention(
            heads=application.attn_heads,
            kv_heads=application.attn_heads,
            head_dim=application.attn_size,
            qkv_bias=True,
            out_bias=True,
            rotary=False,
        ),
        feed_forward=FeedForward(intermediate=application.feedforward, gated=False, bias=True),
        norm_bias=True,
    )
    return Model(
        name=name,
        hidden=application.hidden,
        vocab=VOCABULARY,
        runs=(BlockRun(block=block, count=application.num_blocks),),
        tied_embeddings=True,
        positions=application.seq_size,
        norm_bias=True,
    )


def model_application(model: Model, sequence: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """The document of a model whose blocks are all alike, and what it cannot say.

    Raises:
        Unsupported: the model has experts, latent attention, a window, blocks of several kinds or modules that
            predict more tokens.
    """
    kinds = model.kinds
    attention, feed = kinds[0].attention, kinds[0].feed_forward
    wrong = {
        "experts": any(kind.moe is not None for kind in kinds),
        "blocks without attention, or latent attention": any(
            not isinstance(kind.attention, Attention) for kind in kinds
        ),
        "windowed attention": any(
            kind.attention is not None and (kind.attention.window or sequence) < sequence for kind in kinds
        ),
        "prediction modules": model.prediction_layers > 0,
        "blocks of several kinds": len(kinds) > 1,
    }
    if any(wrong.values()) or not isinstance(feed, FeedForward) or not isinstance(attention, Attention):
        reasons = ", ".join(name for name, is_so in wrong.items() if is_so)
        raise Unsupported(f"Calculon has no {reasons}", where=model.name, remedy="choose a plain decoder")
    wide, narrow = GATED if feed.gated else (1, 1)
    notes = []
    if feed.gated:
        notes.append(f"the gated feed-forward layer of {feed.intermediate} stands as a plain one half as wide again")
    if attention.kv_heads != attention.heads:
        notes.append(f"keys and values count for all {attention.heads} heads, not for {attention.kv_heads}")
    application = Application(
        hidden=model.hidden,
        feedforward=feed.intermediate * wide // narrow,
        seq_size=sequence,
        attn_heads=attention.heads,
        attn_size=attention.head_dim,
        num_blocks=model.layers,
    )
    return asdict(application), tuple(notes)
