"""What every pipeline chunk asks of the network in one micro-batch, and every stage once per step.

The collectives are those of ``weft.layout.operations``, which the closed form times; here their bytes are
added up per kind and axes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from weft.estimation.frame import TimedFrame
from weft.estimation.memory import Parameters
from weft.fabric.spec import Ints
from weft.layout.mesh import groups
from weft.layout.operations import (
    Collective,
    CollectiveKind,
    Operations,
    Sizes,
    block_operations,
    embedding_operations,
    head_operations,
    prediction_operations,
    stage_boundary,
)
from weft.layout.spec import Layout
from weft.layout.stages import model_chunks

Key = tuple[CollectiveKind, tuple[str, ...]]
"""Kind and axes of a collective."""


@dataclass(slots=True)
class Amount:
    """Bytes of all calls of a collective, and how many calls."""

    bytes: float = 0.0
    calls: float = 0.0

    def add(self, bytes_: float, calls: float) -> None:
        self.bytes += bytes_ * calls
        self.calls += calls


Amounts = dict[Key, Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDemand:
    """One model chunk on one micro-batch; ``counts`` are its blocks of each kind, embedding and head."""

    stage: int
    counts: tuple[float, ...]
    forward: Amounts
    backward: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All of an iteration: chunks in order, a stage boundary, and once per step gradients and weights.

    Every stage's step is that of the largest one, as in the closed form; ``tied`` joins first and last stage.
    """

    chunks: tuple[ChunkDemand, ...]
    boundary: Amounts
    reduce: Amounts
    gather: Amounts
    tied: Amounts
    micro_batches: int


def demand(layout: Layout, frame: TimedFrame) -> Demand:
    """The demand of a layout, whose one-row frame is given."""
    parts = _parts(layout, frame)
    sizes = Sizes.of(frame.table, frame.job.recipe)
    boundary = _amounts(stage_boundary(frame.job.model, frame.job.recipe, sizes).collectives, layout)
    reduce, gather = _step(layout, frame)
    tied: Amounts = defaultdict(Amount)
    held = float(frame.at(frame.sizes.tied_parameters)[0])
    if layout.pipeline > 1 and not layout.schedule.wraps and held > 0:
        tied["all-reduce", ("tied",)].add(held * frame.job.recipe.gradient_bytes, 1.0)
    return Demand(
        chunks=tuple(_chunk(stage, counts, parts) for stage, counts in chunk_counts(layout, frame)),
        boundary=boundary if layout.pipeline > 1 else {},
        reduce=reduce,
        gather=gather,
        tied=tied,
        micro_batches=int(frame.micro_batches[0]),
    )


def chunk_counts(layout: Layout, frame: TimedFrame) -> list[tuple[int, tuple[float, ...]]]:
    """Stage, and blocks of each kind, embedding and head, of every chunk in model order."""
    model, found = frame.job.model, []
    for chunk in model_chunks(
        model.block_sequence(),
        layout.pipeline,
        layout.virtual_stages,
        wraps=layout.schedule.wraps,
        behind=model.prediction_layers,
    ):
        blocks = np.bincount(np.array(chunk.blocks, dtype=np.int64), minlength=len(model.kinds))
        edges = (float(chunk.embedding), float(chunk.head))
        found.append((chunk.stage, (*blocks.astype(float).tolist(), *edges)))
    return found


def rank_groups(layout: Layout, axes: tuple[str, ...]) -> Ints:
    """Ranks of every group over ``axes`` in order, one group a row."""
    if axes == ("tied",):
        stages = groups(layout, "pipeline")
        return stages[:, [0, -1]]
    if axes in (("expert_shard",), ("expert_replica",)):
        copies = groups(layout, "expert_data")
        cut = copies.shape[1] // np.gcd(copies.shape[1], layout.data) if layout.z > 1 else 1
        shards = copies.reshape(len(copies), -1, cut)
        whole = shards if axes == ("expert_shard",) else shards.swapaxes(1, 2)
        return whole.reshape(-1, whole.shape[-1])
    if len(axes) == 1:
        return groups(layout, axes[0])
    order = layout.order
    ranks = np.arange(layout.world).reshape([getattr(layout, name) for name in reversed(order)])
    outer_first = sorted(axes, key=order.index, reverse=True)
    places = [len(order) - 1 - order.index(axis) for axis in outer_first]
    size = int(np.prod([getattr(layout, axis) for axis in axes]))
    return np.moveaxis(ranks, places, range(-len(places), 0)).reshape(-1, size)


def shard_axes(layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Axes over which dense weights are cut at rest, and over which they are copied."""
    return (("context", "z"), ("data",)) if layout.z > 1 else ((), ("context", "data"))


def _parts(layout: Layout, frame: TimedFrame) -> list[tuple[Amounts, Amounts]]:
    """Forward and backward of each kind of block, the embedding and the head."""
    model, recipe = frame.job.model, frame.job.recipe
    sizes = Sizes.of(frame.table, recipe)
    head = head_operations(model, recipe, sizes)
    more = prediction_operations(model, recipe, sizes) if model.prediction_layers else None
    lists: list[Operations] = [block_operations(kind, recipe, sizes) for kind in model.kinds]
    lists += [embedding_operations(model, recipe, sizes), head]
    weights = [_local(parameters, frame) for parameters in frame.sizes.parameters]
    weights.append((float(frame.at(frame.sizes.embedding_parameters)[0]), 0.0))
    dense, expert = _local(frame.sizes.head_parameters, frame)
    weights.append((dense + float(frame.at(frame.sizes.tied_parameters)[0]), expert))
    found = []
    for i, (operations, held) in enumerate(zip(lists, weights, strict=True)):
        collectives = operations.collectives
        if more is not None and operations is head:
            collectives = collectives + more.collectives
        replay = float(frame.replayed[0]) if i < len(model.kinds) else 0.0
        found.append(_directions(collectives, held, replay, layout, frame))
    return found


def _local(parameters: Parameters, frame: TimedFrame) -> tuple[float, float]:
    return float(frame.at(parameters.dense)[0]), float(frame.at(parameters.expert)[0])


def _directions(
    collectives: Iterable[Collective], weights: tuple[float, float], replay: float, layout: Layout, frame: TimedFrame
) -> tuple[Amounts, Amounts]:
    ahead = [one for one in collectives if one.phase == "forward"]
    forward = _amounts(ahead, layout)
    backward = _amounts([one for one in collectives if one.phase != "forward"], layout)
    for key, amount in forward.items():
        if replay > 0:
            backward[key].add(amount.bytes * replay / amount.calls, amount.calls)
    recipe = frame.job.recipe
    for elements, axes in zip(weights, (shard_axes(layout)[0], ("expert_shard",)), strict=True):
        if elements > 0 and layout.z > 1 and rank_groups(layout, axes).shape[1] > 1:
            forward["all-gather", axes].add(elements * recipe.element_bytes, 1.0)
            backward["all-gather", axes].add(elements * recipe.element_bytes, 1.0)
            backward["reduce-scatter", axes].add(elements * recipe.gradient_bytes, 1.0)
    return forward, backward


def _amounts(collectives: Iterable[Collective], layout: Layout) -> Amounts:
    found: Amounts = defaultdict(Amount)
    for one in collectives:
        bytes_ = float(np.max(one.bytes))
        size = rank_groups(layout, one.axes).shape[1]
        if bytes_ > 0 and size > 1:
            found[one.kind, one.axes].add(bytes_, float(size - 1) if one.kind == "exchange" else 1.0)
    return found


def _chunk(stage: int, counts: tuple[float, ...], parts: list[tuple[Amounts, Amounts]]) -> ChunkDemand:
    forward: Amounts = defaultdict(Amount)
    backward: Amounts = defaultdict(Amount)
    for count, (ahead, back) in zip(counts, parts, strict=True):
        for total, part in ((forward, ahead), (backward, back)):
            for key, amount in part.items():
                if count > 0:
                    total[key].add(amount.bytes / amount.calls, amount.calls * count)
    return ChunkDemand(stage=stage, counts=counts, forward=forward, backward=backward)


def _step(layout: Layout, frame: TimedFrame) -> tuple[Amounts, Amounts]:
    """Gradients to reduce and parameters to gather per rank, once per step (every micro-batch for ZeRO-2)."""
    reduce: Amounts = defaultdict(Amount)
    gather: Amounts = defaultdict(Amount)
    recipe = frame.job.recipe
    rounds = float(frame.micro_batches[0]) if layout.zero == 2 else 1.0
    for gradients, axes in zip(frame.gradients, (shard_axes(layout)[1], ("expert_replica",)), strict=True):
        elements, buckets = (float(gradients.elements[frame.pair][0]), float(gradients.step.buckets[frame.pair][0]))
        if elements <= 0 or rank_groups(layout, axes).shape[1] < 2:
            continue
        kind: CollectiveKind = "reduce-scatter" if layout.zero > 0 else "all-reduce"
        reduce[kind, axes].add(elements * recipe.gradient_bytes / buckets, buckets * rounds)
        if layout.zero > 0:
            gather["all-gather", axes].add(elements * recipe.element_bytes / buckets, buckets)
    return reduce, gather
