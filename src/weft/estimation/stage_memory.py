"""Memory of the fullest pipeline stage on every row."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from weft.estimation.frame import Frame, weighted
from weft.estimation.offload import resident_bytes
from weft.estimation.result import MEMORY_PARTS, MemoryParts
from weft.layout.schedule import most_held
from weft.layout.table import Floats


@dataclass(frozen=True, slots=True)
class Sharding:
    """Divisors of weights, gradients and optimizer states."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    expert_weights: Floats
    expert_gradients: Floats
    expert_optimizer: Floats


class StageMemory:
    """Memory of the stages of a frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.shared, self.kept = self._sharding(), frame.kept_rows()

    def fullest(self) -> tuple[MemoryParts, Floats]:
        """Memory of the fullest stage, and the most host memory that a stage needs."""
        stages = self.frame.stages.stage.T[:, self.frame.line]
        in_flight = most_held(self.frame.table, self.frame.micro_batches, stages)
        best, most = self._stage(0, in_flight[0])
        for stage in self.frame.stage_kinds[1:]:
            parts, total = self._stage(stage, in_flight[stage])
            fuller = (total > most) & (self.frame.stages.repeats[self.frame.line, stage] > 0)
            host = np.maximum(best.host_bytes, parts.host_bytes)
            best = replace(_choose(fuller, parts, best), host_bytes=host)
            most = np.where(fuller, total, most)
        return best, most

    def _stage(self, stage: int, in_flight: Floats) -> tuple[MemoryParts, Floats]:
        parts = self.parts(stage, in_flight)
        return parts, sum((getattr(parts, name) for name in MEMORY_PARTS), self.frame.zeros())

    def _sharding(self) -> Sharding:
        """By how much weights, gradients and optimizer states are divided, for dense and expert
        parameters."""
        sizes, zero = self.frame.sizes, self.frame.table.zero
        cuts = []
        for shard, replica in (("shard", "replica"), ("expert_shard", "expert_replica")):
            cut, copies = self.frame.at(sizes.members(shard)), self.frame.at(sizes.members(replica))
            gradients = cut * np.where(zero >= 2, copies, 1.0)
            cuts.append((cut, gradients, cut * np.where(zero >= 1, copies, 1.0)))
        return Sharding(*cuts[0], *cuts[1])

    def buffers(self, stage: int, in_flight: Floats) -> Buffers:
        """What a stage (a line of the stage table) holds beside weights, states and activations."""
        embedding, head = self.frame.counts(stage)[-2:]
        return Buffers.of(self.frame, embedding, head, in_flight, self.shared)

    def parts(self, stage: int, in_flight: Floats) -> MemoryParts:
        """Memory of a stage (a line of the stage table) that holds so many micro-batches."""
        kept, shared, counts = self.kept, self.shared, self.frame.counts(stage)
        step, (embedding, head) = self.frame.sizes.step, counts[-2:]
        dense = weighted([self.frame.at(p.dense) for p in step.parameters], counts)
        dense = dense + head * (1 - embedding) * self.frame.at(step.tied)
        expert = weighted([self.frame.at(p.expert) for p in step.parameters], counts)
        recipe = self.frame.job.recipe
        on_host = recipe.optimizer_bytes + recipe.gradient_bytes + recipe.element_bytes
        optimizer = recipe.optimizer_bytes * (1 - self.frame.table.offload_optimizer)
        held = weighted(kept, self.frame.row_counts(stage)[:-2])
        if ahead := self.frame.job.model.prediction_layers:
            held = held + head * ahead * self.frame.kept(self.frame.sizes.prediction)
        activations = held * in_flight
        on_device = resident_bytes(self.frame, kept, self.frame.row_counts(stage), activations)
        weights = self._weights(dense, shared.weights) + self._weights(expert, shared.expert_weights)
        gradients = recipe.gradient_bytes * (dense / shared.gradients + expert / shared.expert_gradients)
        state = dense / shared.optimizer + expert / shared.expert_optimizer
        whole = self.frame.table.scheduled(lambda one: not one.splits_backward)
        gone = np.where(self.frame.table.offload_activations > 0, 0.0, whole * held / self.frame.virtual)
        buffers = self.buffers(stage, in_flight).most(gone)
        subtotal = weights + gradients + optimizer * state + on_device + buffers
        reserve = subtotal * self.frame.constants.fragmentation + self.frame.constants.reserved_bytes
        return MemoryParts(
            weights_bytes=weights,
            gradients_bytes=gradients,
            optimizer_bytes=optimizer * state,
            activations_bytes=on_device,
            buffers_bytes=buffers,
            reserve_bytes=reserve,
            host_bytes=activations - on_device + self.frame.table.offload_optimizer * on_host * state,
            stage=self.frame.stages.stage[self.frame.line, stage],
        )

    def _weights(self, elements: Floats, cut: Floats) -> Floats:
        """Weights at rest: whole copies in the compute width, or (z > 1) only the master copy, which mixed
        precision counts with the optimizer."""
        width = self.frame.job.recipe.element_bytes
        sharded = elements / cut * width if self.frame.job.recipe.whole else 0.0
        held: Floats = np.where(cut <= 1.0, elements * width, sharded)
        return held


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a stage holds beside weights, states and activations, in bytes.

    ``standing`` is there in the whole iteration: the gradients that software keeps to hand to PyTorch in place of
    its own, a root unit's gathered weights, and all micro-batches' boundary tensors.  On top of it come, each at
    its time: ``forward`` (gathered weights of two blocks), ``loss`` (logits), ``head`` (their gradient, and that of
    the head's weights in the width of the weights), ``backward`` (what one block makes again, its gradients'
    temporaries, gathered weights of two blocks and gradients of one; never less than ``forward``) and ``embedding``
    (its gathered weights and their gradient, when a micro-batch's activations are gone).
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
        peak: Floats = self.standing + np.maximum.reduce(moments)
        return peak

    @classmethod
    def of(cls, frame: Frame, embedding: Floats, head: Floats, in_flight: Floats, shared: Sharding) -> Buffers:
        """Of a stage that holds so many embeddings and heads, and so many micro-batches in flight."""
        recipe, software, sizes = frame.job.recipe, frame.software, frame.sizes
        width, parameters = recipe.element_bytes, sizes.step.parameters
        sharded = shared.weights > 1
        kinds = [(frame.at(p.dense), frame.at(p.expert)) for p in parameters[:-2]]
        experts = shared.expert_weights > 1
        unit: Floats = np.max([sharded * dense + experts * expert for dense, expert in kinds], axis=0)
        head_weights = head * frame.at(parameters[-1].dense + sizes.step.tied)
        first_weights = embedding * frame.at(parameters[-2].dense)
        logits, streams = head * frame.at(sizes.logits), head * frame.at(sizes.head_bytes)
        copies = np.where(frame.table.x > 1, frame.constants.cut_loss_copies, frame.constants.loss_copies)
        standing = frame.constants.gradient_dummies * frame.at(sizes.dummies_bytes)
        blocks, reduced = 2.0 * width * unit, recipe.gradient_bytes * unit
        at_head = width * (unit + sharded * head_weights)
        head_reduced, first_reduced = (recipe.gradient_bytes * sharded * one for one in (head_weights, first_weights))
        at_first = width * sharded * first_weights
        if software.root:
            standing = standing + width * sharded * (head_weights + first_weights)
            reduced = reduced + width * np.max([dense + expert for dense, expert in kinds], axis=0)
            at_head, at_first = blocks, frame.zeros()
            head_reduced, first_reduced = frame.zeros(), embedding * head_reduced + first_reduced
        if software.buffered:
            piped, steps = frame.pipeline > 1, frame.micro_batches
            standing = standing + piped * (2.0 * steps + in_flight) * frame.at(sizes.boundary_bytes)
            standing = standing + piped * (steps - 1.0) * width * logits
        return cls(
            standing=standing,
            forward=blocks,
            loss=at_head + streams + logits * (width + 4.0 * copies),
            head=at_head + streams + logits * width + width * head_weights + head_reduced,
            backward=blocks + reduced + frame.working,
            embedding=at_first + width * first_weights + first_reduced,
        )


def _choose(mask: Floats, yes: MemoryParts, no: MemoryParts) -> MemoryParts:
    names = [f.name for f in fields(MemoryParts)]
    return MemoryParts(**{name: np.where(mask, getattr(yes, name), getattr(no, name)) for name in names})
