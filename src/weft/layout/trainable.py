"""What ``weft.runtime`` trains: models and layouts, or why it does not."""

from __future__ import annotations

from collections.abc import Iterator

from weft.errors import BadInput, Unsupported
from weft.layout.check import check_layout
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.model.spec import Attention, LatentAttention, MixtureOfExperts, Model

NORMS = (2, 4)
"""Norms of a block that the runtime builds: before attention and before the feed-forward part; also behind each."""


PRECISIONS = ("fp32", "tf32", "bf16")
"""What the runtime computes in."""


def check_trainable(job: Job, layout: Layout) -> None:
    """Refuse what cannot be trained, before anything is built.

    Raises:
        Unsupported: the runtime lacks something that the model or the layout asks for.
        BadInput: the layout breaks a rule of ``weft.layout.check``.
    """
    check_runnable(job.model, layout)
    check_layout(job, layout.world, layout)


def check_runnable(model: Model, layout: Layout) -> None:
    """Refuse what the runtime does not train.

    Raises:
        Unsupported: a field of the model or of the layout asks for something that the runtime lacks.
        BadInput: key-value heads do not divide over x.
    """
    for wanted, field, what, remedy in (*_model_limits(model), *_layout_limits(model, layout)):
        if wanted:
            raise Unsupported(f"the runtime does not support {what}", where=field, remedy=remedy)
    for attention in model.attentions:
        if attention.kv_heads % layout.x:
            raise BadInput(
                f"{attention.kv_heads} key-value heads do not divide over x = {layout.x}",
                where="--layout",
                remedy="choose x (tp) that divides them",
            )


_Limit = tuple[bool, str, str, str]
"""Whether it is asked for, by which field, what it is, what to change."""


def _model_limits(model: Model) -> Iterator[_Limit]:
    for block in model.kinds:
        attention = block.attention
        recurrent, choose = block.state_space is not None, "choose a model whose blocks all have attention"
        yield recurrent, "block.state_space", "state-space blocks", choose
        alone = "blocks of one part alone"
        yield block.branches < 2, "block", alone, "choose a model of attention and feed-forward blocks"
        if attention is None:
            continue
        latent = isinstance(attention, LatentAttention)
        extra = attention.extra_parameters > 0 and not (isinstance(attention, Attention) and attention.head_norms)
        yield from _expert_limits(block.moe)
        yield latent, "block.attention", "latent attention", "choose a model with grouped-query attention"
        yield block.parallel, "block.parallel", "parallel attention and feed-forward", "set parallel=False"
        norms = f"{block.norms} norms in a block"
        yield block.norms not in NORMS, "block.norms", norms, "set norms=2, before each half, or 4, also behind it"
        vectors = "sinks, learned biases or norms over all heads"
        own = "set extra_parameters=0, or two vectors of one head for its query and key norms"
        yield extra, "block.attention.extra_parameters", vectors, own
        gated = isinstance(attention, Attention) and attention.gated
        chunked = isinstance(attention, Attention) and attention.chunked
        yield chunked, "block.attention.chunked", "attention in chunks", "set chunked=False"
        yield gated, "block.attention.gated", "gated attention", "set gated=False"
    ahead = model.prediction_layers > 0
    yield ahead, "model.prediction_layers", "prediction layers", "set prediction_layers=0"
    narrow = model.embedding_features is not None
    yield narrow, "model.embedding_features", "a narrower embedding", "set embedding_features=None"
    normed = "a norm after the embedding"
    yield model.embedding_norm, "model.embedding_norm", normed, "set embedding_norm=False"
    placed = model.positions > 0 or any(attention.rotary for attention in model.attentions)
    yield not placed, "model.positions", "models without positions", "set positions, or rotary=True"


def _expert_limits(moe: MixtureOfExperts | None) -> Iterator[_Limit]:
    if moe is None:
        return
    field, dense = "block.feed_forward", "choose a model without it"
    yield moe.latent is not None, f"{field}.latent", "experts of projected tokens", dense
    yield moe.router_bias or moe.expert.bias, field, "biases of routers or experts", dense
    yield moe.extra_parameters > 0, f"{field}.extra_parameters", "vectors of routers or gates of shared experts", dense


def _layout_limits(model: Model, layout: Layout) -> Iterator[_Limit]:
    ring = layout.context > 1 and layout.context_method == "ring"
    slides = any(attention.window is not None for attention in model.attentions)
    yield ring and slides, "layout.context_method", "sliding windows in a ring", "set context_method=ulysses"
    routed = any(kind.moe for kind in model.kinds)
    for name in ("expert", "expert_tensor"):
        degree = getattr(layout, name)
        alone = f"{name} = {degree} without experts"
        yield degree > 1 and not routed, f"layout.{name}", alone, f"set {name}=1"
    cut = routed and layout.x > 1 and layout.y == 1 and not layout.sequence_parallel
    yield cut, "layout.sequence_parallel", "experts with x > 1 and whole tokens on each rank", "add sp"
    for name in ("offload_optimizer", "offload_activations"):
        yield getattr(layout, name), f"layout.{name}", "offloading", f"set {name}=false"
    twice = layout.schedule.wraps and model.tied_embeddings
    yield twice, "layout.schedule", f"tied embeddings with schedule = {layout.schedule}", "set schedule=zb1p"
