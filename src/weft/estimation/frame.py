"""The rows of one evaluation: what every part of the arithmetic per layout needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.estimation.costs import PartCosts
from weft.estimation.memory import (
    Activations,
    Parameters,
    block_activations,
    block_parameters,
    embedding_parameters,
    head_parameters,
    logits_bytes,
    tied_parameters,
)
from weft.estimation.weights import GradientCosts, ShardCosts, WeightGroups, weight_groups
from weft.layout.operations import Sizes
from weft.layout.spec import Recompute
from weft.layout.stages import StageTable
from weft.layout.table import Floats, Index, LayoutTable
from weft.model.job import Job


@dataclass(frozen=True, slots=True)
class MeshSizes:
    """Parameters and activations on one rank of each distinct mesh of a table, and who shares its weights."""

    parameters: tuple[Parameters, ...]
    activations: tuple[Activations, ...]
    embedding_parameters: Floats
    head_parameters: Parameters
    tied_parameters: Floats
    logits_bytes: Floats
    groups: WeightGroups

    @classmethod
    def of(cls, job: Job, mesh: LayoutTable, spans: tuple[int, ...]) -> MeshSizes:
        model, recipe = job.model, job.recipe
        sizes = Sizes.of(mesh, recipe)
        return cls(
            parameters=tuple(block_parameters(kind, sizes) for kind in model.kinds),
            activations=tuple(block_activations(kind, recipe, sizes) for kind in model.kinds),
            embedding_parameters=embedding_parameters(model, sizes),
            head_parameters=head_parameters(model, sizes),
            tied_parameters=tied_parameters(model, sizes),
            logits_bytes=logits_bytes(model, recipe, sizes),
            groups=weight_groups(mesh, spans),
        )


@dataclass(frozen=True, slots=True)
class MeshCosts:
    """Seconds per micro-batch that depend only on the distinct meshes of a table."""

    blocks: tuple[PartCosts, ...]
    embedding: PartCosts
    head: PartCosts
    shards: tuple[ShardCosts, ...]
    embedding_shards: ShardCosts
    head_shards: ShardCosts
    send_s: Floats
    tied_s: Floats


@dataclass(frozen=True, slots=True)
class Shared:
    """What the rows of a table share: sizes of distinct meshes, and stage tables."""

    job: Job
    constants: Calibration
    sizes: MeshSizes
    stages: StageTable


@dataclass(frozen=True, slots=True)
class Timed:
    """``Shared`` with seconds, and the gradients of distinct pairs of mesh and stages."""

    shared: Shared
    cluster: Cluster
    costs: MeshCosts
    gradients: tuple[GradientCosts, ...]


class Frame:
    """Rows of a table of layouts: ``mesh`` maps them to distinct meshes, ``line`` to lines of stages."""

    def __init__(self, shared: Shared, table: LayoutTable, mesh: Index, line: Index) -> None:
        self.job, self.constants = shared.job, shared.constants
        self.sizes, self.stages = shared.sizes, shared.stages
        self.table, self.mesh, self.line = table, mesh, line
        job = shared.job
        self.pipeline = table.pipeline.astype(np.float64)
        self.virtual = table.virtual_stages.astype(np.float64)
        self.micro_batches = job.recipe.global_batch / (table.micro_batch * table.z * table.data)
        self.selective = (table.recompute == Recompute.SELECTIVE.code).astype(np.float64)
        self.replayed = self._replayed_share()

    def __len__(self) -> int:
        return len(self.mesh)

    def at(self, values: Floats) -> Floats:
        """Per-mesh values on every row."""
        return values[..., self.mesh]

    def zeros(self) -> Floats:
        return np.zeros(len(self.mesh))

    @property
    def stage_kinds(self) -> range:
        """Lines of distinct stages in the stage table."""
        return range(self.stages.repeats.shape[1])

    def counts(self, stage: int) -> list[Floats]:
        """Blocks of each kind, embedding and head of the given stage, on every row."""
        arrays = (*self.stages.counts, self.stages.embedding, self.stages.head)
        return [array[self.line, stage] for array in arrays]

    def kept(self, activations: Activations) -> Floats:
        """Activation bytes that one block keeps per micro-batch, after recomputation."""
        none, full = self.at(activations.none), self.at(activations.full)
        kept = none + self.selective * (self.at(activations.selective) - none)
        after: Floats = kept + self.replayed * (full - kept)
        return after

    def _replayed_share(self) -> Floats:
        """Share of a stage's blocks that are recomputed whole."""
        full = self.table.recompute == Recompute.FULL.code
        layers = np.ceil(self.job.model.layers / self.pipeline)
        share = np.minimum(self.table.recompute_layers / layers, 1.0)
        return np.where(full, np.where(self.table.recompute_layers > 0, share, 1.0), 0.0)


class TimedFrame(Frame):
    """Rows with what times them: ``pair`` maps them to distinct pairs of mesh and stages."""

    def __init__(self, timed: Timed, table: LayoutTable, mesh: Index, line: Index, pair: Index) -> None:
        super().__init__(timed.shared, table, mesh, line)
        self.cluster, self.costs, self.gradients = timed.cluster, timed.costs, timed.gradients
        self.pair = pair


def weighted(values: list[Floats], counts: list[Floats]) -> Floats:
    """Sum of counts times values."""
    total = counts[0] * values[0]
    for count, value in zip(counts[1:], values[1:], strict=True):
        total = total + count * value
    return total
