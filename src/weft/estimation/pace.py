"""The pipeline stage that sets the pace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from weft.estimation.blocks import BlockRow
from weft.estimation.frame import TimedFrame, weighted
from weft.layout.table import Floats


@dataclass(frozen=True, slots=True)
class Slowest:
    """The stage with the longest micro-batch (its blocks of each kind and times), the largest lower bound of any
    stage, and sums over all stages."""

    counts: list[Floats]
    forward: Floats
    backward: Floats
    weight_gradient: Floats
    bound: Floats
    all_forward: Floats
    all_backward: Floats
    all_weight_gradient: Floats

    @property
    def total(self) -> Floats:
        return self.forward + self.backward

    @classmethod
    def of(cls, rows: list[BlockRow], counts: list[Floats], repeats: Floats) -> Slowest:
        forward = weighted([row.forward_total for row in rows], counts)
        backward = weighted([row.backward_total for row in rows], counts)
        weight_gradient = weighted([row.weight_gradient for row in rows], counts)
        return cls(
            counts,
            forward,
            backward,
            weight_gradient,
            np.maximum(
                weighted([row.math_bound for row in rows], counts), weighted([row.wire_bound for row in rows], counts)
            ),
            repeats * forward,
            repeats * backward,
            repeats * weight_gradient,
        )

    def merge(self, other: Slowest) -> Slowest:
        later = other.total > self.total
        return Slowest(
            [np.where(later, b, a) for a, b in zip(self.counts, other.counts, strict=True)],
            np.where(later, other.forward, self.forward),
            np.where(later, other.backward, self.backward),
            np.where(later, other.weight_gradient, self.weight_gradient),
            np.maximum(self.bound, other.bound),
            self.all_forward + other.all_forward,
            self.all_backward + other.all_backward,
            self.all_weight_gradient + other.all_weight_gradient,
        )


def slowest_stage(frame: TimedFrame, rows: list[BlockRow]) -> Slowest:
    """The slowest stage of every row; ``rows`` are ``BlockRows.all``."""

    def of_stage(stage: int) -> Slowest:
        return Slowest.of(rows, frame.row_counts(stage), frame.stages.repeats[frame.line, stage])

    return reduce(Slowest.merge, map(of_stage, frame.stage_kinds))
