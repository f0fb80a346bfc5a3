"""What every pipeline chunk asks of the network in one micro-batch, and every stage once per step.

The calls are those of ``weft.layout.step``; here their bytes are added up per kind and axes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

import numpy as np

from weft.estimation.frame import Frame
from weft.fabric.spec import Floats, Ints
from weft.layout.mesh import groups, rank_groups, real_axes
from weft.layout.operations import CollectiveKind
from weft.layout.spec import Layout
from weft.layout.stages import HeldChunk, held_chunks, stage_of
from weft.layout.step import Call, TrainingStep

T = TypeVar("T")
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
    """One model chunk on one micro-batch; ``counts`` are its blocks of each kind, embedding and head.

    ``forward`` and ``backward`` hold the computation up; ``sends`` pass on to other stages.
    """

    stage: int
    counts: tuple[float, ...]
    forward: Amounts
    backward: Amounts
    sends: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDemand:
    """What one stage asks once per step: gradients to reduce, updated weights to gather, the copy of a tied
    embedding (of first and last stage), loss and norm."""

    reduce: Amounts
    gather: Amounts
    tied: Amounts
    scalars: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All of an iteration: chunks in order, the crossing of a stage boundary, and every stage once per step."""

    chunks: tuple[ChunkDemand, ...]
    boundary: Amounts
    stages: tuple[StageDemand, ...]
    micro_batches: int


def demand(layout: Layout, frame: Frame) -> Demand:
    """The demand of a layout, whose one-row frame is given."""
    return demand_of(layout, TrainingStep(frame.job.model, frame.job.recipe, frame.table, frame.software))


def demand_of(layout: Layout, step: TrainingStep) -> Demand:
    """The demand of a layout, whose step is given."""
    chunks = held_chunks(step.model, layout)
    stages = [
        HeldChunk.together([chunk for chunk in chunks if chunk.stage == stage]) for stage in range(layout.pipeline)
    ]
    gathered = _Gathered(layout)
    return Demand(
        chunks=tuple(
            replace(result, stage=chunk.stage)
            for chunk, result in zip(chunks, _each(chunks, lambda chunk: _chunk(chunk, step, gathered)), strict=True)
        ),
        boundary=gathered.amounts(step.crossing()) if layout.pipeline > 1 else {},
        stages=tuple(_each(stages, lambda stage: _stage(stage, step, gathered))),
        micro_batches=int(step.micro_batches[0]),
    )


def _each(chunks: Sequence[HeldChunk], result: Callable[[HeldChunk], T]) -> list[T]:
    """What is found for each; only for one of those that hold the same, on whatever stage."""
    # Chunks that hold the same blocks ask for the same, whichever stage they are on.
    known: dict[HeldChunk, T] = {}
    alike = [replace(chunk, stage=0) for chunk in chunks]
    for chunk, blocks in zip(chunks, alike, strict=True):
        if blocks not in known:
            known[blocks] = result(chunk)
    return [known[chunk] for chunk in alike]


class _Gathered:
    """Adds up calls by kind and axes."""

    def __init__(self, layout: Layout) -> None:
        self._real = cache(partial(real_axes, layout))
        self._size = cache(lambda axes: rank_groups(layout, axes).shape[1] if axes else 1)

    def amounts(self, calls: Iterable[Call]) -> Amounts:
        """The amounts of calls, except empty ones and those of a rank alone."""
        result: Amounts = defaultdict(Amount)
        # Calls of one kind over the same axes meet on the same links: their bytes add up.
        for call in calls:
            bytes_, times = float(np.max(call.bytes)), float(np.max(call.times))
            axes = self._real(call.axes)
            if bytes_ > 0 and times > 0 and self._size(axes) > 1:
                result[call.kind, axes].add(bytes_, times)
        return result


def _chunk(chunk: HeldChunk, step: TrainingStep, gathered: _Gathered) -> ChunkDemand:
    inside = list(step.inside(chunk))
    return ChunkDemand(
        stage=chunk.stage,
        counts=chunk.counts,
        forward=gathered.amounts(call for call in inside if call.when == "forward"),
        backward=gathered.amounts(call for call in inside if call.when == "backward"),
        sends=gathered.amounts(step.between(chunk)),
    )


def _stage(stage: HeldChunk, step: TrainingStep, gathered: _Gathered) -> StageDemand:
    once = list(step.once(stage))
    reduce, gather, tied, scalars = (
        gathered.amounts(call for call in once if call.when == when) for when in ("reduce", "gather", "tied", "scalar")
    )
    return StageDemand(reduce=reduce, gather=gather, tied=tied, scalars=scalars)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTotals:
    """Bytes and calls of one collective in an iteration, on a rank of each stage."""

    bytes: Floats
    calls: Floats


def totals(layout: Layout, wanted: Demand) -> dict[Key, StageTotals]:
    """What each stage asks of every collective in one iteration; for a send, what each stage passes on."""
    result: dict[Key, StageTotals] = {}

    def add(amounts: Amounts, stage: int, times: float) -> None:
        for key, amount in amounts.items():
            total = result.setdefault(
                key, StageTotals(bytes=np.zeros(layout.pipeline), calls=np.zeros(layout.pipeline))
            )
            total.bytes[stage] += amount.bytes * times
            total.calls[stage] += amount.calls * times

    # Chunks repeat with every micro-batch, what a stage does once per step does not.
    count = float(wanted.micro_batches)
    for chunk in wanted.chunks:
        for amounts in (chunk.forward, chunk.backward, chunk.sends):
            add(amounts, chunk.stage, count)
    for stage, once in enumerate(wanted.stages):
        for amounts in (once.reduce, once.gather, once.tied, once.scalars):
            add(amounts, stage, 1.0)
    return result


def rank_stages(layout: Layout) -> Ints:
    """Pipeline stage of each rank."""
    stages = np.empty(layout.world, dtype=np.int64)
    members = groups(layout, "pipeline")
    for stage in range(layout.pipeline):
        stages[members[:, stage]] = stage
    return stages


def crossings(layout: Layout) -> Floats:
    """Messages of one micro-batch from each stage (row) to each other: activations there, gradients back."""
    count = np.zeros((layout.pipeline, layout.pipeline))
    for chunk in range(layout.pipeline * layout.virtual_stages - 1):
        stage, following = stage_of(layout, chunk), stage_of(layout, chunk + 1)
        if stage != following:
            count[stage, following] += 1
            count[following, stage] += 1
    return count


def message_bytes(
    layout: Layout, per_byte: Floats, total: StageTotals, key: Key, sender: Ints, receiver: Ints
) -> Floats:
    """Bytes in an iteration of messages between stages, of those that ``per_byte`` has for each byte of a call."""
    if key[1] == ("tied",):
        return np.asarray(per_byte * total.bytes[0])
    flows = np.asarray(per_byte * total.bytes[sender])
    # A stage's sends are divided among the stages that it sends to, by how many chunk boundaries it shares with each.
    if key[0] == "send":
        sent = crossings(layout)
        flows = flows * (sent / np.maximum(sent.sum(axis=1, keepdims=True), 1.0))[sender, receiver]
    return flows
