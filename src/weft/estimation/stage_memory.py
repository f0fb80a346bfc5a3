"""Memory of the fullest pipeline stage on every row."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from weft.estimation.frame import Frame, weighted
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
        stages = frame.stages.stage.T[:, frame.line]
        self.in_flight = most_held(frame.table, frame.micro_batches, stages)

    def fullest(self) -> tuple[MemoryParts, Floats]:
        """Memory of the fullest stage."""
        working = np.max([self.frame.at(a.none) for a in self.frame.sizes.activations], axis=0)
        working = np.where(self.frame.replays > 0, working, 0.0)
        shared, kept = self._sharding(), self.frame.kept_rows()
        best, most = self._stage(0, kept, working, shared)
        for stage in self.frame.stage_kinds[1:]:
            parts, total = self._stage(stage, kept, working, shared)
            fuller = (total > most) & (self.frame.stages.repeats[self.frame.line, stage] > 0)
            best = _choose(fuller, parts, best)
            most = np.where(fuller, total, most)
        return best, most

    def _stage(self, stage: int, kept: list[Floats], working: Floats, shared: Sharding) -> tuple[MemoryParts, Floats]:
        parts = self._stage_memory(stage, kept, working, shared)
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

    def _stage_memory(self, stage: int, kept: list[Floats], working: Floats, shared: Sharding) -> MemoryParts:
        counts = self.frame.counts(stage)
        step, (embedding, head) = self.frame.sizes.step, counts[-2:]
        dense = weighted([self.frame.at(p.dense) for p in step.parameters], counts)
        dense = dense + head * (1 - embedding) * self.frame.at(step.tied)
        expert = weighted([self.frame.at(p.expert) for p in step.parameters], counts)
        recipe = self.frame.job.recipe
        optimizer = recipe.optimizer_bytes * (1 - self.frame.table.offload_optimizer)
        held = weighted(kept, self.frame.row_counts(stage)[:-2])
        if ahead := self.frame.job.model.prediction_layers:
            held = held + head * ahead * self.frame.kept(self.frame.sizes.activations[-1])
        flight = np.where(self.frame.table.offload_activations > 0, np.minimum(2.0, self.frame.micro_batches), 1.0)
        in_flight = self.in_flight[stage]
        flight = np.where(self.frame.table.offload_activations > 0, np.minimum(flight, in_flight), in_flight)
        weights = self._weights(dense, shared.weights) + self._weights(expert, shared.expert_weights)
        gradients = recipe.gradient_bytes * (dense / shared.gradients + expert / shared.expert_gradients)
        state = dense / shared.optimizer + expert / shared.expert_optimizer
        buffers = self._buffers(embedding, head, working, shared)
        subtotal = weights + gradients + optimizer * state + held * flight + buffers
        reserve = subtotal * self.frame.constants.fragmentation + self.frame.constants.reserved_bytes
        return MemoryParts(
            weights_bytes=weights,
            gradients_bytes=gradients,
            optimizer_bytes=optimizer * state,
            activations_bytes=held * flight,
            buffers_bytes=buffers,
            reserve_bytes=reserve,
            stage=self.frame.stages.stage[self.frame.line, stage],
        )

    def _weights(self, elements: Floats, cut: Floats) -> Floats:
        """Weights at rest: whole copies in the compute width, or (z > 1) only the master copy, which mixed
        precision counts with the optimizer."""
        width = self.frame.job.recipe.element_bytes
        sharded = elements / cut * width if self.frame.job.recipe.whole else 0.0
        held: Floats = np.where(cut <= 1.0, elements * width, sharded)
        return held

    def _buffers(self, embedding: Floats, head: Floats, working: Floats, shared: Sharding) -> Floats:
        """Gathered weights of two blocks (one prefetched) and gradients of one where z > 1, logits, one
        recomputed block, and the gradients that software keeps to hand to PyTorch in place of its own."""
        sizes, recipe = self.frame.sizes, self.frame.job.recipe
        buffers = working + head * self.frame.at(sizes.logits_bytes)
        buffers = buffers + self.frame.constants.gradient_dummies * self.frame.at(sizes.dummies_bytes)
        step = sizes.step
        blocks = [
            np.where(shared.weights > 1, self.frame.at(p.dense), 0.0)
            + np.where(shared.expert_weights > 1, self.frame.at(p.expert), 0.0)
            for p in step.parameters[:-2]
        ]
        edges = (
            embedding * self.frame.at(step.parameters[-2].dense),
            head * self.frame.at(step.parameters[-1].dense + step.tied),
        )
        blocks += [np.where(shared.weights > 1, edge, 0.0) for edge in edges]
        largest: Floats = np.max(blocks, axis=0)
        return buffers + (2 * recipe.element_bytes + recipe.gradient_bytes) * largest


def _choose(mask: Floats, yes: MemoryParts, no: MemoryParts) -> MemoryParts:
    names = [f.name for f in fields(MemoryParts)]
    return MemoryParts(**{name: np.where(mask, getattr(yes, name), getattr(no, name)) for name in names})
