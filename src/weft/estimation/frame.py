"""The rows of one evaluation: what every part of the arithmetic per layout needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network
from weft.estimation.costs import PartCosts
from weft.estimation.memory import Activations, block_activations, head_gradient_tokens, head_tokens, logits_elements
from weft.estimation.weights import GradientCosts, ShardCosts
from weft.layout.mesh import degrees
from weft.layout.parts import distinct_matrices
from weft.layout.spec import Recompute
from weft.layout.stages import StageTable
from weft.layout.step import Software, Step
from weft.layout.table import Floats, Index, LayoutTable
from weft.model.job import Job

SHARDING = ("shard", "replica", "expert_shard", "expert_replica")
"""Groups that divide weights and what belongs to them."""
HALF = 0.5
"""Share of a block's forward pass that is repeated where every second product is kept."""


@dataclass(frozen=True, slots=True)
class MeshSizes:
    """The step of each distinct mesh of a table; on one rank activations of each kind of block and of a
    multi-token-prediction module, logits, what the head reads of a micro-batch and its gradient, what stages pass on
    of one, and one 16-bit gradient of each shape that linear layers have; ranks of the groups of ``SHARDING``."""

    step: Step
    activations: tuple[Activations, ...]
    prediction: Activations
    logits: Floats
    head_bytes: Floats
    head_gradient_bytes: Floats
    boundary_bytes: Floats
    dummies_bytes: Floats
    members: dict[str, Floats]

    @classmethod
    def of(cls, job: Job, mesh: LayoutTable, software: Software) -> MeshSizes:
        model, recipe = job.model, job.recipe
        step = Step(model, recipe, mesh, software)
        module = [block_activations(block, recipe, step.sizes, software) for block in model.prediction_module]
        stream = recipe.element_bytes * model.hidden / step.sizes.y
        return cls(
            step=step,
            activations=tuple(block_activations(kind, recipe, step.sizes, software) for kind in model.kinds),
            prediction=sum(module[1:], module[0]),
            logits=logits_elements(model, step.sizes, software),
            head_bytes=stream * head_tokens(step.sizes),
            head_gradient_bytes=stream * head_gradient_tokens(step.sizes),
            boundary_bytes=stream * step.sizes.own_tokens,
            dummies_bytes=recipe.element_bytes * distinct_matrices(model, step.sizes),
            members={group: degrees(mesh, group).astype(np.float64) for group in SHARDING},
        )


@dataclass(frozen=True, slots=True)
class MeshCosts:
    """Seconds per micro-batch (``tied_s`` and ``scalars_s`` per step) that depend only on the distinct meshes of
    a table; parts as ``Step`` lists them."""

    parts: tuple[PartCosts, ...]
    shards: tuple[ShardCosts, ...]
    send_s: Floats
    tied_s: Floats
    scalars_s: Floats


@dataclass(frozen=True, slots=True)
class Shared:
    """What the rows of a table share: sizes of distinct meshes, and stage tables; bytes of each mesh's communicators
    without and with ``zero``, and of a thread's workspace."""

    job: Job
    constants: Calibration
    software: Software
    sizes: MeshSizes
    stages: StageTable
    communicators: Floats
    workspace_bytes: float


@dataclass(frozen=True, slots=True)
class SharedTimes:
    """``Shared`` with seconds, and the gradients of distinct pairs of mesh and stages."""

    shared: Shared
    cluster: Cluster
    network: Network
    costs: MeshCosts
    gradients: tuple[GradientCosts, ...]


class Frame:
    """Rows of a table of layouts: ``mesh`` maps them to distinct meshes, ``line`` to lines of stages.

    ``selective`` and ``replays`` say (0 or 1) whether recomputation is selective or of whole blocks; ``cheap``,
    whether norms and activations alone (or an attention core) are repeated, ``repeated``, which share of a forward
    pass is.
    """

    def __init__(self, shared: Shared, table: LayoutTable, mesh: Index, line: Index) -> None:
        self.job, self.constants, self.software = shared.job, shared.constants, shared.software
        self.sizes, self.stages, self._communicators = shared.sizes, shared.stages, shared.communicators
        self.workspace_bytes = shared.workspace_bytes
        self.table, self.mesh, self.line = table, mesh, line
        job = shared.job
        self.pipeline = table.pipeline.astype(np.float64)
        self.virtual = table.virtual_stages.astype(np.float64)
        self.micro_batches = job.recipe.global_batch / (table.micro_batch * table.z * table.data)
        self.selective = (table.recompute == Recompute.SELECTIVE.code).astype(np.float64)
        self.replays = (table.recompute == Recompute.FULL.code).astype(np.float64)
        halves = self.selective if shared.software.by_product else np.zeros_like(self.selective)
        self.cheap = self.selective - halves
        self.repeated = self.replays + HALF * halves
        self._row_counts: dict[int, list[Floats]] = {}
        self.partial = bool(np.any((self.replays > 0) & (table.recompute_layers > 0)))

    def __len__(self) -> int:
        return len(self.mesh)

    def at(self, values: Floats) -> Floats:
        """Per-mesh values on every row."""
        return values[..., self.mesh]

    def zeros(self) -> Floats:
        return np.zeros(len(self.mesh))

    @property
    def communicators(self) -> Floats:
        """Bytes of a rank's communicators on every row."""
        without, sharded = self.at(self._communicators)
        held: Floats = np.where(self.table.zero > 0, sharded, without)
        return held

    @property
    def stage_kinds(self) -> range:
        """Lines of distinct stages in the stage table."""
        return range(self.stages.repeats.shape[1])

    def counts(self, stage: int) -> list[Floats]:
        """Blocks of each kind, embedding and head of the given stage, on every row."""
        arrays = (*self.stages.counts, self.stages.embedding, self.stages.head)
        return [array[self.line, stage] for array in arrays]

    def replayed(self, stage: int) -> list[Floats]:
        """Blocks of each kind of the given stage that are recomputed whole, on every row: the stage's first
        ``recompute_layers``, or all."""
        kinds = [count[self.line, stage] for count in self.stages.counts]
        if self.partial:
            first = self.table.recompute_layers
            some = self.stages.first_blocks(self.line, stage, first)
            kinds = [np.where(first > 0, few, every) for few, every in zip(some, kinds, strict=True)]
        return [self.replays * count for count in kinds]

    def row_counts(self, stage: int) -> list[Floats]:
        """Blocks of each kind that the given stage replays, those that it does not, embedding and head; without
        ``partial`` all or none are replayed, and the first are all."""
        if stage not in self._row_counts:
            counts = self.counts(stage)
            if self.partial:
                again = self.replayed(stage)
                without = [count - few for count, few in zip(counts, again, strict=False)]
                counts = [*again, *without, *counts[-2:]]
            self._row_counts[stage] = counts
        return self._row_counts[stage]

    def part_counts(self, rows: list[Floats]) -> list[Floats]:
        """``row_counts`` by part: blocks of each kind together, embedding and head."""
        if not self.partial:
            return rows
        kinds = len(self.sizes.activations)
        return [again + plain for again, plain in zip(rows[:kinds], rows[kinds:-2], strict=True)] + rows[-2:]

    def kept_rows(self) -> list[Floats]:
        """Activation bytes that a block of each of ``row_counts`` keeps per micro-batch."""
        plain = [self.kept(one) for one in self.sizes.activations]
        again = [
            kept + self.replays * (self.at(one.full) - kept)
            for kept, one in zip(plain, self.sizes.activations, strict=True)
        ]
        return [*again, *plain] if self.partial else again

    @cached_property
    def working(self) -> Floats:
        """Bytes that the backward pass of a block makes again, and of its gradients' temporaries."""
        rows = []
        for one in self.sizes.activations:
            none, kept = self.at(one.none), self.kept(one)
            again = none - kept + self.replays * (kept - self.at(one.full))
            rows.append(again + self.at(one.gradients))
        most: Floats = np.max(rows, axis=0)
        return most

    def kept(self, activations: Activations) -> Floats:
        """Activation bytes that one block keeps per micro-batch, where it is not recomputed whole."""
        none = self.at(activations.none)
        kept: Floats = none + self.selective * (self.at(activations.selective) - none)
        return kept


class TimedFrame(Frame):
    """Rows with what times them: ``pair`` maps them to distinct pairs of mesh and stages."""

    def __init__(self, timed: SharedTimes, table: LayoutTable, mesh: Index, line: Index, pair: Index) -> None:
        super().__init__(timed.shared, table, mesh, line)
        self.cluster, self.network = timed.cluster, timed.network
        self.costs, self.gradients = timed.costs, timed.gradients
        self.pair = pair


def weighted(values: list[Floats], counts: list[Floats]) -> Floats:
    """Sum of counts times values."""
    total = counts[0] * values[0]
    for count, value in zip(counts[1:], values[1:], strict=True):
        total = total + count * value
    return total
