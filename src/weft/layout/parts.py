"""Operations of a micro-batch in each part of a model: its kinds of block, the embedding before them, the head and
the prediction modules behind them, and what a stage passes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from weft.layout.operations import (
    Collective,
    CollectiveKind,
    Computation,
    Gemm,
    Operations,
    Pass,
    Phase,
    Sizes,
    block_operations,
    enter_x,
    linear_gemms,
    norm_statistics,
    whole_features,
)
from weft.layout.table import Floats
from weft.model.job import Recipe
from weft.model.spec import Linear, Model


def part_operations(
    model: Model, recipe: Recipe, sizes: Sizes, *, whole_logits: bool = False
) -> tuple[Operations, ...]:
    """What each kind of block, the embedding, and the head with the prediction modules behind it do;
    ``whole_logits`` are gathered over x before the loss."""
    head = head_operations(model, recipe, sizes)
    if model.prediction_layers:
        more = prediction_operations(model, recipe, sizes)
        head = Operations(
            computations=head.computations + more.computations, collectives=head.collectives + more.collectives
        )
    if whole_logits:
        head = _with_whole_logits(head, model, recipe, sizes)
    blocks = (block_operations(kind, recipe, sizes) for kind in model.kinds)
    return (*blocks, embedding_operations(model, recipe, sizes), head)


def embedding_operations(model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """Token embedding, vocabulary-parallel over x and y."""
    rows = sizes.own_tokens * model.hidden / sizes.y
    passes: tuple[Computation, ...] = (
        Pass(name="embedding", phase="forward", bytes=4.0 * rows),
        Pass(name="embedding", phase="input-gradient", bytes=8.0 * rows),
    )
    elements = sizes.tokens * model.hidden
    sharded, whole = elements * sizes.sequence_parallel, elements * (1 - sizes.sequence_parallel)
    wanted: tuple[tuple[CollectiveKind, Phase, Floats], ...] = (
        ("all-reduce", "forward", whole),
        ("reduce-scatter", "forward", sharded),
        ("all-gather", "input-gradient", sharded),
    )
    collectives = tuple(
        Collective(name="embedding", kind=kind, axes=("x", "y"), phase=phase, elements=moved)
        for kind, phase, moved in wanted
    )
    entering = whole_features("input-gradient", model.hidden, sizes)
    return Operations(computations=passes, collectives=(*collectives, entering)).in_width(recipe)


def head_operations(model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """Final norm, output projection and cross-entropy, vocabulary-parallel over x and y."""
    ones = np.ones_like(sizes.tokens)
    n = model.vocab / (sizes.x * sizes.y) * ones
    k = float(model.hidden) * ones
    logits = sizes.tokens * n
    computations: tuple[Computation, ...] = (
        *_final_norm_passes(model, sizes),
        Gemm(name="logits", phase="forward", m=sizes.tokens, n=n, k=k, role="head"),
        Gemm(name="logits", phase="input-gradient", m=sizes.tokens, n=k, k=n, role="head"),
        Gemm(name="logits", phase="weight-gradient", m=n, n=k, k=sizes.tokens, role="head"),
        Pass(name="cross-entropy", phase="forward", bytes=14.0 * logits),
        Pass(name="cross-entropy", phase="input-gradient", bytes=8.0 * logits),
    )
    entering = tuple(_enter_vocabulary(sizes.tokens * model.hidden, sizes))
    scalars = tuple(
        Collective(
            name=f"cross-entropy.{what}",
            kind="all-reduce",
            axes=("x", "y"),
            phase="forward",
            elements=sizes.tokens,
            element_bytes=4.0,
        )
        for what in ("max", "target", "sum")
    )
    norm = norm_statistics("final-norm", model.norm_bias, sizes) if model.final_norm else ()
    leaving = whole_features("forward", model.hidden, sizes)
    collectives = (*norm, leaving, *entering, *scalars)
    return Operations(computations=computations, collectives=collectives).in_width(recipe)


def _with_whole_logits(head: Operations, model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """The head, with prediction modules, whose loss every rank of x computes alike, on logits that it gathers."""
    computations = tuple(
        replace(one, bytes=one.bytes * sizes.x) if isinstance(one, Pass) and one.name == "cross-entropy" else one
        for one in head.computations
    )
    gathered = Collective(
        name="logits", kind="all-gather", axes=("x",), phase="forward", elements=sizes.tokens * model.vocab / sizes.y
    )
    more = Operations(computations=(), collectives=(gathered,)).in_width(recipe)
    found = tuple(
        replace(one, axes=("y",)) if one.name.startswith("cross-entropy.") else one for one in head.collectives
    )
    gathers = more.collectives * (1 + model.prediction_layers)
    return Operations(computations=computations, collectives=(*found, *gathers))


def _final_norm_passes(model: Model, sizes: Sizes) -> Iterator[Pass]:
    """The final norm works on the features that a rank holds, before they are gathered over y."""
    if model.final_norm:
        slice_ = sizes.own_tokens * model.hidden / sizes.y
        yield Pass(name="final-norm", phase="forward", bytes=4.0 * slice_)
        yield Pass(name="final-norm", phase="input-gradient", bytes=8.0 * slice_)


def _enter_vocabulary(elements: Floats, sizes: Sizes) -> Iterator[Collective]:
    for collective in enter_x("logits", elements, sizes):
        yield Collective(
            name=collective.name,
            kind=collective.kind,
            axes=("x", "y"),
            phase=collective.phase,
            elements=collective.elements,
            behind=collective.behind,
        )


def prediction_operations(model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """The multi-token-prediction modules of the last stage: each its blocks, its 2h x h projection and the
    head (arXiv 2412.19437, section 2.2)."""
    blocks = [block_operations(block, recipe, sizes) for block in model.prediction_module]
    head = head_operations(model, recipe, sizes)
    projection = Linear(
        name="prediction", inputs=2 * model.hidden, outputs=model.hidden, kind="replicated", part="attention"
    )
    gemms = tuple(linear_gemms(projection, sizes, model.runs[-1].block))
    once = Operations(
        computations=(*gemms, *(one for block in blocks for one in block.computations), *head.computations),
        collectives=(*(one for block in blocks for one in block.collectives), *head.collectives),
    )
    repeats = model.prediction_layers
    return Operations(computations=once.computations * repeats, collectives=once.collectives * repeats)


def stage_boundary(model: Model, recipe: Recipe, sizes: Sizes) -> Operations:
    """Activations (or their gradient) of one micro-batch to the next stage.

    The x ranks that hold the same activations each send their share and gather the rest on arrival (the
    scatter-gather optimization of arXiv 2104.04473, section 4.1); with sequence parallelism each sends what
    it owns.
    """
    whole = sizes.tokens * model.hidden / sizes.y
    send = Collective(
        name="stage-boundary", kind="send", axes=("pipeline",), phase="forward", elements=whole / sizes.x
    )
    gather = Collective(
        name="stage-boundary",
        kind="all-gather",
        axes=("x",),
        phase="forward",
        elements=whole * (1 - sizes.sequence_parallel),
    )
    return Operations(computations=(), collectives=(send, gather)).in_width(recipe)
