"""One iteration of one column, stepped through pass by pass in the order of its schedule.

Durations come from the closed form's rows (``weft.estimation.iteration``), so that no formula is written twice;
what is exact here and not there is who waits for whom, which is as in ``weft.simulation.iteration.full``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from weft.errors import BadInput
from weft.estimation.frame import Frame
from weft.estimation.iteration import BlockRow, block_rows, step_totals
from weft.fabric.spec import Floats, Ints, Mask
from weft.layout.spec import Layout, PipelineSchedule
from weft.layout.stages import PASSES, Durations, HeldChunk, Op, held_chunks, order_columns, stage_of
from weft.simulation.iteration._stepping import BACKWARD, FORWARD, Delays, Passes, PassState, PassTimes, Rules, step
from weft.simulation.iteration.result import SpanKind, StageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds once per step, in every stage: reduction of gradients and gathering of parameters with the
    share of their last bucket, update (with offloading, and what is summed right before it), tied embedding, host."""

    reduce_s: float
    gather_s: float
    last: float
    update_s: float
    tied_s: float
    host_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """What the phases of one iteration last.  ``exposed`` are the seconds of each chunk's forward and
    backward collectives that nothing hides."""

    chunks: tuple[Durations, ...]
    exposed: tuple[tuple[float, float], ...]
    hop_s: float
    overlap_cost: float
    micro_batches: int
    step: StepTimes


class Clocks:
    """What the phases of the rows of a frame last."""

    def __init__(self, frame: Frame, rows: list[BlockRow] | None = None) -> None:
        self.frame = frame
        self.rows = block_rows(frame) if rows is None else rows
        self.totals = step_totals(frame)

    def of(self, row: int, layout: Layout, offload_s: float) -> PhaseTimes:
        """Durations of the layout of a row; offloading in all, behind the update."""
        frame, totals = self.frame, self.totals
        chunks = _Chunks(self.rows, row)
        counts = [_timed_counts(chunk, frame.partial) for chunk in held_chunks(frame.job.model, layout)]
        tied = frame.at(frame.meshes.tied_s)[row] if layout.pipeline > 1 and not layout.schedule.wraps else 0.0
        return PhaseTimes(
            chunks=tuple(chunks.durations(parts) for parts in counts),
            exposed=tuple(chunks.exposed(parts) for parts in counts),
            hop_s=float(frame.at(frame.meshes.send_s)[row]) if layout.pipeline > 1 else 0.0,
            overlap_cost=frame.constants.overlap_cost,
            micro_batches=int(frame.micro_batches[row]),
            step=StepTimes(
                reduce_s=float(totals.reduce_s[row]),
                gather_s=float(totals.gather_s[row]),
                last=float(totals.last[row]),
                update_s=float(totals.update_s[row] + totals.single_s[row]) + offload_s,
                tied_s=float(tied),
                host_s=frame.constants.iteration_s,
            ),
        )


def clock(layout: Layout, frame: Frame, offload_s: float) -> PhaseTimes:
    """Durations of a layout, whose one-row frame is given; offloading in all, behind the update."""
    return Clocks(frame).of(0, layout, offload_s)


def _timed_counts(chunk: HeldChunk, partial: bool) -> tuple[float, ...]:
    """How often a chunk has the part that each row of ``block_rows`` times."""
    if not partial:
        return chunk.counts
    # With recomputation of some layers there are three kinds of rows: blocks that run again, blocks that do not, and
    # embedding and head.
    without = [count - again for count, again in zip(chunk.counts, chunk.replayed, strict=False)]
    return (*chunk.replayed, *without, *chunk.counts[-2:])


class _Chunks:
    """Durations of the chunks of one layout, found once for equal ones."""

    def __init__(self, rows: list[BlockRow], row: int) -> None:
        self.rows, self.row = rows, row
        self._sums: dict[tuple[tuple[float, ...], str], float] = {}

    def durations(self, counts: tuple[float, ...]) -> Durations:
        weight_gradient_s = self._sum(counts, "weight_gradient")
        return Durations(
            forward_s=self._sum(counts, "forward_total"),
            input_gradient_s=self._sum(counts, "backward_total") - weight_gradient_s,
            weight_gradient_s=weight_gradient_s,
        )

    def exposed(self, counts: tuple[float, ...]) -> tuple[float, float]:
        forward = self._sum(counts, "forward_total") - self._sum(counts, "forward")
        computed = self._sum(counts, "backward") + self._sum(counts, "recompute")
        return forward, self._sum(counts, "backward_total") - computed

    def _sum(self, counts: tuple[float, ...], name: str) -> float:
        key = counts, name
        if key not in self._sums:
            pairs = zip(self.rows, counts, strict=True)
            self._sums[key] = float(sum(count * getattr(row, name)[self.row] for row, count in pairs))
        return self._sums[key]


def op_seconds(layout: Layout, clock: PhaseTimes, op: Op, *, edge: bool) -> float:
    """Seconds of a pass, slowed by what runs beside it; ``edge``: it is the first forward or the last backward
    pass of its chunk."""
    chunk, cost = clock.chunks[op.chunk], clock.overlap_cost
    seconds = chunk.of(op, layout)
    if op.what == "weight-gradient":
        return seconds
    # The constant is the slowdown by a second of communication beside a second of computation: the shorter counts.
    slowed = 0.0 if layout.schedule.blocks else cost * min(clock.hop_s, chunk.forward_s)
    # Parameters are gathered behind the first forward pass of a chunk, gradients reduced behind its last backward pass
    # (with ZeRO-2 every one), all but the last bucket.
    step, beside = clock.step, 0.0
    if op.what == "forward" and layout.overlap_gather and edge:
        beside = min(1.0 / layout.virtual_stages * step.gather_s * (1 - step.last), chunk.forward_s)
    elif op.what == "backward" and layout.overlap_reduce and (layout.zero == 2 or edge):
        beside = min(1.0 / layout.virtual_stages * step.reduce_s * (1 - step.last), chunk.backward_s)
    return seconds + slowed + cost * beside


KEPT_ORDERS = 8
"""Orders that are kept: what is stepped again has often the same."""


class Stepped(Iterable[StageSpan]):
    """An iteration that was stepped through: its seconds, and its bars, which are made when they are asked for."""

    def __init__(self, layout: Layout, clock: PhaseTimes) -> None:
        self.layout, self.clock = layout, clock
        self.order = _order(layout.pipeline, layout.virtual_stages, layout.schedule, clock.micro_batches)
        self.times = self._stepped()
        # The update begins when every stage has run its passes and reduced its gradients.  A tied embedding is summed
        # between the first and the last stage, which waits for these two alone.
        ends = np.maximum(self.times.free, self.times.reduced)
        last = float(ends.max())
        if clock.step.tied_s > 0:
            last = max(last, max(float(ends[0]), float(ends[-1])) + clock.step.tied_s)
        self.update = last, last + max(clock.step.update_s, 0.0)
        self.seconds = self.update[1] + max(clock.step.host_s, 0.0)

    def __iter__(self) -> Iterator[StageSpan]:
        """Bars of the passes of every stage, then stage by stage of gathering, sends and reductions."""
        once: list[_Bar] = [
            (0, "update", "optimizer", *self.update),
            (0, "host", "host", self.update[1], self.seconds),
        ]
        for stage, kind, name, begin, end in (*self._passes(), *self._beside(), *once):
            if end > begin:
                yield StageSpan(stage=stage, kind=kind, name=name, begin_s=begin, end_s=end)

    def _stepped(self) -> PassTimes:
        layout, phases, order = self.layout, self.clock, self.order
        chunks, stages = layout.pipeline * layout.virtual_stages, layout.pipeline
        passes = order._replace(seconds=self._seconds())
        count = len(order.what)
        times = PassTimes(*(np.zeros(count) for _ in range(5)), *(np.zeros(stages) for _ in range(3)))
        # Room for the stages to look at: each once, and once more after every pass that is sent on.
        work = PassState(
            ready=np.full((2, chunks, phases.micro_batches), -1.0),
            place=order.first[:-1].copy(),
            chunks=np.zeros(stages, dtype=np.int64),
            pending=np.zeros(stages + count, dtype=np.int64),
        )
        rules = Rules(
            blocks=layout.schedule.blocks,
            gathers=phases.step.gather_s > 0,
            reduces=phases.step.reduce_s > 0,
            overlaps=layout.overlap_reduce,
            every=layout.zero == 2,
        )
        done = step.sized(40 * count)(passes, self._delays(), rules, times, work)
        if done < count:
            raise BadInput("passes wait for each other", where=f"schedule {layout.schedule}")
        return times

    def _seconds(self) -> Floats:
        """What passes last, shape (pass, chunk, edge); found once for equal chunks."""
        # Chunks with equal durations have equal passes: each kind is priced once.
        number: dict[Durations, int] = {}
        alike = [number.setdefault(chunk, len(number)) for chunk in self.clock.chunks]
        first = [alike.index(kind) for kind in range(len(number))]
        distinct = np.array(
            [
                [
                    [op_seconds(self.layout, self.clock, Op(kind, chunk, 0), edge=edge) for edge in (False, True)]
                    for chunk in first
                ]
                for kind in PASSES
            ]
        )
        seconds: Floats = np.maximum(distinct, 0.0)[:, alike]
        return seconds

    def _delays(self) -> Delays:
        # A step's gathering and reduction in as many shares as a stage has chunks, each with its last bucket apart.
        share, once = 1.0 / self.layout.virtual_stages, self.clock.step
        gather = share * once.last * once.gather_s, share * (1.0 - once.last) * once.gather_s, share * once.gather_s
        if not self.layout.overlap_gather:
            gather = once.gather_s, 0.0, 0.0
        reduce = share * (1.0 - once.last) * once.reduce_s, share * once.last * once.reduce_s
        if not self.layout.overlap_reduce:
            reduce = share * once.reduce_s, 0.0
        return Delays(*(max(seconds, 0.0) for seconds in (self.clock.hop_s, *gather, *reduce)))

    def _passes(self) -> Iterator[_Bar]:
        begin, end = self.times.begin.tolist(), self.times.end.tolist()
        for k, stage, op in self._each():
            yield stage, op.what, f"{op.micro_batch}.{op.chunk}", begin[k], end[k]

    def _beside(self) -> Iterator[_Bar]:
        end, sent, first, gathered = (
            column.tolist() for column in (self.times.end, self.times.sent, self.order.first, self.times.gathered)
        )
        reduced = self.times.reduce_begin.tolist(), self.times.reduce_end.tolist()
        gathers = self.layout.overlap_gather and self.clock.step.gather_s > 0
        for k, stage, op in self._each():
            if gathers and k == first[stage]:
                yield stage, "weights", "parameters", 0.0, gathered[stage]
            name = f"{op.micro_batch}.{op.chunk}"
            if sent[k] > 0.0:
                yield stage, "send", f"{op.what} {name}", end[k], sent[k]
            if reduced[1][k] > 0.0:
                yield stage, "gradients", "gradients", reduced[0][k], reduced[1][k]

    def _each(self) -> Iterator[tuple[int, int, Op]]:
        """Number, stage and pass of every pass."""
        first = self.order.first
        stages = np.repeat(np.arange(len(first) - 1), np.diff(first)).tolist()
        columns = (column.tolist() for column in (self.order.what, self.order.chunk, self.order.micro_batch))
        for k, (stage, kind, chunk, i) in enumerate(zip(stages, *columns, strict=True)):
            yield k, stage, Op(PASSES[kind], chunk, i)


_Bar = tuple[int, SpanKind, str, float, float]


@lru_cache(maxsize=KEPT_ORDERS)
def _order(pipeline: int, virtual: int, schedule: PipelineSchedule, micro_batches: int) -> Passes:
    """The passes of all stages, without what they last."""
    layout = Layout(pipeline=pipeline, virtual_stages=virtual, schedule=schedule)
    every = order_columns(layout, micro_batches)
    kind, chunk, micro_batch = (np.concatenate(column).astype(np.int64) for column in zip(*every, strict=True))
    return Passes(
        first=np.cumsum([0, *(len(order.what) for order in every)]).astype(np.int64),
        what=kind,
        chunk=chunk,
        micro_batch=micro_batch,
        edge=_edges(kind, chunk, pipeline * virtual),
        stage_of=np.array([stage_of(layout, chunk) for chunk in range(pipeline * virtual)], dtype=np.int64),
        seconds=np.zeros((0, 0, 0)),
    )


def _edges(kind: Ints, chunk: Ints, chunks: int) -> Mask:
    """The first forward and the last backward pass of each chunk."""
    number = np.arange(len(kind))
    first, last = np.full(chunks, len(kind)), np.full(chunks, -1)
    forward, backward = kind == FORWARD, kind == BACKWARD
    np.minimum.at(first, chunk[forward], number[forward])
    np.maximum.at(last, chunk[backward], number[backward])
    result = np.zeros(len(kind), dtype=bool)
    result[first], result[last] = True, True
    return result
