"""One iteration as phases: chunks in the schedule's order, sends, gradients, update.

Durations come from the closed form's rows (``weft.estimation.iteration``), so that no formula is written twice;
what is exact here and not there is who waits for whom.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.estimation.frame import Frame
from weft.estimation.iteration import BlockRow, block_rows, step_totals
from weft.layout.spec import Layout
from weft.layout.stages import Durations, HeldChunk, Op, following, held_chunks, orders, stage_of
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
            chunks=tuple(chunks.durations(one) for one in counts),
            exposed=tuple(chunks.exposed(one) for one in counts),
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
    slowed = 0.0 if layout.schedule.blocks else cost * min(clock.hop_s, chunk.forward_s)
    beside = _ahead(layout, clock, chunk, edge) if op.what == "forward" else _behind(layout, clock, chunk, edge)
    return seconds + slowed + cost * beside


def _behind(layout: Layout, clock: PhaseTimes, chunk: Durations, edge: bool) -> float:
    """Gradient reduction hidden behind one backward pass of a chunk."""
    if not layout.overlap_reduce or not (layout.zero == 2 or edge):
        return 0.0
    step = clock.step
    return min(1.0 / layout.virtual_stages * step.reduce_s * (1 - step.last), chunk.backward_s)


def _ahead(layout: Layout, clock: PhaseTimes, chunk: Durations, edge: bool) -> float:
    """Gathering of parameters hidden behind the first forward pass of a chunk."""
    if not layout.overlap_gather or not edge:
        return 0.0
    step = clock.step
    return min(1.0 / layout.virtual_stages * step.gather_s * (1 - step.last), chunk.forward_s)


@dataclass(frozen=True, slots=True)
class Placed:
    """The phases in which an op begins and ends."""

    begin: int
    end: int


class Pipeline:
    """Builds the phases of one iteration, for flows that run in them.

    The base class has one column: each stage is one worker, and collectives are part of its durations.  It is
    what ``stepping`` does without phases.
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
        return op_seconds(self.layout, self.clock, op, edge=op in self.first_forward or op in self.last_backward)

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


def timed_ops(layout: Layout, clock: PhaseTimes) -> tuple[float, list[list[tuple[Op, float, float]]]]:
    """Seconds of an iteration of one column, and when each op of each stage begins and ends, in order."""
    pipeline = Pipeline(layout, clock)
    last = pipeline.build()
    begin, end = (times.tolist() for times in pipeline.graph.times())
    stages = []
    for stage, order in enumerate(pipeline.orders):
        placed = [(op, pipeline.placed[stage, 0, op]) for op in order]
        stages.append([(op, float(begin[at.begin]), float(end[at.end])) for op, at in placed])
    return float(end[last]), stages
