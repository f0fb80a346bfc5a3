"""One iteration of one column, stepped through pass by pass in the order of its schedule.

Durations come from the closed form's rows (``weft.estimation.iteration``), so that no formula is written twice;
what is exact here and not there is who waits for whom, which is as in ``weft.simulation.iteration.simulate``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from weft.errors import BadInput
from weft.estimation.frame import Frame
from weft.estimation.iteration import BlockRow, block_rows, step_totals
from weft.fabric.spec import Floats, Ints, Mask
from weft.layout.spec import Layout, PipelineSchedule
from weft.layout.stages import PASSES, Durations, HeldChunk, Op, held_chunks, order_columns, stage_of
from weft.simulation.iteration.result import SpanKind, StageSpan
from weft.solvers._jit import jit

# The compiled loop ---------------------------------------------------------------------------------

FORWARD, BACKWARD = 0, 1


class Passes(NamedTuple):
    """The passes of all stages, one stage behind the other: those of stage s are ``first[s] .. first[s+1]``.

    ``edge`` marks the first forward and the last backward pass of each chunk; ``stage_of`` is the stage of a chunk,
    ``seconds`` (pass, chunk, edge) what a pass lasts.
    """

    first: Ints
    what: Ints
    chunk: Ints
    micro_batch: Ints
    edge: Mask
    stage_of: Ints
    seconds: Floats


class Delays(NamedTuple):
    """Seconds of a send; of parameters gathered before the first and the second pass, and before the first of each
    further chunk; of a chunk's gradients reduced beside its backward pass and behind it."""

    hop: float
    first_gather: float
    second_gather: float
    next_gather: float
    beside: float
    behind: float


class Rules(NamedTuple):
    """Whether a stage waits for its sends, gathers, reduces, reduces beside the backward pass, and after every
    backward pass."""

    blocks: bool
    gathers: bool
    reduces: bool
    overlaps: bool
    every: bool


class PassTimes(NamedTuple):
    """What is found: begin and end of each pass, end of its send, begin and end of the reduction behind it; for each
    stage the end of its last pass, of its reductions and of its gathering."""

    begin: Floats
    end: Floats
    sent: Floats
    reduce_begin: Floats
    reduce_end: Floats
    free: Floats
    reduced: Floats
    gathered: Floats


class PassState(NamedTuple):
    """Room: when the input of a (pass, chunk, micro-batch) is there (below 0: not yet), the next pass of each stage,
    how many chunks it has gathered, stages to look at."""

    ready: Floats
    place: Ints
    chunks: Ints
    pending: Ints


@jit
def step(passes: Passes, delays: Delays, rules: Rules, times: PassTimes, work: PassState) -> int:
    """Step until all passes have run; returns how many have."""
    last, done, waiting = len(passes.stage_of) - 1, 0, 0
    # A stage runs its passes in order until one lacks its input, and is looked at again when that comes.  When a pass
    # begins depends on its input and on earlier passes of its stage only, so that it does not matter in which order
    # stages are looked at.
    for stage in range(len(passes.first) - 1):
        work.pending[waiting] = len(passes.first) - 2 - stage
        waiting += 1
    while waiting:
        waiting -= 1
        stage = work.pending[waiting]
        while work.place[stage] < passes.first[stage + 1]:
            k = work.place[stage]
            kind, chunk, i, edge = passes.what[k], passes.chunk[k], passes.micro_batch[k], passes.edge[k]
            # The first chunk reads its own data; a weight gradient follows its backward pass on the same stage.
            arrived = 0.0
            if kind <= BACKWARD and not (kind == FORWARD and chunk == 0):
                arrived = work.ready[kind, chunk, i]
                if arrived < 0.0:
                    break
            work.place[stage] += 1
            done += 1
            free = times.free[stage]
            # A pass begins when its stage is free, its parameters are gathered and its input has come.
            possible = max(free, _gathered(stage, k, kind == FORWARD and edge, passes, delays, rules, times, work))
            begin = max(possible, arrived)
            end = begin + passes.seconds[kind, chunk, 1 if edge else 0]
            times.begin[k], times.end[k] = begin, end
            free = end
            # Forward passes feed the next chunk, that of the last chunk its own backward pass, backward passes the
            # chunk before.
            to = -1
            if kind == FORWARD:
                to = chunk if chunk == last else chunk + 1
            elif kind == BACKWARD:
                to = chunk - 1
            if to >= 0:
                turned = kind == BACKWARD or chunk == last
                receiver = passes.stage_of[to]
                arrival = end
                if receiver != stage:
                    arrival = end + delays.hop
                    times.sent[k] = arrival
                    work.pending[waiting] = receiver
                    waiting += 1
                    if rules.blocks:
                        free = arrival
                work.ready[BACKWARD if turned else FORWARD, to, i] = arrival
            if kind == BACKWARD and (rules.every or edge):
                # What a later stage hands back was wired after this: the reduction does not wait for it.
                if chunk == last or passes.stage_of[chunk + 1] <= stage:
                    possible = begin
                reduced = _reduced(
                    k, possible, free, 0.0 if rules.every else times.reduced[stage], delays, rules, times
                )
                if rules.every:
                    free = reduced
                else:
                    times.reduced[stage] = reduced
            times.free[stage] = free
    return done


@jit
def _gathered(
    stage: int, k: int, fresh: bool, passes: Passes, delays: Delays, rules: Rules, times: PassTimes, work: PassState
) -> float:
    """When the parameters of a pass have been gathered."""
    if not rules.gathers:
        return 0.0
    place, count = k - passes.first[stage], passes.first[stage + 1] - passes.first[stage]
    result = 0.0
    # The first bucket comes before the first pass and the rest before the second, behind it; the parameters of each
    # further chunk follow on the same link before the chunk's first forward pass.
    if place == 0:
        result = delays.first_gather
        times.gathered[stage] = result + delays.second_gather
    if place == min(1, count - 1):
        result = times.gathered[stage]
    if fresh:
        work.chunks[stage] += 1
        if work.chunks[stage] > 1:
            times.gathered[stage] += delays.next_gather
            result = max(result, times.gathered[stage])
    return result


@jit
def _reduced(
    k: int, backward_begin: float, free: float, earlier: float, delays: Delays, rules: Rules, times: PassTimes
) -> float:
    """When a chunk's gradients are reduced."""
    if not rules.reduces:
        return max(free, earlier)
    # With overlap all but the last bucket runs beside the backward pass, the last behind it; reductions of a stage
    # follow each other.
    begin = max(backward_begin if rules.overlaps else free, earlier)
    end = begin + delays.beside
    if rules.overlaps:
        end = max(end, free) + delays.behind
    times.reduce_begin[k], times.reduce_end[k] = begin, end
    return end


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
