"""The closed-form clock: iteration time and memory of a table of layouts.

Costs that depend only on the mesh and the micro-batch are computed once per distinct mesh (``costs``),
gradient synchronisation once per distinct mesh and stage split (``weights``); the rest is arithmetic per row.
Rows must have passed ``weft.layout.check``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np

from weft.cluster.calibration import Calibration, calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network
from weft.estimation.blocks import BlockRow, BlockRows
from weft.estimation.frame import Frame, MeshCosts, MeshSizes, Shared, SharedTimes, TimedFrame, weighted
from weft.estimation.kernels import Kernels
from weft.estimation.memory import workspace_bytes
from weft.estimation.mesh_costs import MeshCostModel
from weft.estimation.offload import activation_offload_s
from weft.estimation.pace import Slowest, slowest_stage
from weft.estimation.result import EstimateTable, TimeParts
from weft.estimation.stage_memory import StageMemory
from weft.estimation.synchronisation import StepSynchronisation
from weft.layout.stages import bubble_s, stage_table
from weft.layout.step import SOFTWARES
from weft.layout.table import Floats, Index, Ints, LayoutTable, collapse
from weft.model.job import Job

MESH_COLUMNS = (
    "x",
    "y",
    "z",
    "data",
    "pipeline",
    "context",
    "expert",
    "expert_tensor",
    "micro_batch",
    "sequence_parallel",
    "context_method",
)
"""Columns that decide the cost of a block on one micro-batch."""


SLICE = 12288
"""Rows of one pass of the arithmetic per row: its arrays stay in the processor's cache."""


class Estimator:
    """Estimates layouts of one job on one cluster.

    Args:
        job: model and recipe.
        cluster: accelerators and tiers.
        constants: calibration, which also says what the software does with weights; the shipped one of the
            accelerator by default.

    Raises:
        Unsupported: the accelerator lacks the recipe's precision.
    """

    def __init__(self, job: Job, cluster: Cluster, constants: Calibration | None = None) -> None:
        self.job, self.cluster = job, cluster
        self.constants = constants or calibration(cluster.accelerator.name)
        software = SOFTWARES[self.constants.software]
        software = replace(software, eager_norms=software.eager_norms and self.constants.norm_overhead > 1.0)
        self.software = software if software.by_matrix else replace(software, pieces=self.constants.shard_collectives)
        self.network = Network.of(cluster, self.constants)
        self.kernels = Kernels(
            cluster.accelerator, self.constants, job.recipe.precision, job.recipe.gradient_bytes, cluster.count
        )
        self.kernels.peak(core=False)
        self._meshes: MeshCostModel | None = None

    def evaluate(self, table: LayoutTable) -> EstimateTable:
        """Time and memory of every row."""
        return EstimateTable.joined(
            [IterationAssembly(frame).estimate() for frame in self.frames(table)], _slices(table)
        )

    def frames(self, table: LayoutTable) -> Iterator[TimedFrame]:
        """The rows with what their parts cost, in slices."""
        return (frame for _, frame in self.slices(table))

    def slices(self, table: LayoutTable) -> Iterator[tuple[Index, TimedFrame]]:
        """Numbers of some rows, and their frame, until all rows have been."""
        shared, mesh, line, first = self.shared(table, ordered=bool(table.recompute_layers.any()))
        distinct = table.take(first)
        model = self.mesh_costs()
        costs = model.costs(distinct)
        pairs = collapse((mesh, line))
        gradients = model.gradients(shared, distinct, mesh[pairs.first], line[pairs.first])
        timed = SharedTimes(shared, self.cluster, self.network, costs, gradients)
        for rows in _slices(table):
            yield rows, TimedFrame(timed, table.take(rows), mesh[rows], line[rows], pairs.group[rows])

    def memory_bytes(self, table: LayoutTable) -> Floats:
        """Memory of the fullest stage of every row, without timing it."""
        return self.outline(table, ordered=bool(table.recompute_layers.any())).peaks(np.arange(len(table)), {})[0]

    def outline(self, table: LayoutTable, *, ordered: bool) -> Outline:
        """Rows to be crossed with settings of switches, of which some recompute a number of layers (``ordered``)."""
        return Outline(self, table, ordered=ordered)

    def mesh_costs(self) -> MeshCostModel:
        """Costs of meshes on the network of now, which remember what they were asked."""
        if self._meshes is None or self._meshes.network is not self.network:
            self._meshes = MeshCostModel(self.job, self.kernels, self.network, self.software)
        return self._meshes

    def shared(self, table: LayoutTable, *, ordered: bool) -> tuple[Shared, Index, Index, Index]:
        """What the rows share, each row's mesh and stage line, and a row of each distinct mesh."""
        meshes = collapse([table.column(name) for name in MESH_COLUMNS])
        distinct = table.take(meshes.first)
        sizes = MeshSizes.of(self.job, distinct, self.software)
        communicators = self.mesh_costs().communicators(distinct)
        wraps = table.scheduled(lambda one: one.wraps).astype(np.int64)
        stages, line = stage_table(self.job.model, table.pipeline, table.virtual_stages, wraps, ordered=ordered)
        workspace = workspace_bytes(self.cluster.accelerator)
        shared = Shared(self.job, self.constants, self.software, sizes, stages, communicators, workspace)
        return shared, meshes.group, line, meshes.first


class Outline:
    """Rows without their switches: what settings of these need and take at least.

    Settings are columns of switches with leading axes in place of the table's.  What does not depend on a switch is
    computed once for all of its settings.
    """

    def __init__(self, estimator: Estimator, table: LayoutTable, *, ordered: bool) -> None:
        self.estimator, self.table = estimator, table
        self.shared, self.mesh, self.line, self.first = estimator.shared(table, ordered=ordered)

    def peaks(self, some: Index, switches: Mapping[str, Ints]) -> tuple[Floats, Floats]:
        """Bytes of the fullest stage, and the most in host memory that a stage needs, of some rows with settings of
        ``switches``.  Shape (*settings, rows)."""
        settings = np.broadcast_shapes((1,), *(column.shape for column in switches.values()))[:-1]
        held, hosted = (np.empty((*settings, len(some))) for _ in range(2))
        order = np.argsort(self.shared.stages.kinds[self.line[some]], kind="stable")
        width = max(SLICE // max(math.prod(settings), 1), SLICE // 4)
        for start in range(0, len(some), width):
            at = order[start : start + width]
            rows = some[at]
            table = self.table.take(rows).replaced(switches)
            memory = StageMemory(Frame(self.shared, table, self.mesh[rows], self.line[rows]))
            held[..., at], hosted[..., at] = memory.peak()
        return held, hosted

    def least_s(self, switches: Mapping[str, Ints], *, bubble: bool = True) -> Floats:
        """Seconds that no row undercuts with settings of ``switches``, whatever its ``zero`` and offload.  Shape
        (*settings, rows).

        An iteration takes at least ``m S + (A - S) / v``: ``m`` micro-batches on the slowest stage, and the bubble of
        a pipeline of ``v`` virtual stages, for which schedules that split the backward pass count nothing here.  The
        slowest of ``p`` stages has at least a ``p``-th of the work ``A`` of all, and less of ``S`` is less.  Without
        ``bubble`` it is the first part alone, that no stepping through the pipeline undercuts.
        """
        table, distinct = self.table, self.table.take(self.first)
        never, every = np.zeros(len(distinct)), np.arange(len(distinct))
        parts, shards = self.estimator.mesh_costs().blocks(distinct)
        costs = MeshCosts(parts, shards, send_s=never, tied_s=never, scalars_s=never)
        timed = SharedTimes(self.shared, self.estimator.cluster, self.estimator.network, costs, ())
        blocks = BlockRows(TimedFrame(timed, distinct.replaced(switches), every, every, every))
        passes = [row.forward_total + row.backward_total for row in blocks.all()]
        work = weighted(passes, blocks.model_counts())[..., self.mesh]
        steps = self.estimator.job.recipe.global_batch / (table.micro_batch * table.z * table.data)
        split = table.scheduled(lambda one: one.splits_backward)
        filled = np.where(split | (not bubble), 0.0, 1.0 / table.virtual_stages)
        least: Floats = work * ((steps - filled) / table.pipeline + filled) + self.estimator.constants.iteration_s
        return least


def _slices(table: LayoutTable) -> list[Index]:
    """Row numbers in pieces of ``SLICE``, at least one; rows that replay some blocks of a stage, which take
    longer, by themselves."""
    partial = table.recompute_layers > 0
    groups = [rows for rows in (np.flatnonzero(~partial), np.flatnonzero(partial)) if len(rows)]
    return [rows[i : i + SLICE] for rows in groups or [np.arange(0)] for i in range(0, max(len(rows), 1), SLICE)]


class IterationAssembly:
    """Assembles the iteration of every row of a frame."""

    def __init__(self, frame: TimedFrame) -> None:
        self.frame = frame

    def estimate(self) -> EstimateTable:
        """Assemble iteration time, bound and memory."""
        rows = BlockRows(self.frame).all()
        slowest = slowest_stage(self.frame, rows)
        time = self._time(rows, slowest)
        total = sum((getattr(time, f.name) for f in fields(TimeParts)), self.frame.zeros())
        memory, held = StageMemory(self.frame).fullest()
        executed, replayed = self._flops(rows)
        return EstimateTable(
            iteration_s=total,
            memory_bytes=held,
            lower_bound_s=self.frame.micro_batches * slowest.bound,
            executed_flops=executed,
            replayed_flops=replayed,
            time=time,
            memory=memory,
        )

    def _time(self, rows: list[BlockRow], slowest: Slowest) -> TimeParts:
        steps = self.frame.micro_batches

        def part(name: str) -> Floats:
            return steps * weighted([getattr(row, name) for row in rows], slowest.counts)

        sync = StepSynchronisation(self.frame).costs(slowest)
        return TimeParts(
            forward_s=part("forward"),
            backward_s=part("backward"),
            recompute_s=part("recompute"),
            tensor_s=part("tensor"),
            context_s=part("context"),
            expert_s=part("expert"),
            weights_s=part("weights"),
            stage_send_s=self._sends(slowest),
            bubble_s=self._bubble(slowest),
            data_s=sync.exposed_s,
            optimizer_s=sync.update_s,
            offload_s=sync.offload_s + activation_offload_s(self.frame, slowest, sync),
            host_s=np.full(len(self.frame.mesh), self.frame.constants.iteration_s),
        )

    def _bubble(self, slowest: Slowest) -> Floats:
        """Fill and drain, for which the slowest stage waits."""
        weight_gradient = slowest.all_weight_gradient - slowest.weight_gradient
        return bubble_s(
            self.frame.table,
            self.frame.micro_batches,
            forward_s=slowest.all_forward - slowest.forward,
            input_gradient_s=slowest.all_backward - slowest.backward - weight_gradient,
            weight_gradient_s=weight_gradient,
        )

    def _sends(self, slowest: Slowest) -> Floats:
        """Stage boundaries: blocking in plain 1F1B, else hidden behind the next chunk, which they slow; and
        once per stage to fill and drain."""
        hop = self.frame.at(self.frame.costs.send_s)
        chunk = slowest.forward / self.frame.virtual
        hidden = np.where(self.frame.table.scheduled(lambda one: one.blocks), 0.0, np.minimum(hop, chunk))
        steady = hop - hidden + self.frame.constants.overlap_cost * hidden
        passes = 2.0 * self.frame.micro_batches * self.frame.virtual
        return np.where(self.frame.pipeline > 1, passes * steady + 2.0 * (self.frame.pipeline - 1) * hop, 0.0)

    def _flops(self, rows: list[BlockRow]) -> tuple[Floats, Floats]:
        """FLOPs that all ranks run in one iteration, and those of them that repeat a forward pass."""
        counts = BlockRows(self.frame).model_counts()
        runs = self.frame.micro_batches * self.frame.table.stage_ranks
        replayed = runs * sum(count * row.replayed_flops for row, count in zip(rows, counts, strict=True))
        useful = runs * sum(count * 3.0 * row.flops for row, count in zip(rows, counts, strict=True))
        return useful + replayed, replayed
