"""What is known of a scheduled collective, as a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.codec import Document, encode
from weft.collectives.schedules.bound import Shares
from weft.collectives.schedules.provision import Provision
from weft.collectives.schedules.timing import TimedSchedule, per_dimension
from weft.collectives.stages import STAGE_KINDS
from weft.fabric.dimension import Dimension
from weft.fabric.spec import Ints
from weft.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionRow(Document):
    """A dimension, the algorithms that ran on it, and how busy it was."""

    DOCUMENT = "number dimension.* algorithm sent_bytes busy_s idle_s utilization"

    number: int
    dimension: Dimension
    algorithm: str
    sent_bytes: float
    busy_s: float
    idle_s: float
    utilization: float


@dataclass(frozen=True, slots=True)
class PolicyTime:
    """What a policy takes, in so many chunks."""

    policy: str
    chunks: int
    time_s: float
    utilization: float


@dataclass(frozen=True, slots=True)
class ChunkCount:
    """What the policies take in so many chunks."""

    chunks: int
    policies: tuple[PolicyTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ScheduleResult(Result):
    """One timed schedule of a request, what bounds it, and what else was asked for.

    ``baseline`` is the usual hierarchical order on the same machine, ``others`` are policies by name, ``counts`` the
    same for each of several numbers of chunks.
    """

    SCHEMA = "weft.schedule/1"
    DOCUMENT = """
        collective=timed.schedule.request.kind bytes=timed.schedule.request.bytes
        accelerators=timed.schedule.request.accelerators policy=timed.schedule.policy order=timed.rule chunks
        active=timed.active time_s ideal_s bound_s bandwidth_bound_s=shares.bandwidth_s utilization=timed.utilization
        assumptions=every_assumption dimensions orders gather_orders? chunk_bytes=timed.schedule.chunk_bytes provision
        policies? chunk_counts?"""
    INDENT = None

    timed: TimedSchedule
    baseline: TimedSchedule
    shares: Shares
    ideal_s: float
    provision: Provision
    assumptions: tuple[str, ...] = ()
    others: Mapping[str, TimedSchedule] | None = None
    counts: Mapping[int, Mapping[str, TimedSchedule]] = field(default_factory=dict)

    @property
    def time_s(self) -> float:
        return self.timed.time_s

    @property
    def bound_s(self) -> float:
        """No schedule of chunks over these dimensions is faster."""
        return self.shares.bound_s

    def algorithms(self) -> list[str]:
        """What stages of each dimension ran, as "in-switch + ring"; "-" where nobody talks."""
        collective, stages = self.timed.schedule.request, self.timed.stages
        result = []
        for i in range(len(collective.dimensions)):
            kinds = np.unique(stages.kind[stages.dimension == i]).tolist()
            names = sorted({collective.stage(STAGE_KINDS[kind], i).algorithm for kind in kinds})
            result.append(" + ".join(names) or "-")
        return result

    @property
    def dimensions(self) -> tuple[DimensionRow, ...]:
        """The dimensions, inner to outer: what each is, and how busy it was."""
        timed = self.timed
        dimensions = timed.schedule.request.dimensions
        sent = per_dimension(timed.stages, timed.stages.sent_bytes, len(dimensions))
        return tuple(
            DimensionRow(
                number=i + 1,
                dimension=dimension,
                algorithm=algorithm,
                sent_bytes=float(sent[i]),
                busy_s=float(timed.busy_s[i]),
                idle_s=float(timed.idle_s[i]),
                utilization=float(timed.dimension_utilization[i]),
            )
            for i, (dimension, algorithm) in enumerate(zip(dimensions, self.algorithms(), strict=True))
        )

    @property
    def chunks(self) -> int:
        return len(self.timed.schedule)

    @property
    def every_assumption(self) -> tuple[str, ...]:
        return (*self.timed.schedule.request.notes, *self.assumptions)

    @property
    def orders(self) -> Ints:
        """The dimensions' order of each chunk, from 1."""
        return self.timed.schedule.orders + 1

    @property
    def gather_orders(self) -> list[list[int]] | None:
        gathers = self.timed.schedule.gathers
        return None if gathers is None else (gathers + 1).tolist()

    @property
    def policies(self) -> tuple[PolicyTime, ...] | None:
        return None if self.others is None else _policy_times(self.others)

    @property
    def chunk_counts(self) -> tuple[ChunkCount, ...]:
        return tuple(ChunkCount(chunks, _policy_times(times)) for chunks, times in self.counts.items())

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a dimension, inner to outer."""
        return [encode(row) for row in self.dimensions]


def _policy_times(result: Mapping[str, TimedSchedule]) -> tuple[PolicyTime, ...]:
    return tuple(PolicyTime(name, len(run.schedule), run.time_s, run.utilization) for name, run in result.items())
