"""The closed-form clock: iteration time and memory of a table of layouts.

Costs that depend only on the mesh and the micro-batch are computed once per distinct mesh (``costs``),
gradient synchronisation once per distinct mesh and stage split (``weights``); the rest is arithmetic per row.
Rows must have passed ``weft.layout.check``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from weft.cluster.calibration import Calibration, calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network
from weft.estimation.blocks import BlockRow, BlockRows
from weft.estimation.frame import Frame, MeshSizes, Shared, SharedTimes, TimedFrame, weighted
from weft.estimation.kernels import Kernels
from weft.estimation.mesh_costs import MeshCostModel
from weft.estimation.offload import activation_offload_s
from weft.estimation.pace import Slowest, slowest_stage
from weft.estimation.result import EstimateTable, TimeParts
from weft.estimation.stage_memory import StageMemory
from weft.estimation.synchronisation import StepSynchronisation
from weft.layout.schedule import bubble_s
from weft.layout.stages import stage_table
from weft.layout.step import SOFTWARES
from weft.layout.table import Floats, Index, LayoutTable, collapse
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
        self.software = software if software.by_matrix else replace(software, pieces=self.constants.shard_collectives)
        self.network = Network.of(cluster, self.constants)
        self.kernels = Kernels(cluster.accelerator, self.constants, job.recipe.precision, job.recipe.gradient_bytes)
        self.kernels.peak(core=False)

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
        shared, mesh, line, first = self._shared(table)
        distinct = table.take(first)
        model = MeshCostModel(self.job, self.kernels, self.network, self.software)
        costs = model.costs(distinct)
        pairs = collapse((mesh, line))
        gradients = model.gradients(shared, distinct, mesh[pairs.first], line[pairs.first])
        timed = SharedTimes(shared, self.cluster, self.network, costs, gradients)
        for rows in _slices(table):
            yield rows, TimedFrame(timed, table.take(rows), mesh[rows], line[rows], pairs.group[rows])

    def memory_bytes(self, table: LayoutTable) -> Floats:
        """Memory of the fullest stage of every row, without timing it."""
        shared, mesh, line, _ = self._shared(table)
        held = np.empty(len(table))
        for rows in _slices(table):
            held[rows] = StageMemory(Frame(shared, table.take(rows), mesh[rows], line[rows])).fullest()[1]
        return held

    def _shared(self, table: LayoutTable) -> tuple[Shared, Index, Index, Index]:
        """What the rows share, each row's mesh and stage line, and a row of each distinct mesh."""
        meshes = collapse([table.column(name) for name in MESH_COLUMNS])
        sizes = MeshSizes.of(self.job, table.take(meshes.first), self.software)
        wraps = table.scheduled(lambda one: one.wraps).astype(np.int64)
        ordered = bool(table.recompute_layers.any())
        stages, line = stage_table(self.job.model, table.pipeline, table.virtual_stages, wraps, ordered=ordered)
        return Shared(self.job, self.constants, self.software, sizes, stages), meshes.group, line, meshes.first


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
