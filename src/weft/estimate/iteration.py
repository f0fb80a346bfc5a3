"""The closed-form clock: iteration time and memory of a table of layouts.

Costs that depend only on the mesh and the micro-batch are computed once per distinct mesh (``costs``), gradient synchronisation once
per distinct mesh and stage split (``weights``); the rest is arithmetic per row.  Rows must have passed
``weft.layout.check``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from weft.cluster.calibration import Calibration, calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import Network
from weft.estimate.costs import CostModel, PartCosts
from weft.estimate.kernels import Kernels
from weft.estimate.memory import (
    Activations,
    Parameters,
    block_activations,
    block_parameters,
    embedding_parameters,
    head_parameters,
    logits_bytes,
)
from weft.estimate.result import EstimateTable, MemoryParts, TimeParts
from weft.estimate.weights import (
    ShardCosts,
    StepCosts,
    WeightGroups,
    shard_costs,
    step_costs,
    take,
    weight_groups,
)
from weft.layout.operations import HALF_BYTES, stage_boundary
from weft.layout.spec import RECOMPUTES, SCHEDULES
from weft.layout.stages import StageTable, stage_table
from weft.layout.table import Floats, Groups, Index, LayoutTable, collapse
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

OPTIMIZER_BYTES = 12.0
"""Adam in mixed precision: fp32 master weight and two moments per parameter."""
UPDATE_BYTES = 34.0
"""Memory traffic of the optimizer per parameter: state read and written, gradient read twice (norm, update), weight written."""


@dataclass(frozen=True, slots=True)
class MeshCosts:
    """Everything that depends only on the distinct meshes of a table."""

    blocks: tuple[PartCosts, ...]
    embedding: PartCosts
    head: PartCosts
    parameters: tuple[Parameters, ...]
    activations: tuple[Activations, ...]
    shards: tuple[ShardCosts, ...]
    embedding_parameters: Floats
    head_parameters: Floats
    logits_bytes: Floats
    send_s: Floats
    groups: WeightGroups


class Estimator:
    """Estimates layouts of one job on one cluster.

    Args:
        job: model and recipe.
        cluster: accelerators and tiers.
        constants: calibration; the shipped one of the accelerator by default.

    Raises:
        Unsupported: the accelerator lacks the recipe's precision.
    """

    def __init__(self, job: Job, cluster: Cluster, constants: Calibration | None = None) -> None:
        self.job, self.cluster = job, cluster
        self.constants = constants or calibration(cluster.accelerator.name)
        self.network = Network.of(cluster, self.constants)
        self.kernels = Kernels(cluster.accelerator, self.constants, job.recipe.precision)
        self.kernels.peak(core=False)

    def evaluate(self, table: LayoutTable) -> EstimateTable:
        """Time and memory of every row."""
        meshes = collapse([table.column(name) for name in MESH_COLUMNS])
        costs = self.mesh_costs(table.take(meshes.first))
        wraps = (table.schedule == SCHEDULES.index("zbv")).astype(np.int64)
        stages, line = stage_table(self.job.model, table.pipeline, table.virtual_stages, wraps)
        return Rows(self, table, meshes, costs, stages, line).estimate()

    def mesh_costs(self, mesh: LayoutTable) -> MeshCosts:
        """Costs of each row of a table of distinct meshes."""
        model, recipe = self.job.model, self.job.recipe
        costs = CostModel(self.job, self.kernels, self.network, mesh)
        groups = weight_groups(mesh, self.network.spans)
        parameters = tuple(block_parameters(kind, costs.sizes) for kind in model.kinds)
        return MeshCosts(
            blocks=costs.blocks(),
            embedding=costs.embedding(),
            head=costs.head(),
            parameters=parameters,
            activations=tuple(block_activations(kind, recipe, costs.sizes) for kind in model.kinds),
            shards=tuple(self._shards(one, groups) for one in parameters),
            embedding_parameters=embedding_parameters(model, costs.sizes),
            head_parameters=head_parameters(model, costs.sizes),
            logits_bytes=logits_bytes(model, costs.sizes),
            send_s=costs.collective_sum(stage_boundary(model, costs.sizes)),
            groups=groups,
        )

    def _shards(self, parameters: Parameters, groups: WeightGroups) -> ShardCosts:
        width = self.job.recipe.gradient_bytes
        dense = shard_costs(parameters.dense, width, groups.shard, self.network)
        return dense + shard_costs(parameters.expert, width, groups.expert_shard, self.network)


@dataclass(slots=True)
class BlockRow:
    """One kind of block on every row: seconds per micro-batch."""

    forward: Floats
    backward: Floats
    recompute: Floats
    weight_gradient: Floats
    tensor: Floats
    context: Floats
    expert: Floats
    weights: Floats
    forward_total: Floats
    backward_total: Floats
    flops: Floats
    replayed_flops: Floats
    math_bound: Floats
    wire_bound: Floats


class Rows:
    """The arithmetic per row of one evaluation."""

    def __init__(
        self,
        estimator: Estimator,
        table: LayoutTable,
        meshes: Groups,
        costs: MeshCosts,
        stages: StageTable,
        line: Index,
    ) -> None:
        self.estimator, self.table, self.costs = estimator, table, costs
        self.mesh, self.stages, self.line = meshes.group, stages, line
        self.meshes = meshes
        self.job, self.constants = estimator.job, estimator.constants
        self.pipeline = table.pipeline.astype(np.float64)
        self.virtual = table.virtual_stages.astype(np.float64)
        ranks = table.micro_batch * table.z * table.data
        self.micro_batches = self.job.recipe.global_batch / ranks
        self.selective = (table.recompute == RECOMPUTES.index("selective")).astype(np.float64)
        self.replayed = self._replayed_share()

    def at(self, values: Floats) -> Floats:
        """Per-mesh values on every row."""
        return values[..., self.mesh]

    def _replayed_share(self) -> Floats:
        """Share of a stage's blocks that are recomputed whole."""
        full = self.table.recompute == RECOMPUTES.index("full")
        layers = np.ceil(self.job.model.layers / self.pipeline)
        share = np.minimum(self.table.recompute_layers / layers, 1.0)
        return np.where(full, np.where(self.table.recompute_layers > 0, share, 1.0), 0.0)

    # One block ------------------------------------------------------------------------------

    def block(self, part: PartCosts, shards: ShardCosts | None) -> BlockRow:
        """One block (or the embedding or head) per micro-batch, with what overlap leaves exposed."""
        forward = self.at(part.forward_s)
        weight_gradient = self.at(part.weight_gradient_s)
        backward = self.at(part.input_gradient_s) + weight_gradient
        replay = self.replayed if shards is not None else np.zeros_like(self.replayed)
        recompute = replay * forward
        if shards is not None:
            cheap = part.core_s if self.job.recipe.attention == "unfused" else part.cheap_s
            recompute = recompute + self.selective * self.at(cheap)
        tensor_forward, tensor_backward, hidden = self._tensor(part)
        context_forward, context_backward = self._exposed(part.context_forward_s, part.context_backward_s)
        expert_forward, expert_backward = self._exposed(part.expert_forward_s, part.expert_backward_s)
        across_forward = tensor_forward + context_forward + expert_forward
        across_backward = tensor_backward + context_backward + expert_backward + replay * across_forward
        forward_total = forward + across_forward
        backward_total = backward + recompute + across_backward
        weights_forward, weights_backward, weights_hidden = self._shards(
            shards, forward_total, backward_total
        )
        slowed = self.constants.overlap_cost * (hidden + weights_hidden)
        return BlockRow(
            forward=forward,
            backward=backward + slowed,
            recompute=recompute,
            weight_gradient=weight_gradient,
            tensor=tensor_forward * (1 + replay) + tensor_backward,
            context=context_forward * (1 + replay) + context_backward,
            expert=expert_forward * (1 + replay) + expert_backward,
            weights=weights_forward + weights_backward,
            forward_total=forward_total + weights_forward,
            backward_total=backward_total + slowed + weights_backward,
            flops=self.at(part.flops),
            replayed_flops=replay * self.at(part.flops) + self.selective * self.at(part.core_flops),
            math_bound=self.at(part.math_bound_s),
            wire_bound=self._wire_bound(part, shards),
        )

    def _tensor(self, part: PartCosts) -> tuple[Floats, Floats, Floats]:
        mode = self.table.overlap_tensor
        values = (part.tensor_forward_s, part.tensor_backward_s, part.tensor_hidden_s)
        forward, backward, hidden = (value[mode, self.mesh] for value in values)
        return forward, backward, hidden

    def _exposed(self, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
        if not forward.any():
            zero = np.zeros(len(self.mesh))
            return zero, zero
        return self.at(forward), self.at(backward)

    def _shards(
        self, shards: ShardCosts | None, forward: Floats, backward: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Gathering and scattering over z: exposed forward, exposed backward, hidden."""
        if shards is None or not shards.gather_s.any():
            zero = np.zeros_like(forward)
            return zero, zero, zero
        gather, scatter = self.at(shards.gather_s), self.at(shards.scatter_s)
        prefetched = gather * self.table.overlap_gather
        behind = prefetched + scatter * self.table.overlap_reduce
        exposed_forward = gather - np.minimum(prefetched, forward)
        exposed_backward = gather + scatter - np.minimum(behind, backward)
        return exposed_forward, exposed_backward, 2 * gather + scatter - exposed_forward - exposed_backward

    def _wire_bound(self, part: PartCosts, shards: ShardCosts | None) -> Floats:
        """The busiest single axis; axes may run at once."""
        bound = np.maximum(part.tensor_bound_s, np.maximum(part.context_bound_s, part.expert_bound_s))
        if shards is not None:
            bound = np.maximum(bound, 3.0 * shards.bound_s)
        return self.at(bound)

    # One iteration --------------------------------------------------------------------------

    def estimate(self) -> EstimateTable:
        """Assemble iteration time, bound and memory."""
        rows = [
            self.block(part, shards)
            for part, shards in zip(self.costs.blocks, self.costs.shards, strict=True)
        ]
        rows += [self.block(self.costs.embedding, None), self.block(self.costs.head, None)]
        slowest = self._slowest_stage(rows)
        time = self._time(rows, slowest)
        total = sum((getattr(time, f.name) for f in fields(TimeParts)), np.zeros(len(self.mesh)))
        memory, held = self._memory()
        return EstimateTable(
            iteration_s=total,
            memory_bytes=held,
            lower_bound_s=self._bound(rows, slowest),
            hardware_flops=self._hardware_flops(rows),
            time=time,
            memory=memory,
        )

    def _counts(self, stage: int) -> list[Floats]:
        """Blocks of each kind, embedding and head in the given line of each row's stage table."""
        stages = self.stages
        arrays = [*stages.counts, stages.embedding, stages.head]
        return [array[self.line, stage] for array in arrays]

    def _slowest_stage(self, rows: list[BlockRow]) -> Slowest:
        """The stage that sets the pace, and sums over all stages."""
        found: Slowest | None = None
        for stage in range(self.stages.repeats.shape[1]):
            counts = self._counts(stage)
            here = Slowest.of(rows, counts, self.stages.repeats[self.line, stage])
            found = here if found is None else found.merge(here)
        assert found is not None
        return found

    def _time(self, rows: list[BlockRow], slowest: Slowest) -> TimeParts:
        steps = self.micro_batches

        def part(name: str) -> Floats:
            return steps * _weighted([getattr(row, name) for row in rows], slowest.counts)

        sync = self._synchronisation(slowest)
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
            offload_s=sync.offload_s + self._activation_offload(slowest),
            host_s=np.full(len(self.mesh), self.constants.iteration_s),
        )

    def _bubble(self, slowest: Slowest) -> Floats:
        """Fill and drain: the other stages' time once, less what the schedule fills.

        1F1B (p-1)(F+B); interleaved 1/v of it; ZB-1P defers weight gradients, (p-1)(F+B-2W); ZB-V (p-1)(F+B-3W),
        with B including W (arXiv 2401.10241, table 1).
        """
        others = slowest.all_s - slowest.total
        deferred = slowest.all_weight_gradient - slowest.weight_gradient
        schedule = self.table.schedule
        zero_bubble = np.where(schedule == SCHEDULES.index("zbv"), 3.0, 2.0) * deferred
        filled = np.maximum(others - zero_bubble, 0.0)
        return np.where(schedule >= SCHEDULES.index("zb1p"), filled, others / self.virtual)

    def _sends(self, slowest: Slowest) -> Floats:
        """Stage boundaries: blocking in plain 1F1B, hidden behind the next chunk in the other schedules, and once per stage to fill and drain."""
        hop = self.at(self.costs.send_s)
        chunk = slowest.forward / self.virtual
        steady = np.where(
            self.table.schedule == SCHEDULES.index("1f1b"), hop, np.maximum(hop - chunk, 0.0)
        )
        passes = 2.0 * self.micro_batches * self.virtual
        return np.where(self.pipeline > 1, passes * steady + 2.0 * (self.pipeline - 1) * hop, 0.0)

    def _activation_offload(self, slowest: Slowest) -> Floats:
        """Activations leave behind forward and return behind backward; what does not fit behind is exposed."""
        if not self.table.offload_activations.any():
            return np.zeros(len(self.mesh))
        host = self.estimator.cluster.accelerator.host_Bps * self.constants.host_efficiency
        kept = [self._kept(activations) for activations in self.costs.activations]
        moved = _weighted(kept, slowest.counts[: len(kept)]) / host
        exposed = np.maximum(moved - slowest.forward, 0.0) + np.maximum(moved - slowest.backward, 0.0)
        return self.micro_batches * exposed * self.table.offload_activations

    # Gradients and the optimizer ---------------------------------------------------------------

    def _synchronisation(self, slowest: Slowest) -> Synchronisation:
        """Once per step: reduce gradients, update, gather parameters."""
        frames = collapse((self.mesh, self.line))
        dense, expert = self._stage_parameters(frames)
        mesh = self.mesh[frames.first]
        groups, network = self.costs.groups, self.estimator.network
        width = self.job.recipe.gradient_bytes
        parts = []
        for elements, shard, replica in (
            (dense, groups.shard, groups.replica),
            (expert, groups.expert_shard, groups.expert_replica),
        ):
            local = elements / shard.size[mesh]
            copies = take(replica, mesh)
            parts.append((local, copies.size, step_costs(local, width, copies, network)))
        return self._exposed_sync(frames.group, parts, slowest)

    def _stage_parameters(self, frames: Groups) -> tuple[Floats, Floats]:
        """Dense and expert parameters of the largest stage, per distinct mesh and split."""
        mesh, line = self.mesh[frames.first], self.line[frames.first]
        dense, expert = np.zeros(len(line)), np.zeros(len(line))
        for stage in range(self.stages.repeats.shape[1]):
            here = self.stages.embedding[line, stage] * self.costs.embedding_parameters[mesh]
            here += self.stages.head[line, stage] * self.costs.head_parameters[mesh]
            routed = np.zeros(len(line))
            for counts, parameters in zip(self.stages.counts, self.costs.parameters, strict=True):
                here += counts[line, stage] * parameters.dense[mesh]
                routed += counts[line, stage] * parameters.expert[mesh]
            dense, expert = np.maximum(dense, here), np.maximum(expert, routed)
        return dense, expert

    def _exposed_sync(
        self, frame: Index, parts: list[tuple[Floats, Floats, StepCosts]], slowest: Slowest
    ) -> Synchronisation:
        zero = self.table.zero
        accelerator, constants = self.estimator.cluster.accelerator, self.constants
        reduce_s, gather_s, updated = np.zeros(len(frame)), np.zeros(len(frame)), np.zeros(len(frame))
        last, bound = np.ones(len(frame)), np.zeros(len(frame))
        for local, copies, costs in parts:
            reduce_s += np.where(zero > 0, costs.scatter_s[frame], costs.all_reduce_s[frame])
            gather_s += np.where(zero > 0, costs.gather_s[frame], 0.0)
            last = np.minimum(last, 1.0 / costs.buckets[frame])
            bound += costs.bound_s[frame]
            updated += local[frame] / np.where(zero > 0, copies[frame], 1.0)
        rounds = np.where(zero == 2, self.micro_batches, 1.0)
        early = np.minimum(reduce_s * (1 - last), slowest.backward) * self.table.overlap_reduce
        ahead = np.minimum(gather_s * (1 - last), slowest.forward) * self.table.overlap_gather
        hidden = constants.overlap_cost * (rounds * early + ahead)
        exposed = rounds * (reduce_s - early) + gather_s - ahead + hidden
        memory_Bps = accelerator.memory_Bps * constants.optimizer_efficiency
        host_Bps = accelerator.host_Bps * constants.host_efficiency
        offloaded = self.table.offload_optimizer.astype(np.float64)
        width = self.job.recipe.gradient_bytes + HALF_BYTES
        on_host = updated * (width / host_Bps + OPTIMIZER_BYTES / constants.host_update_Bps)
        return Synchronisation(
            exposed_s=exposed,
            update_s=updated * UPDATE_BYTES / memory_Bps * (1 - offloaded),
            offload_s=on_host * offloaded,
            bound_s=bound,
        )

    # Memory ----------------------------------------------------------------------------------

    def _kept(self, activations: Activations) -> Floats:
        """Activation bytes that one block keeps per micro-batch, after recomputation."""
        none, full = self.at(activations.none), self.at(activations.full)
        kept = none + self.selective * (self.at(activations.selective) - none)
        return kept + self.replayed * (full - kept)

    def _in_flight(self, stage: Floats) -> Floats:
        """Micro-batches whose activations a stage holds at once, in whole stages' worth (arXiv 2205.05198, section 4.2.3)."""
        behind = self.pipeline - stage
        schedule = self.table.schedule
        chunks = (2.0 * behind - 1.0 + (self.virtual - 1.0) * self.pipeline) / self.virtual
        held = np.where(schedule == SCHEDULES.index("interleaved"), chunks, behind)
        held = np.where(schedule >= SCHEDULES.index("zb1p"), self.pipeline, held)
        return np.minimum(held, self.micro_batches)

    def _memory(self) -> tuple[MemoryParts, Floats]:
        """Memory of the fullest stage."""
        kept = [self._kept(activations) for activations in self.costs.activations]
        working = np.max([self.at(a.none) for a in self.costs.activations], axis=0)
        working = np.where(self.replayed > 0, working, 0.0)
        shared = self._sharding()
        best: MemoryParts | None = None
        most = np.full(len(self.mesh), -1.0)
        for stage in range(self.stages.repeats.shape[1]):
            parts = self._stage_memory(stage, kept, working, shared)
            total = sum((getattr(parts, n) for n in _MEMORY), np.zeros(len(self.mesh)))
            fuller = (total > most) & (self.stages.repeats[self.line, stage] > 0)
            best = parts if best is None else _choose(fuller, parts, best)
            most = np.where(fuller, total, most)
        assert best is not None
        return best, most

    def _sharding(self) -> Sharding:
        """By how much weights, gradients and optimizer states are divided, for dense and expert parameters."""
        groups, zero = self.costs.groups, self.table.zero
        cuts = []
        for shard, replica in (
            (groups.shard, groups.replica),
            (groups.expert_shard, groups.expert_replica),
        ):
            cut, copies = self.at(shard.size), self.at(replica.size)
            gradients = cut * np.where(zero >= 2, copies, 1.0)
            cuts.append((cut, gradients, cut * np.where(zero >= 1, copies, 1.0)))
        return Sharding(*cuts[0], *cuts[1])

    def _stage_memory(
        self, stage: int, kept: list[Floats], working: Floats, shared: Sharding
    ) -> MemoryParts:
        counts = self._counts(stage)
        kinds = len(self.costs.parameters)
        embedding, head = counts[kinds], counts[kinds + 1]
        dense = _weighted([self.at(p.dense) for p in self.costs.parameters], counts[:kinds])
        dense = dense + embedding * self.at(self.costs.embedding_parameters)
        dense = dense + head * self.at(self.costs.head_parameters)
        expert = _weighted([self.at(p.expert) for p in self.costs.parameters], counts[:kinds])
        whole = shared.weights <= 1.0
        gradient_bytes = float(self.job.recipe.gradient_bytes)
        optimizer = OPTIMIZER_BYTES * (1 - self.table.offload_optimizer)
        held = _weighted(kept, counts[:kinds])
        flight = np.where(
            self.table.offload_activations > 0, np.minimum(2.0, self.micro_batches), 1.0
        )
        in_flight = self._in_flight(self.stages.stage[self.line, stage])
        flight = np.where(self.table.offload_activations > 0, np.minimum(flight, in_flight), in_flight)
        weights = HALF_BYTES * (np.where(whole, dense, 0.0) + np.where(shared.expert_weights <= 1, expert, 0.0))
        gradients = gradient_bytes * (dense / shared.gradients + expert / shared.expert_gradients)
        state = dense / shared.optimizer + expert / shared.expert_optimizer
        buffers = self._buffers(head, working, shared, gradients)
        subtotal = weights + gradients + optimizer * state + held * flight + buffers
        reserve = subtotal * self.constants.fragmentation + self.constants.reserved_bytes
        return MemoryParts(
            weights_bytes=weights,
            gradients_bytes=gradients,
            optimizer_bytes=optimizer * state,
            activations_bytes=held * flight,
            buffers_bytes=buffers,
            reserve_bytes=reserve,
            stage=self.stages.stage[self.line, stage],
        )

    def _buffers(self, head: Floats, working: Floats, shared: Sharding, gradients: Floats) -> Floats:
        """Gathered weights of two blocks (one prefetched) and gradients of one where z > 1, logits, one recomputed block."""
        buffers = working + head * self.at(self.costs.logits_bytes)
        blocks = [
            np.where(shared.weights > 1, self.at(p.dense), 0.0)
            + np.where(shared.expert_weights > 1, self.at(p.expert), 0.0)
            for p in self.costs.parameters
        ]
        largest = blocks[0] if len(blocks) == 1 else np.max(blocks, axis=0)
        return buffers + (2 * HALF_BYTES + self.job.recipe.gradient_bytes) * largest

    # Bounds and FLOPs -------------------------------------------------------------------------

    def _bound(self, rows: list[BlockRow], slowest: Slowest) -> Floats:
        """No schedule of this layout is faster: the slowest stage's arithmetic at peak, or its busiest axis at peak bandwidth."""
        math = _weighted([row.math_bound for row in rows], slowest.counts)
        wire = _weighted([row.wire_bound for row in rows], slowest.counts)
        return self.micro_batches * np.maximum(math, wire)

    def _hardware_flops(self, rows: list[BlockRow]) -> Floats:
        """FLOPs of all ranks of one iteration, recomputation included."""
        totals = np.zeros(len(self.mesh))
        kinds = len(self.costs.blocks)
        sequence = np.bincount(self.job.model.block_sequence(), minlength=kinds)
        for row, count in zip(rows, [*sequence, 1, 1], strict=True):
            totals += count * (3.0 * row.flops + row.replayed_flops)
        return totals * self.micro_batches * self.table.stage_ranks


_MEMORY = tuple(f.name for f in fields(MemoryParts) if f.name.endswith("_bytes"))


@dataclass(frozen=True, slots=True)
class Slowest:
    """The stage with the longest micro-batch (its blocks of each kind and times), and sums over all stages."""

    counts: list[Floats]
    forward: Floats
    backward: Floats
    weight_gradient: Floats
    all_s: Floats
    all_weight_gradient: Floats

    @property
    def total(self) -> Floats:
        return self.forward + self.backward

    @classmethod
    def of(cls, rows: list[BlockRow], counts: list[Floats], repeats: Floats) -> Slowest:
        forward = _weighted([row.forward_total for row in rows], counts)
        backward = _weighted([row.backward_total for row in rows], counts)
        weight_gradient = _weighted([row.weight_gradient for row in rows], counts)
        return cls(
            counts,
            forward,
            backward,
            weight_gradient,
            repeats * (forward + backward),
            repeats * weight_gradient,
        )

    def merge(self, other: Slowest) -> Slowest:
        later = other.total > self.total
        return Slowest(
            [np.where(later, b, a) for a, b in zip(self.counts, other.counts, strict=True)],
            np.where(later, other.forward, self.forward),
            np.where(later, other.backward, self.backward),
            np.where(later, other.weight_gradient, self.weight_gradient),
            self.all_s + other.all_s,
            self.all_weight_gradient + other.all_weight_gradient,
        )


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Once per step: exposed gradient and parameter communication, update, its offload, and a lower bound."""

    exposed_s: Floats
    update_s: Floats
    offload_s: Floats
    bound_s: Floats


@dataclass(frozen=True, slots=True)
class Sharding:
    """Divisors of weights, gradients and optimizer states."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    expert_weights: Floats
    expert_gradients: Floats
    expert_optimizer: Floats


def _weighted(values: list[Floats], counts: list[Floats]) -> Floats:
    total = counts[0] * values[0]
    for count, value in zip(counts[1:], values[1:], strict=True):
        total = total + count * value
    return total


def _choose(mask: Floats, yes: MemoryParts, no: MemoryParts) -> MemoryParts:
    names = [f.name for f in fields(MemoryParts)]
    return MemoryParts(**{name: np.where(mask, getattr(yes, name), getattr(no, name)) for name in names})
