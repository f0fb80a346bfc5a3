"""The order in which each pipeline stage runs its chunks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from weft.layout.spec import Layout
from weft.simulation.iteration.demand import stage_of

Pass = Literal["forward", "backward", "weight-gradient"]


@dataclass(frozen=True, slots=True, order=True)
class Op:
    """One pass of one chunk (numbered through the model) on one micro-batch.

    With zero-bubble schedules ``backward`` is the input's gradient alone and ``weight-gradient`` the rest.
    """

    what: Pass
    chunk: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds of one chunk on one micro-batch; ``backward`` includes ``weight_gradient``."""

    forward: float
    backward: float
    weight_gradient: float


def orders(layout: Layout, micro_batches: int, chunks: Sequence[Durations], hop_s: float) -> list[list[Op]]:
    """What each stage runs, in order: 1F1B (Narayanan et al. 2019), interleaved (arXiv 2104.04473), or for
    the zero-bubble schedules (arXiv 2401.10241) input gradients before forward passes before weight
    gradients, as many chunks in flight as 1F1B keeps (ZB-1P) or all stages' (ZB-V)."""
    stages = range(layout.pipeline)
    if layout.schedule == "1f1b":
        return [_plain(stage, layout.pipeline, micro_batches) for stage in stages]
    if layout.schedule == "interleaved":
        return [_interleaved(stage, layout, micro_batches) for stage in stages]
    return _ZeroBubble(layout, micro_batches, chunks, hop_s).run()


def _plain(stage: int, stages: int, count: int) -> list[Op]:
    ahead = min(stages - 1 - stage, count)
    found = [Op("forward", stage, i) for i in range(ahead)]
    for i in range(count):
        if ahead + i < count:
            found.append(Op("forward", stage, ahead + i))
        found.append(Op("backward", stage, i))
    return found


def _interleaved(stage: int, layout: Layout, count: int) -> list[Op]:
    stages, virtual = layout.pipeline, layout.virtual_stages
    total = count * virtual
    ahead = min(2 * (stages - 1 - stage) + (virtual - 1) * stages, total)

    def op(what: Pass, turn: int) -> Op:
        rounds, place = divmod(turn, stages * virtual)
        own, within = divmod(place, stages)
        own = own if what == "forward" else virtual - 1 - own
        return Op(what, own * stages + stage, rounds * stages + within)

    found = [op("forward", turn) for turn in range(ahead)]
    for turn in range(total):
        if ahead + turn < total:
            found.append(op("forward", ahead + turn))
        found.append(op("backward", turn))
    return found


class _ZeroBubble:
    """Runs the pipeline once, each stage taking what is ready; the order it took is the schedule."""

    def __init__(self, layout: Layout, count: int, chunks: Sequence[Durations], hop_s: float) -> None:
        self.layout, self.count, self.chunks, self.hop_s = layout, count, chunks, hop_s
        stages = layout.pipeline
        self.free = [0.0] * stages
        self.flying = [0] * stages
        self.limit = [stages - stage if layout.schedule == "zb1p" else 2 * stages for stage in range(stages)]
        self.ready: list[list[tuple[float, Op]]] = [[] for _ in range(stages)]
        self.later: list[list[Op]] = [[] for _ in range(stages)]
        self.taken: list[list[Op]] = [[] for _ in range(stages)]
        self.events: list[tuple[float, int]] = []
        for i in range(count):
            self._offer(Op("forward", 0, i), 0.0)

    def run(self) -> list[list[Op]]:
        while self.events:
            now, stage = heapq.heappop(self.events)
            if now >= self.free[stage] and (op := self._choose(stage, now)) is not None:
                self._start(op, stage, now)
        return self.taken

    def _offer(self, op: Op, time: float) -> None:
        stage = stage_of(self.layout, op.chunk)
        self.ready[stage].append((time, op))
        heapq.heappush(self.events, (max(time, self.free[stage]), stage))

    def _choose(self, stage: int, now: float) -> Op | None:
        able = [
            op
            for time, op in self.ready[stage]
            if time <= now
            and (op.what == "backward" or op.chunk >= self.layout.pipeline or self.flying[stage] < self.limit[stage])
        ]
        if able:
            op = min(able, key=lambda one: (one.what != "backward", self._turn(one)))
            self.ready[stage] = [entry for entry in self.ready[stage] if entry[1] != op]
            return op
        return self.later[stage].pop(0) if self.later[stage] else None

    def _turn(self, op: Op) -> tuple[int, int]:
        """Later chunks first: they free memory sooner."""
        return (-op.chunk if op.what == "forward" else op.chunk, op.micro_batch)

    def _start(self, op: Op, stage: int, now: float) -> None:
        chunk = self.chunks[op.chunk]
        self.taken[stage].append(op)
        if op.what == "forward":
            end = now + chunk.forward
            self.flying[stage] += 1
            last = op.chunk == len(self.chunks) - 1
            after = Op("backward", op.chunk, op.micro_batch) if last else _next(op, 1)
            self._offer(after, end if last else end + self._hop(op.chunk, op.chunk + 1))
        elif op.what == "backward":
            end = now + chunk.backward - chunk.weight_gradient
            self.flying[stage] -= 1
            self.later[stage].append(Op("weight-gradient", op.chunk, op.micro_batch))
            if op.chunk:
                self._offer(_next(op, -1), end + self._hop(op.chunk, op.chunk - 1))
        else:
            end = now + chunk.weight_gradient
        self.free[stage] = end
        heapq.heappush(self.events, (end, stage))

    def _hop(self, chunk: int, other: int) -> float:
        return 0.0 if stage_of(self.layout, chunk) == stage_of(self.layout, other) else self.hop_s


def _next(op: Op, step: int) -> Op:
    return Op(op.what, op.chunk + step, op.micro_batch)
