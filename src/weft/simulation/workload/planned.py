"""A planned job as a workload: what one rank of the slowest pipeline stage computes and communicates.

Seconds of computation and bytes of collectives are those of the closed form and of ``iteration/demand.py``.
Collectives of tensor, context and expert parallelism hold the computation up; weights that are cut at rest
are gathered a layer ahead; gradients are reduced beside the backward pass of the last micro-batch (of every
one where ZeRO-2 or sharded weights ask for it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.groups import factors_of
from weft.errors import Unsupported
from weft.estimation.iteration import Estimator
from weft.layout.check import check_layout
from weft.layout.mesh import rank_groups, real_axes
from weft.layout.spec import Layout
from weft.layout.stages import Durations
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.model.workload import Communication, CommunicationKind, Task, Workload
from weft.simulation.iteration.demand import Amount, Amounts, ChunkDemand, Demand, Key, demand
from weft.simulation.iteration.pipeline import clock

MOST_TASKS = 500_000
_KINDS: dict[str, CommunicationKind] = {
    "all-reduce": "all-reduce",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "exchange": "send",
    "send": "send",
}


def job_workload(job: Job, cluster: Cluster, layout: Layout, *, constants: Calibration | None = None) -> Workload:
    """The workload of a layout's slowest stage.

    Raises:
        BadInput: the layout breaks a rule of ``weft.layout.check``.
        Unsupported: it has more micro-batches and layers than can be listed.
    """
    check_layout(job, layout.world, layout)
    estimator = Estimator(job, cluster, constants)
    table = LayoutTable.of([layout])
    frame = next(iter(estimator.frames(table)))
    estimated = estimator.evaluate(table)
    times = clock(layout, frame, float(estimated.offload_s[0]))
    asked = demand(layout, frame)
    stages = [chunk.stage for chunk in asked.chunks]
    every = [_Pass(*one) for one in zip(asked.chunks, times.chunks, times.exposed, strict=True)]
    seconds = np.bincount(stages, [one.times.forward_s + one.times.backward_s for one in every])
    passes = [one for one, stage in zip(every, stages, strict=True) if stage == np.argmax(seconds)]
    _check_length(asked, passes)
    made = _Tasks(layout)
    once = asked.stages[passes[0].chunk.stage]
    made.beside(once.gather)
    for _ in range(asked.micro_batches):
        for one in passes:
            made.layers("forward", one.chunk.forward, one.layers, one.forward_s)
    for number in range(asked.micro_batches):
        for one in reversed(passes):
            made.layers("backward", one.chunk.backward, one.layers, one.backward_s)
        if layout.zero == 2 or number == asked.micro_batches - 1:
            made.beside(once.reduce, share=1.0 / asked.micro_batches if layout.zero == 2 else 1.0)
    made.beside({**once.tied, **once.scalars})
    made.end(float(estimated.bubble_s[0]), times.step.update_s + times.step.host_s)
    return Workload(
        name=f"{job.model.name} on {cluster.name}", tasks=tuple(made.tasks), assumptions=tuple(_assumptions(layout))
    )


class _Pass(NamedTuple):
    """A chunk of the stage on one micro-batch: what it communicates, and how long it lasts."""

    chunk: ChunkDemand
    times: Durations
    exposed: tuple[float, float]

    @property
    def layers(self) -> int:
        return max(1, int(sum(self.chunk.counts[:-2])))

    @property
    def forward_s(self) -> float:
        """Seconds of computation."""
        return self.times.forward_s - self.exposed[0]

    @property
    def backward_s(self) -> float:
        return self.times.backward_s - self.exposed[1]


def _check_length(asked: Demand, passes: Sequence[_Pass]) -> None:
    kinds = max(len(one.chunk.forward) + len(one.chunk.backward) for one in passes)
    count = asked.micro_batches * sum(one.layers for one in passes) * 2 * (1 + kinds)
    if count > MOST_TASKS:
        problem = f"{asked.micro_batches} micro-batches make {count:,} tasks"
        raise Unsupported(problem, where="workload", remedy="give a smaller --batch or larger micro-batches")


def _assumptions(layout: Layout) -> Iterator[str]:
    yield "collectives of tensor, context and expert parallelism hold the computation up"
    if layout.pipeline > 1:
        yield "the slowest pipeline stage alone: the closed form's bubble, without the sends between stages"


class _Tasks:
    """The list under construction; ``last`` is what the next computation waits for."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.tasks: list[Task] = []
        self.last: tuple[int, ...] = ()
        self.pending: list[int] = []
        self.weights = {real_axes(layout, axes) for axes in (("shard",), ("expert_shard",))} if layout.z > 1 else set()
        self.factors: dict[tuple[str, ...], tuple[tuple[int, int], ...]] = {}

    def layers(self, name: str, amounts: Amounts, layers: int, seconds: float) -> None:
        """One pass through a chunk: each layer computes in as many pieces as it has collectives to wait for;
        the weights of the next layer are on their way meanwhile."""
        held = [(key, one) for key, one in amounts.items() if key[1] not in self.weights]
        calls = [call for key, one in held for call in self._calls(key, one, layers)]
        gathers = [(key, one) for key, one in amounts.items() if key[1] in self.weights]
        ahead = self._weights(gathers, "all-gather", layers)
        for layer in range(layers):
            self.last += ahead
            ahead = self._weights(gathers, "all-gather", layers) if layer + 1 < layers else ()
            for piece in range(max(1, len(calls))):
                self._add(Task(name=name, seconds=seconds / layers / max(1, len(calls)), waits=self.last))
                for call in calls[piece : piece + 1]:
                    self._add(Task(name=f"{name} {call.kind}", communication=call, waits=self.last))
            self.pending += self._weights(gathers, "reduce-scatter", layers)

    def beside(self, amounts: Amounts, *, share: float = 1.0) -> None:
        """Collectives that nothing waits for before the end, after what has been computed so far."""
        for key, one in amounts.items():
            count = max(1, round(one.calls * share))
            call = self._communication(key, one.bytes * share / count)
            for _ in range(count):
                self.tasks.append(Task(name=f"step {call.kind}", communication=call, waits=self.last))
                self.pending.append(len(self.tasks) - 1)

    def end(self, bubble_s: float, update_s: float) -> None:
        """The bubble, and the update when all is there."""
        self._add(Task(name="bubble", seconds=bubble_s, waits=self.last))
        self._add(Task(name="update", seconds=update_s, waits=(*self.last, *self.pending)))

    def _add(self, task: Task) -> None:
        self.tasks.append(task)
        self.last = (len(self.tasks) - 1,)

    def _calls(self, key: Key, amount: Amount, layers: int) -> list[Communication]:
        """A layer's share of the calls."""
        count = max(1, round(amount.calls / layers))
        return [self._communication(key, amount.bytes / layers / count)] * count

    def _weights(self, amounts: Sequence[tuple[Key, Amount]], kind: str, layers: int) -> tuple[int, ...]:
        """A layer's weights to gather, or gradients to scatter, from now on."""
        begun = []
        for key, amount in amounts:
            if key[0] == kind:
                call = self._communication(key, amount.bytes / layers)
                self.tasks.append(Task(name=f"weights {kind}", communication=call, waits=self.last))
                begun.append(len(self.tasks) - 1)
        return tuple(begun)

    def _communication(self, key: Key, bytes_: float) -> Communication:
        kind, axes = key
        if axes not in self.factors:
            self.factors[axes] = factors_of(sorted(rank_groups(self.layout, axes)[0].tolist()))
        return Communication(kind=_KINDS[kind], bytes=bytes_, factors=self.factors[axes])
