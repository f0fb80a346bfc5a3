"""What is known of a scheduled collective, as a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.collectives.schedules.bound import Shares
from weft.collectives.schedules.per_rank import RankTimes
from weft.collectives.schedules.provision import Provision
from weft.collectives.schedules.timing import TimedSchedule, per_dimension
from weft.collectives.stages import STAGE_KINDS
from weft.results import Result
from weft.units import counted, format_seconds, format_si


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ScheduleResult(Result):
    """One timed schedule of a request, what bounds it, and what else was asked for.

    ``others`` are policies by name, ``counts`` the same for each of several numbers of chunks.
    """

    SCHEMA = "weft.schedule/1"
    INDENT = None

    timed: TimedSchedule
    shares: Shares
    ideal_s: float
    provision: Provision
    assumptions: tuple[str, ...] = ()
    ranks: RankTimes | None = None
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
        asked, stages = self.timed.schedule.request, self.timed.stages
        found = []
        for i in range(len(asked.dimensions)):
            kinds = np.unique(stages.kind[stages.dimension == i]).tolist()
            names = sorted({asked.stage(STAGE_KINDS[kind], i).algorithm for kind in kinds})
            found.append(" + ".join(names) or "-")
        return found

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a dimension, inner to outer: what it is, and how busy it was."""
        timed = self.timed
        dimensions = timed.schedule.request.dimensions
        sent = per_dimension(timed.stages, timed.stages.sent_bytes, len(dimensions))
        return [
            {
                "number": i + 1,
                "kind": one.kind,
                "size": one.size,
                "bandwidth_Bps": one.bandwidth_Bps,
                "step_latency_s": one.latency_s,
                "algorithm": algorithm,
                "sent_bytes": float(sent[i]),
                "busy_s": float(timed.busy_s[i]),
                "idle_s": float(timed.idle_s[i]),
                "utilization": float(timed.dimension_utilization[i]),
            }
            for i, (one, algorithm) in enumerate(zip(dimensions, self.algorithms(), strict=True))
        ]

    def _document(self) -> dict[str, Any]:
        schedule, asked = self.timed.schedule, self.timed.schedule.request
        document: dict[str, Any] = {
            "collective": asked.kind,
            "bytes": asked.bytes,
            "accelerators": asked.accelerators,
            "policy": schedule.policy,
            "order": self.timed.rule,
            "chunks": len(schedule),
            "active": self.timed.active,
            "time_s": self.time_s,
            "ideal_s": self.ideal_s,
            "bound_s": self.shares.bound_s,
            "bandwidth_bound_s": self.shares.bandwidth_s,
            "utilization": self.timed.utilization,
            "assumptions": [*asked.notes, *self.assumptions],
            "dimensions": self.to_dicts(),
            "orders": (schedule.orders + 1).tolist(),
        }
        if schedule.gathers is not None:
            document["gather_orders"] = (schedule.gathers + 1).tolist()
        document["chunk_bytes"] = schedule.chunk_bytes.tolist()
        document["provision"] = _provision_to_dict(self.provision)
        if self.ranks is not None:
            document["per_rank"] = {"time_s": self.ranks.time_s, "finish_s": self.ranks.finish_s.tolist()}
        if self.others is not None:
            document["policies"] = _policies_to_list(self.others)
        if self.counts:
            document["chunk_counts"] = [
                {"chunks": count, "policies": _policies_to_list(found)} for count, found in self.counts.items()
            ]
        return document

    def _facts(self) -> Sequence[str]:
        asked = self.timed.schedule.request
        what = f"{asked.kind} of {format_si(asked.bytes, 'B')} on {counted(asked.accelerators, 'accelerator')}"
        policy = f"{self.timed.schedule.policy}, {counted(len(self.timed.schedule), 'chunk')}"
        return (what, policy, f"{format_seconds(self.time_s)} (bound {format_seconds(self.bound_s)})")


def _policies_to_list(found: Mapping[str, TimedSchedule]) -> list[dict[str, Any]]:
    return [
        {"policy": name, "chunks": len(one.schedule), "time_s": one.time_s, "utilization": one.utilization}
        for name, one in found.items()
    ]


def _provision_to_dict(found: Provision) -> dict[str, Any]:
    return {
        "pairs": [
            {
                "inner": pair.inner + 1,
                "outer": pair.outer + 1,
                "needed_Bps": pair.needed_Bps,
                "bandwidth_Bps": pair.Bps,
                "verdict": pair.verdict,
            }
            for pair in found.pairs
        ],
        "just_enough_Bps": found.just_enough_Bps.tolist(),
        "too_slow": [i + 1 for i in found.slow],
        "enough_Bps": None if found.enough_Bps is None else found.enough_Bps.tolist(),
    }
