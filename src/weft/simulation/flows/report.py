"""A simulated scenario with what was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.fabric.spec import Floats
from weft.fabric.traffic import Traffic
from weft.results import Result
from weft.simulation.flows.records import Simulation
from weft.units import counted, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ScenarioReport(Result):
    """Flows on links of ``capacity_Bps``, and when they ended."""

    SCHEMA = "weft.simulate/1"

    capacity_Bps: Floats
    traffic: Traffic
    result: Simulation

    @property
    def makespan_s(self) -> float:
        return self.result.makespan_s

    @property
    def utilization(self) -> Floats:
        """Share of what each link could have carried until the end."""
        able = self.capacity_Bps * self.result.makespan_s
        return np.divide(self.result.link_bytes, able, out=np.zeros_like(able), where=able > 0)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every flow, in order."""
        found = self.result
        columns = zip(found.begin_s.tolist(), found.completion_s.tolist(), found.bottleneck.tolist(), strict=True)
        return [{"begin_s": begin, "completion_s": end, "bottleneck_link": link} for begin, end, link in columns]

    def _document(self) -> dict[str, Any]:
        links = zip(self.result.link_bytes.tolist(), self.utilization.tolist(), strict=True)
        return {
            "makespan_s": self.makespan_s,
            "flows": self.to_dicts(),
            "links": [{"bytes": carried, "utilization": share} for carried, share in links],
        }

    def _facts(self) -> Sequence[str]:
        flows, links = len(self.traffic), len(self.capacity_Bps)
        return (
            f"{counted(flows, 'flow')} over {counted(links, 'link')}",
            f"makespan {format_seconds(self.makespan_s)}",
        )
