"""Pipelines: how the blocks of a model fall on stages, what runs when on each, what it holds meanwhile, the bubble.

Plain 1F1B (arXiv 1806.03377), interleaved 1F1B (2104.04473), ZB-H1 and ZB-V (2401.10241, sections 3 and 6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np

from weft.layout.spec import Layout, PipelineSchedule
from weft.layout.table import Floats, Index, Ints, LayoutTable, collapse
from weft.model.spec import Model

KEPT = 512
"""Splits of a model over stages that are kept."""


def split_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Blocks per model chunk, first to last.

    An even split where possible; otherwise the chunks that hold one block fewer are taken from the end, the
    beginning, then inwards, since the embedding and the loss live there (as Llama 3.1 405B was trained: 126
    blocks on 16 stages).
    """
    base, more = divmod(layers, chunks)
    counts = [base + 1] * chunks if more else [base] * chunks
    fewer = (chunks - more) % chunks
    for i in range(fewer):
        counts[-1 - i // 2 if i % 2 == 0 else i // 2] -= 1
    return tuple(counts)


BLOCKS_OF_PREDICTION = 3
"""Blocks that take as long as a multi-token-prediction module with its head, as the pipeline layouts of Megatron
Bridge's DeepSeek-V3 count it: 61 blocks on 16 stages are 4 each, and 1 and the module on the last."""


def chunk_sizes(layers: int, chunks: int, behind: int = 0) -> tuple[int, ...]:
    """Blocks per model chunk where ``behind`` multi-token-prediction modules are on the last, each instead of
    ``BLOCKS_OF_PREDICTION``."""
    instead = BLOCKS_OF_PREDICTION * behind
    counts = list(split_layers(layers + instead, chunks))
    for _ in range(instead):
        counts[max(i for i, count in enumerate(counts) if count)] -= 1
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class StageTable:
    """Distinct stages of each pipeline of a search, padded to the same number per pipeline.

    Arrays have shape (pipelines, stages): ``counts[kind]`` blocks of each kind, ``embedding`` and ``head``
    0 or 1, ``first[kind]`` blocks of each kind among the first 0, 1, 2, ... of a stage (a further axis, of 0 alone
    unless ``ordered``), ``stage`` the first stage index that looks so, ``repeats`` how many stages do (0 for padding),
    ``last`` the last that does, ``before[kind]`` blocks of each kind, and embeddings, on the first chunks of stages
    before that; ``fewest`` has the blocks of a pipeline's smallest chunk.
    """

    counts: tuple[Floats, ...]
    embedding: Floats
    head: Floats
    first: tuple[Floats, ...]
    stage: Floats
    repeats: Floats
    last: Floats
    before: tuple[Floats, ...]
    fewest: Floats

    def first_blocks(self, line: Index, stage: int, first: Ints) -> list[Floats]:
        """Blocks of each kind among so many first ones of a stage, on lines of an ``ordered`` table."""
        if len(self.counts) == 1:
            return [np.minimum(self.counts[0][line, stage], first)]
        until = np.minimum(first, self.first[0].shape[-1] - 1)
        return [counted[line, stage, until] for counted in self.first]


def stage_table(
    model: Model, pipeline: Ints, virtual: Ints, wraps: Ints, *, ordered: bool = False
) -> tuple[StageTable, Index]:
    """The stages of every (pipeline, virtual stages) pair of a table.

    ``wraps`` is 1 where the second chunk runs back through the stages (ZB-V), so that the first stage also
    holds the last chunk.  ``ordered`` also tells stages apart by the order of their blocks, and keeps it.
    Returns the table and, for each row, its line in it.
    """
    groups = collapse((pipeline, virtual, wraps))
    kinds = len(model.kinds)
    places = model.layers if ordered and kinds > 1 else 0
    blocks = tuple(model.block_sequence()), kinds, model.prediction_layers
    lines = [
        _distinct_stages(*blocks, int(pipeline[i]), int(virtual[i]), bool(wraps[i]), places) for i in groups.first
    ]
    width = max(len(line) for line in lines)
    packed = np.zeros((len(lines), width, lines[0].shape[1]))
    for i, line in enumerate(lines):
        packed[i, : len(line)] = line
    order, columns = packed[:, :, :places], np.ascontiguousarray(np.moveaxis(packed[:, :, places:], 2, 0))
    none = np.zeros((*order.shape[:2], 1))
    first = tuple(np.concatenate([none, np.cumsum(order == kind, axis=-1)], axis=-1) for kind in range(kinds))
    embedding, head, stage, repeats, last, fewest = columns[kinds : kinds + 6]
    before = tuple(columns[kinds + 6 :])
    return StageTable(
        tuple(columns[:kinds]), embedding, head, first, stage, repeats, last, before, fewest[:, 0]
    ), groups.group


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive blocks of a model on one stage: their kinds in order (indices in ``Model.kinds``), and
    whether the embedding is before and the head behind them."""

    stage: int
    blocks: tuple[int, ...]
    embedding: bool
    head: bool


def chunk_stage(chunk: int, pipeline: int, *, wraps: bool) -> int:
    """The stage that holds a chunk: round and round, or there and back."""
    turn, stage = divmod(chunk, pipeline)
    return pipeline - 1 - stage if wraps and turn % 2 else stage


def model_chunks(
    sequence: Sequence[int], pipeline: int, virtual: int = 1, *, wraps: bool = False, behind: int = 0
) -> Iterator[Chunk]:
    """The chunks of a ``Model.block_sequence()``, first to last: round the stages, or there and back.

    ``behind`` multi-token-prediction modules are on the last chunk (``chunk_sizes``).
    """
    last = pipeline * virtual - 1
    start = 0
    for i, count in enumerate(chunk_sizes(len(sequence), last + 1, behind)):
        blocks = tuple(sequence[start : start + count])
        yield Chunk(stage=chunk_stage(i, pipeline, wraps=wraps), blocks=blocks, embedding=i == 0, head=i == last)
        start += count


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldChunk:
    """A chunk of a stage, or all its chunks together, as numbers.

    ``counts`` are blocks of each kind, embeddings and heads; ``replayed`` the blocks of each kind that are
    computed again before their backward; ``passes_on`` how many chunks hand activations to another stage,
    ``receives`` how many get them from one.
    """

    stage: int
    counts: tuple[float, ...]
    replayed: tuple[float, ...]
    passes_on: int
    receives: int

    @property
    def holds_embedding(self) -> bool:
        return self.counts[-2] > 0

    @property
    def holds_head(self) -> bool:
        return self.counts[-1] > 0

    @classmethod
    def together(cls, chunks: Sequence[HeldChunk]) -> HeldChunk:
        """All chunks of one stage."""
        return cls(
            stage=chunks[0].stage,
            counts=tuple(map(sum, zip(*(chunk.counts for chunk in chunks), strict=True))),
            replayed=tuple(map(sum, zip(*(chunk.replayed for chunk in chunks), strict=True))),
            passes_on=sum(chunk.passes_on for chunk in chunks),
            receives=sum(chunk.receives for chunk in chunks),
        )


def held_chunks(model: Model, layout: Layout) -> list[HeldChunk]:
    """The chunks of a layout in model order.

    Full recomputation that is limited to ``recompute_layers`` takes the first blocks of each stage.
    """
    sequence = model.block_sequence()
    again = (layout.recompute_layers or len(sequence)) if layout.recompute == "full" else 0
    cut = layout.pipeline, layout.virtual_stages, layout.schedule.wraps
    return list(_held(tuple(sequence), len(model.kinds), model.prediction_layers, cut, again))


@lru_cache(maxsize=KEPT)
def _held(
    sequence: tuple[int, ...], kinds: int, behind: int, cut: tuple[int, int, bool], again: int
) -> tuple[HeldChunk, ...]:
    """Chunks of blocks of some kinds, for a number of stages, virtual stages, and whether they run back; ``again``
    blocks of each stage are recomputed."""
    pipeline, virtual, wraps = cut
    chunks = list(model_chunks(sequence, pipeline, virtual, wraps=wraps, behind=behind))
    left = dict.fromkeys(range(pipeline), again)
    result = []
    for i, chunk in enumerate(chunks):
        replayed = chunk.blocks[: left[chunk.stage]]
        left[chunk.stage] -= len(replayed)
        beside = [
            neighbour.stage != chunk.stage for neighbour in chunks[max(i - 1, 0) : i + 2] if neighbour is not chunk
        ]
        last = i + 1 == len(chunks)
        result.append(
            HeldChunk(
                stage=chunk.stage,
                counts=(*_by_kind(chunk.blocks, kinds), float(chunk.embedding), float(chunk.head)),
                replayed=_by_kind(replayed, kinds),
                passes_on=0 if last else int(beside[-1]),
                receives=0 if i == 0 else int(beside[0]),
            )
        )
    return tuple(result)


def _by_kind(blocks: Sequence[int], kinds: int) -> tuple[float, ...]:
    return tuple(float(blocks.count(kind)) for kind in range(kinds))


@lru_cache(maxsize=KEPT)
def _distinct_stages(
    sequence: tuple[int, ...], kinds: int, behind: int, pipeline: int, virtual: int, wraps: bool, places: int
) -> Floats:
    """One line a distinct stage: the kinds of its blocks in order (as many ``places``, -1 behind the last), blocks of
    each kind, embedding and head, and the other columns of ``StageTable``."""
    looks = np.zeros((pipeline, places + kinds + 2))
    looks[:, :places] = -1
    filled, before, fewest = [0] * pipeline, np.zeros((pipeline + 1, kinds + 1)), len(sequence)
    for number, chunk in enumerate(model_chunks(sequence, pipeline, virtual, wraps=wraps, behind=behind)):
        look, start = looks[chunk.stage], filled[chunk.stage]
        holds = [*np.bincount(np.array(chunk.blocks, dtype=np.int64), minlength=kinds), chunk.embedding, chunk.head]
        look[places:] += holds
        filled[chunk.stage] += len(chunk.blocks)
        look[start : min(filled[chunk.stage], places)] = chunk.blocks[: places - start]
        if number < pipeline:
            before[number + 1] = before[number] + holds[:-1]
        fewest = min(fewest, len(chunk.blocks))
    # Equal stages are merged into their first.
    _, first, same, counts = np.unique(looks, axis=0, return_index=True, return_inverse=True, return_counts=True)
    last = np.zeros(len(first), dtype=np.int64)
    last[same.reshape(-1)] = np.arange(pipeline)
    order = np.argsort(first)
    at = first[order], counts[order], last[order], np.full(len(order), fewest)
    return np.column_stack([looks[at[0]], *at, before[at[2]]])


Pass = Literal["forward", "backward", "weight-gradient"]
PASSES: tuple[Pass, ...] = get_args(Pass)


@dataclass(frozen=True, slots=True, order=True)
class Op:
    """One pass of one chunk (numbered through the model) on one micro-batch.

    Where the schedule splits it, ``backward`` is the input's gradient alone and ``weight-gradient`` the rest.
    """

    what: Pass
    chunk: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of the passes of one chunk on one micro-batch."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float

    @property
    def backward_s(self) -> float:
        """Both gradients."""
        return self.input_gradient_s + self.weight_gradient_s

    def of(self, op: Op, layout: Layout) -> float:
        """Seconds of one pass under the layout's schedule."""
        if op.what == "forward":
            return self.forward_s
        if op.what == "weight-gradient":
            return self.weight_gradient_s
        return self.input_gradient_s if layout.schedule.splits_backward else self.backward_s


def stage_of(layout: Layout, chunk: int) -> int:
    """The stage that holds a chunk of the model."""
    return chunk_stage(chunk, layout.pipeline, wraps=layout.schedule.wraps)


def following(layout: Layout, op: Op) -> Op | None:
    """The pass that takes the result of another, on whatever stage; None where the result stays."""
    last = layout.pipeline * layout.virtual_stages - 1
    if op.what == "forward":
        if op.chunk == last:
            return Op("backward", op.chunk, op.micro_batch)
        return Op("forward", op.chunk + 1, op.micro_batch)
    return Op("backward", op.chunk - 1, op.micro_batch) if op.what == "backward" and op.chunk else None


# Orders ------------------------------------------------------------------------------------------


class Order(NamedTuple):
    """What one stage runs, in order, as columns: the pass (a place in ``PASSES``), chunk and micro-batch."""

    what: Ints
    chunk: Ints
    micro_batch: Ints


def orders(layout: Layout, micro_batches: int) -> list[list[Op]]:
    """What each stage runs, in order."""
    return [
        [Op(PASSES[kind], chunk, i) for kind, chunk, i in zip(*(column.tolist() for column in order), strict=True)]
        for order in order_columns(layout, micro_batches)
    ]


def order_columns(layout: Layout, micro_batches: int) -> list[Order]:
    """What each stage runs, in order, as columns."""
    order = {PipelineSchedule.INTERLEAVED: _interleaved, PipelineSchedule.ZBV: _wave}.get(layout.schedule, _plain)
    return [order(layout, stage, micro_batches) for stage in range(layout.pipeline)]


def _plain(layout: Layout, stage: int, count: int) -> Order:
    """1F1B.  ZB-H1 defers as many weight gradients as there are stages before this one, so that every stage
    holds what the first does."""
    ahead, deferred = min(layout.pipeline - 1 - stage, count), min(stage, count)
    split = layout.schedule.splits_backward
    turn = np.arange(count)
    steady = np.stack([ahead + turn, turn, turn - deferred], axis=1)
    runs = np.stack([ahead + turn < count, turn >= 0, split & (turn >= deferred)], axis=1)
    late = np.arange(count - deferred, count) if split else turn[:0]
    kind = np.concatenate([np.zeros(ahead, np.int64), np.nonzero(runs)[1], np.full(len(late), 2)])
    return Order(kind, np.full(len(kind), stage), np.concatenate([np.arange(ahead), steady[runs], late]))


def _interleaved(layout: Layout, stage: int, count: int) -> Order:
    stages, virtual = layout.pipeline, layout.virtual_stages
    total = count * virtual
    ahead = min(2 * (stages - 1 - stage) + (virtual - 1) * stages, total)
    turn = np.arange(total)
    turns = np.stack([np.minimum(ahead + turn, total), turn], axis=1)
    runs = turns < total
    kind = np.concatenate([np.zeros(ahead, np.int64), np.nonzero(runs)[1]])
    rounds, place = np.divmod(np.concatenate([turn[:ahead], turns[runs]]), stages * virtual)
    block, within = np.divmod(place, stages)
    return Order(kind, np.where(kind, virtual - 1 - block, block) * stages + stage, rounds * stages + within)


def _wave(layout: Layout, stage: int, count: int) -> Order:
    """ZB-V: a stage runs the chunk ``near`` on the way there and ``far`` on the way back.

    The order is that of at least 2p - 1 micro-batches, which fill the pipeline; those that are not there are
    left out.
    """
    stages = layout.pipeline
    near, far, filled = stage, 2 * stages - 1 - stage, max(count, 2 * stages - 1)
    forth, back, weight = ((near, 0), (near, 1), (near, 2))
    far_forth, far_back, far_weight = ((far, 0), (far, 1), (far, 2))
    result = [forth] * (2 * (stages - stage) - 1) + [far_forth, forth] * stage
    result += [far_forth, far_back, far_weight] * (stages - stage)
    # From here to the drain the stage is full: each forward pass follows a weight gradient that made room.
    turn = [back, weight, far_forth, far_back, far_weight]
    left, more = filled - stages, max(filled - 2 * stages + stage + 1, 0)
    result += [forth, *turn] * min(more, left) + turn * max(left - more, 0)
    result += [back, far_back] * stage + [back, weight] * (stages - stage)
    for chunk in (far, near):
        result += [(chunk, 2)] * (filled - result.count((chunk, 2)))
    chunk, what = np.array(result, dtype=np.int64).T
    micro_batch = np.zeros(len(result), dtype=np.int64)
    for kind in set(result):
        mine = (chunk == kind[0]) & (what == kind[1])
        micro_batch[mine] = np.arange(np.count_nonzero(mine))
    real = micro_batch < count
    return Order(what[real], chunk[real], micro_batch[real])


# Memory ------------------------------------------------------------------------------------------


def held(layout: Layout, order: Sequence[Op]) -> Ints:
    """Chunks in flight after each pass of a stage: those whose saved inputs a later pass still needs."""
    last = "weight-gradient" if layout.schedule.splits_backward else "backward"
    return np.cumsum([(op.what == "forward") - (op.what == last) for op in order], dtype=np.int64)


def most_held(table: LayoutTable, micro_batches: Floats, stages: Floats) -> Floats:
    """The largest ``held`` of stages, shape (..., rows), in whole stages' worth of chunks.

    1F1B keeps one micro-batch for each stage from here on; interleaved, whose warm-up is longer, keeps
    (2 (p-i) - 1 + (v-1) p) / v on stage i (arXiv 2205.05198, section 4.2.3); ZB-H1 and ZB-V keep on every
    stage what 1F1B keeps on the first.
    """
    rounds, split = table.scheduled("rounds"), table.scheduled("splits_backward")
    first = table.pipeline + rounds * (table.pipeline - 1.0) / table.virtual_stages
    fewer = np.where(split, 0.0, (1.0 + rounds) / table.virtual_stages)
    return np.minimum(first - fewer * stages, micro_batches)


# Time --------------------------------------------------------------------------------------------


def stepped_s(layout: Layout, micro_batches: int, chunks: Sequence[Durations], send_s: float = 0.0) -> float:
    """Seconds from the first pass to the last, by stepping through the orders; ``chunks`` in model order.

    A stage whose schedule ``blocks`` waits for its sends, others go on.
    """
    every = [deque(order) for order in orders(layout, micro_batches)]
    ready = {Op("forward", 0, i): 0.0 for i in range(micro_batches)}
    free = [0.0] * layout.pipeline
    able = [0]
    while able:
        stage = able.pop()
        while every[stage] and (every[stage][0].what == "weight-gradient" or every[stage][0] in ready):
            op = every[stage].popleft()
            free[stage] = max(free[stage], ready.pop(op, 0.0)) + chunks[op.chunk].of(op, layout)
            if (after := following(layout, op)) is None:
                continue
            other = stage_of(layout, after.chunk)
            hop_s = 0.0 if other == stage else send_s
            ready[after] = free[stage] + hop_s
            free[stage] += hop_s * layout.schedule.blocks
            able.append(other)
    return max(free)


def bubble_s(
    table: LayoutTable,
    micro_batches: Floats,
    *,
    forward_s: Floats,
    input_gradient_s: Floats,
    weight_gradient_s: Floats,
) -> Floats:
    """Seconds in which the slowest stage is idle in an iteration, shape (rows,), sends left aside.

    The times are one micro-batch's, summed over all stages but the slowest: (p-1) F, B and W where stages are
    equal.  Then 1F1B has (p-1)(F+B+W), interleaved 1/v of it and ZB-H1 (p-1) max(F+B-W, F, B), as
    ``stepped_s`` does.  ZB-V has (p-1) max(F/2, B/2, B - W min(1, (m-p)/(p-1))).  This is ``stepped_s`` where
    W <= F <= B and m >= 2p-1.  Where B < F instead, ``stepped_s`` has up to (p-1)(F-B) more; where m is less
    instead, up to a sixth of F+B+W.  F/2 is not a bubble but a skew of the stages, which counts because a step
    ends on all of them at once.
    """
    chunk_s: Floats = (forward_s + input_gradient_s + weight_gradient_s) / table.virtual_stages
    split = table.scheduled("splits_backward")
    if not split.any():
        return chunk_s
    longer = np.maximum(forward_s, input_gradient_s)
    single = np.maximum(forward_s + input_gradient_s - weight_gradient_s, longer)
    filled = np.clip((micro_batches - table.pipeline) / np.maximum(table.pipeline - 1.0, 1.0), 0.0, 1.0)
    hidden = input_gradient_s - filled * weight_gradient_s
    wave = table.scheduled("wraps")
    return np.where(split, np.where(wave, np.maximum(longer / 2.0, hidden), single), chunk_s)


# Within a layer's backward ---------------------------------------------------------------------------


def weight_gradient_first(output_ranks: int, z: int, *, overlap_reduce: bool) -> bool:
    """Whether a linear layer computes its weight's gradient before its input's: where nothing sums the input's
    over the ``output_ranks`` that share the outputs, so that the scatter over z starts."""
    return output_ranks == 1 and z > 1 and overlap_reduce
