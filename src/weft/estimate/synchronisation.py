"""Once per step: reduce gradients, update parameters, gather them again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.estimate.frame import Frame
from weft.estimate.pace import Slowest
from weft.estimate.weights import StepCosts, step_costs, take
from weft.layout.operations import HALF_BYTES
from weft.layout.table import Floats, Groups, Index, collapse

OPTIMIZER_BYTES = 12.0
"""Adam in mixed precision: fp32 master weight and two moments per parameter."""
UPDATE_BYTES = 34.0
"""Memory traffic of the optimizer per parameter: state read and written, gradient read twice (norm,
update), weight written."""


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Once per step: exposed gradient and parameter communication, update, its offload, and a lower bound."""

    exposed_s: Floats
    update_s: Floats
    offload_s: Floats
    bound_s: Floats


class StepSynchronisation:
    """Gradient reduction, optimizer and parameter gathering of a frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def costs(self, slowest: Slowest) -> Synchronisation:
        """Once per step: reduce gradients, update, gather parameters."""
        frames = collapse((self.frame.mesh, self.frame.line))
        dense, expert = self._stage_parameters(frames)
        mesh = self.frame.mesh[frames.first]
        groups, network = self.frame.costs.groups, self.frame.network
        width = self.frame.job.recipe.gradient_bytes
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
        mesh, line = self.frame.mesh[frames.first], self.frame.line[frames.first]
        dense, expert = np.zeros(len(line)), np.zeros(len(line))
        for stage in self.frame.stage_kinds:
            embedding, head = self.frame.stages.embedding[line, stage], self.frame.stages.head[line, stage]
            here = embedding * self.frame.costs.embedding_parameters[mesh]
            here += head * self.frame.costs.head_parameters[mesh]
            here += head * (1 - embedding) * self.frame.costs.tied_parameters[mesh]
            routed = np.zeros(len(line))
            for counts, parameters in zip(self.frame.stages.counts, self.frame.costs.parameters, strict=True):
                here += counts[line, stage] * parameters.dense[mesh]
                routed += counts[line, stage] * parameters.expert[mesh]
            dense, expert = np.maximum(dense, here), np.maximum(expert, routed)
        return dense, expert

    def _exposed_sync(
        self, frame: Index, parts: list[tuple[Floats, Floats, StepCosts]], slowest: Slowest
    ) -> Synchronisation:
        zero = self.frame.table.zero
        accelerator, constants = self.frame.cluster.accelerator, self.frame.constants
        reduce_s, gather_s, updated = np.zeros(len(frame)), np.zeros(len(frame)), np.zeros(len(frame))
        last, bound = np.ones(len(frame)), np.zeros(len(frame))
        for local, copies, costs in parts:
            reduce_s += np.where(zero > 0, costs.scatter_s[frame], costs.all_reduce_s[frame])
            gather_s += np.where(zero > 0, costs.gather_s[frame], 0.0)
            last = np.minimum(last, 1.0 / costs.buckets[frame])
            bound += costs.bound_s[frame]
            updated += local[frame] / np.where(zero > 0, copies[frame], 1.0)
        rounds = np.where(zero == 2, self.frame.micro_batches, 1.0)
        early = np.minimum(reduce_s * (1 - last), slowest.backward) * self.frame.table.overlap_reduce
        ahead = np.minimum(gather_s * (1 - last), slowest.forward) * self.frame.table.overlap_gather
        hidden = constants.overlap_cost * (rounds * early + ahead)
        exposed = rounds * (reduce_s - early) + gather_s - ahead + hidden
        memory_Bps = accelerator.memory_Bps * constants.optimizer_efficiency
        host_Bps = accelerator.host_Bps * constants.host_efficiency
        offloaded = self.frame.table.offload_optimizer.astype(np.float64)
        width = self.frame.job.recipe.gradient_bytes + HALF_BYTES
        on_host = updated * (width / host_Bps + OPTIMIZER_BYTES / constants.host_update_Bps)
        return Synchronisation(
            exposed_s=exposed,
            update_s=updated * UPDATE_BYTES / memory_Bps * (1 - offloaded),
            offload_s=on_host * offloaded,
            bound_s=bound,
        )
