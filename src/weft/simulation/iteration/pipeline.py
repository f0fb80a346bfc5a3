"""One iteration as phases: chunks in the schedule's order, sends, gradients, update.

Durations come from the closed form's rows (``weft.estimation.blocks``), so that no formula is written twice;
what is exact here and not there is who waits for whom.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.estimation.blocks import BlockRow, BlockRows
from weft.estimation.frame import TimedFrame
from weft.estimation.pace import slowest_stage
from weft.estimation.synchronisation import StepSynchronisation
from weft.layout.schedule import Durations, Op, following, orders, stage_of
from weft.layout.spec import Layout
from weft.layout.stages import HeldChunk, held_chunks
from weft.simulation.flows.graph import Graph
from weft.simulation.iteration.result import Span, SpanKind, Track


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


def clock(layout: Layout, frame: TimedFrame, offload_s: float) -> PhaseTimes:
    """Durations of a layout, whose one-row frame is given; offloading in all, behind the update."""
    rows = BlockRows(frame).all()
    counts = [_timed_counts(chunk, frame.partial) for chunk in held_chunks(frame.job.model, layout)]
    synchronisation = StepSynchronisation(frame)
    totals, costs = synchronisation.totals(), synchronisation.costs(slowest_stage(frame, rows))
    tied = frame.at(frame.costs.tied_s)[0] if layout.pipeline > 1 and not layout.schedule.wraps else 0.0
    return PhaseTimes(
        chunks=tuple(_durations(rows, one) for one in counts),
        exposed=tuple(_exposed(rows, one) for one in counts),
        hop_s=float(frame.at(frame.costs.send_s)[0]) if layout.pipeline > 1 else 0.0,
        overlap_cost=frame.constants.overlap_cost,
        micro_batches=int(frame.micro_batches[0]),
        step=StepTimes(
            reduce_s=float(totals.reduce_s[0]),
            gather_s=float(totals.gather_s[0]),
            last=float(totals.last[0]),
            update_s=float(costs.update_s[0] + totals.single_s[0]) + offload_s,
            tied_s=float(tied),
            host_s=frame.constants.iteration_s,
        ),
    )


def _timed_counts(chunk: HeldChunk, partial: bool) -> tuple[float, ...]:
    """How often a chunk has the part that each row of ``BlockRows.all`` times."""
    if not partial:
        return chunk.counts
    without = [count - again for count, again in zip(chunk.counts, chunk.replayed, strict=False)]
    return (*chunk.replayed, *without, *chunk.counts[-2:])


def _sum(rows: list[BlockRow], counts: tuple[float, ...], name: str) -> float:
    return float(sum(count * getattr(row, name)[0] for row, count in zip(rows, counts, strict=True)))


def _durations(rows: list[BlockRow], counts: tuple[float, ...]) -> Durations:
    weight_gradient_s = _sum(rows, counts, "weight_gradient")
    return Durations(
        forward_s=_sum(rows, counts, "forward_total"),
        input_gradient_s=_sum(rows, counts, "backward_total") - weight_gradient_s,
        weight_gradient_s=weight_gradient_s,
    )


def _exposed(rows: list[BlockRow], counts: tuple[float, ...]) -> tuple[float, float]:
    forward = _sum(rows, counts, "forward_total") - _sum(rows, counts, "forward")
    computed = _sum(rows, counts, "backward") + _sum(rows, counts, "recompute")
    return forward, _sum(rows, counts, "backward_total") - computed


@dataclass(frozen=True, slots=True)
class Placed:
    """The phases in which an op begins and ends."""

    begin: int
    end: int


class Pipeline:
    """Builds the phases of one iteration.

    The base class has one column: each stage is one worker, and collectives are part of its durations.
    """

    def __init__(self, layout: Layout, clock: PhaseTimes) -> None:
        self.layout, self.clock, self.graph = layout, clock, Graph()
        self.orders = orders(layout, clock.micro_batches)
        self.share = 1.0 / layout.virtual_stages
        every = [op for order in self.orders for op in order]
        self.first_forward = set({op.chunk: op for op in reversed(every) if op.what == "forward"}.values())
        self.last_backward = set({op.chunk: op for op in every if op.what == "backward"}.values())
        self.blocking = layout.schedule.blocks
        self.bars: list[tuple[int, SpanKind, str, int, int]] = []
        self.placed: dict[tuple[int, int, Op], Placed] = {}

    def columns(self, stage: int) -> range:
        """Workers of a stage that run the same without waiting for each other."""
        return range(1)

    def receivers(self, stage: int, column: int, other: int) -> range | list[int]:
        """Columns of another stage that a column sends to."""
        return self.columns(other)

    def work(self, stage: int, column: int, op: Op, seconds: float) -> Placed:
        """Phases of one op."""
        phase = self.graph.add(op.what, seconds)
        return Placed(phase, phase)

    def send(self, stage: int, column: int, op: Op, other: int, waits: int) -> int:
        """The phase of a stage boundary."""
        return self.graph.add("send", self.clock.hop_s, [waits])

    def synchronise(self, stage: int, column: int, what: str, share: float, waits: list[int]) -> int:
        """A phase of ``share`` of the step's reduction or gathering."""
        seconds = self.clock.step.reduce_s if what == "gradients" else self.clock.step.gather_s
        return self.graph.add(what, share * seconds, waits)

    def build(self) -> int:
        """Wire everything; returns the last phase."""
        for stage, order in enumerate(self.orders):
            for column in self.columns(stage):
                for op in order:
                    self.placed[stage, column, op] = self._place(stage, column, op)
        ends = [self._column(stage, column) for stage in range(self.layout.pipeline) for column in self.columns(stage)]
        if self.clock.step.tied_s > 0:
            ends = [*ends, self.graph.add("tied", self.clock.step.tied_s, [ends[0], ends[-1]])]
        updated = self.graph.add("update", self.clock.step.update_s, ends)
        self._bar(0, "update", "optimizer", updated, updated)
        last = self.graph.add("host", self.clock.step.host_s, [updated])
        self._bar(0, "host", "host", last, last)
        return last

    def spans(self, begin: list[float], end: list[float]) -> tuple[Span, ...]:
        """The timeline of the first column of every stage."""
        found = []
        for stage, kind, name, first, last in self.bars:
            if end[last] > begin[first]:
                network = kind in ("send", "gradients", "weights")
                track: Track = "network" if network else "compute"
                found.append(
                    Span(stage=stage, track=track, kind=kind, name=name, begin_s=begin[first], end_s=end[last])
                )
        return tuple(found)

    def _place(self, stage: int, column: int, op: Op) -> Placed:
        placed = self.work(stage, column, op, self._seconds(op))
        if column == 0:
            self._bar(stage, op.what, f"{op.micro_batch}.{op.chunk}", placed.begin, placed.end)
        return placed

    def _bar(self, stage: int, kind: SpanKind, name: str, first: int, last: int) -> None:
        self.bars.append((stage, kind, name, first, last))

    def _seconds(self, op: Op) -> float:
        chunk, cost = self.clock.chunks[op.chunk], self.clock.overlap_cost
        seconds = chunk.of(op, self.layout)
        if op.what == "weight-gradient":
            return seconds
        slowed = 0.0 if self.blocking else cost * min(self.clock.hop_s, chunk.forward_s)
        return seconds + slowed + cost * (self._ahead(op) if op.what == "forward" else self._behind(op))

    def _behind(self, op: Op) -> float:
        """Gradient reduction hidden behind one backward pass of a chunk."""
        if not self.layout.overlap_reduce or not (self.layout.zero == 2 or op in self.last_backward):
            return 0.0
        step = self.clock.step
        return min(self.share * step.reduce_s * (1 - step.last), self.clock.chunks[op.chunk].backward_s)

    def _ahead(self, op: Op) -> float:
        """Gathering of parameters hidden behind the first forward pass of a chunk."""
        if not self.layout.overlap_gather or op not in self.first_forward:
            return 0.0
        step = self.clock.step
        return min(self.share * step.gather_s * (1 - step.last), self.clock.chunks[op.chunk].forward_s)

    def _column(self, stage: int, column: int) -> int:
        """Wire one column from its first op to its reduced gradients; returns the phase that ends it."""
        order = self.orders[stage]
        gathered = self._gathered(stage, column)
        before: list[int] = []
        reduced: list[int] = []
        for op in order:
            placed = self.placed[stage, column, op]
            for phase in (*before, *gathered.get(op, ())):
                self.graph.wait(placed.begin, phase)
            before = [placed.end]
            sent = self._sent(stage, column, op, placed)
            if self.blocking:
                before += sent
            if self.layout.zero == 2 and op.what == "backward":
                before = [self._reduced(stage, column, placed, before, reduced)]
            elif op in self.last_backward:
                reduced = [self._reduced(stage, column, placed, before, reduced)]
        ends = [*before, *reduced]
        return ends[0] if len(ends) == 1 else self.graph.add("end", 0.0, ends)

    def _gathered(self, stage: int, column: int) -> dict[Op, list[int]]:
        """What ops wait for: the parameters of their chunk; all but the first bucket come while other ops run."""
        step, order = self.clock.step, self.orders[stage]
        if step.gather_s <= 0:
            return {}
        if not self.layout.overlap_gather:
            return {order[0]: [self.synchronise(stage, column, "weights", 1.0, [])]}
        bucket = self.synchronise(stage, column, "weights", self.share * step.last, [])
        last = self.synchronise(stage, column, "weights", self.share * (1.0 - step.last), [bucket])
        waits = {order[0]: [bucket], order[min(1, len(order) - 1)]: [last]}
        for op in [op for op in order if op in self.first_forward][1:]:
            last = self.synchronise(stage, column, "weights", self.share, [last])
            waits.setdefault(op, []).append(last)
        if column == 0:
            self._bar(stage, "weights", "parameters", bucket, last)
        return waits

    def _reduced(self, stage: int, column: int, placed: Placed, before: list[int], earlier: list[int]) -> int:
        """A chunk's gradients: all but the last bucket beside the backward pass, the last behind it, after those
        of ``earlier`` chunks."""
        step = self.clock.step
        if step.reduce_s <= 0:
            return before[0] if len(before) == 1 else self.graph.add("end", 0.0, before)
        if not self.layout.overlap_reduce:
            whole = self.synchronise(stage, column, "gradients", self.share, [*before, *earlier])
            first = whole
        else:
            first = self.synchronise(stage, column, "gradients", self.share * (1.0 - step.last), [])
            self.graph.waits[first] = [*self.graph.waits[placed.begin], *earlier]
            whole = self.synchronise(stage, column, "gradients", self.share * step.last, [first, *before])
        if column == 0:
            self._bar(stage, "gradients", "gradients", first, whole)
        return whole

    def _sent(self, stage: int, column: int, op: Op, placed: Placed) -> list[int]:
        """Send an op's result to the stage that needs it; returns the phases of the sends."""
        after = following(self.layout, op)
        if after is None:
            return []
        other = stage_of(self.layout, after.chunk)
        if other == stage:
            self.graph.wait(self.placed[stage, column, after].begin, placed.end)
            return []
        phase = self.send(stage, column, op, other, placed.end)
        for receiver in self.receivers(stage, column, other):
            self.graph.wait(self.placed[other, receiver, after].begin, phase)
        if column == 0:
            self._bar(stage, "send", f"{op.what} {op.micro_batch}.{op.chunk}", phase, phase)
        return [phase]


def timed(layout: Layout, clock: PhaseTimes) -> tuple[float, tuple[Span, ...]]:
    """Seconds of an iteration of one column, and its timeline."""
    pipeline = Pipeline(layout, clock)
    last = pipeline.build()
    begin, end = pipeline.graph.times()
    return float(end[last]), pipeline.spans(begin.tolist(), end.tolist())
