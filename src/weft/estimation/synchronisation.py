"""Once per step: reduce gradients, update parameters, gather them again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.estimation.frame import TimedFrame
from weft.estimation.pace import Slowest
from weft.layout.table import Floats

UPDATE_BYTES = 34.0
"""Memory traffic of the optimizer per parameter: state read and written, gradient read twice (norm,
update), weight written."""


@dataclass(frozen=True, slots=True)
class Synchronisation:
    """Once per step: exposed gradient and parameter communication, update, its offload; and how much communication
    is hidden behind forward and backward passes."""

    exposed_s: Floats
    update_s: Floats
    offload_s: Floats
    forward_s: Floats
    backward_s: Floats


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Seconds to reduce all bucketed gradients once and to gather all parameters, the share of the last bucket,
    which nothing hides, and the parameters that a rank updates.  ``single_s`` is for what is summed at the end
    of the step and never hidden: vectors in buffers of their own, loss and norm."""

    reduce_s: Floats
    gather_s: Floats
    single_s: Floats
    last: Floats
    updated: Floats


class StepSynchronisation:
    """Gradient reduction, optimizer and parameter gathering of a frame."""

    def __init__(self, frame: TimedFrame) -> None:
        self.frame = frame

    def totals(self) -> StepTotals:
        """Dense and expert gradients together."""
        pair = self.frame.pair
        reduce_s, gather_s, updated = self.frame.zeros(), self.frame.zeros(), self.frame.zeros()
        single_s = self.frame.at(self.frame.costs.scalars_s)
        last = np.ones(len(self.frame))
        for gradients in self.frame.gradients:
            step = gradients.step
            bucketed = gradients.by_zero[pair] > 0
            sharded = (self.frame.table.zero > 0) & bucketed
            single_s = single_s + np.where(bucketed, 0.0, step.all_reduce_s[pair])
            reduce_s += bucketed * np.where(sharded, step.scatter_s[pair], step.all_reduce_s[pair])
            gather_s += np.where(sharded, step.gather_s[pair], 0.0)
            last = np.minimum(last, 1.0 / step.buckets[pair])
            updated += gradients.elements[pair] / np.where(sharded, gradients.replicas[pair], 1.0)
        return StepTotals(reduce_s, gather_s, single_s, last, updated)

    def costs(self, slowest: Slowest) -> Synchronisation:
        """Once per step: reduce gradients, update, gather parameters."""
        totals = self.totals()
        reduce_s, gather_s, last, updated = totals.reduce_s, totals.gather_s, totals.last, totals.updated
        zero = self.frame.table.zero
        accelerator, constants = self.frame.cluster.accelerator, self.frame.constants
        rounds = np.where(zero == 2, self.frame.micro_batches, 1.0)
        early = np.minimum(reduce_s * (1 - last), slowest.backward) * self.frame.table.overlap_reduce
        ahead: Floats = np.minimum(gather_s * (1 - last), slowest.forward) * self.frame.table.overlap_gather
        hidden = constants.overlap_cost * (rounds * early + ahead)
        exposed = rounds * (reduce_s - early) + gather_s - ahead + hidden + totals.single_s
        joined = self.frame.table.scheduled(lambda one: one.wraps)
        exposed += np.where(joined, 0.0, self.frame.at(self.frame.costs.tied_s))
        memory_Bps = accelerator.memory_Bps * constants.optimizer_efficiency
        host_Bps = accelerator.host_Bps * constants.host_efficiency
        offloaded = self.frame.table.offload_optimizer.astype(np.float64)
        width = self.frame.job.recipe.gradient_bytes + self.frame.job.recipe.element_bytes
        on_host = updated * (width / host_Bps + self.frame.job.recipe.optimizer_bytes / constants.host_update_Bps)
        return Synchronisation(
            exposed_s=exposed,
            update_s=updated * UPDATE_BYTES / memory_Bps * (1 - offloaded),
            offload_s=on_host * offloaded,
            forward_s=ahead,
            backward_s=rounds * early,
        )
