"""The rows of one evaluation: what every part of the arithmetic per layout needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.estimate.costs import PartCosts
from weft.estimate.memory import Activations, Parameters
from weft.estimate.weights import GradientCosts, ShardCosts, WeightGroups
from weft.layout.spec import RECOMPUTES
from weft.layout.stages import StageTable
from weft.layout.table import Floats, Index, LayoutTable
from weft.model.job import Job


@dataclass(frozen=True, slots=True)
class MeshCosts:
    """Everything that depends only on the distinct meshes of a table."""

    blocks: tuple[PartCosts, ...]
    embedding: PartCosts
    head: PartCosts
    parameters: tuple[Parameters, ...]
    activations: tuple[Activations, ...]
    shards: tuple[ShardCosts, ...]
    embedding_shards: ShardCosts
    head_shards: ShardCosts
    embedding_parameters: Floats
    head_parameters: Floats
    tied_parameters: Floats
    logits_bytes: Floats
    send_s: Floats
    tied_s: Floats
    groups: WeightGroups


@dataclass(frozen=True, slots=True)
class Shared:
    """What the rows of a table share: distinct meshes, stage tables, and gradients of distinct (mesh,
    stages) pairs."""

    job: Job
    cluster: Cluster
    constants: Calibration
    costs: MeshCosts
    stages: StageTable
    gradients: tuple[GradientCosts, ...]


class Frame:
    """Rows of a table of layouts: ``mesh`` maps them to distinct meshes, ``line`` to lines of the stage
    table,
    ``pair`` to distinct pairs of the two."""

    def __init__(self, shared: Shared, table: LayoutTable, mesh: Index, line: Index, pair: Index) -> None:
        self.job, self.cluster, self.constants = shared.job, shared.cluster, shared.constants
        self.costs, self.stages, self.gradients = shared.costs, shared.stages, shared.gradients
        self.table, self.mesh, self.line, self.pair = table, mesh, line, pair
        job = shared.job
        self.pipeline = table.pipeline.astype(np.float64)
        self.virtual = table.virtual_stages.astype(np.float64)
        self.micro_batches = job.recipe.global_batch / (table.micro_batch * table.z * table.data)
        self.selective = (table.recompute == RECOMPUTES.index("selective")).astype(np.float64)
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
        full = self.table.recompute == RECOMPUTES.index("full")
        layers = np.ceil(self.job.model.layers / self.pipeline)
        share = np.minimum(self.table.recompute_layers / layers, 1.0)
        return np.where(full, np.where(self.table.recompute_layers > 0, share, 1.0), 0.0)


def weighted(values: list[Floats], counts: list[Floats]) -> Floats:
    """Sum of counts times values."""
    total = counts[0] * values[0]
    for count, value in zip(counts[1:], values[1:], strict=True):
        total = total + count * value
    return total
