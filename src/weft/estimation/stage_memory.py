"""Memory of the fullest pipeline stage on every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np

from weft.estimation.frame import Frame, weighted
from weft.estimation.offload import resident_bytes
from weft.estimation.result import MEMORY_PARTS, MemoryParts
from weft.layout.stages import most_held
from weft.layout.table import Floats, Mask


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
        self.held = Held.of(frame, self.shared)
        self.communicators = frame.communicators

    def fullest(self) -> tuple[MemoryParts, Floats]:
        """Memory of the fullest stage, with the most host memory that a stage needs, and its total."""
        (best, most, _), *others = self._stages()
        for parts, total, there in others:
            fuller = (total > most) & there
            host = np.maximum(best.host_bytes, parts.host_bytes)
            best = replace(_choose(fuller, parts, best), host_bytes=host)
            most = np.where(fuller, total, most)
        return best, most

    def peak(self) -> tuple[Floats, Floats]:
        """Bytes of the fullest stage, and the most in host memory that a stage needs."""
        (parts, most, _), *others = self._stages()
        host = parts.host_bytes
        for parts, total, there in others:
            most = np.maximum(most, np.where(there, total, 0.0))
            host = np.maximum(host, parts.host_bytes)
        return most, host

    def _stages(self) -> Iterator[tuple[MemoryParts, Floats, Mask]]:
        """Memory of each distinct stage, its total, and the rows that have the stage."""
        stages = self.frame.stages.stage.T[:, self.frame.line]
        in_flight = most_held(self.frame.table, self.frame.micro_batches, stages)
        for stage in self.frame.stage_kinds:
            there = self.frame.stages.repeats[self.frame.line, stage] > 0
            if stage == 0 or there.any():
                parts = self.parts(stage, in_flight[stage])
                yield parts, sum((getattr(parts, name) for name in MEMORY_PARTS), self.frame.zeros()), there

    def _sharding(self) -> Sharding:
        """By how much weights, gradients and optimizer states are divided, for dense and expert
        parameters."""
        sizes, zero = self.frame.sizes, self.frame.table.zero
        cuts = []
        for shard, replica in (("shard", "replica"), ("expert_shard", "expert_replica")):
            cut, copies = self.frame.at(sizes.members[shard]), self.frame.at(sizes.members[replica])
            gradients = cut * np.where(zero >= 2, copies, 1.0)
            cuts.append((cut, gradients, cut * np.where(zero >= 1, copies, 1.0)))
        return Sharding(*cuts[0], *cuts[1])

    def buffers(self, stage: int, in_flight: Floats) -> Buffers:
        """What a stage (a line of the stage table) holds beside weights, states and activations."""
        embedding, head = self.frame.counts(stage)[-2:]
        return Buffers.of(self.frame, embedding, head, in_flight, self.shared, self.held)

    def parts(self, stage: int, in_flight: Floats) -> MemoryParts:
        """Memory of a stage (a line of the stage table) that holds so many micro-batches."""
        kept, shared, counts = self.kept, self.shared, self.frame.counts(stage)
        embedding, head = counts[-2:]
        dense = weighted(self.held.dense, counts)
        dense = dense + head * (1 - embedding) * self.held.tied
        expert = weighted(self.held.expert, counts)
        recipe = self.frame.job.recipe
        on_host = recipe.optimizer_bytes + recipe.gradient_bytes + recipe.element_bytes
        optimizer = recipe.optimizer_bytes * (1 - self.frame.table.offload_optimizer)
        held = weighted(kept, self.frame.row_counts(stage)[:-2])
        if ahead := self.frame.job.model.prediction_layers:
            held = held + head * ahead * self.held.prediction
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
            communicators_bytes=self.communicators,
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
class Held:
    """What any stage of a row may hold.

    Elements: ``dense`` and ``expert`` of each part, the ``tied`` copy, the ``head`` with it, the largest ``unit`` that
    is gathered and the largest ``block``.  Bytes: activations of a ``prediction`` module, and as in ``MeshSizes``.
    """

    dense: list[Floats]
    expert: list[Floats]
    tied: Floats
    head: Floats
    unit: Floats
    block: Floats
    prediction: Floats
    logits: Floats
    head_bytes: Floats
    head_gradient_bytes: Floats
    boundary_bytes: Floats
    dummies_bytes: Floats

    @classmethod
    def of(cls, frame: Frame, shared: Sharding) -> Held:
        """Of the rows of a frame."""
        sizes = frame.sizes
        parts, tied = sizes.step.parameters, frame.at(sizes.step.tied)
        dense, expert = [frame.at(part.dense) for part in parts], [frame.at(part.expert) for part in parts]
        kinds = list(zip(dense[:-2], expert[:-2], strict=True))
        sharded, experts = shared.weights > 1, shared.expert_weights > 1
        unit: Floats = np.max([sharded * one + experts * routed for one, routed in kinds], axis=0)
        block: Floats = np.max([one + routed for one, routed in kinds], axis=0)
        return cls(
            dense=dense,
            expert=expert,
            tied=tied,
            head=dense[-1] + tied,
            unit=unit,
            block=block,
            prediction=frame.kept(sizes.prediction),
            logits=frame.at(sizes.logits),
            head_bytes=frame.at(sizes.head_bytes),
            head_gradient_bytes=frame.at(sizes.head_gradient_bytes),
            boundary_bytes=frame.at(sizes.boundary_bytes),
            dummies_bytes=frame.at(sizes.dummies_bytes),
        )


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a stage holds beside weights, states and activations, in bytes.

    ``standing`` is there in the whole iteration: cuBLAS's workspaces (of PyTorch's forward and backward threads, and
    of Transformer Engine), the gradients that software keeps to hand to PyTorch in place of its own, a root unit's
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

    @classmethod
    def of(
        cls, frame: Frame, embedding: Floats, head: Floats, in_flight: Floats, shared: Sharding, held: Held
    ) -> Buffers:
        """Of a stage that holds so many embeddings and heads, and so many micro-batches in flight."""
        recipe, software = frame.job.recipe, frame.software
        width, unit = recipe.element_bytes, held.unit
        sharded = shared.weights > 1
        head_weights, first_weights = head * held.head, embedding * held.dense[-2]
        logits, streams, back = (head * one for one in (held.logits, held.head_bytes, held.head_gradient_bytes))
        copies = np.where(frame.table.x > 1, frame.constants.cut_loss_copies, frame.constants.loss_copies)
        standing = frame.constants.gradient_dummies * held.dummies_bytes
        standing = standing + frame.workspace_bytes * (2.0 + frame.constants.gradient_dummies)
        blocks, reduced = 2.0 * width * unit, recipe.gradient_bytes * unit
        at_head = width * (unit + sharded * head_weights)
        head_reduced, first_reduced = (recipe.gradient_bytes * sharded * one for one in (head_weights, first_weights))
        at_first = width * sharded * first_weights
        if software.root:
            standing = standing + width * sharded * (head_weights + first_weights)
            reduced = reduced + width * held.block
            at_head, at_first = blocks, frame.zeros()
            head_reduced, first_reduced = frame.zeros(), embedding * head_reduced + first_reduced
        if software.buffered:
            piped, steps = frame.pipeline > 1, frame.micro_batches
            standing = standing + piped * (2.0 * steps + in_flight) * held.boundary_bytes
            standing = standing + piped * (steps - 1.0) * width * logits
        if software.keeps_ends:
            standing = standing + _ends(frame, head, in_flight, held)
        return cls(
            standing=standing,
            forward=blocks,
            loss=at_head + streams + logits * (width + 4.0 * copies),
            head=at_head + streams + back + logits * width + width * head_weights + head_reduced,
            backward=blocks + reduced + frame.working,
            embedding=at_first + width * first_weights + first_reduced,
        )


def _ends(frame: Frame, head: Floats, in_flight: Floats, held: Held) -> Floats:
    """Outputs of chunks in flight but for logits; and where ZB-H1 puts off the head's weight gradients, the gradients
    and inputs that they wait with."""
    late = frame.table.scheduled(lambda one: one.splits_backward and not one.wraps)
    waiting = late * head * np.minimum(frame.pipeline - 1.0, frame.micro_batches)
    logits = frame.job.recipe.element_bytes * held.logits
    outputs = (frame.pipeline > 1) * in_flight * (frame.virtual - head)
    total: Floats = outputs * held.boundary_bytes + waiting * (logits + held.boundary_bytes)
    return total


def _choose(mask: Mask, yes: MemoryParts, no: MemoryParts) -> MemoryParts:
    names = [f.name for f in fields(MemoryParts)]
    return MemoryParts(**{name: np.where(mask, getattr(yes, name), getattr(no, name)) for name in names})
