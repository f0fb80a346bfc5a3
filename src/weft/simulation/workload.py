"""A workload in time: one rank computes, and its collectives queue at the dimensions of the network.

Every collective is scheduled by a policy of ``collectives/schedules`` when it is first seen; what is
pending at a dimension at the same time, of whatever collective, shares it.

``job_workload`` makes a workload of a planned job: what one rank of the slowest pipeline stage computes and
communicates.  Seconds of computation and bytes of collectives are those of the closed form and of
``iteration/demand.py``.  Collectives of tensor, context and expert parallelism hold the computation up; weights that
are cut at rest are gathered a layer ahead; gradients are reduced beside the backward pass of the last micro-batch (of
every one where ZeRO-2 or sharded weights ask for it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.codec import encode
from weft.collectives.dimensions import factors_of, part_dimensions, path_dimensions, rank_dimensions, whole_dimensions
from weft.collectives.schedules.bound import ideal_s
from weft.collectives.schedules.chunks import Request, request
from weft.collectives.schedules.policies import ALIASES, machine, schedule
from weft.collectives.schedules.queues import Passages, QueueRule, play
from weft.collectives.schedules.timing import Active
from weft.collectives.stages import Algorithm
from weft.errors import BadInput, Unsupported
from weft.estimation.iteration import Estimator
from weft.fabric.dimension import Dimension
from weft.fabric.spec import Floats, Ints
from weft.layout.check import check_layout
from weft.layout.mesh import rank_groups, real_axes
from weft.layout.spec import Layout
from weft.layout.stages import Durations
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.model.workload import Communication, CommunicationKind, Task, Workload
from weft.results import Result
from weft.simulation.iteration.demand import Amount, Amounts, ChunkDemand, Key, demand
from weft.simulation.iteration.stepping import clock

IDEAL, WEFT = "ideal", "weft"
POLICIES = ("baseline", "themis", WEFT, IDEAL)
MOST_PASSAGES = 20_000_000
ALONE_CHUNKS = 8
"""Chunks at most of a collective over one dimension, where they only let others in between."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Iteration:
    """A workload's iteration.

    ``compute_s`` is when a computation runs, ``exposed_s`` the rest: waiting for communication alone.
    ``busy_s`` is of each dimension, at full bandwidth; ``begin_s`` and ``end_s`` are of each task.
    """

    workload: Workload
    policy: str
    iteration_s: float
    compute_s: float
    busy_s: Floats
    begin_s: Floats
    end_s: Floats

    @property
    def exposed_s(self) -> float:
        return self.iteration_s - self.compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """An iteration under one policy: seconds, speedup over the first policy, and the dimensions' busy seconds."""

    policy: str
    iteration_s: float
    compute_s: float
    exposed_s: float
    speedup: float
    busy_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class WorkloadResult(Result):
    """A workload's iteration under each policy, over the dimensions of a network."""

    SCHEMA = "weft.workload/1"
    INDENT = None
    DOCUMENT = """
        workload=first.workload.name tasks compute_s=first.compute_s assumptions=every_assumption dimensions
        policies"""

    runs: Mapping[str, Iteration]
    dimensions: tuple[Dimension, ...]
    assumptions: tuple[str, ...]

    @property
    def first(self) -> Iteration:
        """The iteration to which the others are compared."""
        return next(iter(self.runs.values()))

    @property
    def policies(self) -> tuple[PolicyRow, ...]:
        """The policies with their times."""
        return tuple(
            PolicyRow(
                policy=name,
                iteration_s=run.iteration_s,
                compute_s=run.compute_s,
                exposed_s=run.exposed_s,
                speedup=ratio(self.first.iteration_s, run.iteration_s),
                busy_s=tuple(run.busy_s.tolist()),
            )
            for name, run in self.runs.items()
        )

    @property
    def tasks(self) -> int:
        return len(self.first.workload.tasks)

    @property
    def every_assumption(self) -> tuple[str, ...]:
        """Those of the workload and of its network."""
        return (*self.first.workload.assumptions, *self.assumptions)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a policy: seconds of the iteration, of computation and of waiting, and the speedup."""
        return [encode(row) for row in self.policies]


def ratio(part: float, total: float, nothing: float = 1.0) -> float:
    """A ratio, or what stands for it where nothing takes any time."""
    return part / total if total > 0 else nothing


def run_policies(
    workload: Workload,
    dimensions: Sequence[Dimension],
    policies: Sequence[str] = POLICIES,
    *,
    order: QueueRule | None = None,
    chunks: int = 64,
    active: Active = "auto",
    algorithms: Sequence[Algorithm | None] | None = None,
) -> dict[str, Iteration]:
    """One iteration of a workload on dimensions, inner to outer, under each policy.

    Args:
        policies: names as ``policies.schedule`` takes them, like ``chunks`` and ``active`` ("auto" is judged
            by the largest collective, for all); "weft" keeps the fastest of Weft's schedules (earlier
            tasks first, or first in, first out), Themis' and the baseline's; "ideal" gives every collective
            all bandwidth of its dimensions for itself, without latency.
        order: of themis.
        algorithms: of each dimension, for collectives that span all of it; the usual ones by default.

    Raises:
        BadInput, UnknownName, Unsupported: as ``schedule``; a group does not fit on the dimensions; or there
            are more or fewer algorithms than dimensions.
    """
    # Weft's policy is the best of three simulations, so that it is never slower than Themis or the baseline.
    rivals = (WEFT, "themis", "baseline")
    runs = {}
    for name in dict.fromkeys([*policies, *(rivals if WEFT in policies else ())]):
        planner = _Planner(dimensions, name, order if name == "themis" else None, chunks, algorithms)
        runs[name] = _run(workload, planner, active)
    if WEFT in runs:
        runs[WEFT] = replace(min((runs[name] for name in rivals), key=lambda run: run.iteration_s), policy=WEFT)
    return {name: runs[name] for name in policies}


def _run(workload: Workload, planner: _Planner, active: Active) -> Iteration:
    planner.settle(workload, active)
    parts = [planner.planned(number, task) for number, task in enumerate(workload.tasks)]
    passages = _joined([part for part in parts if part is not None])
    # The same passages under every queue rule of the policy; the shortest run counts.
    charts = [
        play(
            passages,
            len(planner.dimensions),
            rule=rule,
            active=planner.active,
            seconds=[task.seconds for task in workload.tasks],
            waits=[task.waits for task in workload.tasks],
        )
        for rule in planner.rules
    ]
    chart = min(charts, key=lambda chart: chart.time_s)
    return Iteration(
        workload=workload,
        policy=planner.policy,
        iteration_s=chart.time_s,
        compute_s=workload.compute_s,
        busy_s=np.bincount(passages.dimension, passages.work_s, len(planner.dimensions)).astype(np.float64),
        begin_s=chart.task_begin_s,
        end_s=chart.task_end_s,
    )


class _Planner:
    """Schedules each distinct collective once."""

    def __init__(
        self,
        dimensions: Sequence[Dimension],
        policy: str,
        order: QueueRule | None,
        chunks: int,
        algorithms: Sequence[Algorithm | None] | None,
    ) -> None:
        self.dimensions, self.policy, self.order, self.chunks = dimensions, policy, order, chunks
        self.algorithms = [None] * len(dimensions) if algorithms is None else list(algorithms)
        if len(self.algorithms) != len(dimensions):
            problem = f"{len(self.algorithms)} algorithms for {len(dimensions)} dimensions"
            raise BadInput(problem, where="algorithms", remedy="give one for each, inner to outer")
        self.active: int | None = 1
        self.known: dict[Request, Passages] = {}
        self._request = cache(self._read)
        usual: QueueRule = "fifo" if policy in (IDEAL, "baseline", *ALIASES) else "scf"
        self.rules: tuple[QueueRule, ...] = ("scf", "fifo") if policy == WEFT else (order or usual,)

    def settle(self, workload: Workload, active: Active) -> None:
        """Decide how many chunks are active in a dimension."""
        result = [self._request(task.communication)[0] for task in workload.tasks if task.communication]
        # One number for all collectives, as dimensions are shared; the largest collective matters most.
        collectives = [collective for collective in result if collective is not None]
        if self.policy == IDEAL:
            self.active = None
        elif active != "auto":
            self.active = active
        elif collectives:
            self.active = machine(max(collectives, key=lambda collective: collective.bytes), self.chunks, active)

    def planned(self, number: int, task: Task) -> Passages | None:
        """The passages of a task's collective, if it has any; with Weft's policy those of earlier tasks go
        first."""
        if task.communication is None:
            return None
        collective, places = self._request(task.communication)
        if collective is None:
            return None
        if collective not in self.known:
            self.known[collective] = self._plan(collective, task.communication.kind)
        # Equal collectives are scheduled once.  With Weft's policy the key says first which task comes earlier, then
        # the place in the collective's own order (below 1).
        result = self.known[collective]
        key = result.key_bytes + number if self.policy == WEFT else result.key_bytes
        numbered = np.full(len(result), number)
        return replace(result, dimension=places[result.dimension], key_bytes=key, task=numbered)

    def _read(self, wanted: Communication) -> tuple[Request | None, Ints]:
        """The collective over the dimensions of its group, and which these are."""
        parts = [part for part in self._parts(wanted) if part[1].size > 1]
        places = np.array([number for number, _ in parts], dtype=np.int64)
        if not parts or wanted.bytes <= 0 or wanted.kind == "barrier":
            return None, places
        # Requests know no sends: this one only carries the bytes and dimensions, which `_plan` prices as one message.
        kind = "broadcast" if wanted.kind == "send" else wanted.kind
        spans_all = [dimension == self.dimensions[number] for number, dimension in parts]
        names = [self.algorithms[number] if all(spans_all) else None for number, _ in parts]
        return request(kind, wanted.bytes, [dimension for _, dimension in parts], algorithms=names), places

    def _parts(self, wanted: Communication) -> list[tuple[int, Dimension]]:
        if wanted.factors is not None:
            return part_dimensions(self.dimensions, wanted.factors)
        if wanted.dimensions is not None or wanted.ranks is None:
            every = range(len(self.dimensions))
            return whole_dimensions(self.dimensions, wanted.dimensions if wanted.dimensions is not None else every)
        if wanted.kind == "send" and len(wanted.ranks) == 2:
            return path_dimensions(self.dimensions, *wanted.ranks)
        return rank_dimensions(self.dimensions, wanted.ranks)

    def _plan(self, collective: Request, kind: str) -> Passages:
        last = len(collective.dimensions) - 1
        # A message takes the link of the outermost dimension that it crosses; those further in are taken to be faster.
        # The ideal has it as latency, which no other message delays.
        if kind == "send":
            outermost = collective.dimensions[last]
            seconds = collective.bytes / outermost.link_Bps
            if self.policy == IDEAL:
                return _single(last, 0.0, seconds)
            return _single(last, seconds, outermost.latency_s)
        if self.policy == IDEAL:
            return _single(last, 0.0, ideal_s(collective))
        # Over one dimension there is no pipeline of stages to fill.
        most = ALONE_CHUNKS if len(collective.dimensions) == 1 else self.chunks
        chunks = min(self.chunks, most, max(1, int(collective.bytes)))
        timed = schedule(collective, self.policy, order=self.order, chunks=chunks, active=self.active)
        passages = timed.stages.passages(timed.rule)
        return (
            replace(passages, key_bytes=timed.ranks / (timed.ranks.max() + 1.0)) if self.policy == WEFT else passages
        )


def _single(dimension: int, work_s: float, latency_s: float) -> Passages:
    """One message."""
    return Passages(
        dimension=np.array([dimension]),
        work_s=np.array([work_s]),
        latency_s=np.array([latency_s]),
        key_bytes=np.zeros(1),
        chunk=np.zeros(1, dtype=np.int64),
        task=np.zeros(1, dtype=np.int64),
    )


def _joined(plans: Sequence[Passages]) -> Passages:
    """All collectives' passages, with their chunks numbered."""
    total = sum(map(len, plans))
    if total > MOST_PASSAGES:
        raise Unsupported(f"{total:,} stages of chunks", where="workload", remedy="give fewer chunks with --chunks")
    # Each collective numbers its chunks from 0; here they follow those of the collectives before.
    before = np.cumsum([0, *(plan.chunk[-1] + 1 for plan in plans)])
    shifted = [replace(plan, chunk=plan.chunk + first) for plan, first in zip(plans, before[:-1], strict=True)]
    none = np.zeros(0, dtype=np.int64)
    names = ("dimension", "work_s", "latency_s", "key_bytes", "chunk", "task")
    return Passages(**{name: np.concatenate([none, *(getattr(plan, name) for plan in shifted)]) for name in names})


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
        Unsupported: it has more micro-batches and layers than can be listed.
    """
    check_layout(job, layout.world, layout)
    estimator = Estimator(job, cluster, constants)
    table = LayoutTable.of([layout])
    frame = next(iter(estimator.frames(table)))
    estimated = estimator.evaluate(table)
    times = clock(layout, frame, float(estimated.offload_s[0]))
    wanted = demand(layout, frame)
    stages = [chunk.stage for chunk in wanted.chunks]
    every = [_Pass(*passage) for passage in zip(wanted.chunks, times.chunks, times.exposed, strict=True)]
    # The stage with the most computation stands for all; the closed form's bubble accounts for waiting between stages.
    seconds = np.bincount(stages, [passage.times.forward_s + passage.times.backward_s for passage in every])
    passes = [passage for passage, stage in zip(every, stages, strict=True) if stage == np.argmax(seconds)]
    kinds = max(len(passage.chunk.forward) + len(passage.chunk.backward) for passage in passes)
    count = wanted.micro_batches * sum(passage.layers for passage in passes) * 2 * (1 + kinds)
    if count > MOST_TASKS:
        problem = f"{wanted.micro_batches} micro-batches make {count:,} tasks"
        raise Unsupported(problem, where="workload", remedy="give a smaller --batch or larger micro-batches")
    tasks = _Tasks(layout)
    once = wanted.stages[passes[0].chunk.stage]
    # The order of GPipe: all forward passes, then all backward passes, then what a step does once.
    tasks.beside(once.gather)
    for _ in range(wanted.micro_batches):
        for passage in passes:
            tasks.layers("forward", passage.chunk.forward, passage.layers, passage.forward_s)
    for number in range(wanted.micro_batches):
        for passage in reversed(passes):
            tasks.layers("backward", passage.chunk.backward, passage.layers, passage.backward_s)
        if layout.zero == 2 or number == wanted.micro_batches - 1:
            tasks.beside(once.reduce, share=1.0 / wanted.micro_batches if layout.zero == 2 else 1.0)
    tasks.beside({**once.tied, **once.scalars})
    tasks.end(float(estimated.bubble_s[0]), times.step.update_s + times.step.host_s)
    assumptions = ["collectives of tensor, context and expert parallelism hold the computation up"]
    if layout.pipeline > 1:
        alone = "the slowest pipeline stage alone: the closed form's bubble, without the sends between stages"
        assumptions.append(alone)
    return Workload(
        name=f"{job.model.name} on {cluster.name}", tasks=tuple(tasks.tasks), assumptions=tuple(assumptions)
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
        # Collectives of weights run beside the layers, all others hold them up.
        blocking = [(key, amount) for key, amount in amounts.items() if key[1] not in self.weights]
        calls = [call for key, amount in blocking for call in self._calls(key, amount, layers)]
        gathers = [(key, amount) for key, amount in amounts.items() if key[1] in self.weights]
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
        for key, amount in amounts.items():
            count = max(1, round(amount.calls * share))
            call = self._communication(key, amount.bytes * share / count)
            for _ in range(count):
                self.tasks.append(Task(name=f"step {call.kind}", communication=call, waits=self.last))
                self.pending.append(len(self.tasks) - 1)

    def end(self, bubble_s: float, update_s: float) -> None:
        """The bubble, and the update after all else."""
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
