"""Rows of layouts with all that they share, and the memory of the fullest pipeline stage on every row.

Activations that are offloaded leave block by block behind the forward pass and return behind the backward pass; the
accelerator keeps those of two blocks, one that is computed and one that moves.  Optimizer states stay on the host,
which updates them.  Host memory that an accelerator copies to and from is pinned, and pinned memory is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from weft.cluster.spec import Accelerator
from weft.estimation.costs import Activations, CostModel, GradientCosts, Meshes
from weft.estimation.result import MEMORY_PARTS
from weft.layout.spec import Recompute
from weft.layout.stages import StageTable, most_held, stage_table
from weft.layout.table import Floats, Index, Ints, LayoutTable, Mask, collapse

MESH_COLUMNS = (
    *("x", "y", "z", "data", "pipeline", "context", "expert", "expert_tensor"),
    *("micro_batch", "sequence_parallel", "context_method"),
)
"""Columns that decide the cost of a block on one micro-batch."""
MASTER_BYTES = 4.0
"""Of a weight in 32 bits, beside which mixed precision computes with another."""
HALF = 0.5
"""Share of a block's forward pass that is repeated where every second product is kept."""
SLICE = 12288
"""Rows of one pass of the arithmetic per row: its arrays stay in the processor's cache."""
RESIDENT_BLOCKS = 2.0
"""Blocks whose activations stay on the accelerator: one in use, one on its way (a double buffer; assumption)."""
PINNED_SHARE = 0.8
"""Share of the host's memory that can be pinned for this; the rest is the system's, the data loader's and the
checkpoint's (assumption)."""


class Frame:
    """Rows of a table of layouts; ``mesh`` maps them to ``meshes``, ``line`` to lines of ``stages``.

    A part of them (``take``) shares these with their ``whole``, and may have other switches, as columns with leading
    axes instead of the table's: what does not depend on a switch is then computed once for all of its settings.

    ``selective`` and ``replays`` say (0 or 1) whether recomputation is selective or of whole blocks; ``cheap``,
    whether norms and activations alone (or an attention core) are repeated, ``repeated``, which share of a forward
    pass is; ``partial``, whether some rows recompute only some blocks.
    """

    def __init__(
        self,
        meshes: Meshes,
        stages: StageTable,
        table: LayoutTable,
        mesh: Index,
        line: Index,
        base: Frame | None = None,
    ) -> None:
        self.model, self.meshes, self.stages, self.table, self.whole = meshes.model, meshes, stages, table, base
        self.job, self.constants, self.software = self.model.job, self.model.constants, self.model.software
        self.mesh, self.line = mesh, line
        self.rows = np.arange(len(mesh))
        self.pipeline = table.pipeline.astype(np.float64)
        self.virtual = table.virtual_stages.astype(np.float64)
        self.micro_batches = self.job.recipe.global_batch / (table.micro_batch * table.z * table.data)
        self.selective = (table.recompute == Recompute.SELECTIVE.code).astype(np.float64)
        self.replays = (table.recompute == Recompute.FULL.code).astype(np.float64)
        halves = self.selective if self.software.by_product else np.zeros_like(self.selective)
        self.cheap = self.selective - halves
        self.repeated = self.replays + HALF * halves
        self._row_counts: dict[int, list[Floats]] = {}
        self.partial = bool(np.any((self.replays > 0) & (table.recompute_layers > 0)))

    @classmethod
    def of(cls, model: CostModel, table: LayoutTable, *, ordered: bool) -> Frame:
        """All rows of a table; ``ordered``: rows to take may recompute a number of a stage's blocks."""
        # Costs are computed on distinct meshes and stages on distinct pipelines; ``mesh`` and ``line`` map rows to
        # both.
        groups = collapse([table.column(name) for name in MESH_COLUMNS])
        wraps = table.scheduled("wraps").astype(np.int64)
        stages, line = stage_table(model.job.model, table.pipeline, table.virtual_stages, wraps, ordered=ordered)
        return cls(Meshes(model, table.take(groups.first)), stages, table, groups.group, line)

    def take(self, rows: Index, switches: Mapping[str, Ints] | None = None) -> Frame:
        """Some rows of the whole, with other switches if need be."""
        table = self.table.take(rows, switches or {})
        part = Frame(self.meshes, self.stages, table, self.mesh[rows], self.line[rows], self)
        part.rows = rows
        return part

    def __len__(self) -> int:
        return len(self.mesh)

    def at(self, values: Floats) -> Floats:
        """Per-mesh values on every row."""
        return values[..., self.mesh]

    def zeros(self) -> Floats:
        return np.zeros(len(self.mesh))

    @cached_property
    def gradients(self) -> tuple[Index, tuple[GradientCosts, ...]]:
        """Each row's place among the distinct pairs of mesh and stages of the whole, and the pairs' gradients."""
        if self.whole is not None:
            place, costs = self.whole.gradients
            return place[self.rows], costs
        pairs = collapse((self.mesh, self.line))
        return pairs.group, self.meshes.gradients(self.stages, self.mesh[pairs.first], self.line[pairs.first])

    # Stages ---------------------------------------------------------------------------------------

    @property
    def stage_kinds(self) -> range:
        """Lines of distinct stages in the stage table."""
        return range(self.stages.repeats.shape[1])

    def repeats(self, stage: int) -> Floats:
        """How many stages of a row look like the given one."""
        repeats: Floats = self.stages.repeats[self.line, stage]
        return repeats

    def counts(self, stage: int) -> list[Floats]:
        """Blocks of each kind, embedding and head of the given stage, on every row."""
        arrays = (*self.stages.counts, self.stages.embedding, self.stages.head)
        return [array[self.line, stage] for array in arrays]

    def replayed(self, stage: int) -> list[Floats]:
        """Blocks of each kind of the given stage that are recomputed whole, on every row: the stage's first
        ``recompute_layers``, or all."""
        kinds = self.counts(stage)[:-2]
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

    # Activations ----------------------------------------------------------------------------------

    def kept(self, activations: Activations) -> Floats:
        """Activation bytes that one block keeps per micro-batch, where it is not recomputed whole."""
        none = self.at(activations.none)
        bytes_: Floats = none + self.selective * (self.at(activations.selective) - none)
        return bytes_

    def kept_rows(self) -> list[Floats]:
        """Activation bytes that a block of each of ``row_counts`` keeps per micro-batch."""
        plain = [self.kept(activations) for activations in self.meshes.activations]
        again = [
            bytes_ + self.replays * (self.at(activations.full) - bytes_)
            for bytes_, activations in zip(plain, self.meshes.activations, strict=True)
        ]
        return [*again, *plain] if self.partial else again

    def resident_bytes(self, block_bytes: list[Floats], counts: list[Floats], every: Floats) -> Floats:
        """Activation bytes that stay on the accelerator, of ``every`` one; ``block_bytes`` of a block of each
        kind, ``counts`` a stage's blocks."""
        if not self.table.offload_activations.any():
            return every
        largest = np.max(
            [np.where(count > 0, bytes_, 0.0) for bytes_, count in zip(block_bytes, counts, strict=False)], axis=0
        )
        offloaded = self.table.offload_activations > 0
        return np.where(offloaded, np.minimum(RESIDENT_BLOCKS * largest, every), every)

    def peaks(self, some: Index, switches: Mapping[str, Ints]) -> tuple[Floats, Floats]:
        """Bytes of the fullest stage, and the most in host memory that a stage needs, of some rows with settings of
        ``switches``.  Shape (*settings, rows)."""
        settings = np.broadcast_shapes((1,), *(column.shape for column in switches.values()))[:-1]
        on_device, on_host = (np.empty((*settings, len(some))) for _ in range(2))
        # Rows with as many distinct stages go together, so that none waits for stages that it lacks.
        order = np.argsort(np.count_nonzero(self.stages.repeats, axis=1)[self.line[some]], kind="stable")
        width = max(SLICE // max(math.prod(settings), 1), SLICE // 4)
        for start in range(0, len(some), width):
            at = order[start : start + width]
            on_device[..., at], on_host[..., at] = StageMemory(self.take(some[at], switches)).peak()
        return on_device, on_host


def weighted(values: list[Floats], counts: list[Floats]) -> Floats:
    """Sum of counts times values."""
    total = counts[0] * values[0]
    for count, value in zip(counts[1:], values[1:], strict=True):
        total = total + count * value
    return total


def pinned_capacity(accelerator: Accelerator) -> float:
    """Bytes of host memory that one accelerator can pin; infinite where its host memory is not known."""
    known = accelerator.host_memory_bytes
    return np.inf if known is None else PINNED_SHARE * known


# Memory of stages --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a stage holds beside weights, states and activations, in bytes.

    ``standing`` is there in the whole iteration: cuBLAS's workspaces (of PyTorch's forward and backward threads, and
    of Transformer Engine), the dummy gradients that software hands to PyTorch, a root unit's
    gathered weights, and boundary tensors beyond activations.  On top of it come, each at its time: ``forward``
    (gathered weights of two blocks), ``loss`` (logits), ``head`` (their gradient, and those of the head's input and
    weights in the width of the weights), ``backward`` (what one block makes again, its gradients' temporaries,
    gathered weights of two blocks and gradients of one; never less than ``forward``) and ``embedding`` (its gathered
    weights and their gradient, when a micro-batch's activations are gone).
    """

    standing: Floats
    forward: Floats
    loss: Floats
    head: Floats
    backward: Floats
    embedding: Floats

    def most(self, chunk: Floats) -> Floats:
        """The peak beside activations, of which those of a ``chunk`` are gone at the embedding."""
        moments = (self.loss, self.head, self.backward, self.embedding - chunk)
        peak: Floats = self.standing + reduce(np.maximum, moments)
        return peak


class StageMemory:
    """Memory of the stages of a frame.

    What any stage of a row may hold, in elements: ``dense`` and ``expert`` of each part, the ``tied`` copy, the
    largest ``unit`` that is gathered and the largest ``block``; ``bytes`` as in ``Meshes``.  ``dense_cuts`` and
    ``expert_cuts`` say by how much weights, gradients and optimizer states are divided.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame, zero = frame, frame.table.zero
        members, step = frame.meshes.members, frame.meshes.step
        # ZeRO 1 cuts optimizer states over replicas, ZeRO 2 gradients too; FSDP cuts all three over its shards.
        cuts = []
        for shard, replica in (("shard", "replica"), ("expert_shard", "expert_replica")):
            cut, copies = frame.at(members[shard]), frame.at(members[replica])
            gradients = cut * np.where(zero >= 2, copies, 1.0)
            cuts.append((cut, gradients, cut * np.where(zero >= 1, copies, 1.0)))
        self.dense_cuts, self.expert_cuts = cuts
        self.dense = [frame.at(part.dense) for part in step.parameters]
        self.expert = [frame.at(part.expert) for part in step.parameters]
        self.tied = frame.at(step.tied)
        sharded, routed = self.dense_cuts[0] > 1, self.expert_cuts[0] > 1
        blocks = list(zip(self.dense[:-2], self.expert[:-2], strict=True))
        self.unit: Floats = np.max([sharded * dense + routed * expert for dense, expert in blocks], axis=0)
        self.block: Floats = np.max([dense + expert for dense, expert in blocks], axis=0)
        self.kept = frame.kept_rows()
        # Bytes that the backward pass of a block makes again, and of its gradients' temporaries.
        again = []
        for activations in frame.meshes.activations:
            plain = frame.kept(activations)
            # What a block does not keep it makes again in its backward pass: the difference to keeping all.
            remade = frame.at(activations.none) - plain + frame.replays * (plain - frame.at(activations.full))
            again.append(remade + frame.at(activations.gradients))
        self.working: Floats = np.max(again, axis=0)
        self.prediction = frame.kept(frame.meshes.prediction)
        figures = ("logits", "head_bytes", "head_gradient_bytes", "boundary_bytes", "dummies_bytes")
        self.bytes = {name: frame.at(getattr(frame.meshes, name)) for name in figures}
        without, with_zero = frame.at(frame.meshes.communicators)
        self.communicators: Floats = np.where(zero > 0, with_zero, without)

    def fullest(self) -> tuple[dict[str, Floats], Floats]:
        """Memory of the fullest stage, with the most host memory that a stage needs, and its total."""
        (best, most, _), *later = self._stages()
        for parts, total, exists in later:
            # Stages compare by the total; parts are those of the fullest, but host memory is the most of any stage.
            fuller = (total > most) & exists
            host = np.maximum(best["host_bytes"], parts["host_bytes"])
            best = {name: np.where(fuller, value, best[name]) for name, value in parts.items()} | {"host_bytes": host}
            most = np.where(fuller, total, most)
        return best, most

    def peak(self) -> tuple[Floats, Floats]:
        """Bytes of the fullest stage, and the most in host memory that a stage needs."""
        (parts, most, _), *later = self._stages()
        host = parts["host_bytes"]
        for parts, total, exists in later:
            most = np.maximum(most, np.where(exists, total, 0.0))
            host = np.maximum(host, parts["host_bytes"])
        return most, host

    def _stages(self) -> Iterator[tuple[dict[str, Floats], Floats, Mask]]:
        """Memory of each distinct stage, its total, and the rows that have the stage."""
        stages = self.frame.stages.stage.T[:, self.frame.line]
        in_flight = most_held(self.frame.table, self.frame.micro_batches, stages)
        for stage in self.frame.stage_kinds:
            exists = self.frame.repeats(stage) > 0
            if stage == 0 or exists.any():
                parts = self.parts(stage, in_flight[stage])
                yield parts, sum([parts[name] for name in MEMORY_PARTS], self.frame.zeros()), exists

    def parts(self, stage: int, in_flight: Floats) -> dict[str, Floats]:
        """Memory of a stage (a line of the stage table) that holds so many micro-batches, by the columns of
        ``EstimateTable``."""
        frame, table, recipe = self.frame, self.frame.table, self.frame.job.recipe
        counts, row_counts = frame.counts(stage), frame.row_counts(stage)
        embedding, head = counts[-2:]
        # A tied embedding has a copy on the last stage where the first one is another.
        dense = weighted(self.dense, counts) + head * (1 - embedding) * self.tied
        expert = weighted(self.expert, counts)
        # Activations of a micro-batch, of all in flight, and those of them that are not offloaded.
        passing = weighted(self.kept, row_counts[:-2])
        if ahead := frame.job.model.prediction_layers:
            passing = passing + head * ahead * self.prediction
        activations = passing * in_flight
        on_device = frame.resident_bytes(self.kept, row_counts, activations)
        weights = self._weights(dense, self.dense_cuts) + self._weights(expert, self.expert_cuts)
        gradients = recipe.gradient_bytes * (dense / self.dense_cuts[1] + expert / self.expert_cuts[1])
        state = dense / self.dense_cuts[2] + expert / self.expert_cuts[2]
        optimizer = recipe.optimizer_bytes * (1 - table.offload_optimizer)
        unsplit = ~table.scheduled("splits_backward")
        # At the embedding, the last of a micro-batch's backward pass, its chunk's activations are free, unless weight
        # gradients wait for them.
        gone = np.where(table.offload_activations > 0, 0.0, unsplit * passing / frame.virtual)
        buffers = self.buffers(stage, in_flight).most(gone)
        subtotal = weights + gradients + optimizer * state + on_device + buffers
        on_host = recipe.optimizer_bytes + recipe.gradient_bytes + recipe.element_bytes
        return {
            "weights_bytes": weights,
            "gradients_bytes": gradients,
            "optimizer_bytes": optimizer * state,
            "activations_bytes": on_device,
            "buffers_bytes": buffers,
            "communicators_bytes": self.communicators,
            "reserve_bytes": subtotal * frame.constants.fragmentation + frame.constants.reserved_bytes,
            "host_bytes": activations - on_device + table.offload_optimizer * on_host * state,
            "fullest_stage": frame.stages.stage[frame.line, stage],
        }

    def _weights(self, elements: Floats, cuts: tuple[Floats, Floats, Floats]) -> Floats:
        """Weights at rest: whole copies in the compute width, or (z > 1) only the master copy, which mixed
        precision counts with the optimizer; software that keeps masters whole has those of other ranks besides."""
        recipe, (cut, _, states) = self.frame.job.recipe, cuts
        sharded = elements / cut * recipe.element_bytes if recipe.whole else 0.0
        weights: Floats = np.where(cut <= 1.0, elements * recipe.element_bytes, sharded)
        if self.frame.software.whole_masters and not recipe.whole:
            weights = weights + MASTER_BYTES * (elements / cut - elements / states)
        return weights

    def buffers(self, stage: int, in_flight: Floats) -> Buffers:
        """What a stage (a line of the stage table) that holds so many micro-batches has beside weights, states and
        activations."""
        frame, recipe, software = self.frame, self.frame.job.recipe, self.frame.software
        embedding, head = frame.counts(stage)[-2:]
        width, sharded = recipe.element_bytes, self.dense_cuts[0] > 1
        boundary, whole_logits = self.bytes["boundary_bytes"], self.bytes["logits"]
        head_weights, first_weights = head * (self.dense[-1] + self.tied), embedding * self.dense[-2]
        logits, streams = head * whole_logits, head * self.bytes["head_bytes"]
        back = head * self.bytes["head_gradient_bytes"]
        copies = np.where(frame.table.x > 1, frame.constants.cut_loss_copies, frame.constants.loss_copies)
        in_loss = np.maximum(4.0 * copies, width * (copies > 0.0))  # a gradient is as wide as the logits at least
        # A piece of probabilities in 32 bits, and of the logits where they are narrower.
        widened = 4.0 * (1.0 + (width < 4.0)) * np.minimum(logits, software.widened_logits)
        standing = frame.constants.gradient_dummies * self.bytes["dummies_bytes"]
        standing = standing + frame.model.workspace_bytes * (2.0 + frame.constants.gradient_dummies)
        blocks, reduced = 2.0 * width * self.unit, recipe.gradient_bytes * self.unit
        at_head = width * (self.unit + sharded * head_weights)
        head_reduced, first_reduced = (
            recipe.gradient_bytes * sharded * weights for weights in (head_weights, first_weights)
        )
        at_first = width * sharded * first_weights
        if software.root:
            standing = standing + width * sharded * (head_weights + first_weights)
            reduced = reduced + width * self.block
            at_head, at_first = blocks, frame.zeros()
            head_reduced, first_reduced = frame.zeros(), embedding * head_reduced + first_reduced
        if software.buffered:
            piped, steps = frame.pipeline > 1, frame.micro_batches
            standing = standing + piped * (2.0 * steps + in_flight) * boundary
            standing = standing + piped * (steps - 1.0) * width * logits
        if software.keeps_ends:
            # Outputs of chunks in flight except logits; and where ZB-H1 puts off the head's weight gradients, the
            # gradients and inputs that they wait with.
            late = frame.table.scheduled("splits_backward") & ~frame.table.scheduled("wraps")
            waiting = late * head * np.minimum(frame.pipeline - 1.0, frame.micro_batches)
            outputs = (frame.pipeline > 1) * in_flight * (frame.virtual - head)
            standing = standing + (outputs * boundary + waiting * (width * whole_logits + boundary))
        return Buffers(
            standing=standing,
            forward=blocks,
            loss=at_head + streams + logits * (width + in_loss) + widened,
            head=at_head + streams + back + logits * width + width * head_weights + head_reduced,
            backward=blocks + reduced + self.working,
            embedding=at_first + width * first_weights + first_reduced,
        )
