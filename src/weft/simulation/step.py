"""One training step of ``weft.runtime``, operation by operation: what one rank does, in order, and in time.

A rank is one stream of computation that issues collectives without waiting for them.  Each set of mesh axes
has its own link, which serves collectives in the order of their issue; all ranks do the same at the same
time, so that one stands for all and no events are needed.

The order is that of the runtime's ``linear``, ``vocabulary``, ``overlap`` and ``flat``, with its overlaps; sizes
are those of ``weft.layout.step``.  Sources: arXiv 2305.13525, algorithm 1 and section 4; arXiv 2205.05198,
section 4.2.2.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import fsum
from typing import Literal

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import collective_s as cost_of
from weft.errors import BadInput, Unsupported
from weft.estimation.iteration import Estimator, step_totals
from weft.layout.check import check_trainable
from weft.layout.mesh import real_axes, spread
from weft.layout.operations import CollectiveKind, Computation, FlashAttention, Gemm, Matrices, Operations, Phase, Scan
from weft.layout.spec import AXES, Layout
from weft.layout.stages import HeldChunk, held_chunks, weight_gradient_first
from weft.layout.step import (
    GATHERS_AHEAD,
    RUNTIME,
    SCALAR_BYTES,
    SCATTER_USES,
    Issue,
    StepOptions,
    TrainingStep,
    buckets,
    wide_axes,
)
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.model.spec import Block

FORWARD: Phase = "forward"
INPUT: Phase = "input-gradient"
WEIGHT: Phase = "weight-gradient"
_BEHIND = {"proj": "norm3", "fc2": "norm4"}
"""The norm behind the last product of a half, in blocks that have one."""


UPDATE: Literal["update"] = "update"
"""The optimizer changes what the rank owns."""
Instruction = Computation | Issue | int | Literal["update"]
"""A computation; the issue of a collective; the wait for one (by number in order of issue, from 0); the update."""


@dataclass(slots=True)
class Program:
    """The instructions of one rank's step, in order."""

    instructions: list[Instruction] = field(default_factory=list)
    _started: int = 0

    @property
    def issued(self) -> list[Issue]:
        """The collectives in the order of their issue."""
        return [instruction for instruction in self.instructions if isinstance(instruction, Issue)]

    def start(self, issue: Issue | None) -> int | None:
        """Append the issue of a collective (None: nothing is communicated); its number."""
        if issue is None:
            return None
        self.instructions.append(issue)
        self._started += 1
        return self._started - 1

    def wait(self, number: int | None) -> None:
        """Append a wait for a collective."""
        if number is not None:
            self.instructions.append(number)

    def exchange(self, issue: Issue | None) -> None:
        """Append a collective and the wait for it."""
        self.wait(self.start(issue))


def step_program(job: Job, layout: Layout, options: StepOptions | None = None) -> Program:
    """A step of ``layout`` with its overlaps, after a first one from which the order of weights is known.

    Raises:
        Unsupported: pipeline stages, context parallelism, experts, or what the runtime does not train.
    """
    for axis, feature in (("pipeline", "pipeline stages"), ("context", "context parallelism")):
        if getattr(layout, axis) > 1:
            raise Unsupported(
                f"steps are predicted operation by operation without {feature} only",
                where=f"layout.{axis}",
                remedy=f"take the estimate of weft estimate, or {axis}=1",
            )
    if any(kind.moe for kind in job.model.kinds):
        raise Unsupported(
            "steps are predicted operation by operation for dense models only",
            where="model",
            remedy="take the estimate of weft estimate",
        )
    plan = _Plan(job, layout, options or StepOptions())
    # The first step learns in which order weights are asked for; the second gathers ahead in that order, as all later
    # ones do.
    first = _StepWriter(plan, ())
    first.run()
    steady = _StepWriter(plan, first.weights.used)
    steady.run()
    return steady.program


# What a step is made of --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weight:
    """A matrix: how it is gathered and scattered over z (None: z = 1), its elements at rest, and the
    gradients that a micro-batch gives."""

    gather: Issue | None
    scatter: Issue | None
    at_rest: int
    uses: int = 1


class _ModelPart:
    """A block, the embedding or the head: its operations by name and phase, and its weights by name."""

    def __init__(self, layout: Layout, operations: Operations, weights: dict[str, _Weight]) -> None:
        self.weights = weights
        self.computations: dict[tuple[str, Phase], Computation] = {}
        self.core: dict[Phase, list[Computation]] = {FORWARD: [], INPUT: [], WEIGHT: []}
        for computation in operations.computations:
            if _of_core(computation):
                self.core[computation.phase].append(computation)
            elif not isinstance(computation, FlashAttention | Scan):
                self.computations[computation.name, computation.phase] = computation
        self.collectives: dict[tuple[str, Phase], Issue] = {}
        for collective in operations.collectives:
            elements, axes = int(np.max(collective.elements)), wide_axes(layout, collective.axes)
            if elements and axes:
                issue = Issue(collective.kind, axes, elements, int(collective.element_bytes))
                self.collectives[collective.name, collective.phase] = issue


def _of_core(computation: Computation) -> bool:
    """Whether it belongs to the attention core, or is a recurrence."""
    if isinstance(computation, FlashAttention | Scan):
        return True
    if isinstance(computation, Gemm):
        return computation.role == "core"
    return computation.replay == "core"


class _Plan:
    """What all micro-batches of a step repeat."""

    def __init__(self, job: Job, layout: Layout, options: StepOptions) -> None:
        self.layout, self.options, model = layout, options, job.model
        self.gradient_bytes, self.element_bytes = job.recipe.gradient_bytes, int(job.recipe.element_bytes)
        check_trainable(job, layout)
        step = TrainingStep(model, job.recipe, LayoutTable.of([layout]), RUNTIME)
        blocks = HeldChunk.together(held_chunks(model, layout))
        self.micro_batches = int(step.micro_batches[0])
        parts = list(zip(step.operations, step.matrices, strict=True))
        self.blocks: list[tuple[Block, _ModelPart]] = []
        for index in model.block_sequence():
            self.blocks.append((model.kinds[index], self._part(*parts[index])))
        self.embedding, self.head = (self._part(*part) for part in parts[-2:])
        if model.tied_embeddings:
            shared = replace(self.embedding.weights["embedding"], uses=2)
            self.embedding.weights["embedding"] = self.head.weights["logits"] = shared
        every = [self.embedding, *(part for _, part in self.blocks), self.head]
        self.weights = list(dict.fromkeys(weight for part in every for weight in part.weights.values()))
        """In the order of the runtime's buffer of gradients."""
        self.vectors = [
            (vector.axes, int(vector.elements[0]))
            for vector in step.reductions(step.stage_held(blocks.counts))
            if not vector.by_zero
        ]

    def _part(self, operations: Operations, matrices: Matrices) -> _ModelPart:
        return _ModelPart(
            self.layout, operations, {name: self._weight(int(elements[0])) for name, elements in matrices.weights}
        )

    def _weight(self, elements: int) -> _Weight:
        return _Weight(
            gather=self.issue("all-gather", ("z",), elements, self.element_bytes),
            scatter=self.issue("reduce-scatter", ("z",), elements, self.gradient_bytes),
            at_rest=elements // self.layout.z,
        )

    def issue(self, kind: CollectiveKind, axes: Iterable[str], elements: int, element_bytes: int) -> Issue | None:
        """A collective, None where a rank is alone or has nothing to tell."""
        wide = wide_axes(self.layout, real_axes(self.layout, tuple(axes)))
        return Issue(kind, wide, elements, element_bytes) if wide and elements else None


# Weights and gradients ---------------------------------------------------------------------------


class _Weights:
    """Gathers and scatters over z, as ``weft.runtime.core.machine.Overlap`` schedules them."""

    def __init__(
        self, plan: _Plan, program: Program, order: Sequence[_Weight], accumulate: Callable[[_Weight], None]
    ) -> None:
        self.plan, self.program, self.order, self.accumulate = plan, program, order, accumulate
        self.used: list[_Weight] = []
        self._ahead: dict[_Weight, int | None] = {}
        self._scattering: deque[tuple[int, _Weight, int | None]] = deque()
        """The use at which each began, its weight and its number."""
        self._uses = 0

    def gather(self, weight: _Weight) -> None:
        """Begin to gather the matrix unless that was done ahead, then the next ones; wait for the first."""
        self._count_use()
        number = self._ahead.pop(weight) if weight in self._ahead else self.program.start(weight.gather)
        self._prefetch(weight)
        self.program.wait(number)

    def _prefetch(self, weight: _Weight) -> None:
        self.used.append(weight)
        # The order of the step before says which weights come next.
        place = len(self.used)
        if not self.plan.layout.overlap_gather:
            return
        for following in self.order[place : place + GATHERS_AHEAD]:
            if following not in self._ahead:
                self._ahead[following] = self.program.start(following.gather)

    def scatter(self, weight: _Weight) -> None:
        """Sum a gradient; with overlap, wait for it some uses of weights later or at the step's end."""
        if not self.plan.layout.overlap_reduce or self.plan.layout.z == 1:
            self.program.exchange(weight.scatter)
            self.accumulate(weight)
            return
        self._scattering.append((self._uses, weight, self.program.start(weight.scatter)))
        self._count_use()

    def finish(self) -> None:
        """Wait for all that is under way."""
        while self._scattering:
            self._finish()

    def _count_use(self) -> None:
        self._uses += 1
        while self._scattering and self._scattering[0][0] + SCATTER_USES < self._uses:
            self._finish()

    def _finish(self) -> None:
        _, weight, number = self._scattering.popleft()
        self.program.wait(number)
        self.accumulate(weight)


class _Sums:
    """The reduction over copies and what follows the update, as ``weft.runtime.run.flat.Flat`` does them."""

    def __init__(self, plan: _Plan, program: Program) -> None:
        self.plan, self.program = plan, program
        self.sizes = buckets(sum(weight.at_rest for weight in plan.weights), plan.layout.data, plan.layout.zero)
        self._buckets_of = _buckets_of(plan.weights, self.sizes)
        self._rounds = plan.micro_batches if plan.layout.zero == 2 else 1
        """How often each bucket is summed."""
        # A bucket may be summed when every gradient that lies in it, in part or whole, has come from every micro-batch
        # and use.
        self._missing = [0 for _ in self.sizes]
        for weight, members in self._buckets_of.items():
            for index in members:
                self._missing[index] += plan.micro_batches * weight.uses
        self._whole = list(self._missing)
        self._summing: dict[int, int | None] = {}

    def accumulate(self, weight: _Weight) -> None:
        """A gradient is in place; sum the buckets that are now complete."""
        for index in self._buckets_of[weight]:
            self._missing[index] -= 1
            # With ZeRO-2 a bucket is summed once per micro-batch, else once per step.
            ended = self._missing[index] % (self._whole[index] // self._rounds) == 0
            if ended and (self._rounds > 1 or self.plan.layout.overlap_reduce):
                self._sum(index)
                if not self.plan.layout.overlap_reduce:
                    self.program.wait(self._summing[index])
                    self._summing[index] = None

    def _sum(self, index: int) -> None:
        kind: CollectiveKind = "reduce-scatter" if self.plan.layout.zero else "all-reduce"
        bucket = self.plan.issue(kind, ("data",), self.sizes[index], self.plan.gradient_bytes)
        if index in self._summing:
            self.program.wait(self._summing[index])
        self._summing[index] = self.program.start(bucket)

    def finish(self) -> None:
        """Sum the vectors and what is left, wait for all."""
        vectors = [
            self.program.start(self.plan.issue("all-reduce", axes, elements, self.plan.gradient_bytes))
            for axes, elements in self.plan.vectors
        ]
        every = range(len(self.sizes))
        for index in every:
            if index not in self._summing:
                self._sum(index)
        for number in (*(self._summing[index] for index in every), *vectors):
            self.program.wait(number)

    def publish(self) -> None:
        """With ZeRO-1, gather the updated values."""
        if not self.plan.layout.zero:
            return
        gathers = [
            self.program.start(self.plan.issue("all-gather", ("data",), size, self.plan.element_bytes))
            for size in self.sizes
        ]
        for number in gathers:
            self.program.wait(number)


def _buckets_of(weights: Sequence[_Weight], sizes: Sequence[int]) -> dict[_Weight, list[int]]:
    """The buckets, one after the other, that each of the weights, one after the other, lies in."""
    # Weights and buckets divide the same buffer; a weight lies in the buckets from its first to its last element.
    ends = np.cumsum(sizes)
    result, start = {}, 0
    for weight in weights:
        stop = start + weight.at_rest
        first, last = np.searchsorted(ends, (start, stop - 1), side="right")
        result[weight] = list(range(int(first), int(last) + 1))
        start = stop
    return result


# The step ----------------------------------------------------------------------------------------


class _StepWriter:
    """Writes the program; ``order`` is that in which the step before asked for weights."""

    def __init__(self, plan: _Plan, order: Sequence[_Weight]) -> None:
        self.plan, self.program = plan, Program()
        self.sums = _Sums(plan, self.program)
        self.weights = _Weights(plan, self.program, order, self.sums.accumulate)

    def run(self) -> None:
        """As ``weft.runtime.run.session.Session.step``."""
        for _ in range(self.plan.micro_batches):
            self._micro_batch()
        self.weights.finish()
        self.sums.finish()
        issue = partial(self.plan.issue, "all-reduce", elements=1, element_bytes=SCALAR_BYTES)
        self.program.exchange(issue(("z", "data")))
        if self.plan.options.clip:
            self.program.exchange(issue(AXES))
        self.program.instructions.append(UPDATE)
        self.sums.publish()

    def _micro_batch(self) -> None:
        layout, blocks = self.plan.layout, self.plan.blocks
        # With full recomputation the first layers run forward once more right before their backward pass.
        again = (layout.recompute_layers or len(blocks)) if layout.recompute == "full" else 0
        self._embed()
        for block, part in blocks:
            self._block(block, part)
        self._head()
        for index, (block, part) in reversed(list(enumerate(blocks))):
            if index < again:
                self._block(block, part, replayed=True)
            self._block_backward(block, part)
        self._embed_backward()

    # Embedding and head --------------------------------------------------------------------------

    def _embed(self) -> None:
        part = self.plan.embedding
        self.weights.gather(part.weights["embedding"])
        self._compute(part, "embedding", FORWARD)
        self._exchange(part, "embedding", FORWARD)

    def _embed_backward(self) -> None:
        part = self.plan.embedding
        self._exchange(part, "stack", INPUT)
        self._exchange(part, "embedding", INPUT)
        self._compute(part, "embedding", INPUT)
        self.weights.scatter(part.weights["embedding"])

    def _head(self) -> None:
        """Forward, loss and backward."""
        part = self.plan.head
        self._compute(part, "final-norm", FORWARD)
        self._exchange(part, "final-norm.statistics", FORWARD)
        self._exchange(part, "stack", FORWARD)
        self._exchange(part, "logits.input", FORWARD)
        self._product(part, "logits")
        self._compute(part, "cross-entropy", FORWARD)
        for name in ("max", "target", "sum"):
            self._exchange(part, f"cross-entropy.{name}", FORWARD)
        self._compute(part, "cross-entropy", INPUT)
        self._product_backward(part, "logits", weight_first=False)
        self._exchange(part, "final-norm.statistics", INPUT)
        self._compute(part, "final-norm", INPUT)

    # Blocks --------------------------------------------------------------------------------------

    def _block(self, block: Block, part: _ModelPart, *, replayed: bool = False) -> None:
        """Forward.  The traffic of both norms, and that of both residuals, is moved at the first of them."""
        layout, last = self.plan.layout, block.linears()[-1].name
        # Whole matrices are PyTorch's own products: its checkpoint stops a replay before the last, whose result is
        # not needed.
        stops = replayed and layout.x * layout.y * layout.z * layout.context == 1
        for linear in block.linears():
            if linear.name == "qkv":
                self._compute(part, "norms", FORWARD)
                self._exchange(part, "norm1.statistics", FORWARD)
            elif linear.name == "fc1":
                self._compute(part, "residuals", FORWARD)
                self._exchange(part, "norm2.statistics", FORWARD)
            elif linear.name == "proj":
                self._compute(part, "rotary", FORWARD)
                self._core(part, FORWARD)
            else:
                self._compute(part, "activation", FORWARD)
            self._exchange(part, f"{linear.name}.input", FORWARD)
            if stops and linear.name == last:
                return
            self._product(part, linear.name)
            self._exchange(part, f"{linear.name}.output", FORWARD)
            self._exchange(part, f"{_BEHIND.get(linear.name)}.statistics", FORWARD)

    def _block_backward(self, block: Block, part: _ModelPart) -> None:
        layout = self.plan.layout
        for linear in reversed(block.linears()):
            self._exchange(part, f"{_BEHIND.get(linear.name)}.statistics", INPUT)
            self._exchange(part, f"{linear.name}.output-gradient", INPUT)
            outputs = layout.x if linear.kind == "normal" else layout.y
            first = weight_gradient_first(outputs, layout.z, overlap_reduce=layout.overlap_reduce)
            self._product_backward(part, linear.name, weight_first=first)
            if linear.name == "qkv":
                self._exchange(part, "norm1.statistics", INPUT)
                self._compute(part, "norms", INPUT)
            elif linear.name == "fc1":
                self._exchange(part, "norm2.statistics", INPUT)
                self._compute(part, "residuals", INPUT)
            elif linear.name == "proj":
                if layout.recompute == "selective":
                    self._core(part, FORWARD)
                self._core(part, INPUT)
                self._core(part, WEIGHT)
                self._compute(part, "rotary", INPUT)
            else:
                self._compute(part, "activation", INPUT)

    # Products ------------------------------------------------------------------------------------

    def _product(self, part: _ModelPart, name: str) -> None:
        self.weights.gather(part.weights[name])
        self._compute(part, name, FORWARD)

    def _product_backward(self, part: _ModelPart, name: str, *, weight_first: bool) -> None:
        behind = self.plan.layout.overlap_tensor != "none"
        # With overlap the input is gathered again beside the input gradient's product, and the input gradient is
        # summed beside the weight gradient's product; where the weight gradient comes first, neither hides.
        again = self._start(part, f"{name}.input-again", WEIGHT)
        if not behind:
            self.program.wait(again)
        if weight_first:
            self._weight_gradient(part, name, again)
        self.weights.gather(part.weights[name])
        self._compute(part, name, INPUT)
        summed = self._start(part, f"{name}.input-gradient", INPUT)
        if not behind:
            self.program.wait(summed)
        if not weight_first:
            self._weight_gradient(part, name, again)
        self.program.wait(summed)

    def _weight_gradient(self, part: _ModelPart, name: str, again: int | None) -> None:
        self.program.wait(again)
        self._compute(part, name, WEIGHT)
        self.weights.scatter(part.weights[name])

    # Instructions --------------------------------------------------------------------------------

    def _core(self, part: _ModelPart, phase: Phase) -> None:
        self.program.instructions.extend(part.core[phase])

    def _compute(self, part: _ModelPart, name: str, phase: Phase) -> None:
        if (computation := part.computations.get((name, phase))) is not None:
            self.program.instructions.append(computation)

    def _start(self, part: _ModelPart, name: str, phase: Phase) -> int | None:
        return self.program.start(part.collectives.get((name, phase)))

    def _exchange(self, part: _ModelPart, name: str, phase: Phase) -> None:
        self.program.exchange(part.collectives.get((name, phase)))


Axes = tuple[str, ...]
ProductTime = Callable[[float, float, float], float]
"""Seconds of a product (m x k) by (k x n), of m, n and k."""
CollectiveTime = Callable[[CollectiveKind, Axes, int], float]
"""Seconds of a collective by its kind, axes (those of more than one rank) and bytes of the full buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A step of rank 0 in seconds: ``compute_s``, ``other_s`` and the waiting of ``exposed_s`` add up to ``seconds``.

    Attributes:
        exposed_s: waiting for the collectives of each set of axes.
        busy_s: service of each link.
        other_s: what happens once per step besides.
        collectives: what was issued.
    """

    seconds: float
    compute_s: float
    other_s: float
    exposed_s: Mapping[Axes, float]
    busy_s: Mapping[Axes, float]
    collectives: Counter[Issue]


def predict_step(
    job: Job,
    layout: Layout,
    *,
    gemm_s: ProductTime,
    collective_s: CollectiveTime,
    options: StepOptions | None = None,
    other_s: float = 0.0,
) -> StepTime:
    """One step of a layout, with its overlaps, in which only products compute.

    Args:
        gemm_s: seconds of the products of linear layers and of the head.
        collective_s: seconds of a collective that has its link to itself.
        options: how the runtime trains.
        other_s: seconds at the update.

    Raises:
        Unsupported: pipeline stages, or what the runtime does not train.
    """

    def computation_s(kernel: Computation) -> float:
        if not isinstance(kernel, Gemm) or kernel.role == "core":
            return 0.0
        return gemm_s(float(kernel.m[0]), float(kernel.n[0]), float(kernel.k[0]))

    program = step_program(job, layout, options)
    return play(program, computation_s=computation_s, collective_s=collective_s, other_s=other_s)


def predict_on(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    constants: Calibration | None = None,
    *,
    options: StepOptions | None = None,
) -> StepTime:
    """One step of a layout on a cluster, by the estimator's times of kernels, collectives, update and host.

    No kernel is shorter than its launch.  What collectives that hide behind computation slow it down
    (``Calibration.overlap_cost``) is part of ``other_s``.

    Args:
        constants: calibration; the shipped one of the accelerator by default.

    Raises:
        Unsupported: pipeline stages, what the runtime does not train, or a precision that the accelerator
            lacks.
    """
    program = step_program(job, layout, options)
    if layout.world != cluster.count:
        raise BadInput(
            f"the layout is for {layout.world} accelerators, the cluster has {cluster.count}",
            where="layout",
            remedy="change one of them",
        )
    estimator, table = Estimator(job, cluster, constants), LayoutTable.of([layout])
    fixed = estimator.constants

    def computation_s(kernel: Computation) -> float:
        return max(float(estimator.kernels.seconds(kernel)[0]), fixed.launch_s)

    def collective_s(kind: CollectiveKind, axes: Axes, bytes_: int) -> float:
        network = estimator.network
        return float(cost_of(kind, np.array([float(bytes_)]), spread(table, axes, network.spans), network)[0])

    once = fixed.iteration_s + float(step_totals(estimator.frame(table)).update_s[0])
    result = play(program, computation_s=computation_s, collective_s=collective_s, other_s=once)
    # Collectives that nobody waits for run beside computation and slow it down by the calibrated share of their time.
    hidden = fsum(result.busy_s.values()) - fsum(result.exposed_s.values())
    slowed = fixed.overlap_cost * hidden
    return replace(result, seconds=result.seconds + slowed, other_s=once + slowed)


def play(
    program: Program,
    *,
    computation_s: Callable[[Computation], float],
    collective_s: CollectiveTime,
    other_s: float = 0.0,
) -> StepTime:
    """A program in time; ``other_s`` is spent at the update."""
    now = compute_s = 0.0
    exposed_s: dict[Axes, float] = {}
    busy_s: dict[Axes, float] = {}
    free: dict[Axes, float] = {}
    """When each link has served what was issued."""
    ends: list[tuple[Axes, float]] = []
    # A program repeats few computations and collectives, which are timed once each.
    known: dict[int, float] = {}
    transfers = cache(lambda issue: collective_s(issue.kind, issue.axes, issue.bytes))
    for instruction in program.instructions:
        if isinstance(instruction, Issue):
            # It begins when it is issued and its link is free.
            axes, seconds = instruction.axes, transfers(instruction)
            free[axes] = max(now, free.get(axes, 0.0)) + seconds
            ends.append((axes, free[axes]))
            busy_s[axes] = busy_s.get(axes, 0.0) + seconds
            exposed_s.setdefault(axes, 0.0)
        elif isinstance(instruction, int):
            axes, end = ends[instruction]
            exposed_s[axes] += max(end - now, 0.0)
            now = max(now, end)
        elif instruction == UPDATE:
            now += other_s
        else:
            key = id(instruction)
            if key not in known:
                known[key] = computation_s(instruction)
            now += known[key]
            compute_s += known[key]
    return StepTime(
        seconds=now,
        compute_s=compute_s,
        other_s=other_s,
        exposed_s=exposed_s,
        busy_s=busy_s,
        collectives=Counter(program.issued),
    )
