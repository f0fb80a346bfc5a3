"""Every flow of one iteration in time, for worlds small enough.

Ranks that exchange data within a micro-batch move together (a column of a stage); columns, stages and axes
meet on links as they do.  Each pass is a computation beside which the hidden part of its collectives flows,
followed by the exposed part, one axis after the other.  The computation lasts what the closed form's pass
does beyond the ideal transfers, so that without contention both agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

import numpy as np

from weft.fabric.spec import Ints
from weft.fabric.traffic import Routes, Traffic, joined
from weft.layout.spec import Layout
from weft.layout.stages import Op
from weft.simulation.flows.engine import run
from weft.simulation.flows.graph import Load
from weft.simulation.iteration.contention import Messages, Wave, Wires
from weft.simulation.iteration.demand import Amounts, Demand, Key
from weft.simulation.iteration.pipeline import PhaseTimes, Pipeline, Placed
from weft.simulation.iteration.result import Span
from weft.simulation.iteration.usage import rank_stages


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FullTraffic:
    """An iteration's flows and phases, their routes, and the phase that ends it.

    ``message`` numbers each flow's message among those of all waves.
    """

    traffic: Traffic
    routes: Routes
    message: Ints
    pipeline: Pipeline
    last: int


def run_full(
    layout: Layout,
    clock: PhaseTimes,
    wanted: Demand,
    wires: Wires,
    messages: Mapping[Key, Messages],
    ideal: Mapping[Key, float],
) -> tuple[float, tuple[Span, ...]]:
    """Seconds of the iteration, and its timeline."""
    full = full_traffic(layout, clock, wanted, wires, messages, ideal)
    result = run(wires.capacity_Bps, full.traffic, full.routes)
    begin = result.phase_begin_s.tolist()
    spans = full.pipeline.spans(begin, result.phase_end_s.tolist())
    return float(result.phase_end_s[full.last]), spans


def full_traffic(
    layout: Layout,
    clock: PhaseTimes,
    wanted: Demand,
    wires: Wires,
    messages: Mapping[Key, Messages],
    ideal: Mapping[Key, float],
) -> FullTraffic:
    """One iteration as traffic.  ``ideal`` are seconds per byte over ports alone."""
    pipeline = FullPipeline(layout, clock, wanted, wires, messages, ideal)
    last = pipeline.build()
    traffic = pipeline.graph.traffic()
    known = joined([wave.routes for one in messages.values() for wave in one.waves])
    routes = pipeline.graph.routes(known).without_latency()
    message = np.concatenate([np.zeros(0, dtype=np.int64), *(load.route for _, load in pipeline.graph.loads)])
    return FullTraffic(traffic=traffic, routes=routes, message=message, pipeline=pipeline, last=last)


class FullPipeline(Pipeline):
    """The phases of every column, with flows.

    A column's share of the gradients flows as soon as that column is ready.
    """

    def __init__(
        self,
        layout: Layout,
        clock: PhaseTimes,
        wanted: Demand,
        wires: Wires,
        messages: Mapping[Key, Messages],
        ideal: Mapping[Key, float],
    ) -> None:
        super().__init__(layout, clock)
        self.wanted, self.messages, self.ideal = wanted, messages, ideal
        # Accelerators beyond the job belong to no stage.
        self.stage = np.full(wires.fabric.accelerators, -1, dtype=np.int64)
        self.stage[wires.placement] = rank_stages(layout)
        self.column = self._columns()
        self.flows: dict[tuple[Key, int, int, int], Load] = {}
        first = 0
        for key, one in messages.items():
            for wave in one.waves:
                self._index(key, wave, first)
                first += len(wave.source)

    def columns(self, stage: int) -> range:
        return range(int(self.column[self.stage == stage].max()) + 1)

    def receivers(self, stage: int, column: int, other: int) -> list[int]:
        found = self.flows.get((_SEND, stage, column, other))
        return [] if found is None else np.unique(self.column[found.target]).tolist()

    def work(self, stage: int, column: int, op: Op, seconds: float) -> Placed:
        chunk = self.wanted.chunks[op.chunk]
        amounts = {"forward": chunk.forward, "backward": chunk.backward}.get(op.what, {})
        transfer = fsum(amount.bytes * self.ideal[key] for key, amount in amounts.items())
        if transfer <= 0:
            return super().work(stage, column, op, seconds)
        exposed = self.clock.exposed[op.chunk][op.what == "backward"]
        share = min(max(exposed / transfer, 0.0), 1.0)
        begin = before = self.graph.add(op.what, seconds - share * transfer)
        for key in amounts:
            before = self.graph.add(f"{op.what} {key[0]}", 0.0, [before])
            self._carry(before, {key: amounts[key]}, stage, column, share)
        hidden = self.graph.add(f"{op.what} hidden", 0.0)
        self.graph.waits[hidden] = self.graph.waits[begin]
        self._carry(hidden, amounts, stage, column, 1.0 - share)
        return Placed(begin, self.graph.add(f"{op.what} end", 0.0, [before, hidden]))

    def send(self, stage: int, column: int, op: Op, other: int, waits: int) -> int:
        amount = self.wanted.boundary[_SEND]
        phase = self.graph.add("send", self.clock.hop_s - amount.bytes * self.ideal[_SEND], [waits])
        self.graph.carry(phase, self.flows[_SEND, stage, column, other].times(amount.bytes))
        return phase

    def synchronise(self, stage: int, column: int, what: str, share: float, waits: list[int]) -> int:
        reducing = what == "gradients"
        every = [one.reduce if reducing else one.gather for one in self.wanted.stages]
        rounds = self.clock.micro_batches if reducing and self.layout.zero == 2 else 1
        seconds = self.clock.step.reduce_s if reducing else self.clock.step.gather_s
        most = max(fsum(amount.bytes * self.ideal[key] for key, amount in amounts.items()) for amounts in every)
        # The closed form's seconds are those of the stage with the most to reduce.
        phase = self.graph.add(what, share * max(seconds - most / rounds, 0.0), waits)
        self._carry(phase, every[stage], stage, column, share / rounds)
        return phase

    def _carry(self, phase: int, amounts: Amounts, stage: int, column: int, share: float) -> None:
        for key, amount in amounts.items():
            found = self.flows.get((key, stage, column, stage))
            if found is not None and amount.bytes * share > 0:
                self.graph.carry(phase, found.times(amount.bytes * share))

    def _columns(self) -> Ints:
        """Which accelerators of a stage exchange data within a micro-batch, numbered in each stage."""
        asked = {key for chunk in self.wanted.chunks for key in (*chunk.forward, *chunk.backward)}
        label = np.arange(len(self.stage))
        before = np.zeros_like(label)
        while (before != label).any():
            before = label.copy()
            for key in asked:
                members = self.messages[key].groups
                label[members] = label[members].min(axis=1, keepdims=True)
        column = np.zeros_like(label)
        for stage in range(self.layout.pipeline):
            here = self.stage == stage
            column[here] = np.unique(label[here], return_inverse=True)[1]
        return column

    def _index(self, key: Key, wave: Wave, first: int) -> None:
        """Flows by collective, stage and column of the sender, and stage of the receiver; their routes are
        numbered from ``first``.
        """
        if not len(wave.source):
            return
        place = np.stack([self.stage[wave.source], self.column[wave.source], self.stage[wave.target]])
        order = np.lexsort(place[::-1])
        bounds = np.flatnonzero((np.diff(place[:, order]) != 0).any(axis=0)) + 1
        for flows in np.split(order, bounds):
            stage, column, other = place[:, flows[0]].tolist()
            self.flows[key, stage, column, other] = Load(
                source=wave.source[flows], target=wave.target[flows], bytes=wave.bytes[flows], route=first + flows
            )


_SEND: Key = ("send", ("pipeline",))
