"""How long a schedule takes: its chunks queue at the dimensions, all ranks alike.

``activity`` says how busy each dimension is over time (Themis, figure 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from weft.collectives.schedules.chunks import Schedule, Stages, stages_of
from weft.collectives.schedules.queues import Chart, QueueRule, order_of, play
from weft.errors import BadInput
from weft.fabric.spec import Floats, Ints

Active = int | Literal["auto"] | None
LATENCY_SHARE = 0.005
"""Where latencies, one after the other, cost no dimension more than this share of the mean work, one chunk at
a time fills the links and ``auto`` means 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedSchedule:
    """A schedule in time.

    ``ranks`` is the place of each stage among those of its dimension: the order that every rank keeps, so
    that none waits for another in a circle.  ``active`` is how many chunks a dimension worked on at a time
    (None: latencies overlapped without limit).
    """

    schedule: Schedule
    stages: Stages
    chart: Chart
    ranks: Ints
    rule: QueueRule
    active: int | None

    @property
    def time_s(self) -> float:
        return self.chart.time_s

    @property
    def busy_s(self) -> Floats:
        """Seconds of each dimension at full bandwidth."""
        return per_dimension(self.stages, self.stages.work_s, len(self.schedule.request.dimensions))

    @property
    def dimension_utilization(self) -> Floats:
        """The share of the time that each dimension's bandwidth was used."""
        return self.busy_s / self.time_s if self.time_s > 0 else np.zeros_like(self.busy_s)

    @property
    def utilization(self) -> float:
        """Mean over the dimensions weighted by their bandwidths (Themis, section 5)."""
        collective = self.schedule.request
        weights = [dimension.bandwidth_Bps if dimension.size > 1 else 0.0 for dimension in collective.dimensions]
        return float(np.average(self.dimension_utilization, weights=weights))

    @property
    def idle_s(self) -> Floats:
        """Seconds in which each dimension had no bytes to move while the collective was pending."""
        return self.time_s - self.busy_s


def per_dimension(stages: Stages, values: Floats, dimensions: int) -> Floats:
    """Sums over the stages of each dimension."""
    return np.bincount(stages.dimension, weights=values, minlength=dimensions).astype(np.float64)


def resolve_active(active: Active, stages: Stages, dimensions: int) -> int | None:
    """What ``auto`` means for a schedule: 1 where that costs next to nothing, otherwise no limit."""
    if active != "auto":
        return active
    # One chunk at a time leaves a link idle during latencies; where these add up to next to nothing it is exact
    # enough.
    latency = per_dimension(stages, stages.latency_s, dimensions)
    work = per_dimension(stages, stages.work_s, dimensions)
    return 1 if (latency <= LATENCY_SHARE * work.mean()).all() else None


def time_schedule(schedule: Schedule, *, rule: QueueRule = "fifo", active: Active = "auto") -> TimedSchedule:
    """Simulate a schedule.

    Args:
        rule: order within a dimension, unless the schedule fixes it; "astra-fifo" and "astra-scf" also count
            in whole nanoseconds, "fixed" needs a schedule that fixes it.
        active: chunks that a dimension works on at a time, the bandwidth shared; None lets latencies
            overlap without limit; "auto" chooses between 1 and that.

    Raises:
        UnknownName: there is no such rule.
    """
    if schedule.ranks is not None:
        rule = "fixed"
    elif rule == "fixed":
        raise BadInput("the schedule fixes none", where="order", remedy="give fifo or scf")
    stages = stages_of(schedule, whole_ns=rule.startswith("astra"))
    count = len(schedule.request.dimensions)
    # An order was made for a number of active chunks and is kept with that number.
    limit = schedule.active if rule == "fixed" and active == "auto" else resolve_active(active, stages, count)
    passages = stages.passages(rule)
    chart = play(passages, count, rule=rule, active=limit, ranks=schedule.ranks)
    ranks = order_of(chart, passages, count) if schedule.ranks is None else schedule.ranks
    return TimedSchedule(schedule=schedule, stages=stages, chart=chart, ranks=ranks, rule=rule, active=limit)
