"""One iteration of one column, stepped through pass by pass in the order of its schedule.

What waits for what is as in ``weft.simulation.iteration.full``, which builds phases in which flows run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, overload

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Floats, Ints, Mask
from weft.layout.spec import Layout, PipelineSchedule
from weft.layout.stages import PASSES, Durations, Op, order_columns, stage_of
from weft.simulation.iteration._stepping import BACKWARD, FORWARD, Delays, Passes, Rules, Times, Work, step
from weft.simulation.iteration.pipeline import PhaseTimes, op_seconds
from weft.simulation.iteration.result import Span, SpanKind

KEPT_ORDERS = 8
"""Orders that are kept: what is stepped again has often the same."""


class Stepped(Sequence[Span]):
    """An iteration that was stepped through: its seconds, and its bars, which are made when they are asked for."""

    def __init__(self, layout: Layout, clock: PhaseTimes) -> None:
        self.layout, self.clock = layout, clock
        self.order = _order(layout.pipeline, layout.virtual_stages, layout.schedule, clock.micro_batches)
        self.times = self._stepped()
        ends = np.maximum(self.times.free, self.times.reduced)
        last = float(ends.max())
        if clock.step.tied_s > 0:
            last = max(last, max(float(ends[0]), float(ends[-1])) + clock.step.tied_s)
        self.update = last, last + max(clock.step.update_s, 0.0)
        self.seconds = self.update[1] + max(clock.step.host_s, 0.0)

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    @overload
    def __getitem__(self, index: int) -> Span: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Span, ...]: ...

    def __getitem__(self, index: int | slice) -> Span | tuple[Span, ...]:
        return self._spans[index]

    def passes(self, stage: int) -> list[tuple[Op, float, float]]:
        """When each pass of a stage begins and ends, in order."""
        begin, end = self.times.begin.tolist(), self.times.end.tolist()
        return [(op, begin[k], end[k]) for k, at, op in self._each() if at == stage]

    def _stepped(self) -> Times:
        layout, phases, order = self.layout, self.clock, self.order
        chunks, stages = layout.pipeline * layout.virtual_stages, layout.pipeline
        passes = Passes(*order, self._seconds())
        count = len(order.what)
        times = Times(*(np.zeros(count) for _ in range(5)), *(np.zeros(stages) for _ in range(3)))
        work = Work(
            ready=np.full((2, chunks, phases.micro_batches), -1.0),
            place=order.first[:-1].copy(),
            chunks=np.zeros(stages, dtype=np.int64),
            pending=np.zeros(stages + count, dtype=np.int64),
        )
        done = step.sized(40 * count)(passes, self._delays(), self._rules(), times, work)
        if done < count:
            raise BadInput("passes wait for each other", where=f"schedule {layout.schedule}")
        return times

    def _seconds(self) -> Floats:
        """What passes last, shape (pass, chunk, edge); found once for equal chunks."""
        number: dict[Durations, int] = {}
        alike = [number.setdefault(one, len(number)) for one in self.clock.chunks]
        first = [alike.index(one) for one in range(len(number))]
        distinct = np.array(
            [
                [
                    [op_seconds(self.layout, self.clock, Op(what, chunk, 0), edge=edge) for edge in (False, True)]
                    for chunk in first
                ]
                for what in PASSES
            ]
        )
        seconds: Floats = np.maximum(distinct, 0.0)[:, alike]
        return seconds

    def _delays(self) -> Delays:
        share, once = 1.0 / self.layout.virtual_stages, self.clock.step
        gather = share * once.last * once.gather_s, share * (1.0 - once.last) * once.gather_s, share * once.gather_s
        if not self.layout.overlap_gather:
            gather = once.gather_s, 0.0, 0.0
        reduce = share * (1.0 - once.last) * once.reduce_s, share * once.last * once.reduce_s
        if not self.layout.overlap_reduce:
            reduce = share * once.reduce_s, 0.0
        return Delays(*(max(seconds, 0.0) for seconds in (self.clock.hop_s, *gather, *reduce)))

    def _rules(self) -> Rules:
        once = self.clock.step
        return Rules(
            blocks=self.layout.schedule.blocks,
            gathers=once.gather_s > 0,
            reduces=once.reduce_s > 0,
            overlaps=self.layout.overlap_reduce,
            every=self.layout.zero == 2,
        )

    @cached_property
    def _spans(self) -> tuple[Span, ...]:
        """Bars of the passes of every stage, then stage by stage of gathering, sends and reductions."""
        return tuple(
            Span(stage=stage, kind=kind, name=name, begin_s=begin, end_s=end)
            for stage, kind, name, begin, end in (*self._passes(), *self._beside(), *self._behind())
            if end > begin
        )

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

    def _behind(self) -> Iterator[_Bar]:
        yield 0, "update", "optimizer", *self.update
        yield 0, "host", "host", self.update[1], self.seconds

    def _each(self) -> Iterator[tuple[int, int, Op]]:
        """Number, stage and pass of every pass."""
        first = self.order.first
        stages = np.repeat(np.arange(len(first) - 1), np.diff(first)).tolist()
        columns = (column.tolist() for column in (self.order.what, self.order.chunk, self.order.micro_batch))
        for k, (stage, what, chunk, i) in enumerate(zip(stages, *columns, strict=True)):
            yield k, stage, Op(PASSES[what], chunk, i)


_Bar = tuple[int, SpanKind, str, float, float]


class _Order(NamedTuple):
    """The passes of all stages as ``Passes`` has them, without what they last."""

    first: Ints
    what: Ints
    chunk: Ints
    micro_batch: Ints
    edge: Mask
    stage_of: Ints


@lru_cache(maxsize=KEPT_ORDERS)
def _order(pipeline: int, virtual: int, schedule: PipelineSchedule, micro_batches: int) -> _Order:
    layout = Layout(pipeline=pipeline, virtual_stages=virtual, schedule=schedule)
    every = order_columns(layout, micro_batches)
    what, chunk, micro_batch = (np.concatenate(column).astype(np.int64) for column in zip(*every, strict=True))
    return _Order(
        first=np.cumsum([0, *(len(order.what) for order in every)]).astype(np.int64),
        what=what,
        chunk=chunk,
        micro_batch=micro_batch,
        edge=_edges(what, chunk, pipeline * virtual),
        stage_of=np.array([stage_of(layout, one) for one in range(pipeline * virtual)], dtype=np.int64),
    )


def _edges(what: Ints, chunk: Ints, chunks: int) -> Mask:
    """The first forward and the last backward pass of each chunk."""
    number = np.arange(len(what))
    first, last = np.full(chunks, len(what)), np.full(chunks, -1)
    forward, backward = what == FORWARD, what == BACKWARD
    np.minimum.at(first, chunk[forward], number[forward])
    np.maximum.at(last, chunk[backward], number[backward])
    found = np.zeros(len(what), dtype=bool)
    found[first], found[last] = True, True
    return found
