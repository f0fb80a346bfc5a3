"""What runs when in a pipeline: every stage's order, the chunks that it holds meanwhile, and the bubble.

Plain 1F1B (arXiv 1806.03377), interleaved 1F1B (2104.04473), ZB-H1 and ZB-V (2401.10241, sections 3 and 6).
An order depends on the schedule alone, not on how long passes last.  ZB-V's is that of
torch.distributed.pipelining (``ScheduleZBVZeroBubble``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from weft.layout.spec import Layout, PipelineSchedule
from weft.layout.stages import chunk_stage
from weft.layout.table import Floats, Ints, LayoutTable

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
        [Op(PASSES[what], chunk, i) for what, chunk, i in zip(*(column.tolist() for column in order), strict=True)]
        for order in order_columns(layout, micro_batches)
    ]


def order_columns(layout: Layout, micro_batches: int) -> list[Order]:
    """What each stage runs, in order, as columns."""
    made = {PipelineSchedule.INTERLEAVED: _interleaved, PipelineSchedule.ZBV: _wave}.get(layout.schedule, _plain)
    return [made(layout, stage, micro_batches) for stage in range(layout.pipeline)]


def _plain(layout: Layout, stage: int, count: int) -> Order:
    """1F1B.  ZB-H1 defers as many weight gradients as there are stages before this one, so that every stage
    holds what the first does."""
    ahead, deferred = min(layout.pipeline - 1 - stage, count), min(stage, count)
    split = layout.schedule.splits_backward
    turn = np.arange(count)
    steady = np.stack([ahead + turn, turn, turn - deferred], axis=1)
    runs = np.stack([ahead + turn < count, turn >= 0, split & (turn >= deferred)], axis=1)
    late = np.arange(count - deferred, count) if split else turn[:0]
    what = np.concatenate([np.zeros(ahead, np.int64), np.nonzero(runs)[1], np.full(len(late), 2)])
    return Order(what, np.full(len(what), stage), np.concatenate([np.arange(ahead), steady[runs], late]))


def _interleaved(layout: Layout, stage: int, count: int) -> Order:
    stages, virtual = layout.pipeline, layout.virtual_stages
    total = count * virtual
    ahead = min(2 * (stages - 1 - stage) + (virtual - 1) * stages, total)
    turn = np.arange(total)
    turns = np.stack([np.minimum(ahead + turn, total), turn], axis=1)
    runs = turns < total
    what = np.concatenate([np.zeros(ahead, np.int64), np.nonzero(runs)[1]])
    rounds, place = np.divmod(np.concatenate([turn[:ahead], turns[runs]]), stages * virtual)
    own, within = np.divmod(place, stages)
    return Order(what, np.where(what, virtual - 1 - own, own) * stages + stage, rounds * stages + within)


def _wave(layout: Layout, stage: int, count: int) -> Order:
    """ZB-V: a stage runs the chunk ``near`` on the way there and ``far`` on the way back.

    The order is that of at least 2p - 1 micro-batches, which fill the pipeline; those that are not there are
    left out.
    """
    stages = layout.pipeline
    near, far, filled = stage, 2 * stages - 1 - stage, max(count, 2 * stages - 1)
    forth, back, weight = ((near, 0), (near, 1), (near, 2))
    far_forth, far_back, far_weight = ((far, 0), (far, 1), (far, 2))
    found = [forth] * (2 * (stages - stage) - 1) + [far_forth, forth] * stage
    found += [far_forth, far_back, far_weight] * (stages - stage)
    # From here to the drain the stage is full: each forward pass follows a weight gradient that made room.
    turn = [back, weight, far_forth, far_back, far_weight]
    left, more = filled - stages, max(filled - 2 * stages + stage + 1, 0)
    found += [forth, *turn] * min(more, left) + turn * max(left - more, 0)
    found += [back, far_back] * stage + [back, weight] * (stages - stage)
    for chunk in (far, near):
        found += [(chunk, 2)] * (filled - found.count((chunk, 2)))
    chunk, what = np.array(found, dtype=np.int64).T
    micro_batch = np.zeros(len(found), dtype=np.int64)
    for kind in set(found):
        mine = (chunk == kind[0]) & (what == kind[1])
        micro_batch[mine] = np.arange(np.count_nonzero(mine))
    kept = micro_batch < count
    return Order(what[kept], chunk[kept], micro_batch[kept])


# Memory ------------------------------------------------------------------------------------------


def held(layout: Layout, order: Sequence[Op]) -> Ints:
    """Chunks in flight after each pass of a stage: those whose saved inputs a later pass still needs."""
    last = "weight-gradient" if layout.schedule.splits_backward else "backward"
    return np.cumsum([(op.what == "forward") - (op.what == last) for op in order], dtype=np.int64)


def most_held(table: LayoutTable, micro_batches: Floats, stages: Floats) -> Floats:
    """The most that ``held`` comes to on stages, shape (..., rows), in whole stages' worth of chunks, likewise.

    1F1B keeps one micro-batch for each stage from here on; interleaved, whose warm-up is longer, keeps
    (2 (p-i) - 1 + (v-1) p) / v on stage i (arXiv 2205.05198, section 4.2.3); ZB-H1 and ZB-V keep on every
    stage what 1F1B keeps on the first.
    """
    rounds, split = table.scheduled(lambda one: one.rounds), table.scheduled(lambda one: one.splits_backward)
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
    instead, up to a sixth of F+B+W.  F/2 is no bubble but a skew of the stages, which counts because a step
    ends on all of them at once.
    """
    whole: Floats = (forward_s + input_gradient_s + weight_gradient_s) / table.virtual_stages
    split = table.scheduled(lambda one: one.splits_backward)
    if not split.any():
        return whole
    longer = np.maximum(forward_s, input_gradient_s)
    single = np.maximum(forward_s + input_gradient_s - weight_gradient_s, longer)
    filled = np.clip((micro_batches - table.pipeline) / np.maximum(table.pipeline - 1.0, 1.0), 0.0, 1.0)
    hidden = input_gradient_s - filled * weight_gradient_s
    wave = table.scheduled(lambda one: one.wraps)
    return np.where(split, np.where(wave, np.maximum(longer / 2.0, hidden), single), whole)


# Within a layer's backward ---------------------------------------------------------------------------


def weight_gradient_first(output_ranks: int, z: int, *, overlap_reduce: bool) -> bool:
    """Whether a linear layer computes its weight's gradient before its input's: where nothing sums the input's
    over the ``output_ranks`` that share the outputs, so that the scatter over z starts."""
    return output_ranks == 1 and z > 1 and overlap_reduce
