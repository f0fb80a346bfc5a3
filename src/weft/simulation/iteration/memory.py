"""Memory of one pipeline stage over an iteration: what is allocated when, and the operator at the peak.

Bytes are the closed form's (``weft.estimation.frame``), times the simulator's.  Each block's activations live
from its forward to its backward pass (to its weight gradient, where the schedule splits them); on top of them come
each operator's buffers.  Chunks of a stage count alike, as they do in the closed form, so that the peak is the
estimate's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import fsum

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.errors import BadInput, Unsupported
from weft.estimation.frame import Buffers, Frame, StageMemory
from weft.estimation.iteration import BlockRow, Estimator, block_rows
from weft.estimation.result import MEMORY_PARTS
from weft.layout.check import check_layout
from weft.layout.spec import Layout
from weft.layout.stages import Chunk, HeldChunk, Op, held_chunks, model_chunks, most_held
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.simulation.iteration.stepping import Stepped, clock

MOST_EVENTS = 1_000_000
PARTS = tuple(name.removesuffix("_bytes") for name in MEMORY_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Something that a stage runs."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Bytes of one part of the memory, from ``begin_s`` until ``end_s``."""

    name: str
    part: str
    bytes: float
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Bytes by part (in the order of ``PARTS``) that hold from ``time_s`` until the next level."""

    time_s: float
    bytes: tuple[float, ...]

    @property
    def total_bytes(self) -> float:
        return fsum(self.bytes)


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline:
    """Memory of a stage over one iteration of ``seconds``; operators one after the other, some time apart."""

    stage: int
    seconds: float
    operators: tuple[Operator, ...]
    allocations: tuple[Allocation, ...]

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The memory after each change, by time; what ends makes room for what begins."""
        # Sums of changes at each time: what ends at an instant makes room before what begins then.
        changes: dict[float, list[float]] = {}
        for allocation in self.allocations:
            at = PARTS.index(allocation.part)
            changes.setdefault(allocation.begin_s, [0.0] * len(PARTS))[at] += allocation.bytes
            changes.setdefault(allocation.end_s, [0.0] * len(PARTS))[at] -= allocation.bytes
        times = sorted(changes)
        totals = np.cumsum([changes[time] for time in times], axis=0)
        return tuple(
            Level(time_s=time, bytes=tuple(map(float, row))) for time, row in zip(times[:-1], totals[:-1], strict=True)
        )

    @cached_property
    def peak(self) -> Level:
        """The first of the highest levels, up to rounding."""
        most = max(level.total_bytes for level in self.levels)
        return next(level for level in self.levels if level.total_bytes >= most * (1 - 1e-9))

    @cached_property
    def peak_operator(self) -> str:
        """What runs at the peak."""
        return next(op.name for op in self.operators if op.begin_s <= self.peak.time_s < op.end_s)


def memory_timeline(
    job: Job, cluster: Cluster, layout: Layout, *, stage: int | None = None, constants: Calibration | None = None
) -> MemoryTimeline:
    """What a pipeline stage (the fullest by default) allocates over one iteration.

    Raises:
        Unsupported: the iteration has more blocks and micro-batches than can be listed.
    """
    check_layout(job, cluster.count, layout)
    estimator = Estimator(job, cluster, constants)
    table = LayoutTable.of([layout])
    result = estimator.evaluate(table)
    if stage is None:
        stage = int(result.fullest_stage[0])
    if not 0 <= stage < layout.pipeline:
        raise BadInput(f"stage {stage} of {layout.pipeline}", where="stage", remedy="count from 0")
    frame = next(iter(estimator.frames(table)))
    blocks = 2 * float(frame.micro_batches[0]) * (job.model.layers + job.model.prediction_layers + 4)
    if max(blocks, 6.0 * float(frame.micro_batches[0]) * layout.pipeline * layout.virtual_stages) > MOST_EVENTS:
        raise Unsupported(
            f"{int(frame.micro_batches[0]):,} micro-batches of {job.model.layers} layers are too many for a timeline",
            remedy="choose a smaller --batch: memory repeats itself after the first micro-batches",
        )
    stepped = Stepped(layout, clock(layout, frame, float(result.offload_s[0])))
    recorder = _Recorder(frame, layout, stage, stepped.seconds)
    recorder.run(stepped.passes(stage))
    return MemoryTimeline(
        stage=stage,
        seconds=stepped.seconds,
        operators=tuple(recorder.operators),
        allocations=tuple(recorder.allocations),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a chunk: its name, what it keeps, and the seconds of its forward and backward pass."""

    name: str
    kept_bytes: float
    forward_s: float
    backward_s: float


@dataclass(slots=True)
class _Pieces:
    """A chunk in the order of its forward pass; whether the first of it is the embedding, and the last the head."""

    pieces: list[_Piece]
    embedding: bool
    head: bool


@dataclass
class _Recorder:
    """Turns the ops of a stage into operators and allocations."""

    frame: Frame
    layout: Layout
    stage: int
    seconds: float
    operators: list[Operator] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    open: dict[tuple[int, int], list[tuple[_Piece, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chunks = held_chunks(self.frame.job.model, self.layout)
        stage = HeldChunk.together([chunk for chunk in chunks if chunk.stage == self.stage])
        line = _line(self.frame, stage)
        in_flight = most_held(self.frame.table, self.frame.micro_batches, np.full(1, float(self.stage)))
        memory = StageMemory(self.frame)
        self.buffers: Buffers = memory.buffers(line, in_flight)
        parts = memory.parts(line, in_flight)
        self.activations_bytes = float(parts["activations_bytes"][0] / in_flight[0])
        self.offloaded = bool(self.layout.offload_activations)
        # What stands for the whole iteration first; activations and buffers of operators come and go on top.
        for name in ("weights", "gradients", "optimizer", "communicators", "reserve"):
            self._add(name, name, float(parts[f"{name}_bytes"][0]), 0.0, self.seconds)
        self._add("standing buffers", "buffers", float(self.buffers.standing[0]), 0.0, self.seconds)
        if self.offloaded:
            name = "activations of two blocks, others on the host"
            self._add(name, "activations", float(parts["activations_bytes"][0]), 0.0, self.seconds)
        self.chunks = self._chunks()

    def run(self, ops: Sequence[tuple[Op, float, float]]) -> None:
        """Record ops in order."""
        for op, begin, end in ops:
            if op.what == "forward":
                self._forward(op, begin, end)
            elif op.what == "backward":
                self._backward(op, begin, end)
            else:
                name = f"weight gradients of chunk {op.chunk}, micro-batch {op.micro_batch}"
                self.operators.append(Operator(name=name, begin_s=begin, end_s=end))
                self._release(op, [end] * len(self.open[op.chunk, op.micro_batch]))

    def _forward(self, op: Op, begin: float, end: float) -> None:
        chunk = self.chunks[op.chunk]
        activations = self.open.setdefault((op.chunk, op.micro_batch), [])
        # Blocks share the pass in proportion to their forward seconds; activations live from the begin of their block.
        lasts = [piece.forward_s for piece in chunk.pieces]
        for piece, (first, last) in zip(chunk.pieces, _slices(lasts, begin, end), strict=True):
            loss = chunk.head and piece is chunk.pieces[-1]
            name = f"{'loss' if loss else f'forward of {piece.name}'}, micro-batch {op.micro_batch}"
            self._moment(name, "loss" if loss else "forward", first, last)
            if piece.kept_bytes:
                activations.append((piece, first))

    def _backward(self, op: Op, begin: float, end: float) -> None:
        chunk = self.chunks[op.chunk]
        ends: list[float] = []
        back = chunk.pieces[::-1]
        for piece, (first, last) in zip(back, _slices([piece.backward_s for piece in back], begin, end), strict=True):
            edge = "head" if chunk.head and piece is chunk.pieces[-1] else "backward"
            moment = "embedding" if chunk.embedding and piece is chunk.pieces[0] else edge
            self._moment(f"backward of {piece.name}, micro-batch {op.micro_batch}", moment, first, last)
            if piece.kept_bytes:
                ends.append(last)
        # Where the schedule splits the backward pass, activations are needed until the weight gradients.
        if not self.layout.schedule.splits_backward:
            self._release(op, ends[::-1])

    def _release(self, op: Op, ends: list[float]) -> None:
        """End the activations of a chunk's micro-batch."""
        for (piece, begin), end in zip(self.open.pop((op.chunk, op.micro_batch)), ends, strict=True):
            if not self.offloaded:
                self._add(f"{piece.name}, micro-batch {op.micro_batch}", "activations", piece.kept_bytes, begin, end)

    def _moment(self, name: str, moment: str, begin: float, end: float) -> None:
        self.operators.append(Operator(name=name, begin_s=begin, end_s=end))
        self._add(f"buffers: {name}", "buffers", float(getattr(self.buffers, moment)[0]), begin, end)

    def _add(self, name: str, part: str, size: float, begin: float, end: float) -> None:
        if size > 0 and end > begin:
            self.allocations.append(Allocation(name=name, part=part, bytes=size, begin_s=begin, end_s=end))

    def _chunks(self) -> dict[int, _Pieces]:
        """The stage's chunks by number; each keeps its share of what the stage does."""
        model, layout = self.frame.job.model, self.layout
        cut = model_chunks(
            model.block_sequence(),
            layout.pipeline,
            layout.virtual_stages,
            wraps=layout.schedule.wraps,
            behind=model.prediction_layers,
        )
        rows = block_rows(self.frame)
        result, first = {}, 0
        for number, (chunk, blocks) in enumerate(zip(cut, held_chunks(model, layout), strict=True)):
            if chunk.stage == self.stage:
                # Chunks of a stage count alike in the closed form: each keeps an equal share of the stage's
                # activations, divided among its blocks in proportion, so that the peak is the estimate's.
                pieces = list(self._pieces(chunk, blocks, rows, first))
                kept_bytes = fsum(piece.kept_bytes for piece in pieces)
                share = self.activations_bytes / layout.virtual_stages / kept_bytes if kept_bytes else 0.0
                scaled = [
                    _Piece(piece.name, piece.kept_bytes * share, piece.forward_s, piece.backward_s) for piece in pieces
                ]
                result[number] = _Pieces(scaled, chunk.embedding, chunk.head)
            first += len(chunk.blocks)
        return result

    def _pieces(self, chunk: Chunk, blocks: HeldChunk, rows: list[BlockRow], first: int) -> Iterator[_Piece]:
        activations, kinds = self.frame.kept_rows(), len(self.frame.meshes.activations)
        if chunk.embedding:
            yield _piece("embedding", 0.0, rows[-2])
        again = round(sum(blocks.replayed))
        for i, kind in enumerate(chunk.blocks):
            row = kind + (kinds if self.frame.partial and i >= again else 0)
            yield _piece(f"layer {first + i}", float(activations[row][0]), rows[row])
        if chunk.head:
            for i in range(self.frame.job.model.prediction_layers):
                at = float(self.frame.kept(self.frame.meshes.activations[-1])[0])
                yield _Piece(f"prediction module {i}", at, *_passes(rows[kinds - 1]))
            yield _piece("head", 0.0, rows[-1])


def _piece(name: str, kept_bytes: float, row: BlockRow) -> _Piece:
    return _Piece(name, kept_bytes, *_passes(row))


def _passes(row: BlockRow) -> tuple[float, float]:
    return float(row.forward_total.max()), float(row.backward_total.max())


def _slices(lasts: Sequence[float], begin: float, end: float) -> list[tuple[float, float]]:
    """From ``begin`` to ``end`` in shares of ``lasts``."""
    total = fsum(lasts)
    cuts = [begin + (end - begin) * part / total for part in np.cumsum([0.0, *lasts]).tolist()]
    cuts[-1] = end
    return list(pairwise(cuts))


def _line(frame: Frame, stage: HeldChunk) -> int:
    """The line of the stage table that looks like a stage."""
    for line in frame.stage_kinds:
        same = [float(count[0]) for count in frame.counts(line)] == list(stage.counts)
        if same and [float(count[0]) for count in frame.replayed(line)] == list(stage.replayed):
            return line
    raise AssertionError("the stage table holds every stage")
