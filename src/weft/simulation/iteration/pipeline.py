"""What the passes, sends and synchronisations of one iteration last.

Durations come from the closed form's rows (``weft.estimation.blocks``), so that no formula is written twice; what is
exact in ``stepping`` and ``full``, and not there, is who waits for whom.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.estimation.blocks import BlockRow, BlockRows
from weft.estimation.frame import TimedFrame
from weft.estimation.pace import slowest_stage
from weft.estimation.synchronisation import StepSynchronisation
from weft.layout.spec import Layout
from weft.layout.stages import Durations, HeldChunk, Op, held_chunks


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

    def __init__(self, frame: TimedFrame, rows: list[BlockRow] | None = None) -> None:
        self.frame = frame
        self.rows = BlockRows(frame).all() if rows is None else rows
        synchronisation = StepSynchronisation(frame)
        self.totals, self.costs = synchronisation.totals(), synchronisation.costs(slowest_stage(frame, self.rows))

    def of(self, row: int, layout: Layout, offload_s: float) -> PhaseTimes:
        """Durations of the layout of a row; offloading in all, behind the update."""
        frame, totals = self.frame, self.totals
        chunks = _Chunks(self.rows, row)
        counts = [_timed_counts(chunk, frame.partial) for chunk in held_chunks(frame.job.model, layout)]
        tied = frame.at(frame.costs.tied_s)[row] if layout.pipeline > 1 and not layout.schedule.wraps else 0.0
        return PhaseTimes(
            chunks=tuple(chunks.durations(one) for one in counts),
            exposed=tuple(chunks.exposed(one) for one in counts),
            hop_s=float(frame.at(frame.costs.send_s)[row]) if layout.pipeline > 1 else 0.0,
            overlap_cost=frame.constants.overlap_cost,
            micro_batches=int(frame.micro_batches[row]),
            step=StepTimes(
                reduce_s=float(totals.reduce_s[row]),
                gather_s=float(totals.gather_s[row]),
                last=float(totals.last[row]),
                update_s=float(self.costs.update_s[row] + totals.single_s[row]) + offload_s,
                tied_s=float(tied),
                host_s=frame.constants.iteration_s,
            ),
        )


def clock(layout: Layout, frame: TimedFrame, offload_s: float) -> PhaseTimes:
    """Durations of a layout, whose one-row frame is given; offloading in all, behind the update."""
    return Clocks(frame).of(0, layout, offload_s)


def _timed_counts(chunk: HeldChunk, partial: bool) -> tuple[float, ...]:
    """How often a chunk has the part that each row of ``BlockRows.all`` times."""
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
