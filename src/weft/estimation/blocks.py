"""One block per micro-batch on every row: computation, and what overlap leaves of its communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.estimation.costs import PartCosts
from weft.estimation.frame import TimedFrame, weighted
from weft.estimation.weights import ShardCosts
from weft.layout.table import Floats


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


class BlockRows:
    """Blocks, embedding and head of a frame."""

    def __init__(self, frame: TimedFrame) -> None:
        self.frame = frame

    def all(self) -> list[BlockRow]:
        """Each kind of block, where only some are recomputed also as it is without, the embedding and the
        head; as ``Frame.row_counts`` counts them."""
        parts = list(zip(self.frame.costs.parts, self.frame.costs.shards, strict=True))
        never = self.frame.zeros()
        replays = [self.frame.repeated, never] if self.frame.partial else [self.frame.repeated]
        blocks = [self.block(*one, replays=replays, repeats=True) for one in parts[:-2]]
        edges = [self.block(*one, replays=[never], repeats=False) for one in parts[-2:]]
        return [row for some in (*zip(*blocks, strict=True), *edges) for row in some]

    def model_counts(self) -> list[Floats]:
        """How often the whole model has what each row of ``all`` is."""
        if self.frame.partial:
            repeats = [self.frame.stages.repeats[self.frame.line, stage] for stage in self.frame.stage_kinds]
            every = [self.frame.row_counts(stage) for stage in self.frame.stage_kinds]
            return [weighted(list(some), repeats) for some in zip(*every, strict=True)]
        kinds = len(self.frame.costs.parts) - 2
        sequence = np.bincount(self.frame.job.model.block_sequence(), minlength=kinds)
        return [np.full(1, float(count)) for count in (*sequence, 1, 1)]

    def block(
        self, part: PartCosts, shards: ShardCosts, *, replays: Sequence[Floats], repeats: bool
    ) -> list[BlockRow]:
        """One block (or the embedding or head, which recomputation never ``repeats``) per micro-batch, with
        what overlap leaves exposed, for each of ``replays``: the share of it that is recomputed."""
        forward = self.frame.at(part.forward_s)
        weight_gradient = self.frame.at(part.weight_gradient_s)
        backward = self.frame.at(part.input_gradient_s) + weight_gradient
        cheap = self.frame.zeros()
        if repeats and self.frame.cheap.any():
            wanted = part.core_s if self.frame.job.recipe.attention == "unfused" else part.cheap_s
            cheap = self.frame.cheap * self.frame.at(wanted)
        tensor_forward, tensor_backward, hidden = self._tensor(part)
        context_forward, context_backward = self._exposed(part.context_forward_s, part.context_backward_s)
        expert_forward, expert_backward = self._exposed(part.expert_forward_s, part.expert_backward_s)
        across_forward = tensor_forward + context_forward + expert_forward
        across_backward = tensor_backward + context_backward + expert_backward
        forward_total = forward + across_forward
        flops, core_flops = self.frame.at(part.flops), self.frame.cheap * self.frame.at(part.core_flops)
        math_bound, wire_bound = self.frame.at(part.math_bound_s), self._wire_bound(part, shards)
        skipped = (1.0 - self.frame.constants.recompute_share) * self.frame.at(part.linear_s)
        found = []
        for replay in replays:
            recompute = replay * (forward - skipped) + cheap
            backward_total = backward + recompute + across_backward + replay * across_forward
            weights_forward, weights_backward, weights_hidden = self._shards(
                shards, replay, forward_total, backward_total
            )
            slowed = self.frame.constants.overlap_cost * (hidden + weights_hidden)
            found.append(
                BlockRow(
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
                    flops=flops,
                    replayed_flops=replay * flops + core_flops,
                    math_bound=math_bound,
                    wire_bound=wire_bound,
                )
            )
        return found

    def _tensor(self, part: PartCosts) -> tuple[Floats, Floats, Floats]:
        mode = self.frame.table.overlap_tensor
        values = (part.tensor_forward_s, part.tensor_backward_s, part.tensor_hidden_s)
        forward, backward, hidden = (value[mode, self.frame.mesh] for value in values)
        return forward, backward, hidden

    def _exposed(self, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
        if not forward.any():
            zero = self.frame.zeros()
            return zero, zero
        return self.frame.at(forward), self.frame.at(backward)

    def _shards(
        self, shards: ShardCosts, replay: Floats, forward: Floats, backward: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Gathering and scattering over z: exposed forward, exposed backward, hidden."""
        if not shards.forward_s.any():
            zero = np.zeros_like(forward)
            return zero, zero, zero
        ahead, scatter = self.frame.at(shards.forward_s), self.frame.at(shards.scatter_s)
        again = self.frame.at(shards.backward_s)
        if shards.replay_s.any():
            again = again + replay * self.frame.at(shards.replay_s)
        prefetch = self.frame.table.overlap_gather
        behind = again * prefetch + scatter * self.frame.table.overlap_reduce
        exposed_forward = ahead - np.minimum(ahead * prefetch, forward)
        exposed_backward = again + scatter - np.minimum(behind, backward)
        return exposed_forward, exposed_backward, ahead + again + scatter - exposed_forward - exposed_backward

    def _wire_bound(self, part: PartCosts, shards: ShardCosts) -> Floats:
        """The busiest single axis; axes may run at once."""
        axes = (part.tensor_bound_s, part.contract_bound_s, part.context_bound_s, part.expert_bound_s)
        bound = np.maximum.reduce(axes)
        return self.frame.at(np.maximum(bound, shards.bound_s))
